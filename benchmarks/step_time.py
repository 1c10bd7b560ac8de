"""Measure ``optimizer.step()`` against the fastest equivalent optimizer, as a ratio.

Both optimizers of a pair run in this process on tensors of the same shapes, taking turns; a turn is
ten steps (two whole rounds of refreshes for kronecker and SOAP), and the reported value is the
median over the turns of the ratio of adjacent turns. Tensors are made anew for every repeat, since
times depend on where they lie. Absolute times depend on the machine.

    python benchmarks/step_time.py                      # all pairs, sets and numbers of threads
    python benchmarks/step_time.py --turns 3 --only kronecker --sets tiny mixed --threads 1
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytorch_optimizer
import torch
from torch import nn

from badm import BADM, metrics
from badm.bench.methods.muon import FullPrecisionMuon
from badm.metrics.eigenbases import REFRESH_EVERY

STEPS_PER_TURN = 2 * REFRESH_EVERY

# Sets with more elements have fewer turns in the metrics of matrices.
MANY_ELEMENTS = 1_000_000

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Pair:
    name: str
    theirs_name: str
    theirs: Make
    bar: float
    matrices_only: bool = False

    def ours(self, params: list[nn.Parameter]) -> BADM:
        return BADM(params, metric=self.name, fused=True)


def against_soap(metric: str, bar: float) -> Pair:
    """Both refresh every basis once in as many steps."""
    return Pair(
        metric,
        f"pytorch_optimizer.SOAP(precondition_frequency={REFRESH_EVERY})",
        lambda p: pytorch_optimizer.SOAP(p, weight_decay=0.0, precondition_frequency=REFRESH_EVERY),
        bar,
        matrices_only=True,
    )


PAIRS = [
    Pair(
        "euclidean",
        "torch.optim.SGD(momentum=0.9, fused=True)",
        lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
        1.0,
    ),
    Pair(
        "diagonal",
        "torch.optim.Adam(fused=True)",
        lambda p: torch.optim.Adam(p, fused=True),
        1.0,
    ),
    # Its products are in bfloat16, which most CPUs emulate.
    Pair(
        "spectral",
        "torch.optim.Muon()",
        lambda p: torch.optim.Muon(p, weight_decay=0.0),
        0.9,
        matrices_only=True,
    ),
    Pair(
        "spectral",
        "badm.bench.methods.muon.FullPrecisionMuon()",
        lambda p: FullPrecisionMuon(p, weight_decay=0.0),
        1.0,
        matrices_only=True,
    ),
    against_soap("kronecker", 0.7),
]
PAIRS += [
    against_soap(name, 1.0)
    for name in metrics.names()
    if name not in {pair.name for pair in PAIRS}
    and not metrics.find(name).applies_to(torch.ones(2))
]


def transformer(matrices_only: bool) -> list[tuple[int, ...]]:
    """Eight layers of width 512, 25 million parameters."""
    matrices = [(512, 512)] * 4 + [(2048, 512), (512, 2048)]
    vectors = [(512,)] * 7 + [(2048,), (512,), (512,)]
    return (matrices if matrices_only else matrices + vectors) * 8


def tiny(matrices_only: bool) -> list[tuple[int, ...]]:
    """Two thousand small tensors, where the cost is overhead per tensor."""
    return [(8, 8)] * 2000 if matrices_only else [(8, 8), (16,)] * 1000


def mixed(matrices_only: bool) -> list[tuple[int, ...]]:
    """Matrices, vectors and an embedding, which the metrics of matrices do not get."""
    matrices = [(512, 512)] * 20 + [(2048, 512)] * 8
    return matrices if matrices_only else [*matrices, *[(512,)] * 40, (20_000, 128)]


def convolutional(matrices_only: bool) -> list[tuple[int, ...]]:
    """ResNet-20, 270 thousand parameters; Muon takes kernels as matrices."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    channels = 16
    for width in (16, 32, 64):
        for _ in range(6):
            shapes += [(width, channels, 3, 3), (width,), (width,)]
            channels = width
    shapes += [(10, channels), (10,)]
    if not matrices_only:
        return shapes
    return [(shape[0], math.prod(shape[1:])) for shape in shapes if len(shape) > 1]


def embedding(matrices_only: bool) -> list[tuple[int, ...]]:
    """An embedding of 50,000 words before two layers of width 256, which are a tenth of it."""
    matrices = [(256, 256)] * 4 + [(1024, 256), (256, 1024)]
    vectors = [(256,)] * 7 + [(1024,), (256,), (256,)]
    return matrices * 2 if matrices_only else [(50_000, 256), *(matrices + vectors) * 2]


SETS = {
    "transformer": transformer,
    "tiny": tiny,
    "mixed": mixed,
    "convolutional": convolutional,
    "embedding": embedding,
}


def parameters(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator)
    return made


def turn(optimizer: torch.optim.Optimizer) -> float:
    start = time.perf_counter()
    for _ in range(STEPS_PER_TURN):
        optimizer.step()
    return (time.perf_counter() - start) / STEPS_PER_TURN


def times_in_turns(
    pair: Pair, shapes: list[tuple[int, ...]], turns: int
) -> list[tuple[float, float]]:
    """Return the seconds per step of both optimizers in every turn."""
    ours, theirs = pair.ours(parameters(shapes)), pair.theirs(parameters(shapes))
    for optimizer in (ours, theirs):
        optimizer.step()  # state is made at the first step
        turn(optimizer)
    times = []
    for number in range(turns):
        if number % 2:  # the second finds the caches filled with other tensors
            times.append((turn(ours), turn(theirs)))
        else:
            times.append((turn(theirs), turn(ours))[::-1])
    return times


def compare(
    pair: Pair, shapes: list[tuple[int, ...]], turns: int, repeats: int
) -> dict[str, object]:
    times = [each for _ in range(repeats) for each in times_in_turns(pair, shapes, turns)]
    ratios = sorted(a / b for a, b in times)
    return {
        "ours": f"BADM(metric={pair.name!r}, fused=True)",
        "theirs": pair.theirs_name,
        "tensors": len(shapes),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(ratios[0], 3),
        "ratio_max": round(ratios[-1], 3),
        "bar": pair.bar,
        "turns": len(times),
        "ours_ms_per_step": round(1e3 * statistics.median(a for a, _ in times), 3),
        "theirs_ms_per_step": round(1e3 * statistics.median(b for _, b in times), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--turns", type=int, help="turns per repeat (default: depends on the set and the metric)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="times to make the tensors (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        help="measure one metric only",
        choices=list(dict.fromkeys(pair.name for pair in PAIRS)),
    )
    parser.add_argument(
        "--sets", nargs="+", choices=list(SETS), default=list(SETS), help="sets of tensors to use"
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=int,
        default=sorted({1, torch.get_num_threads()}, reverse=True),
        help="numbers of torch's threads (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    rows = []
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for set_name in arguments.sets:
            for pair in PAIRS:
                if arguments.only not in (None, pair.name):
                    continue
                shapes = SETS[set_name](pair.matrices_only)
                slow = pair.matrices_only and sum(map(math.prod, shapes)) > MANY_ELEMENTS
                turns = arguments.turns or (2 if slow else 10)
                row = {"set": set_name, "metric": pair.name, "threads": threads}
                row |= compare(pair, shapes, turns, arguments.repeats)
                rows.append(row)
                print(
                    f"{set_name:13} {pair.name:18} threads {threads}  {row['ratio']:.3f} × "
                    f"{pair.theirs_name} [{row['ratio_min']}, {row['ratio_max']}]  bar {pair.bar}",
                    flush=True,
                )
    if arguments.output:
        report = {
            "torch": torch.__version__,
            "pytorch_optimizer": version("pytorch_optimizer"),
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "threads": arguments.threads,
            "repeats": arguments.repeats,
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

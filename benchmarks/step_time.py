"""Measure ``optimizer.step()`` against the fastest equivalent optimizer, as a ratio.

Both optimizers of a pair run in this process on tensors of the same shapes, taking turns; a turn is
ten steps, for matrices one, or as many as it takes to refresh all bases. The reported value is the
median over the turns of the ratio of adjacent turns. Tensors are made anew every ten turns, since
times depend on where they lie. A row takes a few seconds, where a step is slow a single turn.
Absolute times depend on the machine.

    python benchmarks/step_time.py                      # all pairs, sets and numbers of threads
    python benchmarks/step_time.py --seconds 30 --only kronecker --sets tiny mixed --threads 1
    python benchmarks/step_time.py -o FILE --resume     # keep the rows that FILE has
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytorch_optimizer
import torch
from torch import nn

from badm import BADM, metrics
from badm.bench.methods.muon import FullPrecisionMuon
from badm.metrics.eigenbases import REFRESH_EVERY

TURNS_PER_REPEAT = 10

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Pair:
    name: str
    theirs_name: str
    theirs: Make
    bar: float
    matrices_only: bool = False
    steps_per_turn: int = 10
    in_bfloat16: bool = False  # our products of float32 matrices, where the processor can

    @property
    def ours_name(self) -> str:
        allowed = ", bfloat16 allowed" if self.in_bfloat16 else ""
        return f"BADM(metric={self.name!r}, fused=True){allowed}"

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
        steps_per_turn=REFRESH_EVERY,
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
    # Its products are in bfloat16 always, which CPUs without instructions for it emulate. Ours are
    # if torch.set_float32_matmul_precision("medium") allows it.
    *(
        Pair(
            "spectral",
            "torch.optim.Muon()",
            lambda p: torch.optim.Muon(p, weight_decay=0.0),
            0.9,
            matrices_only=True,
            steps_per_turn=1,
            in_bfloat16=in_bfloat16,
        )
        for in_bfloat16 in (True, False)
    ),
    Pair(
        "spectral",
        "badm.bench.methods.muon.FullPrecisionMuon()",
        lambda p: FullPrecisionMuon(p, weight_decay=0.0),
        0.9,
        matrices_only=True,
        steps_per_turn=1,
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


def turn(optimizer: torch.optim.Optimizer, steps: int) -> float:
    """Return the seconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    return (time.perf_counter() - start) / steps


def times_in_turns(
    pair: Pair, shapes: list[tuple[int, ...]], deadline: float
) -> list[tuple[float, float]]:
    """Return the seconds per step of both optimizers in every turn until the deadline."""
    ours, theirs = pair.ours(parameters(shapes)), pair.theirs(parameters(shapes))
    for optimizer in (ours, theirs):
        optimizer.step()  # state is made at the first step
    times: list[tuple[float, float]] = []
    while not times or (len(times) < TURNS_PER_REPEAT and time.perf_counter() < deadline):
        if len(times) % 2:  # the second finds the caches filled with other tensors
            first = turn(ours, pair.steps_per_turn)
            times.append((first, turn(theirs, pair.steps_per_turn)))
        else:
            first = turn(theirs, pair.steps_per_turn)
            times.append((turn(ours, pair.steps_per_turn), first))
    return times


def compare(pair: Pair, shapes: list[tuple[int, ...]], seconds: float) -> dict[str, object]:
    torch.set_float32_matmul_precision("medium" if pair.in_bfloat16 else "highest")
    deadline = time.perf_counter() + seconds
    times: list[tuple[float, float]] = []
    while not times or time.perf_counter() < deadline:
        times += times_in_turns(pair, shapes, deadline)
    ratios = sorted(a / b for a, b in times)
    return {
        "ours": pair.ours_name,
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


def measured(file: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a file that was written with ``-o``."""
    return json.loads(file.read_text("utf-8"))["rows"] if file and file.exists() else []


def cases(arguments: argparse.Namespace) -> Iterator[tuple[int, str, Pair]]:
    for threads in arguments.threads:
        for set_name in arguments.sets:
            for pair in PAIRS:
                if arguments.only in (None, pair.name):
                    yield threads, set_name, pair


def processor() -> str:
    """Return the name that Linux knows, as far as it is known."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text("utf-8").splitlines() if cpus.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="seconds per row (default: %(default)s)"
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
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write, row by row")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the JSON file")
    arguments = parser.parse_args()

    rows = measured(arguments.output) if arguments.resume else []
    done = {(row["threads"], row["set"], row["ours"], row["theirs"]) for row in rows}
    for threads, set_name, pair in cases(arguments):
        if (threads, set_name, pair.ours_name, pair.theirs_name) in done:
            continue
        torch.set_num_threads(threads)
        row: dict[str, Any] = {"set": set_name, "metric": pair.name, "threads": threads}
        row |= compare(pair, SETS[set_name](pair.matrices_only), arguments.seconds)
        rows.append(row)
        print(
            f"{set_name:13} threads {threads}  {pair.ours_name}  {row['ratio']:.3f} × "
            f"{pair.theirs_name} [{row['ratio_min']}, {row['ratio_max']}]  bar {pair.bar}",
            flush=True,
        )
        if arguments.output:
            report = {
                "torch": torch.__version__,
                "pytorch_optimizer": version("pytorch_optimizer"),
                "python": platform.python_version(),
                "processor": processor(),
                "threads": arguments.threads,
                "seconds per row": arguments.seconds,
                "rows": rows,
            }
            arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

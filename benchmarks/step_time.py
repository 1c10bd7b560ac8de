"""Measure ``optimizer.step()`` against the fastest equivalent optimizer, as a ratio.

Both optimizers of a pair run in this process on tensors of the same shapes, taking turns; a turn is
ten steps (a whole round of refreshes for kronecker and SOAP), and the reported value is the
median over the turns of the ratio of adjacent turns. Absolute times depend on the machine.

    python benchmarks/step_time.py                      # all pairs, both sets of tensors
    python benchmarks/step_time.py --turns 3 --only kronecker
"""

from __future__ import annotations

import argparse
import json
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

from badm import BADM

STEPS_PER_TURN = 10

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Pair:
    name: str
    ours: Make
    theirs_name: str
    theirs: Make
    bar: float
    matrices_only: bool = False


PAIRS = (
    Pair(
        "euclidean",
        lambda p: BADM(p, metric="euclidean", fused=True),
        "torch.optim.SGD(momentum=0.9, fused=True)",
        lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
        1.05,
    ),
    Pair(
        "diagonal",
        lambda p: BADM(p, metric="diagonal", fused=True),
        "torch.optim.Adam(fused=True)",
        lambda p: torch.optim.Adam(p, fused=True),
        1.05,
    ),
    Pair(
        "spectral",
        lambda p: BADM(p, metric="spectral", fused=True),
        "torch.optim.Muon()",
        lambda p: torch.optim.Muon(p, weight_decay=0.0),
        0.9,
        matrices_only=True,
    ),
    Pair(
        "kronecker",
        lambda p: BADM(p, metric="kronecker", fused=True),
        "pytorch_optimizer.SOAP()",
        lambda p: pytorch_optimizer.SOAP(p, weight_decay=0.0),
        0.7,
        matrices_only=True,
    ),
)


def transformer(matrices_only: bool) -> list[tuple[int, ...]]:
    """Eight layers of width 512, 25 million parameters."""
    matrices = [(512, 512)] * 4 + [(2048, 512), (512, 2048)]
    vectors = [(512,)] * 7 + [(2048,), (512,), (512,)]
    return (matrices if matrices_only else matrices + vectors) * 8


def tiny(matrices_only: bool) -> list[tuple[int, ...]]:
    """Two thousand small tensors, where the cost is overhead per tensor."""
    return [(8, 8)] * 2000 if matrices_only else [(8, 8), (16,)] * 1000


SETS = {"transformer": transformer, "tiny": tiny}


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
    return time.perf_counter() - start


def compare(pair: Pair, shapes: list[tuple[int, ...]], turns: int) -> dict[str, object]:
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
    ratios = sorted(a / b for a, b in times)
    return {
        "ours": f"BADM(metric={pair.name!r}, fused=True)",
        "theirs": pair.theirs_name,
        "tensors": len(shapes),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(ratios[0], 3),
        "ratio_max": round(ratios[-1], 3),
        "bar": pair.bar,
        "turns": turns,
        "ours_ms_per_step": round(1e3 * statistics.median(a for a, _ in times) / STEPS_PER_TURN, 3),
        "theirs_ms_per_step": round(
            1e3 * statistics.median(b for _, b in times) / STEPS_PER_TURN, 3
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--turns", type=int, default=None, help="turns per pair (default: depends on the set)"
    )
    parser.add_argument(
        "--only", help="measure one metric only", choices=[pair.name for pair in PAIRS]
    )
    parser.add_argument("--set", choices=list(SETS), help="measure one set of tensors only")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="threads of torch (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    for set_name, shapes_of in SETS.items():
        for pair in PAIRS:
            if arguments.only not in (None, pair.name) or arguments.set not in (None, set_name):
                continue
            slow = pair.matrices_only and set_name == "transformer"
            turns = arguments.turns or (5 if slow else 31)
            row = {"set": set_name, "metric": pair.name}
            row |= compare(pair, shapes_of(pair.matrices_only), turns)
            rows.append(row)
            print(
                f"{set_name:12} {pair.name:10} {row['ratio']:.3f} × {pair.theirs_name} "
                f"[{row['ratio_min']}, {row['ratio_max']}]  bar {pair.bar}",
                flush=True,
            )
    if arguments.output:
        report = {
            "torch": torch.__version__,
            "pytorch_optimizer": version("pytorch_optimizer"),
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "threads": arguments.threads,
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

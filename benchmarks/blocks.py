"""Compare the kronecker metrics with whole sides and with blocks as long as the short side.

Trains tasks of the suite for three eighths of their budgets, by default with three seeds, and
counts buffers of state.

    python benchmarks/blocks.py -o results/blocks.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from suite_runs import train

from badm.bench import methods, tasks
from badm.bench.method import package_versions
from badm.metrics import eigenbases

TASKS = ("image-cifar10", "image-svhn", "bbbp", "char-imdb")
METHOD = "badm-kronecker-spectral"
PART = 3 / 8


@contextmanager
def whole_sides() -> Iterator[None]:
    before = eigenbases.SHORTEST
    eigenbases.SHORTEST = eigenbases.LONGEST
    try:
        yield
    finally:
        eigenbases.SHORTEST = before


def measure(task: str, seeds: int) -> dict[str, Any]:
    method = methods.find(METHOD)
    found = []
    with TemporaryDirectory() as folder:  # whole and split are the same run to a store
        for seed in range(seeds):
            found.append(train(task, method, {}, PART, seed, Path(folder)))
    return {
        "score": tasks.find(task).task.score.name,
        "scores": [one.score for one in found],
        "mean": statistics.fmean(one.score for one in found),
        "state_bytes": found[0].state_bytes,
        "step_ms": statistics.median(one.step_ms for one in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="seeds (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = {}
    for task in TASKS:
        split = measure(task, options.seeds)
        with whole_sides():
            whole = measure(task, options.seeds)
        rows[task] = {"blocks": split, "whole": whole}
        print(
            f"{task}, {split['score']}: blocks {split['mean']:.4f}, whole {whole['mean']:.4f}; "
            f"state {split['state_bytes'] / whole['state_bytes']:.2f} times, "
            f"a step {split['step_ms'] / whole['step_ms']:.2f} times",
            flush=True,
        )
    if options.output:
        settings = {"method": METHOD, "part": PART, "seeds": options.seeds}
        content = {**settings, "versions": package_versions(), "tasks": rows}
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Measure how far the steps of optax and Keras are from those of torch.

Every metric, dtype, decay and schedule, 100 steps each, from the same weights and gradients: the
largest difference of a weight after steps 1, 2, 10, 50 and 100, relative to the largest weight of
its tensor. Torch's own loop stands beside, as a measure of what rounding alone does; "wide" cases
have matrices whose eigenvectors float32 does not determine. Of a file that exists, what is not
measured again is kept.

    python benchmarks/adapters.py -o results/adapters.json
    python benchmarks/adapters.py --only optax --cases quick
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "jax-and-keras.md"
sys.path.insert(0, str(ROOT))

from tests.helpers import trajectories  # noqa: E402
from tests.helpers.trajectories import (  # noqa: E402
    ALL,
    NOISY,
    QUICK,
    Case,
    deviation,
    in_torch,
)

CASES = {
    "all": (*ALL, *NOISY),
    "cross": tuple(case for case in ALL if case.weight_decay and case.scheduled),
    "quick": QUICK,
}


def deviations(program: str, cases: Sequence[Case], home: str) -> dict[str, float]:
    """Return the deviation of a program in every case; of torch's own loop for "torch-loop"."""
    if program == "torch-loop":
        return {c.name: deviation(in_torch(c, foreach=False), in_torch(c)) for c in cases}
    found = trajectories.run(program, cases, home)
    return {case.name: deviation(found[case.name], in_torch(case)) for case in cases}


def largest(row: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the largest deviation for each metric and dtype, wide matrices left out."""
    found: dict[str, dict[str, float]] = {}
    for name, x in row.items():
        metric, dtype, _, _, *wide = name.split(", ")
        if not wide:
            of_metric = found.setdefault(metric, {})
            of_metric[dtype] = max(x, of_metric.get(dtype, 0.0))
    return found


def versions() -> Iterator[tuple[str, str]]:
    for name in ("torch", "jax", "optax", "keras", "tensorflow_cpu", "numpy"):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _read(file: Path) -> dict[str, Any]:
    """Return what a file has; programs and cases that are not run again are kept."""
    if not file.exists():
        return {"deviations": {}, "versions": {}}
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report


def table(largest_of: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the largest deviations as the table of docs/jax-and-keras.md."""
    dtypes = ("float64", "float32", "bfloat16", "float16")
    lines = ["| in | metric | " + " | ".join(dtypes) + " |", "|---" * (2 + len(dtypes)) + "|"]
    for name, row in largest_of.items():
        for metric, of in row.items():
            cells = [f"{of[dtype]:.0e}" if dtype in of else "" for dtype in dtypes]
            lines.append(" ".join(f"| {cell}".rstrip() for cell in (name, metric, *cells)) + " |")
    return "\n".join(lines) + "\n"


def write_table(page: Path, text: str) -> None:
    """Put a table between the marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- deviations -->\n")
    _, _, after = rest.partition("<!-- /deviations -->")
    page.write_text(
        f"{before}<!-- deviations -->\n{text}<!-- /deviations -->{after}", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="comma-separated names of programs")
    parser.add_argument("--cases", choices=CASES, default="all", help="default: %(default)s")
    parser.add_argument(
        "-o", "--output", type=Path, help="JSON file to write, and the page's table"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    installed = [
        name
        for name, packages in trajectories.PACKAGES.items()
        if all(find_spec(package) for package in packages)
    ]
    names = arguments.only.split(",") if arguments.only else ["torch-loop", *installed]
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as home:
        for name in names:
            found[name] = deviations(name, CASES[arguments.cases], home)
            print(name, flush=True)
            for metric, row in largest(found[name]).items():
                print(f"  {metric:20}", *(f"{dtype} {x:.1e}" for dtype, x in row.items()))
    if arguments.output:
        old = _read(arguments.output)
        before = old["deviations"]
        for name, row in found.items():
            before[name] = {
                **before.get(name, {}),
                **{case: float(f"{x:.2e}") for case, x in row.items()},
            }
        report: dict[str, Any] = {
            "versions": {**old.get("versions", {}), **dict(versions())},
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "steps": trajectories.STEPS,
            "lr": trajectories.LR,
            "shapes": [*trajectories.SHAPES, trajectories.WIDE],
            "largest": {name: largest(row) for name, row in before.items()},
            "deviations": before,
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        write_table(PAGE, table(report["largest"]))


if __name__ == "__main__":
    main()

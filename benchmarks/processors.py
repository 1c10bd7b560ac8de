"""Whether numbers repeat bit for bit, and how far they differ on another kind of processor.

    python benchmarks/processors.py          # results/processors.json and .md, ten minutes

A run is repeated in processes of their own, with libraries that are told to do without instructions
of this processor: so they compute as they would on one that does not have them. Compared are the
losses on the way and the test score with those of this processor as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from badm.bench import tasks
from badm.bench.engine.environment import environment
from badm.bench.records.runs import Run, read_run

METHOD = "badm"
SEED = 0


@dataclass(frozen=True)
class Variant:
    """What the libraries are told."""

    name: str
    text: str
    variables: dict[str, str]


@dataclass(frozen=True)
class Studied:
    task: str
    scale: str
    steps: int


AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
VARIANTS = (
    Variant("again", "as it is, once more", {}),
    Variant("torch: avx2", "torch's own kernels with AVX2 alone", {"ATEN_CPU_CAPABILITY": "avx2"}),
    Variant("torch: default", "without AVX", {"ATEN_CPU_CAPABILITY": "default"}),
    Variant("oneDNN: AVX2", "convolutions with AVX2 alone", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Variant("MKL: compatible", "products in an order that every processor has",
            {"MKL_CBWR": "COMPATIBLE"}),
    Variant("all: AVX2", "a processor without AVX-512", AVX2),
)  # fmt: skip
STUDIED = (Studied("digits", "cpu", 100), Studied("image-cmaterdb", "cpu", 20))


def train(studied: Studied, variables: dict[str, str], runs: Path) -> Run:
    """Do the run in a process of its own."""
    command = [sys.executable, "-m", "badm", "run", studied.task, "--method", METHOD]
    command += ["--seed", str(SEED), "--scale", studied.scale, "--steps", str(studied.steps)]
    subprocess.run(
        [*command, "--runs", str(runs), "--quiet"], env={**os.environ, **variables}, check=True
    )
    (path,) = runs.glob("*/*.jsonl")
    return read_run(path)


def losses(run: Run) -> dict[int, float]:
    return {
        point.step: value
        for point in run.points
        for value in (point.losses or {}).values()
        if value is not None
    }


def row(studied: Studied, variant: Variant, own: Run, base: Run) -> dict[str, Any]:
    assert own.result is not None
    assert base.result is not None
    mine, theirs = losses(own), losses(base)
    apart = [step for step in mine if mine[step] != theirs[step]]
    relative = [abs(mine[step] - theirs[step]) / abs(theirs[step]) for step in mine]
    name = tasks.find(studied.task).task.score.name
    scores = [(one.result.test or {})[name] for one in (own, base) if one.result is not None]
    return {
        "task": studied.task,
        "steps": studied.steps,
        "variant": variant.name,
        "text": variant.text,
        "variables": variant.variables,
        "bitwise": own.result.weights == base.result.weights,
        "first_step_apart": min(apart, default=None),
        "largest_relative_difference_of_loss": max(relative),
        "test_score": scores[0],
        "test_score_as_it_is": scores[1],
    }


def markdown(made: dict[str, Any]) -> str:
    lines = [
        "# The same run on other kinds of processors",
        "",
        "Made by `python benchmarks/processors.py`. Libraries are told to do without instructions "
        f"of the processor ({made['environment']['processor']}); compared with it as it is.",
        "",
        "| task | told | equal bit for bit | first step apart | loss apart by at most | test score "
        "| as it is |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for one in made["rows"]:
        show = tasks.find(one["task"]).task.score.format
        first = "–" if one["first_step_apart"] is None else one["first_step_apart"]
        lines.append(
            f"| {one['task']}, {one['steps']} steps | {one['text']} | "
            f"{'yes' if one['bitwise'] else 'no'} | {first} | "
            f"{100 * one['largest_relative_difference_of_loss']:.2g} % | "
            f"{show(one['test_score'])} | {show(one['test_score_as_it_is'])} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("results/processors.json"))
    arguments = parser.parse_args()
    rows = []
    for studied in STUDIED:
        with tempfile.TemporaryDirectory() as folder:
            base = train(studied, {}, Path(folder) / "base")
            for number, variant in enumerate(track(VARIANTS, studied.task)):
                own = train(studied, variant.variables, Path(folder) / str(number))
                rows.append(row(studied, variant, own, base))
    made = {"method": METHOD, "environment": environment(), "rows": rows}
    arguments.output.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(made))
    print(markdown(made))


if __name__ == "__main__":
    main()

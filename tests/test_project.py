"""What the project promises around its code: versions, commands, dependencies, the example."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import badm

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
BENCH_ONLY = (
    "matplotlib",
    "optuna",
    "plotly",
    "pytorch_optimizer",
    "rich",
    "schedulefree",
    "scipy",
    "sklearn",
    "typer",
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
    )


def test_the_version_is_the_same_everywhere() -> None:
    (in_project,) = re.findall(r'^version = "(.+)"$', read("pyproject.toml"), re.M)
    (in_citation,) = re.findall(r"^version: (.+)$", read("CITATION.cff"), re.M)
    assert badm.__version__ == in_project == in_citation


def test_constraints_pin_torch_and_every_direct_dependency_of_the_tested_extras() -> None:
    constraints = read("constraints.txt")
    assert re.search(r"^torch==2\.13\.0$", constraints, re.M)
    pinned = set(re.findall(r"^([\w-]+)==[\d.]+(?:;.*)?$", constraints, re.M))
    project = read("pyproject.toml")
    for extra in ("bench", "postgresql", "dev"):
        (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", project, re.M | re.S)
        names = set(re.findall(r'"([\w-]+)', listed))
        assert names
        assert names <= pinned, f"constraints.txt lacks {sorted(names - pinned)}"


def test_importing_badm_imports_torch_and_nothing_of_the_extras() -> None:
    result = python("-c", "import badm, sys; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    imported = {name.partition(".")[0] for name in result.stdout.split()}
    assert "torch" in imported
    assert not imported & set(BENCH_ONLY)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_readme_names_the_commands_of_the_makefile(target: str) -> None:
    assert f"make {target}" in read("README.md")
    assert re.search(rf"^{target}:", read("Makefile"), re.M)


def test_the_badm_command_is_installed() -> None:
    command = Path(sysconfig.get_path("scripts")) / "badm"
    result = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "certify" in result.stdout


def test_the_example_trains_to_a_good_accuracy() -> None:
    result = python(EXAMPLES / "train.py")
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith("epoch 10")
    assert float(last.split()[-1].rstrip("%")) > 97


@pytest.mark.distributed
def test_the_example_of_replicas_trains_on_two_ranks() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    result = python(*launcher, EXAMPLES / "replicas.py")
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert line.startswith("2 ranks, 24 meetings: ")
    assert float(line.split()[4].rstrip("%")) > 90


def rows_of_readme(marker: str) -> tuple[list[str], dict[str, list[str]]]:
    """The cells of a table of the README: its head, and its lines by the first of them."""
    (block,) = re.findall(rf"<!-- {marker} -->(.*)<!-- /{marker} -->", read("README.md"), re.S)
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("|")]
    head, _, *rest = ([cell.strip("* ") for cell in line] for line in lines)
    return head, {cells[0]: cells for cells in rest}


def steps_of(row: dict[str, Any]) -> str:
    steps = (row["steps_to_target"] or {"value": None})["value"]
    return "never" if steps is None else f"{steps:g}"


@pytest.mark.parametrize(
    ("file", "marker", "show"),
    [
        ("digits", "digits", lambda value: f"{100 * value:.1f} %"),
        ("tuned/mlm-pretrain", "words", lambda value: f"{value:.3f}"),
    ],
)
def test_a_table_of_the_readme_is_the_measured_one(
    file: str, marker: str, show: Callable[[float], str]
) -> None:
    measured = {row["method"]: row for row in json.loads(read(f"results/{file}.json"))["rows"]}
    _, shown = rows_of_readme(marker)
    assert shown.keys() == measured.keys()
    assert len(shown) == 14
    for method, (_, lr, score, steps) in shown.items():
        row = measured[method]
        assert lr == f"{row['setting']['lr']:.3g}"
        ended = show(row["test"]["value"]) if row["test"] else row["status"]
        assert re.match(r"[\w.]+( %)?", score)[0] == ended  # type: ignore[index]
        assert steps.split()[0].strip("*") == steps_of(row)


@pytest.mark.parametrize(
    ("task", "name"),
    [("image-cifar10", "CIFAR-10"), ("image-svhn", "SVHN"), ("image-cmaterdb", "CMATERdb")],
)
def test_the_tuned_table_of_the_readme_is_the_measured_one(task: str, name: str) -> None:
    measured = json.loads(read(f"results/tuned/{task}.json"))["rows"]
    head, shown = rows_of_readme("tuned")
    column = next(i for i, cell in enumerate(head) if cell.startswith(name))
    assert shown.keys() == {row["method"] for row in measured}
    assert len(shown) == 14
    for row in measured:
        cells = shown[row["method"]]
        assert cells[column].split()[0].strip("*") == steps_of(row)
        assert cells[column + 1] == f"{100 * row['test']['value']:.1f} %"


def test_figures_of_replicas_in_the_docs_are_the_measured_ones() -> None:
    page = read("docs/replicas.md")
    for row in json.loads(read("results/heterogeneous.json"))["rows"]:
        low, high = (100 * end for end in (min(row["test"]), max(row["test"])))
        mean = 100 * sum(row["test"]) / len(row["test"])
        assert re.search(rf"{mean:.1f} %(\*\*)? \({low:.1f}–{high:.1f}\)", page), row["method"]
    for row in json.loads(read("results/communication.json"))["rows"]:
        shown = re.search(rf"^\| {re.escape(row['method'])} \| (.*) \|$", page, re.M)
        assert shown is not None, row["method"]
        sent, loss, *_, slow = (cell.strip("* ") for cell in shown[1].split("|"))
        assert sent == f"{row['bytes per step'] / 1000:.1f}"
        assert loss == f"{row['loss']:.4f}"
        steps = row["steps to target"]
        seconds = None if steps is None else steps * row["seconds per step"]["10"]
        assert slow == ("never" if seconds is None else f"{seconds:.1f}")

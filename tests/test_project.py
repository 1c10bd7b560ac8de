"""What the project promises around its code: versions, commands, dependencies, the example."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import badm
from tests.helpers import ROOT

EXAMPLES = ROOT / "examples"
PAGES = {"tutorial": ROOT / "docs" / "tutorial" / "README.md"}  # of results without one beside them
OF_EXTRAS = (
    "flax",
    "heavyball",
    "jax",
    "keras",
    "matplotlib",
    "optax",
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
    for extra in ("bench", "postgresql", "docs", "dev"):
        (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", project, re.M | re.S)
        names = set(re.findall(r'"([\w-]+)', listed))
        assert names
        assert names <= pinned, f"constraints.txt lacks {sorted(names - pinned)}"


def test_bench_holds_rooms_and_beside_them_the_contracts_and_the_helpers_alone() -> None:
    files = {path.name for path in (ROOT / "src" / "badm" / "bench").glob("*.py")}
    contracts = {"task.py", "training_function.py", "method.py", "paper.py"}
    helpers = {"errors.py", "files.py", "formatting.py", "names.py"}
    assert files == contracts | helpers | {"__init__.py"}


@pytest.mark.slow
def test_importing_badm_imports_torch_and_nothing_of_the_extras() -> None:
    result = python("-c", "import sys; from badm import *; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    imported = {name.partition(".")[0] for name in result.stdout.split()}
    assert "torch" in imported
    assert not imported & set(OF_EXTRAS)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_readme_names_the_commands_of_the_makefile(target: str) -> None:
    assert f"make {target}" in read("README.md")
    assert re.search(rf"^{target}:", read("Makefile"), re.M)


@pytest.mark.slow
def test_the_badm_command_is_installed() -> None:
    command = Path(sysconfig.get_path("scripts")) / "badm"
    result = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "certify" in result.stdout


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("marker", "file"),
    [
        ("rivals", "rivals"),
        ("fashion", "fashion_mnist"),
        ("tuned", "tuned/image-cifar10"),
        ("tuned", "tuned/image-svhn"),
        ("tuned", "tuned/image-cmaterdb"),
        ("digits", "digits"),
        ("words", "tuned/mlm-pretrain"),
    ],
)
def test_a_table_leaves_no_method_out(marker: str, file: str) -> None:
    page = read("README.md") + read("docs/results.md")
    (block,) = re.findall(rf"<!-- {marker} -->(.*)<!-- /{marker} -->", page, re.S)
    lines = [line for line in block.splitlines() if line.startswith("|")]
    shown = [line.strip("| ").split(" | ")[0].strip("* ") for line in lines[2:]]
    assert sorted(shown) == sorted(
        row["method"] for row in json.loads(read(f"results/{file}.json"))["rows"]
    )


@pytest.mark.parametrize("method", ["badm", "badm-kronecker", "muon"])
def test_rows_older_than_their_method_are_marked(method: str) -> None:
    """The index of results has the time of the last change of each method."""
    changed = json.loads(read("results/index.json"))["changes"][method]["time"]
    for file in sorted((ROOT / "results").rglob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        for comparison in report.get("comparisons", [report]):
            if "created" not in comparison:
                continue
            measured = {row["method"] for row in comparison["rows"]}
            if method in measured and comparison["created"] < changed:
                page = PAGES.get(file.stem, file.with_suffix(".md"))
                text = page.read_text(encoding="utf-8")
                (mark,) = re.findall(r"^\*\*Older than the code:\*\* (.*)$", text, re.M)
                assert method in mark, file.name


def test_no_test_sleeps_but_in_the_helper_that_waits() -> None:
    """A test that sleeps is slow on a quick machine and fails on a slow one."""
    waiting = ROOT / "tests" / "helpers" / "waiting.py"
    sleeps = re.compile(r"\bsleep\(")
    assert sleeps.search(waiting.read_text())
    others = [path for path in (ROOT / "tests").rglob("*.py") if path != waiting]
    assert [str(path) for path in others if sleeps.search(path.read_text())] == []


@pytest.mark.slow
def test_quick_tests_are_in_every_room() -> None:
    """``make quick`` leaves out what is slow, never a whole part."""
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--quick", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    chosen = {Path(line.partition("::")[0]).parent for line in listed.splitlines() if "::" in line}
    package = ROOT / "src" / "badm"
    rooms = {path.parent.relative_to(package) for path in package.rglob("__init__.py")}
    assert {
        str(room) for room in rooms if not chosen & {"tests" / room, "src/badm" / room}
    } == set()

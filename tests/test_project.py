"""What the project promises around its code: versions, commands, dependencies, the example."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import badm

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "digits.py"
BENCH_ONLY = ("matplotlib", "pytorch_optimizer", "rich", "scipy", "sklearn", "typer")


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
    for extra in ("bench", "dev"):
        (listed,) = re.findall(rf"^{extra} = \[(.*?)\]", project, re.M | re.S)
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


def test_the_example_writes_a_picture_and_its_path(tmp_path: Path) -> None:
    picture = tmp_path / "digits.png"
    result = python(EXAMPLE, "--seeds", "1", "--steps", "6", "-o", picture)
    assert result.returncode == 0, result.stderr
    for method in ("Adam", "euclidean", "diagonal", "spectral", "kronecker"):
        assert method in result.stdout
    assert "\x1b" not in result.stdout, "no redrawing into a pipe"
    assert str(picture.resolve()) in result.stdout.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds: must be a whole number of at least 1, got '0'"),
        (["--steps", "few"], "--steps: must be a whole number of at least 1, got 'few'"),
        (["-o", "digits.txt"], "must end in one of .pdf, .png, .svg, got 'digits.txt'"),
    ],
)
def test_the_example_says_what_is_wrong_with_an_option(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["matplotlib.figure", "rich.console", "sklearn.datasets"])
def test_the_example_names_a_missing_package_and_what_brings_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    expected = f'This example needs {name}: pip install "badm[bench]" brings it.\n'
    assert capsys.readouterr().err == expected

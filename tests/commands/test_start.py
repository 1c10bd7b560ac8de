"""How a command starts: short ones import nothing heavy, long ones say first what they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from badm import cli
from badm.bench import compare as compare_function
from badm.commands import options

HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "optuna", "plotly", "sqlalchemy"}
LIGHT = [
    "--help",
    "--version",
    "list tasks",
    "list tasks image",
    "list tasks imgae",
    "list methods",
    "list methods --json",
    "list datasets",
    "data list --json",
    *(f"{name} --help" for name in ("compare", "run", "reproduce", "tune", "report", "certify")),
    *(f"data {name} --help" for name in ("list", "verify", "fetch")),
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LIGHT)
def test_a_command_that_only_tells_imports_nothing_heavy(arguments: str) -> None:
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['badm', *{arguments.split()}]\n"
        "from badm.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.returncode == (2 if "imgae" in arguments else 0)
    assert done.stdout or done.returncode


def test_importing_the_evaluation_leaves_its_names_usable() -> None:
    """``badm.bench.compare`` is a function and a package, whichever is imported first."""
    code = (
        "import badm.bench.compare.parts, badm.bench.report.text, badm.bench.reproduce.parts\n"
        "from badm import bench\n"
        "assert all(callable(getattr(bench, name)) for name in bench.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert callable(compare_function)


class Reached(Exception):
    """The imports that take long would begin here."""


@contextmanager
def stop_here() -> Iterator[None]:
    raise Reached
    yield


LONG = {
    "compare digits -m badm,adam": "Comparing badm, adam on digits; runs are kept in runs\n",
    "tune digits -m badm": "Searching for the best setting of badm on digits; "
    "runs are kept in runs\n",
    "run digits -m badm --seed 3": "Training digits with badm, seed 3; runs are kept in runs\n",
    "reproduce molecule": "Reproducing molecule; runs are kept in runs\n",
}


def start(monkeypatch: pytest.MonkeyPatch, arguments: str, **environment: str) -> Any:
    monkeypatch.setattr(options.signals, "exit_on_signal", stop_here)
    plain = {"COLUMNS": "200", "NO_COLOR": "1", **environment}
    result = CliRunner().invoke(cli.application(), arguments.split(), env=plain)
    assert isinstance(result.exception, Reached)
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize(("arguments", "sentence"), LONG.items())
def test_a_terminal_is_told_what_begins_before_the_long_imports(
    monkeypatch: pytest.MonkeyPatch, arguments: str, sentence: str
) -> None:
    assert start(monkeypatch, arguments, FORCE_COLOR="1") == sentence


@pytest.mark.parametrize("arguments", LONG)
@pytest.mark.parametrize("terminal", [False, True])
def test_a_pipe_and_who_asked_for_quiet_or_json_are_not(
    monkeypatch: pytest.MonkeyPatch, arguments: str, terminal: bool
) -> None:
    for option in ("--quiet", "--json"):
        more = {"FORCE_COLOR": "1"} if terminal else {}
        asked = f"{arguments} {option}" if terminal else arguments
        assert start(monkeypatch, asked, **more) == ""

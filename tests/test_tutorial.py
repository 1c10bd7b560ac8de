"""The tutorial: its file is short, its page shows that file, and its command does what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.helpers import ROOT

FILE = ROOT / "docs" / "tutorial" / "breast_cancer.py"
PAGE = FILE.with_name("README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def commands() -> list[str]:
    """Every line of the page that is typed into a terminal."""
    typed = re.findall(r"^(?:\$ |    )(badm .*)$", PAGE, flags=re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in typed]


def lines(code: str) -> list[str]:
    """Without indentation, as the page shows the methods of the class one by one."""
    return [line.strip() for line in code.splitlines() if line.strip()]


def test_a_task_takes_at_most_60_lines() -> None:
    code = FILE.read_text()
    assert len(code.splitlines()) <= 60
    assert f"{len(code.splitlines())} lines" in PAGE


def test_the_page_shows_the_whole_file_part_by_part() -> None:
    assert lines("".join(blocks("python"))) == lines(FILE.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of the page is."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "docs").symlink_to(ROOT / "docs")
    return folder


def typed(command: str, folder: Path) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    name, *arguments = shlex.split(command)
    program = Path(sysconfig.get_path("scripts")) / name  # whether or not it is on the PATH
    done = subprocess.run(
        [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    return typed(commands()[0], folder)


@pytest.mark.slow
def test_the_command_of_the_page_gives_its_table_and_a_report(folder: Path, printed: str) -> None:
    assert "--protocol tuned --trials 6 --seeds 3" in commands()[0]
    (shown,) = blocks("console")
    heading = "method lr test accuracy steps to target time to target note"
    for text in (shown, printed):
        assert heading in " ".join(text.split())
        assert "breast-cancer: accuracy, target 97.0 %" in text
        assert text.rstrip().endswith("written: runs/report.html")
        for method in ("badm", "adam", "sgd-momentum", "muon"):
            assert re.search(rf"^ {method} +\d\S* +9\d\.\d % \(", text, flags=re.MULTILINE)
    page = (folder / "runs" / "report.html").read_text()
    assert "breast-cancer" in page
    assert "synthetic data" not in printed


@pytest.mark.slow
def test_every_method_of_the_tutorial_has_as_many_trials_and_seeds(
    folder: Path, printed: str
) -> None:
    (record,) = (folder / "runs" / "comparisons").glob("*.json")
    entries = json.loads(record.read_text())["entries"]
    assert [len(entry["tried"]) for entry in entries] == [6] * 4
    assert [len(entry["finals"]) for entry in entries] == [3] * 4


@pytest.mark.slow
def test_the_other_commands_of_the_page_work_as_written(folder: Path, printed: str) -> None:
    report, run = (
        next(c for c in commands() if f"badm {name} " in c) for name in ("report", "run")
    )
    assert typed(report, folder).endswith(
        "written: table.md\nwritten: numbers.json\nwritten: figures\n"
    )
    assert json.loads((folder / "numbers.json").read_text())["trials"] == 6
    assert "finished after 150 steps" in typed(run, folder)

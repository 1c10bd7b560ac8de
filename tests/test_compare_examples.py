"""The examples of comparisons: as long as the scripts they were made from, and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from badm import bench
from tests.helpers import ROOT

EXAMPLES = ROOT / "examples"
BEFORE = ROOT / "tests" / "clients" / "scripts_before"
NAMES = sorted(path.stem for path in BEFORE.glob("compare_*.py"))


def lines(path: Path) -> int:
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def test_every_example_has_the_script_it_was_made_from() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("compare_*.py")) == NAMES
    assert NAMES == ["compare_lightning", "compare_loop", "compare_trainer"]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_at_most_three_lines_longer_than_its_script(name: str) -> None:
    assert lines(EXAMPLES / f"{name}.py") <= lines(BEFORE / f"{name}.py") + 3
    assert "badm" not in (BEFORE / f"{name}.py").read_text()


@pytest.mark.slow
def test_the_loop_trains_without_comparison_and_is_compared(tmp_path: Path) -> None:
    alone = subprocess.run(
        [sys.executable, BEFORE / "compare_loop.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert alone.returncode == 0, alone.stderr
    assert float(alone.stdout.splitlines()[-1].split()[-1]) > 0.8
    result = bench.compare(
        str(EXAMPLES / "compare_loop.py"), ["badm", "adamw"], trials=3, seeds=2, jobs=1,
        schedule="linear", warmup=0.05, runs=tmp_path,
    )  # fmt: skip
    for row in result.comparison.rows:
        assert row.status == "finished", row.message
        assert row.test is not None
        assert row.test.value > 0.85
        assert row.steps_to_target is not None

"""The examples with Hugging Face's Trainer and with Lightning are compared as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from badm import bench
from badm.bench import methods, tasks
from badm.bench.engine.run import run
from badm.bench.errors import TaskError
from badm.bench.records.runs import RunStore
from tests.helpers import ROOT

NEEDS = {"compare_trainer": "transformers", "compare_lightning": "lightning"}
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", NEEDS)
def test_the_example_is_compared(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name], reason="make clients installs it")
    result = bench.compare(
        str(EXAMPLES / f"{name}.py"), ["badm", "adamw"], trials=1, seeds=2, jobs=1, steps=40,
        schedule="linear", runs=tmp_path,
    )  # fmt: skip
    for row in result.comparison.rows:
        assert row.status == "finished", row.message
        assert row.test is not None
        assert 0 < row.test.value <= 1
        assert len(set(row.test.values)) > 1 or row.test.value == 1
    evaluated = [curve.evaluated for curve in result.comparison.curves]
    assert all(steps[-1] == 40 and steps == sorted(set(steps)) for steps in evaluated)


@pytest.mark.parametrize("name", NEEDS)
def test_the_script_without_comparison_trains(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name], reason="make clients installs it")
    script = ROOT / "tests" / "clients" / "scripts_before" / f"{name}.py"
    alone = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert alone.returncode == 0, alone.stderr
    assert "accuracy" in alone.stdout


@pytest.mark.parametrize("name", NEEDS)
def test_a_score_that_is_no_number_ends_the_training_of_others_as_diverged(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip(NEEDS[name], reason="make clients installs it")
    text = (EXAMPLES / f"{name}.py").read_text()
    file = tmp_path / f"{name}.py"
    file.write_text(
        text.replace(".mean()}", ".mean() * float('nan')}").replace(
            "== batch[1]).float().mean())", "== batch[1]).float().mean() * float('nan'))"
        )
    )
    found, method = tasks.find(str(file)), methods.find("adamw")
    config = found.config(method, method.setting({}), 0, steps=20)
    result = run(config, found.task, method, RunStore(tmp_path / "runs")).result
    assert result is not None
    assert result.status == "diverged"
    assert result.message.startswith("the accuracy is nan at step ")


@pytest.mark.parametrize("name", NEEDS)
def test_a_package_that_is_missing_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.py"
    callback = "trainer_callback" if "trainer" in name else "lightning_callback"
    file.write_text(
        "import badm.bench\n@badm.bench.training(score='accuracy', budget=5)\n"
        f"def train(trial):\n    trial.{callback}()\n"
    )
    for module in ("transformers", "lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, module, None)
    found, method = tasks.find(str(file)), methods.find("adamw")
    config = found.config(method, method.setting({}), 0)
    with pytest.raises(TaskError, match="train: its callback needs the package"):
        run(config, found.task, method, RunStore(tmp_path / "runs"))

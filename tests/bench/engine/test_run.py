"""A run depends on its configuration alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import badm
from badm.bench import Splits, Task
from badm.bench.engine.options import RunOptions
from badm.bench.engine.run import run
from badm.bench.engine.training import Interrupted
from badm.bench.methods import find as find_method
from badm.bench.records.runs import RunStore
from tests.helpers import ENGINE_TASKS
from tests.helpers.engine_tasks import (
    MOMENTUM,
    Gan,
    Graph,
    Line,
    Noisy,
    comparable,
    config_of,
    method_of,
    train,
    variant,
)

BADM = Path(sys.executable).parent / "badm"


@pytest.mark.slow
def test_another_process_and_folder_give_the_same_run(tmp_path: Path) -> None:
    adam = find_method("adam")
    here = train(Noisy(), tmp_path / "here", adam, schedule="linear")
    source = f"{ENGINE_TASKS}:noisy"
    command = ["run", source, "-m", "adam", "--schedule", "linear", "--json", "--checkpoint", "0"]
    told = subprocess.run(
        [str(BADM), *command, "--runs", str(tmp_path / "there")],
        capture_output=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    (done,), problems = RunStore(tmp_path / "there").read_all()
    assert not problems
    assert json.loads(told.stdout)["path"] == str(done.path)
    there = replace(done, config=replace(done.config, task_version="1"))
    assert comparable(there) == comparable(here)


def test_other_seeds_give_other_runs(tmp_path: Path) -> None:
    a, b = (train(Noisy(), tmp_path, seed=seed) for seed in (0, 1))
    assert a.result is not None
    assert b.result is not None
    assert a.result.weights != b.result.weights
    assert a.points[1].losses != b.points[1].losses


def test_other_seeds_begin_with_other_weights(tmp_path: Path) -> None:
    readings = [train(Line(), tmp_path, seed=seed).points[0].validation for seed in range(4)]
    assert len({str(figures) for figures in readings}) == 4


def test_a_run_before_it_in_the_process_changes_nothing(tmp_path: Path) -> None:
    task = Noisy()
    alone = train(task, tmp_path / "alone")
    train(Gan(), tmp_path / "after")
    torch.rand(3)
    assert comparable(train(task, tmp_path / "after")) == comparable(alone)
    assert comparable(train(Noisy(), tmp_path / "anew")) == comparable(alone)


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"evaluate_every": 1}, RunOptions()),
        ({"artifacts_at": (0.1, 0.2, 0.3)}, RunOptions()),
        ({}, RunOptions(checkpoint_seconds=0.0)),
        ({}, RunOptions(keep_weights=True)),
    ],
    ids=["evaluated", "exhibited", "checkpointed", "weights kept"],
)
@pytest.mark.parametrize("method", ["momentum", "schedule-free"])
def test_looking_at_a_run_does_not_change_it(
    tmp_path: Path, method: str, changed: dict[str, Any], options: RunOptions
) -> None:
    chosen = MOMENTUM if method == "momentum" else find_method(method)
    plain = train(Noisy(), tmp_path / "plain", chosen)
    looked_at = train(variant(Noisy, **changed), tmp_path / "looked at", chosen, options)
    assert plain.result is not None
    assert looked_at.result is not None
    assert looked_at.result.weights == plain.result.weights
    if not changed:
        assert comparable(looked_at) == comparable(plain)


class NormedGan(Gan):
    """Passing data through one player's loss moves the statistics of both."""

    def model(self, splits: Splits) -> nn.Module:
        model = super().model(splits)
        model["generator"] = nn.Sequential(model["generator"], nn.BatchNorm1d(2))
        model["discriminator"].insert(1, nn.BatchNorm1d(4))
        return model


class NormedGraph(Graph):
    """BatchNorm, and a buffer that counts the passes."""

    def model(self, splits: Splits) -> nn.Module:
        model = super().model(splits)
        model.layer = nn.Sequential(model.layer, nn.BatchNorm1d(2))
        return model


@pytest.mark.parametrize("task", [NormedGan, NormedGraph])
def test_calibrating_batchnorm_for_an_evaluation_leaves_no_trace(
    tmp_path: Path, task: type[Task]
) -> None:
    method = find_method("schedule-free")
    often = train(variant(task, evaluate_every=1), tmp_path / "often", method)
    rarely = train(variant(task, evaluate_every=100), tmp_path / "rarely", method)
    assert often.result is not None
    assert rarely.result is not None
    assert often.result.weights == rarely.result.weights


def test_artifacts_are_the_same_draw_for_every_method(tmp_path: Path) -> None:
    texts = []
    for method in (MOMENTUM, find_method("schedule-free")):
        done = train(Noisy(), tmp_path, method)
        texts.append((RunStore(tmp_path).artifacts(done.config) / "40-1.txt").read_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("task", [Noisy, Gan, Graph, Line])
def test_a_run_that_is_interrupted_after_every_step_ends_the_same(
    tmp_path: Path, task: type[Task]
) -> None:
    whole = train(task(), tmp_path / "whole")
    for _ in range(whole.config.steps):
        steps = 0

        def watch(step: int, loss: float) -> None:
            nonlocal steps
            steps += 1

        stopped = RunOptions(on_step=watch, should_stop=lambda: steps > 0)  # noqa: B023
        with pytest.raises(Interrupted):
            train(task(), tmp_path / "pieces", options=stopped)
        break_ = RunStore(tmp_path / "pieces").read(whole.config)
        assert break_ is not None
        assert break_.result is None
        if break_.points[-1].step >= whole.config.steps - 1:
            break
    assert comparable(train(task(), tmp_path / "pieces")) == comparable(whole)


def test_a_run_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = train(Line(), tmp_path)
    again = train(Line(), tmp_path, method_of(type("Never", (), {}), "momentum"))  # type: ignore[arg-type]
    assert again == first


def test_the_library_s_optimizer_trains(tmp_path: Path) -> None:
    done = run(
        config_of(Noisy(), find_method("badm")), Noisy(), find_method("badm"), RunStore(tmp_path)
    )
    assert done.result is not None
    assert done.result.status == "finished"
    assert done.environment["packages"]["badm"] == badm.__version__

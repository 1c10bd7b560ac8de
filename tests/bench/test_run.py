"""Promises of a run: it depends on its configuration alone, keeps the contract of a task, and
whatever goes wrong is told for what it is."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_tasks import (
    MOMENTUM,
    Fine,
    Gan,
    Graph,
    Line,
    Momentum,
    Noisy,
    comparable,
    config_of,
    train,
    variant,
)
from torch import Tensor, nn

import badm
from badm.bench import Method, Splits, Task
from badm.bench.faults import TaskError
from badm.bench.method import CannotTrain, OptimizerTrainer, Problem, Setting, Trainer, trainable
from badm.bench.methods import find as find_method
from badm.bench.run import run
from badm.bench.store import Store, StoreError
from badm.bench.tensors import digest
from badm.bench.training import SCHEDULES, Interrupted, Options

BADM = Path(sys.executable).parent / "badm"


class Sabotaged(OptimizerTrainer):
    """Plain momentum, but in step 3 something happens to the module."""

    def __init__(self, module: nn.Module, lr: float) -> None:
        super().__init__(Momentum(trainable(module), lr))
        self.module, self.steps = module, 0

    def step(self, work: Any) -> float:
        loss = super().step(work)
        self.steps += 1
        if self.steps == 3:
            self.happen()
        return loss

    def happen(self) -> None: ...


def method_of(trainer: type[Sabotaged], name: str = "sabotaged") -> Method:
    def build(problem: Problem, setting: Setting) -> Trainer:
        return trainer(problem.module, **setting)

    return Method(name, "", "peer", build, {"lr": 0.01}, {})


def recording(seen: list[Any], look: Any) -> Method:
    """Momentum that writes down what ``look(module, work)`` says after every step."""

    class Recording(Sabotaged):
        def step(self, work: Any) -> float:
            loss = super().step(work)
            seen.append(look(self.module, work))
            return loss

    return method_of(Recording, "recording")


# The result depends on the configuration alone.


def test_another_process_and_folder_give_the_same_run(tmp_path: Path) -> None:
    adam = find_method("adam")
    here = train(Noisy(), tmp_path / "here", adam, schedule="cosine")
    source = f"{Path(__file__).with_name('engine_tasks.py')}:noisy"
    command = ["run", source, "-m", "adam", "--schedule", "cosine", "--json", "--checkpoint", "0"]
    told = subprocess.run(
        [str(BADM), *command, "--runs", str(tmp_path / "there")],
        capture_output=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    (done,), problems = Store(tmp_path / "there").runs()
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
        ({"evaluate_every": 1}, Options()),
        ({"exhibit_at": (0.1, 0.2, 0.3)}, Options()),
        ({}, Options(checkpoint_seconds=0.0)),
        ({}, Options(keep_weights=True)),
    ],
    ids=["evaluated", "exhibited", "checkpointed", "weights kept"],
)
@pytest.mark.parametrize("method", ["momentum", "schedule-free"])
def test_looking_at_a_run_does_not_change_it(
    tmp_path: Path, method: str, changed: dict[str, Any], options: Options
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
def test_calibrating_batchnorm_for_a_reading_leaves_no_trace(
    tmp_path: Path, task: type[Task]
) -> None:
    method = find_method("schedule-free")
    often = train(variant(task, evaluate_every=1), tmp_path / "often", method)
    rarely = train(variant(task, evaluate_every=100), tmp_path / "rarely", method)
    assert often.result is not None
    assert rarely.result is not None
    assert often.result.weights == rarely.result.weights


def test_exhibits_are_the_same_draw_for_every_method(tmp_path: Path) -> None:
    texts = []
    for method in (MOMENTUM, find_method("schedule-free")):
        done = train(Noisy(), tmp_path, method)
        texts.append((Store(tmp_path).exhibits(done.config) / "40-1.txt").read_text())
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

        stopped = Options(watch=watch, stop=lambda: steps > 0)  # noqa: B023
        with pytest.raises(Interrupted):
            train(task(), tmp_path / "pieces", options=stopped)
        break_ = Store(tmp_path / "pieces").read(whole.config)
        assert break_ is not None
        assert break_.result is None
        if break_.points[-1].step >= whole.config.steps - 1:
            break
    assert comparable(train(task(), tmp_path / "pieces")) == comparable(whole)


def test_a_run_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = train(Line(), tmp_path)
    again = train(Line(), tmp_path, method_of(type("Never", (), {}), "momentum"))  # type: ignore[arg-type]
    assert again == first


# The contract of a task.


def test_a_player_changes_nothing_of_the_other(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str, list[Any]]] = []

    class Watching(Gan):
        def model(self, splits: Splits) -> nn.Module:
            self.made = super().model(splits)
            return self.made

    task = Watching()

    def look(module: nn.Module, work: Any) -> Any:
        other = task.made["generator" if work.player.name == "discriminator" else "discriminator"]
        return (
            work.player.name,
            digest(task.made["discriminator"].state_dict()),
            digest(task.made["generator"].state_dict()),
            [None if p.grad is None else p.grad.clone() for p in other.parameters()],
        )

    method = recording(seen, look)
    done = train(task, tmp_path, method)
    assert [name for name, *_ in seen] == ["discriminator", "generator"] * 6
    for before, after in pairwise(seen):
        changed = [a != b for a, b in zip(before[1:3], after[1:3], strict=True)]
        assert changed == [after[0] == "discriminator", after[0] == "generator"]
    # What the discriminator had as gradients is what it still has after the generator's step.
    own = [p.grad for p in task.made["discriminator"].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(seen[-1][3], own, strict=True))  # type: ignore[arg-type]
    assert all(g is None for g in seen[0][3])  # nor has the generator any before its first step
    assert set(done.points[1].losses or {}) == {"discriminator", "generator"}
    assert done.result is not None
    assert done.result.gradients == 12
    assert done.result.state_bytes == 4 * sum(p.numel() for p in task.made.parameters())


def test_players_get_the_same_batch_and_their_own_state(tmp_path: Path) -> None:
    batches: list[Any] = []
    train(Gan(), tmp_path, recording(batches, lambda module, work: work.batch.clone()))
    assert all(torch.equal(a, b) for a, b in zip(batches[::2], batches[1::2], strict=True))


def test_buffers_are_trained_with_and_kept(tmp_path: Path) -> None:
    done = train(Graph(), tmp_path, options=Options(keep_weights=True), seed=3)
    weights = torch.load(Store(tmp_path).weights(done.config), weights_only=True)
    best = max((p.validation["accuracy"], -p.step) for p in done.points if p.validation is not None)
    assert weights["seen"] == -best[1]
    assert done.result is not None
    assert digest(weights) == done.result.kept
    assert done.result.score == best[0]


def staged(folder: Path, first: Task | None = None, method: Method = MOMENTUM) -> Any:
    first = first or Line()
    before = train(first, folder, method, Options(keep_weights=True))
    return train(Fine(), folder, method, Options(keep_weights=True), after=before.config)


def test_the_second_stage_starts_from_the_weights_of_the_first(tmp_path: Path) -> None:
    fine = staged(tmp_path)
    store = Store(tmp_path)
    first = torch.load(store.weights(fine.config.after), weights_only=True)
    second = torch.load(store.weights(fine.config), weights_only=True)
    assert torch.equal(first["0.weight"], second["0.weight"])  # frozen
    assert not torch.equal(first["0.bias"], second["0.bias"])
    other = train(variant(Line, name="line"), tmp_path, seed=1, options=Options(keep_weights=True))
    elsewhere = train(Fine(), tmp_path, after=other.config)
    assert elsewhere.path != fine.path
    assert elsewhere.result is not None
    assert elsewhere.result.weights != fine.result.weights


def test_a_stage_after_one_that_did_not_finish_says_so(tmp_path: Path) -> None:
    broken = variant(Line, loss=lambda self, model, batch: model(batch[0]).sum() * math.nan)
    fine = staged(tmp_path, broken)
    assert fine.result.status == "failed"
    assert "line" in fine.result.message
    assert "diverged" in fine.result.message


def test_damaged_weights_of_the_stage_before_are_set_aside_and_made_anew(tmp_path: Path) -> None:
    before = train(Line(), tmp_path, options=Options(keep_weights=True))
    path = Store(tmp_path).weights(before.config)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match=path.name):
        train(Fine(), tmp_path, after=before.config)
    assert not path.exists()
    assert staged(tmp_path).result.status == "finished"


def test_a_sampled_score_is_the_same_draw_for_every_method(tmp_path: Path) -> None:
    still = {"lr": 0.0}
    a = train(Gan(), tmp_path, setting=still)
    b = train(Gan(), tmp_path, method_of(Sabotaged), setting=still)
    drawn = [p.validation for run in (a, b) for p in run.points if p.validation is not None]
    assert len(drawn) == 6
    assert all(figures == drawn[0] for figures in drawn)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_kept_weights_are_those_the_test_split_is_read_with(tmp_path: Path, keep: str) -> None:
    # So large a step overshoots: the score gets worse and worse.
    task = variant(Line, keep=keep, steps=10)
    done = train(task, tmp_path, setting={"lr": 0.9})
    readings = [p.validation["error"] for p in done.points if p.validation is not None]
    assert readings[-1] > min(readings)
    assert done.result is not None
    assert done.result.score == (min(readings) if keep == "best" else readings[-1])
    assert done.result.test == {"error": done.result.score}  # here the splits are the same
    assert (done.result.kept == done.result.weights) == (keep == "last")


def test_the_test_split_is_read_only_if_asked_for(tmp_path: Path) -> None:
    done = train(Line(), tmp_path, test=False)
    assert done.result is not None
    assert done.result.test is None
    assert done.result.score is not None


def batches_of(task: Task, folder: Path, steps: int, seed: int = 0) -> list[list[int]]:
    """The samples of each batch, of a task whose samples are their own indices."""
    seen: list[Any] = []
    train(
        task,
        folder,
        recording(seen, lambda module, work: work.batch[0][:, 0].tolist()),
        steps=steps,
        seed=seed,
    )
    return seen


class Counted(Line):
    """Its samples are the numbers 0 to 9."""

    def data(self) -> Splits:
        x = torch.arange(10, dtype=torch.float64).reshape(-1, 1).expand(-1, 3) / 10
        return Splits(*[(x, x[:, :1])] * 3)


def test_an_epoch_has_every_sample_once_and_the_last_batch_what_is_left(tmp_path: Path) -> None:
    batches = batches_of(Counted(), tmp_path, steps=6)
    assert [len(batch) for batch in batches] == [4, 4, 2] * 2
    first, second = [*chain(*batches[:3])], [*chain(*batches[3:])]
    assert sorted(first) == sorted(second) == [i / 10 for i in range(10)]
    assert first != second
    assert first != sorted(first)


def test_a_fixed_order_is_that_of_the_split(tmp_path: Path) -> None:
    batches = batches_of(variant(Counted, order="fixed"), tmp_path, steps=4)
    assert [*chain(*batches[:3])] == [i / 10 for i in range(10)]
    assert batches[3] == batches[0]


def test_a_batch_may_be_larger_than_the_split(tmp_path: Path) -> None:
    batches = batches_of(variant(Counted, batch_size=64), tmp_path, steps=2)
    assert [len(batch) for batch in batches] == [10, 10]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_schedule_goes_from_one_towards_zero(tmp_path: Path, schedule: str) -> None:
    factors: list[float] = []
    method = recording(factors, lambda module, work: work.lr_factor)
    train(Line(), tmp_path, method, steps=4, schedule=schedule)
    assert factors == pytest.approx(
        {
            "constant": [1, 1, 1, 1],
            "linear": [1, 0.75, 0.5, 0.25],
            "cosine": [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5],
        }[schedule],
        abs=1e-15,
    )


def test_the_schedule_scales_the_learning_rate(tmp_path: Path) -> None:
    lrs: list[float] = []

    class Rates(Sabotaged):
        def step(self, work: Any) -> float:
            loss = super().step(work)
            lrs.append(self.optimizer.param_groups[0]["lr"])
            return loss

    train(Line(), tmp_path, method_of(Rates), steps=4, schedule="linear", setting={"lr": 0.04})
    assert lrs == pytest.approx([0.04, 0.03, 0.02, 0.01])


def test_exhibits_are_written_as_they_are_and_recorded(tmp_path: Path) -> None:
    done = train(Noisy(), tmp_path)
    shown = {p.step: p.exhibits for p in done.points if p.exhibits is not None}
    assert list(shown) == [10, 40]
    folder = Store(tmp_path).exhibits(done.config)
    for files in shown.values():
        assert list(files) == ["a picture", "a text"]
        assert (folder / files["a picture"]).read_bytes() == b"\x89PNG" + bytes(range(100))
        assert (folder / files["a text"]).read_text(encoding="utf-8").startswith("blättert [")
    assert len(list(folder.iterdir())) == 4


def test_a_reading_comes_before_the_first_step_and_after_the_last(tmp_path: Path) -> None:
    done = train(variant(Line, evaluate_every=4), tmp_path)
    assert [p.step for p in done.points if p.validation is not None] == [0, 4, 6]
    losses = [p for p in done.points if p.losses is not None]
    assert [p.step for p in losses] == [1, 2, 3, 4, 5, 6]
    assert [p.gradients for p in losses] == [1, 2, 3, 4, 5, 6]


def test_parts_of_gradients_add_up_to_whole_ones(tmp_path: Path) -> None:
    task = variant(Line, gradients="sub-batches", batch_size=10, sub_batch_size=1)
    done = train(task, tmp_path, steps=7)
    assert [p.gradients for p in done.points if p.losses is not None] == [1, 2, 3, 4, 5, 6, 7]
    assert done.result is not None
    assert done.result.gradients == 7


def test_losses_are_means_since_the_point_before(tmp_path: Path) -> None:
    seen: list[float] = []

    class Told(Sabotaged):
        def step(self, work: Any) -> float:
            seen.append(super().step(work))
            return seen[-1]

    done = train(variant(Noisy, evaluate_every=500), tmp_path, method_of(Told), steps=401)
    losses = [(p.step, p.losses["model"]) for p in done.points if p.losses is not None]
    assert [step for step, _ in losses] == [*range(2, 401, 2), 401]
    assert [loss for _, loss in losses] == pytest.approx(
        [(seen[i - 2] + seen[i - 1]) / 2 for i in range(2, 401, 2)] + [seen[400]]
    )


def test_figures_of_time_and_memory_are_plausible(tmp_path: Path) -> None:
    done = train(Line(), tmp_path)
    result = done.result
    assert result is not None
    assert 0 < result.seconds < 60
    seconds = [p.seconds for p in done.points]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= result.seconds
    assert result.peak_bytes is not None
    assert 50e6 < result.peak_bytes < 50e9  # torch alone takes more than the one
    assert result.state_bytes == 4 * 8  # a momentum for each of four weights


def test_work_after_a_step_is_the_task_s_own(tmp_path: Path) -> None:
    class Averaged(Line):
        def model(self, splits: Splits) -> nn.Module:
            model = super().model(splits)
            model.register_buffer("average", torch.zeros(1, 3, dtype=torch.float64))
            return model

        def after_step(self, model: nn.Module) -> None:
            assert not torch.is_grad_enabled()
            model.average.lerp_(model[0].weight, 0.5)

    plain = train(Line(), tmp_path / "plain", options=Options(keep_weights=True))
    averaged = train(Averaged(), tmp_path / "averaged", options=Options(keep_weights=True))
    weights = torch.load(Store(tmp_path / "averaged").weights(averaged.config), weights_only=True)
    without = torch.load(Store(tmp_path / "plain").weights(plain.config), weights_only=True)
    assert torch.equal(weights["0.weight"], without["0.weight"])
    assert weights["average"].abs().sum() > 0


# What goes wrong is told for what it is.


def loss_from(step: int, value: float) -> Any:
    """A loss that is ``value`` from that step on."""

    def loss(self: Task, model: nn.Module, batch: Any) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1  # type: ignore[attr-defined]
        out = model(batch[0]).sum()
        return out * value if self.calls >= step else out * 0  # type: ignore[attr-defined]

    return loss


class TurnsToNan(Sabotaged):
    def happen(self) -> None:
        with torch.no_grad():
            self.module[0].bias.fill_(math.nan)  # type: ignore[index,operator,union-attr]


def nan_from_the_third(self: Task, model: nn.Module, split: Any) -> Mapping[str, float]:
    self.calls = getattr(self, "calls", 0) + 1  # type: ignore[attr-defined]
    return {"error": math.nan if self.calls >= 3 else 1.0}  # type: ignore[attr-defined]


def indignant(self: Task, model: nn.Module, batch: Any) -> Tensor:
    if not bool(model[0].bias.isfinite().all()):  # type: ignore[index]
        raise ValueError("these are no probabilities")
    return model(batch[0]).sum()


@pytest.mark.parametrize(
    ("task", "method", "step", "words"),
    [
        (variant(Line, loss=loss_from(3, math.nan)), MOMENTUM, 3, "loss is nan"),
        (variant(Line, loss=loss_from(3, math.inf)), MOMENTUM, 3, "loss is -?(nan|inf)"),
        (
            variant(
                Line,
                loss=lambda self, model, batch: 0 * model[0].weight.sum(),
                evaluate=lambda self, model, split: {"error": 1.0},
            ),
            method_of(TurnsToNan),
            4,
            "no finite score",
        ),
        (variant(Line, evaluate=nan_from_the_third), MOMENTUM, 4, "no finite score"),
        (variant(Line, loss=indignant), method_of(TurnsToNan), 4, "no numbers"),
    ],
    ids=["nan loss", "infinite loss", "nan weights", "nan score", "loss raises on nan weights"],
)
def test_divergence_is_a_result(
    tmp_path: Path, task: Task, method: Method, step: int, words: str
) -> None:
    done = train(task, tmp_path, method)
    assert done.result is not None
    assert (done.result.status, done.result.step) == ("diverged", step)
    assert f"step {step}" in done.result.message
    assert re.search(words, done.result.message)
    assert done.result.test is None
    assert math.isfinite(done.result.score or math.nan)  # of the best weights so far
    assert train(task, tmp_path, method) == done  # it is not tried again
    assert not Store(tmp_path).checkpoint(done.config).exists()


def test_the_loss_that_diverged_is_the_one_that_is_told(tmp_path: Path) -> None:
    nan = variant(
        Gan, loss=lambda self, model, real: model["generator"](real.new_ones(1, 3)).sum() * math.nan
    )
    done = train(nan, tmp_path)
    assert done.result is not None
    assert done.result.message == "the loss is nan at step 1"


def test_no_finite_score_before_the_first_step_is_a_divergence(tmp_path: Path) -> None:
    done = train(variant(Line, evaluate=lambda *_: {"error": math.inf}), tmp_path)
    assert done.result is not None
    assert (done.result.status, done.result.step) == ("diverged", 0)


class Raises(Sabotaged):
    broken = True

    def happen(self) -> None:
        if self.broken:
            raise ArithmeticError("a matrix is singular")


class RaisesWhenJudged(Raises):
    def happen(self) -> None: ...

    def evaluating(self) -> AbstractContextManager[None]:
        if self.broken and self.steps >= 2:
            raise ArithmeticError("a matrix is singular")
        return super().evaluating()


class RaisesWhenBuilt(Raises):
    def __init__(self, module: nn.Module, lr: float) -> None:
        if self.broken:
            raise ArithmeticError("a matrix is singular")
        super().__init__(module, lr)


class RaisesWhenSaved(Raises):
    def happen(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        if self.broken:
            raise ArithmeticError("a matrix is singular")
        return super().state_dict()


@pytest.mark.parametrize(
    "trainer",
    [Raises, RaisesWhenJudged, RaisesWhenBuilt, RaisesWhenSaved],
    ids=lambda t: t.__name__,
)
def test_a_method_that_raises_has_failed_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: type[Raises]
) -> None:
    method, options = method_of(trainer), Options(checkpoint_seconds=0.0)
    failed = train(Line(), tmp_path, method, options)
    assert failed.result is not None
    assert failed.result.status == "failed"
    assert "ArithmeticError: a matrix is singular (test_run.py, line " in failed.result.message
    monkeypatch.setattr(trainer, "broken", False)
    repaired = train(Line(), tmp_path, method, options)
    assert repaired.result is not None
    assert repaired.result.status == "finished"
    assert comparable(repaired) == comparable(train(Line(), tmp_path / "fresh", method))


def test_a_method_that_cannot_train_says_why(tmp_path: Path) -> None:
    def build(problem: Problem, setting: Setting) -> Trainer:
        raise CannotTrain("only stacks of dense layers")

    done = train(Line(), tmp_path, Method("picky", "", "peer", build, {}, {}))
    assert done.result is not None
    assert (done.result.status, done.result.message) == ("cannot", "only stacks of dense layers")


def raiser(*_: Any, **__: Any) -> Any:
    return [][0]


@pytest.mark.parametrize(
    "method",
    ["data", "model", "players", "samples", "batch", "loss", "evaluate", "after_step", "exhibits"],
)
def test_code_of_a_task_that_raises_is_named(tmp_path: Path, method: str) -> None:
    line = raiser.__code__.co_firstlineno + 1
    words = rf"task line: {method} raised IndexError: .* \(test_run.py, line {line}\)"
    with pytest.raises(TaskError, match=words):
        train(variant(Line, **{method: raiser}), tmp_path)


@pytest.mark.parametrize("method", ["divide", "size"])
def test_code_of_a_task_for_sub_batches_that_raises_is_named(tmp_path: Path, method: str) -> None:
    task = variant(Line, gradients="sub-batches", sub_batch_size=2, **{method: raiser})
    with pytest.raises(TaskError, match=rf"task line: {method} raised IndexError"):
        train(task, tmp_path)


def test_code_of_a_task_that_a_method_calls_is_named(tmp_path: Path) -> None:
    def build(problem: Problem, setting: Setting) -> Trainer:
        problem.supervised()
        raise AssertionError

    method = Method("layers", "", "layer-wise", build, {}, {})
    with pytest.raises(TaskError, match="task line: supervised raised IndexError"):
        train(variant(Line, supervised=raiser), tmp_path, method)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"evaluate": lambda *_: {"loss": 1.0}}, "must report its score 'error', got loss"),
        ({"evaluate": lambda *_: {}}, "must report its score 'error', got nothing"),
        ({"data": lambda self: (1, 2, 3)}, "data must return Splits, got tuple"),
        ({"data": lambda self: Splits(torch.empty(0, 3), None, None)}, "has no samples"),
        ({"data": lambda self: Splits("text", "", "")}, "samples raised TypeError: .*got str"),
        ({"loss": lambda self, m, b: m(b[0])}, r"loss must be one number.*\(4, 1\)"),
        ({"loss": lambda self, m, b: 0.5}, "loss must be .*float"),
        ({"loss": lambda self, m, b: torch.tensor(0.5)}, "does not require grad"),
    ],
    ids=["no score", "nothing", "no splits", "empty", "text", "vector", "float", "constant"],
)
def test_what_a_task_must_not_give_is_named(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(TaskError, match=f"task line: .*{words}"):
        train(variant(Line, **changed), tmp_path)


def test_an_error_of_the_task_is_told_even_if_its_data_are_wrapped(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="data raised IndexError"):
        train(variant(Line, data=cache(raiser)), tmp_path)


def test_the_line_is_that_of_the_task_even_if_its_data_are_of_another(tmp_path: Path) -> None:
    class Inherits(Line):
        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            return nn.functional.nll_loss(model(batch[0]), batch[1])

    line = Inherits.loss.__code__.co_firstlineno + 1
    with pytest.raises(TaskError, match=rf"loss raised .*\(test_run.py, line {line}\)"):
        train(Inherits(), tmp_path)


def test_an_error_of_the_task_leaves_the_run_to_go_on(tmp_path: Path) -> None:
    whole = train(Line(), tmp_path / "whole")
    with pytest.raises(TaskError):
        train(
            variant(Line, exhibits=raiser, exhibit_at=(0.5,)),
            tmp_path / "mended",
            options=Options(checkpoint_seconds=0.0),
        )
    assert comparable(train(Line(), tmp_path / "mended")) == comparable(whole)


def test_the_library_s_optimizer_trains(tmp_path: Path) -> None:
    done = run(
        config_of(Noisy(), find_method("badm")), Noisy(), find_method("badm"), Store(tmp_path)
    )
    assert done.result is not None
    assert done.result.status == "finished"
    assert done.environment["packages"]["badm"] == badm.__version__

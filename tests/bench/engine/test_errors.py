"""Whatever goes wrong in a run is told for what it is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from badm.bench import Method, Splits, Task
from badm.bench.engine.options import RunOptions
from badm.bench.errors import TaskError
from badm.bench.method import CannotTrain, Setting, Trainer, TrainingSetup
from badm.bench.records.runs import RunStore
from tests.helpers.engine_tasks import (
    MOMENTUM,
    Gan,
    Line,
    Sabotaged,
    comparable,
    method_of,
    train,
    variant,
)


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
        (variant(Line, loss=indignant), method_of(TurnsToNan), 4, "not finite"),
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
    assert not RunStore(tmp_path).checkpoint(done.config).exists()


def test_the_loss_that_diverged_is_the_one_that_is_reported(tmp_path: Path) -> None:
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

    def evaluation_weights(self) -> AbstractContextManager[None]:
        if self.broken and self.steps >= 2:
            raise ArithmeticError("a matrix is singular")
        return super().evaluation_weights()


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
    method, options = method_of(trainer), RunOptions(checkpoint_seconds=0.0)
    failed = train(Line(), tmp_path, method, options)
    assert failed.result is not None
    assert failed.result.status == "failed"
    assert "ArithmeticError: a matrix is singular (test_errors.py, line " in failed.result.message
    monkeypatch.setattr(trainer, "broken", False)
    repaired = train(Line(), tmp_path, method, options)
    assert repaired.result is not None
    assert repaired.result.status == "finished"
    assert comparable(repaired) == comparable(train(Line(), tmp_path / "fresh", method))


def test_a_method_that_cannot_train_says_why(tmp_path: Path) -> None:
    def build(problem: TrainingSetup, setting: Setting) -> Trainer:
        raise CannotTrain("only stacks of dense layers")

    done = train(Line(), tmp_path, Method("picky", "", "peer", build, {}, {}))
    assert done.result is not None
    assert (done.result.status, done.result.message) == ("cannot", "only stacks of dense layers")


def raiser(*_: Any, **__: Any) -> Any:
    return [][0]


@pytest.mark.parametrize(
    "method",
    ["data", "model", "players", "samples", "batch", "loss", "evaluate", "after_step", "artifacts"],
)
def test_code_of_a_task_that_raises_is_named(tmp_path: Path, method: str) -> None:
    line = raiser.__code__.co_firstlineno + 1
    words = rf"task line: {method} raised IndexError: .* \(test_errors.py, line {line}\)"
    with pytest.raises(TaskError, match=words):
        train(variant(Line, **{method: raiser}), tmp_path)


@pytest.mark.parametrize("method", ["split_batch", "size"])
def test_code_of_a_task_for_sub_batches_that_raises_is_named(tmp_path: Path, method: str) -> None:
    task = variant(Line, gradients="sub-batches", sub_batch_size=2, **{method: raiser})
    with pytest.raises(TaskError, match=rf"task line: {method} raised IndexError"):
        train(task, tmp_path)


def test_code_of_a_task_that_a_method_calls_is_named(tmp_path: Path) -> None:
    def build(problem: TrainingSetup, setting: Setting) -> Trainer:
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


def test_an_error_of_the_task_is_reported_even_if_its_data_are_wrapped(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="data raised IndexError"):
        train(variant(Line, data=cache(raiser)), tmp_path)


def test_the_line_is_that_of_the_task_even_if_its_data_are_of_another(tmp_path: Path) -> None:
    class Inherits(Line):
        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            return nn.functional.nll_loss(model(batch[0]), batch[1])

    line = Inherits.loss.__code__.co_firstlineno + 1
    with pytest.raises(TaskError, match=rf"loss raised .*\(test_errors.py, line {line}\)"):
        train(Inherits(), tmp_path)


def test_an_error_of_the_task_leaves_the_run_to_go_on(tmp_path: Path) -> None:
    whole = train(Line(), tmp_path / "whole")
    with pytest.raises(TaskError):
        train(
            variant(Line, artifacts=raiser, artifacts_at=(0.5,)),
            tmp_path / "mended",
            options=RunOptions(checkpoint_seconds=0.0),
        )
    assert comparable(train(Line(), tmp_path / "mended")) == comparable(whole)

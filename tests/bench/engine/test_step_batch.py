"""Promises of a step's work: gradients of a batch and of its sub-batches, and what they count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from badm.bench import Splits, Task
from badm.bench.engine.step_batch import TaskStepBatch
from badm.bench.engine.task_data import load_splits
from tests.helpers.engine_tasks import Gan, Line, normal, variant
from tests.helpers.support import assert_near


def work_on(task: Task, indices: Tensor | None = None, player: int = 0) -> TaskStepBatch:
    """Work on a batch, with the same model every time; parts of 4, 3 and 3 samples."""
    splits = load_splits(task)
    torch.manual_seed(0)
    model = task.model(splits)
    work = TaskStepBatch(task, model, task.players(model)[player])
    indices = torch.arange(10) if indices is None else indices
    work.begin(task.batch(splits.train, indices), len(indices), 1.0)
    return work


def gradient(work: TaskStepBatch) -> tuple[float, list[Tensor]]:
    loss = work.gradient()
    return loss, taken(work)


def taken(work: TaskStepBatch) -> list[Tensor]:
    return [p.grad.clone() for p in work.parameters if p.grad is not None]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sub_batch_size", [1, 3, 4, 5, 10, 64, None])
def test_sub_batches_make_the_gradient_of_the_batch(
    reduction: str, sub_batch_size: int | None
) -> None:
    facts = {"reduction": reduction, "sub_batch_size": sub_batch_size}
    loss, whole = gradient(work_on(variant(Line, **facts)))
    sub_loss, parts = gradient(work_on(variant(Line, gradients="sub-batches", **facts)))
    assert_near(parts, whole)
    assert sub_loss == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weighted_gradients_of_sub_batches_make_that_of_the_batch(reduction: str) -> None:
    work = work_on(variant(Line, reduction=reduction, sub_batch_size=4))
    loss, whole = gradient(work)
    parts = [(alpha, part_loss, taken(work)) for alpha, part_loss in work.sub_gradients()]
    alphas = [alpha for alpha, *_ in parts]
    assert alphas == ([1.0] * 3 if reduction == "sum" else pytest.approx([0.4, 0.3, 0.3]))
    assert sum(alpha * part_loss for alpha, part_loss, _ in parts) == pytest.approx(loss)
    mixed = [sum(alpha * g[i] for alpha, _, g in parts) for i in range(len(whole))]
    assert_near(mixed, whole)  # type: ignore[arg-type]


def test_batchnorm_sees_one_sub_batch_at_a_time() -> None:
    facts: dict[str, Any] = {"normed": True, "sub_batch_size": 5}
    _, whole = gradient(work_on(variant(Line, **facts)))
    work = work_on(variant(Line, gradients="sub-batches", **facts))
    _, parts = gradient(work)
    assert not torch.allclose(torch.cat([g.flatten() for g in parts]), _flat(whole), rtol=1e-3)
    assert work.model[0].num_batches_tracked == 2  # type: ignore[index]


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


class Texts(Line):
    """Samples of several tokens, padded; the loss is a mean over tokens."""

    sub_batch_size = 4

    def data(self) -> Splits:
        mask = torch.arange(5) < torch.tensor([1, 5, 2, 4, 3, 1, 1, 5, 2, 2])[:, None]
        split = {"x": normal(10, 5, 3, dtype=torch.float64), "mask": mask}
        return Splits(split, split, split)

    def loss(self, model: Any, batch: Any) -> Tensor:
        errors = model(batch["x"]).squeeze(-1).square() * batch["mask"]
        return errors.sum() / batch["mask"].sum()


def test_a_mean_over_tokens_is_weighted_by_tokens() -> None:
    def tokens(self: Task, batch: Any) -> float:
        return float(batch["mask"].sum())

    _, whole = gradient(work_on(Texts()))
    _, right = gradient(work_on(variant(Texts, gradients="sub-batches", size=tokens)))
    _, wrong = gradient(work_on(variant(Texts, gradients="sub-batches")))
    assert_near(right, whole)
    assert not torch.allclose(_flat(wrong), _flat(whole), rtol=1e-3)


@pytest.mark.parametrize("gradients", ["batch", "sub-batches"])
@pytest.mark.parametrize("sub_batch_size", [None, 1, 3, 4])
def test_a_batch_counts_as_one_gradient_however_it_is_taken(
    gradients: str, sub_batch_size: int | None
) -> None:
    work = work_on(variant(Line, gradients=gradients, sub_batch_size=sub_batch_size))
    work.gradient()
    assert work.gradients == pytest.approx(1.0, abs=1e-12)
    list(work.sub_gradients())
    assert work.gradients == pytest.approx(2.0, abs=1e-12)
    work.count_gradients(0.5)
    assert work.gradients == pytest.approx(2.5, abs=1e-12)


def test_half_of_the_sub_batches_count_as_half_a_gradient() -> None:
    work = work_on(variant(Line, sub_batch_size=5))
    next(work.sub_gradients())
    assert work.gradients == 0.5


def test_each_gradient_is_taken_anew() -> None:
    work = work_on(Line())
    _, first = gradient(work)
    _, second = gradient(work)
    assert_near(first, second, 0.0)


def test_only_the_players_own_parameters_get_gradients() -> None:
    work = work_on(Gan(), torch.arange(8), player=1)
    work.gradient()
    generator, discriminator = work.model["generator"], work.model["discriminator"]  # type: ignore[index]
    assert all(p.grad is not None for p in generator.parameters())
    assert all(p.grad is None for p in discriminator.parameters())


def test_frozen_parameters_get_no_gradient() -> None:
    class Frozen(Line):
        def model(self, splits: Splits) -> Any:
            model = super().model(splits)
            model[0].weight.requires_grad_(False)
            return model

    work = work_on(Frozen())
    work.gradient()
    assert [p.grad is None for p in work.model.parameters()] == [True, False]

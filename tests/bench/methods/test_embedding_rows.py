"""Rows of an embedding that no batch has touched: no method changes them by accident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm import BADM
from badm.bench.method import Method, TrainingSetup
from badm.bench.methods import METHODS, find
from badm.bench.tasks import masked_language, text_classification

WORDS, WIDTH, STEPS = 400, 8, 25
TOUCHED = torch.arange(0, WORDS, 4)  # the words that batches are made of
GRADIENT_METHODS = [method for method in METHODS.values() if method.family != "layer-wise"]
WITHOUT_MEMORY = ["sgd", "sgd-sigma", "adagrad", "rmsprop", "torch-sgd", "torch-rmsprop"]
WITH_MEMORY = ["badm", "badm-printed", "badm-diagonal", "badm-kronecker", "adam", "sgd-momentum"]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.Flatten(), nn.Linear(4 * WIDTH, 16), nn.ReLU(),
        nn.Linear(16, 3),
    )  # fmt: skip


@dataclass
class Batch:
    """Work on words of which none is beyond those touched, or on given ones."""

    module: nn.Module
    index: int
    words: Tensor | None = None
    lr_factor: float = 1.0

    def gradient(self) -> float:
        generator = torch.Generator().manual_seed(self.index)
        words = self.words
        if words is None:
            words = TOUCHED[torch.randint(len(TOUCHED), (12, 4), generator=generator)]
        self.module.zero_grad()
        labels = torch.randint(3, (len(words),), generator=generator)
        loss = cross_entropy(self.module(words), labels)
        loss.backward()
        return loss.item()

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        yield 1.0, self.gradient()

    def count_gradients(self, gradients: float) -> None: ...


def setting_of(method: Method) -> dict[str, Any]:
    """Without weight decay, which is for every weight and no accident."""
    changed = {"weight_decay": 0.0, "max_precondition_dim": 100}  # of SOAP: below
    return method.setting({k: v for k, v in changed.items() if k in method.defaults})


def bits(x: Tensor) -> Tensor:
    return x.detach().clone().view(torch.int32)


def assert_only_touched_rows_moved(before: Tensor, after: Tensor) -> None:
    rest = torch.ones(WORDS, dtype=torch.bool)
    rest[TOUCHED] = False
    assert torch.equal(before[rest], after[rest])
    assert (before[TOUCHED] != after[TOUCHED]).any(1).double().mean() > 0.9


@pytest.mark.parametrize("method", GRADIENT_METHODS, ids=lambda method: method.name)
def test_rows_that_no_batch_has_touched_stay_as_they_were_bit_by_bit(method: Method) -> None:
    module = model()
    before = bits(module[0].weight)
    trainer = method.build(TrainingSetup(module, STEPS), setting_of(method))
    for index in range(STEPS):
        trainer.step(Batch(module, index))
    assert_only_touched_rows_moved(before, bits(module[0].weight))


@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])
def test_so_it_is_for_an_optimizer_that_is_not_told_of_embeddings(
    metric: str, path: dict[str, bool]
) -> None:
    """An orthogonal step is a product with the rows of the dual: zero times anything is zero."""
    module = model()
    before = bits(module[0].weight)
    optimizer = BADM(module.parameters(), metric=metric, **path)
    for index in range(STEPS):
        Batch(module, index).gradient()
        optimizer.step()
    assert_only_touched_rows_moved(before, bits(module[0].weight))


def moved_by_the_second_batch(name: str) -> Tensor:
    """Of two batches without a word in common: which rows of the first the second one moves."""
    module, method = model(), find(name)
    trainer = method.build(TrainingSetup(module, 2), setting_of(method))
    first, second = TOUCHED[:8].view(2, 4), TOUCHED[8:16].view(2, 4)
    trainer.step(Batch(module, 0, first))
    before = bits(module[0].weight)
    trainer.step(Batch(module, 1, second))
    return (bits(module[0].weight) != before)[first.flatten()]


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_without_a_memory_a_batch_moves_its_own_rows_alone(name: str) -> None:
    assert not moved_by_the_second_batch(name).any()


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_a_memory_goes_on_to_move_rows_that_have_been_touched(name: str) -> None:
    assert moved_by_the_second_batch(name).any(1).all()


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_vocabularies_are_longer_than_what_soap_rotates(scale: str) -> None:
    """Within its limit it has a basis of all words, and rounding in that moves every row."""
    limit = find("soap").defaults["max_precondition_dim"]
    assert text_classification.SIZES[scale].words > limit
    assert masked_language.SIZES[scale].words > limit

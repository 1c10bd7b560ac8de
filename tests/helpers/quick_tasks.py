"""Tasks of milliseconds that say what was asked of them. A task file, for commands too.

``QUICK_LOG`` names a file that every call is written to, ``QUICK_GATE`` one whose presence holds
every run before its fifth step, so that tests can wait for a run to be in the middle.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench import Paper, Score, Splits, Task


def said(*words: object) -> None:
    if "QUICK_LOG" in os.environ:
        with open(os.environ["QUICK_LOG"], "a") as log:
            log.write(f"{os.getpid()} {' '.join(map(str, words))}\n")


class Side(Task):
    """Which side of a line a point is on."""

    score = Score("accuracy", percent=True)
    batch_size = 10
    steps = 12
    evaluate_every = 2
    target = 0.7
    paper = Paper(lr=0.05, scores={"adam": 0.75})
    taken = 0

    def data(self) -> Splits:
        x = torch.randn(120, 2, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] + 0.5 * x[:, 1] > 0.2).long()
        train, validation, test = [(x[i::3], y[i::3]) for i in range(3)]
        return Splits(
            (*train, "train"), (*validation, "validation"), (*test, "test"), synthetic=True
        )

    def model(self, splits: Splits) -> nn.Module:
        said("model", self.name)
        self.taken = 0
        model = nn.Linear(2, 2)
        with torch.no_grad():  # on the wrong side, so that steps have to be long enough
            model.weight.add_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.taken += 1
        if self.taken == 5:
            self._wait_at_the_gate()
        return cross_entropy(model(batch[0]), batch[1])

    def _wait_at_the_gate(self) -> None:
        gate = os.environ.get("QUICK_GATE")
        if gate is not None:
            # Not above: what is imported with a task is part of its version.
            from tests.helpers.waiting import wait_for

            said("gate", self.name)
            wait_for(lambda: not Path(gate).exists())

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        x, y, which = split
        said("read", self.name, which)
        logits = model(x)
        accuracy = (logits.argmax(1) == y).double().mean().item()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, y).item()}


class Later(Side):
    """Says which weights it starts from."""

    def load_pretrained(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        said("start", *weights["weight"].flatten().tolist())
        model.load_state_dict(dict(weights))


class Quick(Side):
    name = "quick"


class Summed(Side):
    """Its loss is the sum over a batch."""

    name = "summed"
    reduction = "sum"
    terms = 10

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) * len(batch[1])


class Hasty(Side):
    """A walk at constant speed past the best place: long steps are soon near it, never there."""

    name = "hasty"

    def model(self, splits: Splits) -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return -model.weight.sum()

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        way = model.weight.item()
        return {"accuracy": 0.0 if way < 0.5 else 1.0 if way < 1.5 else 0.8, "loss": -way}


class First(Side):
    name = "first"


class Second(Later):
    name = "second"
    after = "first"


class Explosive(Side):
    """Its loss is no number from the third step on."""

    name = "explosive"

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        return loss * float("nan") if self.taken >= 3 else loss


class Ruins(Later):
    """After a stage that leaves nothing behind."""

    name = "ruins"
    after = "explosive"

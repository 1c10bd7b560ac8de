"""Methods that train on the whole training set: one iteration instead of an epoch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from badm.bench.method import Setting, StepBatch
from badm.bench.paper import Paper


class Algorithm(Protocol):
    """An algorithm that changes the module in iterations over the whole training set."""

    @property
    def loss(self) -> float:
        """Return the current training loss of the module."""

    def iterate(self) -> float:
        """Do one iteration; return its cost, in epochs of gradients."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class LayerWiseTrainer:
    """Does an iteration at the first step of each epoch, and nothing at the others.

    So a run has as many iterations as an optimizer has epochs. An iteration that costs more than an
    epoch is counted as that many gradients.
    """

    algorithm: Algorithm
    steps_per_epoch: int
    steps: int = 0

    def step(self, batch: StepBatch) -> float:
        loss = self.algorithm.loss
        if self.steps % self.steps_per_epoch == 0:
            batch.count_gradients(self.steps_per_epoch * self.algorithm.iterate())
        self.steps += 1
        return loss

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "algorithm": self.algorithm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.algorithm.load_state_dict(state["algorithm"])


def own_settings(paper: Paper) -> Setting:
    """Ignore what the paper states for a task: it is for other methods."""
    return {}

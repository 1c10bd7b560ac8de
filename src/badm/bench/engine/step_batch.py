"""The work of a step: a batch, and the gradients of a player's loss on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.errors import TaskError
from badm.bench.method import trainable_parameters
from badm.bench.task import Player, Task
from badm.bench.tasks.error_context import task_errors


class TaskStepBatch:
    """What a trainer is given in every step (see ``method.Work``), with a new batch each time."""

    def __init__(self, task: Task, model: nn.Module, player: Player) -> None:
        self.task, self.model, self.player = task, model, player
        self.parameters: list[Tensor] = list(trainable_parameters(player.module))
        self.gradients = 0.0  # of batches, taken so far
        self.batch: Any = None
        self.samples = 0
        self.lr_factor = self.loss_weight = 1.0

    def begin(self, batch: Any, samples: int, lr_factor: float, loss_weight: float = 1.0) -> None:
        self.batch, self.samples, self.lr_factor, self.loss_weight = (
            batch,
            samples,
            lr_factor,
            loss_weight,
        )

    def gradient(self) -> float:
        """The gradient of the batch: at once, or as a weighted sum over its sub-batches."""
        self._clear_gradients()
        if self.task.gradients == "batch":
            self.count_gradients(1.0)
            return self._backward(self.batch)
        return sum(self._backward(part, alpha) for alpha, part in self._sub_batches())

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        """The gradients of the sub-batches, one after the other, each for itself."""
        for alpha, part in self._sub_batches():
            self._clear_gradients()
            yield alpha, self._backward(part)

    def count_gradients(self, gradients: float) -> None:
        self.gradients += gradients

    def _sub_batches(self) -> Iterator[tuple[float, Any]]:
        """The sub-batches with their weights; all of them together count as one gradient."""
        count = math.ceil(self.samples / (self.task.sub_batch_size or self.samples))
        with task_errors(self.task, "split_batch"):
            parts = self.task.split_batch(self.batch, count)
        with task_errors(self.task, "size"):
            sizes = [self.task.size(part) for part in parts]
        for size, part in zip(sizes, parts, strict=True):
            self.count_gradients(1 / len(parts))
            # A loss that is a sum is the sum of its parts, a mean their weighted mean.
            yield (1.0 if self.task.reduction == "sum" else size / sum(sizes)), part

    def _backward(self, batch: Any, weight: float = 1.0) -> float:
        with task_errors(self.task, "loss"):
            loss = self.player.loss(self.model, batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise TaskError(f"task {self.task.name}: loss must be one number, got {got}")
            # Only the player's own: the loss of a generator goes through the discriminator.
            torch.autograd.backward(
                loss if weight == 1.0 else weight * loss, inputs=self.parameters
            )
        return weight * loss.detach().item()

    def _clear_gradients(self) -> None:
        for p in self.parameters:
            p.grad = None

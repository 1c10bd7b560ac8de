"""The batch of a step, and the gradients of a player's loss on it."""

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
    """What a trainer is given at every step (see ``method.StepBatch``): each time a new batch."""

    def __init__(
        self, task: Task, model: nn.Module, player: Player, clip_norm: float = 0.0
    ) -> None:
        self.clip_norm = clip_norm
        self.task, self.model, self.player = task, model, player
        self.parameters: list[Tensor] = list(trainable_parameters(player.module))
        self.gradients = 0.0  # computed so far, in gradients of whole batches
        self.batch: Any = None
        self.samples = 0
        self.lr_factor = self.loss_weight = 1.0

    def _clip(self) -> None:
        """Clip the gradient that was computed, if the run asks for it."""
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)

    def begin(self, batch: Any, samples: int, lr_factor: float, loss_weight: float = 1.0) -> None:
        self.batch, self.samples, self.lr_factor, self.loss_weight = (
            batch,
            samples,
            lr_factor,
            loss_weight,
        )

    def gradient(self) -> float:
        """Compute the gradient of the batch, at once or as a weighted sum over its sub-batches."""
        self._clear_gradients()
        if self.task.gradients == "batch":
            self.count_gradients(1.0)
            loss = self._backward(self.batch)
        else:
            loss = sum(self._backward(part, alpha) for alpha, part in self._sub_batches())
        self._clip()
        return loss

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        """Compute the gradients of the sub-batches, one after the other."""
        for alpha, part in self._sub_batches():
            self._clear_gradients()
            loss = self._backward(part)
            self._clip()
            yield alpha, loss

    def count_gradients(self, gradients: float) -> None:
        self.gradients += gradients

    def _sub_batches(self) -> Iterator[tuple[float, Any]]:
        """Yield the sub-batches with their weights; together they count as one gradient."""
        count = math.ceil(self.samples / (self.task.sub_batch_size or self.samples))
        with task_errors(self.task, "split_batch"):
            parts = self.task.split_batch(self.batch, count)
        with task_errors(self.task, "size"):
            sizes = [self.task.size(part) for part in parts]
        for size, part in zip(sizes, parts, strict=True):
            self.count_gradients(1 / len(parts))
            # A sum over the batch is the sum over its parts, a mean is their weighted mean.
            yield (1.0 if self.task.reduction == "sum" else size / sum(sizes)), part

    def _backward(self, batch: Any, weight: float = 1.0) -> float:
        with task_errors(self.task, "loss"):
            loss = self.player.loss(self.model, batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise TaskError(f"task {self.task.name}: loss must be one number, got {got}")
            # Only for the player's own: a generator's loss passes through the discriminator.
            torch.autograd.backward(
                loss if weight == 1.0 else weight * loss, inputs=self.parameters
            )
        return weight * loss.detach().item()

    def _clear_gradients(self) -> None:
        for p in self.parameters:
            p.grad = None

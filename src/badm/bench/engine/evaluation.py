"""Evaluate a model: the task's metrics on a split, with the same random draws for every method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from reprlib import repr as short
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from badm.bench.engine import seeds
from badm.bench.errors import TaskError
from badm.bench.formatting import type_name
from badm.bench.method import Trainer
from badm.bench.records import artifact_files
from badm.bench.task import Player, Splits, Task, device_of, to_device
from badm.bench.tasks.error_context import method_errors, task_errors

CALIBRATION_BATCHES = 50


class Evaluator:
    """Evaluates the model of a run and leaves it as it was."""

    def __init__(self, task: Task, model: nn.Module, splits: Splits, seed: int) -> None:
        self.task, self.model, self.splits, self.seed = task, model, splits, seed

    def weights_are_finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    @contextmanager
    def evaluation_mode(self, trainers: Sequence[Trainer]) -> Iterator[None]:
        """Put the model into evaluation mode, with the weights its trainers evaluate with."""
        with torch.no_grad(), ExitStack() as stack:
            for trainer in trainers:
                with method_errors():
                    stack.enter_context(trainer.evaluation_weights())
            self.model.eval()
            yield
            self.model.train()
            with method_errors():
                stack.close()

    def metrics(self, split: Any) -> dict[str, float]:
        """Return the task's metrics on a split, checked."""
        seeds.seed_everything(self.seed, seeds.EVALUATE)
        with task_errors(self.task, "evaluate"):
            reported = self.task.evaluate(self.model, split)
        if not isinstance(reported, Mapping):
            raise TaskError(
                f"task {self.task.name}: evaluate must return numbers by name, "
                f"got {type_name(reported)}"
            )
        metrics = {name: self._number(name, value) for name, value in reported.items()}
        if self.task.score.name not in metrics:
            raise TaskError(
                f"task {self.task.name}: evaluate must report its score "
                f"{self.task.score.name!r}, got {', '.join(metrics) or 'nothing'}"
            )
        return metrics

    def _number(self, name: Any, value: Any) -> float:
        try:
            if isinstance(name, str) and not isinstance(value, (str, bytes)):
                return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # a vector, None, an object
            pass
        raise TaskError(
            f"task {self.task.name}: evaluate must return numbers by name, "
            f"got {short(value)} for {short(name)}"
        )

    def artifacts(self) -> Mapping[str, bytes | str]:
        """Return the task's artifacts of the model, checked."""
        seeds.seed_everything(self.seed, seeds.ARTIFACTS)
        with task_errors(self.task, "artifacts"):
            shown = self.task.artifacts(self.model, self.splits)
        try:
            return {} if shown is None else artifact_files.check(shown)
        except artifact_files.BadArtifact as error:
            raise TaskError(f"task {self.task.name}: artifacts {error}") from None

    def calibrate(self, player: Player) -> None:
        """Pass training batches through the model, the same ones every time.

        Only the player's BatchNorm layers change: whatever else the model counts or averages, and
        the other players, stay as they are.
        """
        norms = [m for m in player.module.modules() if isinstance(m, _BatchNorm)]
        recalibrated = {id(buffer) for norm in norms for buffer in norm.buffers()}
        others = [(b, b.clone()) for b in self.model.buffers() if id(b) not in recalibrated]
        seeds.seed_everything(self.seed, seeds.EVALUATE)
        self.model.train()
        train, size = self.splits.train, self.task.batch_size
        samples = self.task.samples(train)
        order = seeds.order(samples, self.seed, 0)
        with torch.no_grad(), task_errors(self.task, "loss"):
            for first in range(0, min(samples, CALIBRATION_BATCHES * size), size):
                batch = self.task.batch(train, order[first : first + size])
                player.loss(self.model, to_device(batch, device_of(self.model)))
            for buffer, before in others:
                buffer.copy_(before)

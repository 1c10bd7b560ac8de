"""Schedule-Free AdamW, which trains and evaluates different weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from badm.bench.method import Setting, StepBatch, Trainer, TrainingSetup, trainable_parameters


@dataclass
class ScheduleFreeTrainer:
    """Trains with Schedule-Free AdamW, and evaluates the average of all points.

    It has no schedule, so ``lr_factor`` is ignored.

    >>> from torch import nn
    >>> from schedulefree import AdamWScheduleFree
    >>> weight = nn.Parameter(torch.zeros(1))
    >>> trainer = ScheduleFreeTrainer(AdamWScheduleFree([weight], lr=1.0))
    >>> for g in (1.0, 1.0):
    ...     weight.grad = torch.tensor([g])
    ...     trainer.optimizer.step()
    >>> with trainer.evaluation_weights():
    ...     print(round(weight.item(), 3))  # the mean of -1 and -2
    -1.5
    >>> round(weight.item(), 3)
    -1.55
    """

    optimizer: Any
    setup: TrainingSetup | None = None

    def __post_init__(self) -> None:
        self.optimizer.train()

    def step(self, batch: StepBatch) -> float:
        loss = batch.gradient()
        self.optimizer.step()
        return loss

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        # Its own way back to the training weights is arithmetic, with rounding errors.
        groups = self.optimizer.param_groups
        params = [p for group in groups for p in group["params"]]
        training = [p.detach().clone() for p in params]
        self.optimizer.eval()
        try:
            with _calibrated(self.setup):
                yield
        finally:
            with torch.no_grad():
                for p, weights in zip(params, training, strict=True):
                    p.copy_(weights)
            for group in groups:
                group["train_mode"] = True

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


@contextmanager
def _calibrated(setup: TrainingSetup | None) -> Iterator[None]:
    """Recompute BatchNorm's statistics for the current weights, as the authors recommend."""
    modules = [] if setup is None else list(setup.module.modules())
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
    if setup is None or not norms:
        yield
        return
    before = [({name: b.clone() for name, b in m.named_buffers()}, m.momentum) for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    setup.calibrate()
    for norm, (_, momentum) in zip(norms, before, strict=True):
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm, (buffers, _) in zip(norms, before, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(buffers[name])


def schedule_free(setup: TrainingSetup, setting: Setting) -> Trainer:
    from schedulefree import AdamWScheduleFree

    return ScheduleFreeTrainer(
        AdamWScheduleFree(
            trainable_parameters(setup.module),
            lr=setting["lr"],
            betas=(setting["beta1"], setting["beta2"]),
            eps=setting["eps"],
            weight_decay=setting["weight_decay"],
            warmup_steps=round(setting["warmup"] * setup.steps),
        ),
        setup,
    )

"""Any method as a ``torch.optim.Optimizer``, for training loops that are not the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from badm.bench.method import CannotTrain, OptimizerTrainer, Trainer, trainable_parameters
from badm.bench.tasks.error_context import method_errors


class GradientsAtHand:
    """The batch of a step whose gradients have been computed by the caller (``StepBatch``)."""

    loss_weight = 1.0

    def __init__(self, lr_factor: float) -> None:
        self.lr_factor = lr_factor
        self.asked = False

    def gradient(self) -> float:
        if self.asked:
            raise CannotTrain(
                "it needs several gradients in a step, and a training function has computed one: "
                "write a badm.bench.Task for it"
            )
        self.asked = True
        return 0.0

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        yield 1.0, self.gradient()

    def count_gradients(self, gradients: float) -> None: ...


class MethodOptimizer(torch.optim.Optimizer):
    """Steps with a trainer that is no optimizer of torch's: of several parts, or with a memory.

    Its learning rate is that of the method; a scheduler changes it as any other.
    """

    def __init__(self, trainer: Trainer, module: torch.nn.Module, lr: float) -> None:
        super().__init__(trainable_parameters(module), {"lr": lr})
        self.trainer, self.base_lr = trainer, lr

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rate = float(self.param_groups[0]["lr"])
        with method_errors():
            self.trainer.step(GradientsAtHand(rate / self.base_lr if self.base_lr else 0.0))
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "trainer": self.trainer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        plain = dict(state_dict)
        self.trainer.load_state_dict(plain.pop("trainer"))
        super().load_state_dict(plain)


def as_optimizer(trainer: Trainer, module: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    """The trainer's own optimizer if that is all it steps with, else one that steps with it."""
    if isinstance(trainer, OptimizerTrainer) and isinstance(
        trainer.optimizer, torch.optim.Optimizer
    ):
        return trainer.optimizer
    return MethodOptimizer(trainer, module, lr)

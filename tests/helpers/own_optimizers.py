"""Optimizers as people write them, and methods: found in this file by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from badm.bench import Method, Range, optimizer_method

MODE = "plain"


class Signs(torch.optim.Optimizer):
    """Sign descent with momentum.

    Nothing in it knows of badm.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        momentum: float = 0,
        betas: tuple[float, float] = (0.9, 0.99),
        nesterov: bool = False,
    ) -> None:
        if not isinstance(betas, tuple):
            raise TypeError("betas must be a tuple")
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                beta = group["momentum"]
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(beta).add_(p.grad, alpha=1 - beta)
                u = beta * m + (1 - beta) * p.grad if group["nesterov"] else m
                p.sub_(u.sign(), alpha=group["lr"])


class Ranked(Signs):
    """It needs to be told a rank."""

    def __init__(self, params: Any, lr: float, rank: int) -> None:
        super().__init__(params, lr)


class Rateless(Signs):
    def __init__(self, params: Any, step_size: float = 0.1) -> None:
        super().__init__(params, step_size)


class Fails(Signs):
    def step(self, closure: Any = None) -> None:
        raise RuntimeError("no step today")


class Modal(Signs):
    """It evaluates the point at which it would be with steps ten times as long."""

    def eval(self) -> None:
        self._shift(1.0)

    def train(self) -> None:
        self._shift(-1.0)

    @torch.no_grad()
    def _shift(self, by: float) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(by)


def made_by_a_function(params: Any, lr: float = 0.2, **others: Any) -> torch.optim.Optimizer:
    """SGD, from a function."""
    return torch.optim.SGD(params, lr=lr, **others)


NO_METHOD = 3


def _two_groups(module: nn.Module, lr: float, bias_factor: float) -> torch.optim.Optimizer:
    named = [*module.named_parameters()]
    biases = [p for name, p in named if name.endswith("bias")]
    rest = [p for name, p in named if not name.endswith("bias")]
    return torch.optim.SGD([{"params": rest}, {"params": biases, "lr": bias_factor * lr}], lr=lr)


METHOD: Method = optimizer_method(
    "two-rates",
    "SGD with a rate of its own for biases",
    _two_groups,
    defaults={"lr": 0.1, "bias_factor": 2.0},
    space={"lr": Range(0.01, 1.0)},
)

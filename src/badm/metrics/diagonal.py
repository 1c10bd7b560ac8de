"""Internal: the diagonal metric, ``Q = diag(√v̂ + ε)``, as in Adam.

Gradients whose squares would overflow count as the largest whose squares do not. On the
CPU the fused step is a C kernel (kernel.c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from badm.metrics import kernel
from badm.metrics.arithmetic import descend, dual_step, foreach_dual_step
from badm.metrics.protocol import (
    Metric,
    Operator,
    Parameters,
    Settings,
    State,
    new_scalar,
    state_dtype,
)
from badm.metrics.raw_memory import by_layout


@dataclass(frozen=True)
class Scale:
    """``Q = diag(√v̂ + ε)``"""

    scale: Tensor

    def inverse(self, x: Tensor) -> Tensor:
        return x / self.scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Diagonal(Metric):
    """``Q = diag(√v̂ + ε)`` with ``v ← β₂v + (1−β₂)g²`` and bias correction."""

    name = "diagonal"
    state_keys = frozenset({"dual", "second_moment", "step"})

    def new_state(self, p: Tensor, index: int) -> State:
        return {"step": new_scalar(p), "second_moment": torch.zeros_like(p, dtype=state_dtype(p))}

    def limit(self, g: Tensor) -> Tensor:
        largest = largest_gradient(g.dtype)
        return g.clamp(-largest, largest) + 0 * g  # NaN where g is infinite: that is not hidden

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        g = self.limit(g)
        u = dual_step(g, state["dual"], s.beta)
        return u / second_moment_scale(g, state, s)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        return Scale(second_moment_scale(self.limit(g), state, s))

    def foreach(self, params: Parameters, s: Settings) -> None:
        descend(params.w, foreach_direction(_foreach_limit(params.g), params.states, s), s.lr)

    def fused(self, params: Parameters, s: Settings) -> Parameters:
        if params.w[0].device.type != "cpu" or not kernel.available():
            return params
        blocks, rest = by_layout(params, "dual", "second_moment")
        for block in blocks:
            kernel.diagonal(block, s)
        return rest


def largest_gradient(dtype: torch.dtype) -> float:
    """Return the limit of ``|g|``: about half the root of the largest number, as in kernel.c.

    Squares up to it are finite, and so is their average with its rounding errors. Beyond it dual
    and second moment are limited together, so that a step has the size it has for any spike.

    >>> largest_gradient(torch.float32) == 2.0**63, largest_gradient(torch.float64) == 2.0**511
    (True, True)
    """
    if dtype == torch.float16:
        return torch.finfo(dtype).max  # its squares are kept in float32
    _, exponent = math.frexp(torch.finfo(dtype).max)
    return 2.0 ** (exponent // 2 - 1)


def _foreach_limit(g: list[Tensor]) -> list[Tensor]:
    largest = [largest_gradient(x.dtype) for x in g]
    limited = list(torch._foreach_clamp_max(g, largest))
    torch._foreach_clamp_min_(limited, [-x for x in largest])
    torch._foreach_add_(limited, g, alpha=0)  # NaN where g is infinite
    return limited


def second_moment_scale(g: Tensor, state: State, s: Settings) -> Tensor:
    """Return ``√v̂ + ε`` after ``v ← β₂v + (1−β₂)g²``, with ``v̂ = v/(1 − β₂ᵗ)``."""
    v: Tensor = state["second_moment"]
    beta2 = s.second_memory
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    state["step"] += 1
    return (v / bias_correction(state["step"], beta2)).sqrt() + s.eps


def foreach_direction(g: list[Tensor], states: list[State], s: Settings) -> list[Tensor]:
    """Return ``(2m⁺ − m)/(√v̂ + ε)`` for each parameter."""
    v = [state["second_moment"] for state in states]
    steps = [state["step"] for state in states]
    u = foreach_dual_step(g, [state["dual"] for state in states], s.beta)
    beta2 = s.second_memory
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, g, g, 1 - beta2)
    torch._foreach_add_(steps, 1)
    corrections = bias_correction(torch.stack(steps), beta2).sqrt_().unbind()
    scale = list(torch._foreach_sqrt(v))
    torch._foreach_div_(scale, corrections)
    torch._foreach_add_(scale, s.eps)
    torch._foreach_div_(u, scale)
    return u


def bias_correction(step: Tensor, beta2: float) -> Tensor:
    """Return ``1 − β₂ᵗ`` without cancellation, which would cost four float32 digits early on."""
    return -torch.expm1(step * (math.log(beta2) if beta2 > 0 else -math.inf))

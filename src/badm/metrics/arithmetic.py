"""Internal: the equations that all metrics share."""

from __future__ import annotations

import torch
from torch import Tensor

from badm.metrics.protocol import Settings


def dual_step(g: Tensor, m: Tensor, beta: float) -> Tensor:
    """Return ``2m⁺ − m`` with ``m⁺ = m + θ(g − m)``, ``θ = 1 − β``; ``m`` becomes ``m⁺``.

    >>> m = torch.zeros(2)
    >>> dual_step(torch.ones(2), m, beta=0.75), m
    (tensor([0.5000, 0.5000]), tensor([0.2500, 0.2500]))
    """
    d = (1 - beta) * (g - m)  # θ(g − m)
    m.add_(d)  # m⁺
    return m + d  # 2m⁺ − m


def foreach_dual_step(g: list[Tensor], m: list[Tensor], beta: float) -> list[Tensor]:
    """Do the same for many tensors; autograd would need what is overwritten here."""
    d = list(torch._foreach_sub(g, m))
    torch._foreach_mul_(d, 1 - beta)  # θ(g − m)
    torch._foreach_add_(m, d)  # m⁺
    torch._foreach_add_(d, m)  # 2m⁺ − m
    return d


def descend(w: list[Tensor], x: list[Tensor], lr: float | Tensor) -> None:
    """Compute ``w − lr·x`` in place."""
    if isinstance(lr, Tensor):
        torch._foreach_mul_(x, lr)
        torch._foreach_sub_(w, x)
    else:
        torch._foreach_add_(w, x, alpha=-lr)


def decay(w: list[Tensor], s: Settings) -> None:
    """Compute ``w − lr·weight_decay·w`` in place."""
    if s.weight_decay:
        if isinstance(s.lr, Tensor):
            torch._foreach_mul_(w, 1 - s.lr * s.weight_decay)
        else:
            # A factor near 1 would be rounded to the dtype of half precision parameters.
            torch._foreach_add_(w, w, alpha=-s.lr * s.weight_decay)


def in_dtype_of(like: list[Tensor], x: list[Tensor]) -> list[Tensor]:
    return [a if a.dtype == b.dtype else a.to(b.dtype) for a, b in zip(x, like, strict=True)]

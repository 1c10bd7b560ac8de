"""Cross entropy where the classes are so many that passing over the logits is what takes time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


class _Summed(torch.autograd.Function):
    """The gradient, which is softmax less the truth, is made in the place where the loss is."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, truth: Tensor) -> Tensor:
        right = (torch.arange(len(truth), device=truth.device), truth)
        work = logits - logits.amax(1, keepdim=True)
        of_right = work[right].sum()
        total = work.exp_().sum(1, keepdim=True)
        work /= total
        work[right] -= 1
        ctx.save_for_backward(work)
        return total.log().sum() - of_right

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, scale: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return scale * gradient, None


def summed_cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """``cross_entropy(logits, truth, reduction="sum")`` in less than half the time on a CPU.

    >>> round(summed_cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)
    2.7726
    """
    total: Tensor = _Summed.apply(logits, truth)  # type: ignore[no-untyped-call]
    return total

"""Muon in its strongest fair form: flattened kernels, and AdamW for what is not a matrix.

On a CPU its products are in the weights' dtype. Those of ``torch.optim.Muon`` are in bfloat16,
which most CPUs emulate: a step then takes up to thirty times as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.methods.matrices_and_rest import MatricesAndRest, on_cpu


class FullPrecisionMuon(torch.optim.Muon):
    """``torch.optim.Muon`` with ``match_rms_adamw``, without rounding to bfloat16.

    >>> w = nn.Parameter(torch.eye(2))
    >>> w.grad = 3 * torch.eye(2)
    >>> FullPrecisionMuon([w], lr=0.1, weight_decay=0.0).step()
    >>> bool(((w.diag() < 1 - 0.02 * 0.6) & (w.diag() > 1 - 0.03 * 1.3)).all())
    True
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                state = self.state[w]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(w)
                mean = state["momentum_buffer"].lerp_(w.grad, 1 - momentum)
                ahead = w.grad.lerp(mean, momentum) if group["nesterov"] else mean
                way = _newton_schulz(ahead / ahead.norm().clamp(min=group["eps"]), group)
                w.mul_(1 - lr * group["weight_decay"])
                w.add_(way, alpha=-lr * 0.2 * math.sqrt(max(w.shape)))


def _newton_schulz(x: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Map every singular value ``s`` to ``a·s + b·s³ + c·s⁵``, ``steps`` times."""
    if x.shape[0] > x.shape[1]:
        return _newton_schulz(x.mT, group).mT
    a, b, c = group["ns_coefficients"]
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(MatricesAndRest):
    """Muon for hidden matrices and kernels, AdamW for the rest, in one optimizer.

    Which parameters are which, and their weight decay, are as in BADM's kronecker metrics, and
    ``match_rms_adamw`` makes one learning rate fit both parts.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2))
    >>> muon = Muon(model, lr=1e-3)
    >>> [[tuple(p.shape) for p in group["params"]] for group in muon.param_groups]
    [[(4, 9), (8, 16)], [(2, 8)], [(4,), (8,), (2,)]]
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
    ) -> None:
        def make(matrices: list[nn.Parameter]) -> torch.optim.Muon:
            return (FullPrecisionMuon if on_cpu(matrices) else torch.optim.Muon)(
                matrices,
                lr=lr,
                momentum=momentum,
                nesterov=nesterov,
                weight_decay=weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )

        super().__init__(module, make, lr=lr, betas=(beta1, beta2), weight_decay=weight_decay)

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

from badm.bench.methods.as_matrix import AsMatrix, gradients_of
from badm.bench.methods.badm_methods import groups
from badm.metrics import find, metric_for


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


class Muon:
    """Muon for hidden matrices and kernels, AdamW for the rest, in one optimizer.

    Which parameters are which, and their weight decay, are as in BADM's spectral metric, and
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
        spectral = find("spectral")
        hidden: list[nn.Parameter] = []
        rest: list[dict[str, Any]] = []
        for group in groups(module, spectral.name, weight_decay):
            metrics = [metric_for(group["metric"], p) for p in group["params"]]
            both = list(zip(group["params"], metrics, strict=True))
            hidden += [p for p, metric in both if metric is spectral]
            others = [p for p, metric in both if metric is not spectral]
            if others:
                rest.append({"params": others, "weight_decay": group["weight_decay"]})
        self.kernels = [AsMatrix(p) for p in hidden]
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            on_cpu = all(p.device.type == "cpu" for p in hidden)
            self.parts.append(
                (FullPrecisionMuon if on_cpu else torch.optim.Muon)(
                    [kernel.matrix for kernel in self.kernels],
                    lr=lr,
                    momentum=momentum,
                    nesterov=nesterov,
                    weight_decay=weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if rest or not hidden:  # with nothing to train, AdamW raises
            self.parts.append(torch.optim.AdamW(rest, lr=lr, betas=(beta1, beta2)))
        self._collect_groups()

    def step(self) -> None:
        with gradients_of(self.kernels):
            for part in self.parts:
                part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._collect_groups()  # loading makes new groups

    def _collect_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

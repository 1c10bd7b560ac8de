"""Muon in its strongest fair form: kernels flattened, AdamW where it does not belong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from badm.bench.methods.as_matrix import AsMatrix, gradients_of
from badm.bench.methods.badm_methods import groups
from badm.metric import kind_for


class Muon:
    """Muon for hidden matrices and kernels, AdamW for the rest, in one optimizer.

    The division and the weight decay are those of BADM in the spectral metric, parameter by
    parameter, and ``match_rms_adamw`` makes one learning rate mean the same to both parts.

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
        hidden: list[nn.Parameter] = []
        rest: list[dict[str, Any]] = []
        for group in groups(module, "spectral", weight_decay):
            kinds = [kind_for(group["metric"], p) for p in group["params"]]
            both = list(zip(group["params"], kinds, strict=True))
            hidden += [p for p, kind in both if kind == "spectral"]
            others = [p for p, kind in both if kind != "spectral"]
            if others:
                rest.append({"params": others, "weight_decay": group["weight_decay"]})
        self.kernels = [AsMatrix(p) for p in hidden]
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            self.parts.append(
                torch.optim.Muon(
                    [kernel.matrix for kernel in self.kernels],
                    lr=lr,
                    momentum=momentum,
                    nesterov=nesterov,
                    weight_decay=weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if rest or not hidden:  # with nothing at all to train AdamW says so
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
        self._collect_groups()  # loading makes new ones

    def _collect_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

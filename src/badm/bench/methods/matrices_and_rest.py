"""One optimizer for matrices and flattened kernels, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from badm.bench.method import OptimizerLike
from badm.bench.methods.as_matrix import AsMatrix, gradients_of
from badm.bench.methods.badm_methods import groups
from badm.metrics import find, metric_for


class MatricesAndRest:
    """Give every parameter the optimizer that suits it, and step them as one.

    Which parameters are matrices, and their weight decay, are as in BADM's kronecker metrics:
    embeddings, vectors and the output layer never are.

    Args:
        module: The model.
        make: Makes the optimizer of the matrices.
        lr: Learning rate of AdamW.
        betas: Memory of AdamW.
        weight_decay: That of AdamW for embeddings and an output layer; vectors have none.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2))
    >>> def make(matrices: list[nn.Parameter]) -> torch.optim.Optimizer:
    ...     return torch.optim.SGD(matrices, lr=0.1)
    >>> both = MatricesAndRest(model, make, lr=1e-3)
    >>> [[tuple(p.shape) for p in group["params"]] for group in both.param_groups]
    [[(4, 9), (8, 16)], [(2, 8)], [(4,), (8,), (2,)]]
    """

    def __init__(
        self,
        module: nn.Module,
        make: Callable[[list[nn.Parameter]], OptimizerLike],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        wanted = find("kronecker")
        hidden: list[nn.Parameter] = []
        rest: list[dict[str, Any]] = []
        for group in groups(module, wanted.name, weight_decay):
            metrics = [metric_for(group["metric"], p) for p in group["params"]]
            both = list(zip(group["params"], metrics, strict=True))
            hidden += [p for p, of_p in both if of_p is wanted]
            others = [p for p, of_p in both if of_p is not wanted]
            if others:
                rest.append({"params": others, "weight_decay": group["weight_decay"]})
        self.kernels = [AsMatrix(p) for p in hidden]
        self.parts: list[OptimizerLike] = []
        if hidden:
            self.parts.append(make([kernel.matrix for kernel in self.kernels]))
        if rest or not hidden:  # with nothing to train, AdamW raises
            self.parts.append(torch.optim.AdamW(rest, lr=lr, betas=betas))
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


def on_cpu(parameters: list[nn.Parameter]) -> bool:
    """Whether all parameters are in the memory of the CPU, where bfloat16 is emulated."""
    return all(p.device.type == "cpu" for p in parameters)

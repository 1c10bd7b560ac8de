"""Internal: the euclidean metric, ``Q = I``, which is the paper's algorithm.

The fused step is torch's own SGD kernel, on every device that has it. With ``c = (ρ−σ)(ρ+σ)/(ρσ)``,
SGD with momentum ``β``, Nesterov, learning rate ``1/ρ`` and dampening ``1 − c(1−β)`` equals BADM's
step while its buffer holds ``c·m``. So the dual is stored scaled, with the factor as ``dual_scale``
in the state: it is adjusted when ``β`` changes, and undone for another path or a checkpoint. Where
``c`` is close to 0 (``ρ ≈ σ``) or undefined (``β = 0``) the buffer cannot hold ``m``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from badm.metrics.arithmetic import decay, descend, dual_step, foreach_dual_step
from badm.metrics.protocol import Metric, Operator, Parameters, Settings, State
from badm.metrics.raw_memory import by_layout

_SGD_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class Identity:
    """``Q = I``"""

    def inverse(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return x


class Euclidean(Metric):
    """``Q = I``: BADM is quasi-hyperbolic momentum SGD."""

    name = "euclidean"
    fallback = "euclidean"
    linear = True
    optional_state_keys = frozenset({"dual_scale"})

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        self.make_portable(state)
        return dual_step(g, state["dual"], s.beta)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        return Identity()

    def foreach(self, params: Parameters, s: Settings) -> None:
        for state in params.states:
            self.make_portable(state)
        descend(params.w, foreach_dual_step(params.g, params.buffers("dual"), s.beta), s.lr)

    def fused(self, params: Parameters, s: Settings) -> Parameters:
        if params.w[0].device.type not in _SGD_DEVICES or not sgd_scale(s.beta):
            return params
        readable, rest = by_layout(params, "dual")
        for part in readable:
            _sgd(part, s)
        return rest

    def make_portable(self, state: State) -> None:
        """Undo the scale of the dual, so that it is ``m``."""
        if "dual_scale" in state:
            state["dual"].div_(state.pop("dual_scale"))


def sgd_scale(beta: float) -> float:
    """Return ``c`` in terms of ``β``; 0 where it is undefined or too small.

    Near ``ρ = σ`` the kernel would compute ``c(1−β)`` as ``1 − (1 − c(1−β))`` and lose its digits.
    """
    c = (2 * beta - 1) / (beta * (1 - beta)) if beta > 0 else 0.0
    return c if abs(c) > 1e-2 else 0.0


def _sgd(params: Parameters, s: Settings) -> None:
    c = sgd_scale(s.beta)
    for state in params.states:
        if (scale := state.get("dual_scale", 1.0)) != c:
            state["dual"].mul_(c / scale)
            state["dual_scale"] = c
    decay(params.w, s)
    torch._fused_sgd_(
        params.w,
        params.g,
        params.buffers("dual"),
        weight_decay=0.0,
        momentum=s.beta,
        lr=s.lr * ((1 - s.beta) / s.beta),  # 1/ρ
        dampening=1 - c * (1 - s.beta),
        nesterov=True,
        maximize=s.maximize,
        is_first_step=False,
    )
    # torch's fused kernels do not tell autograd that they changed the parameters.
    torch.autograd.graph.increment_version(params.w)

"""Internal: the euclidean metric, ``Q = I``, which is the paper's algorithm.

On the CPU the fused step is a C kernel (kernel.c), on GPUs torch's own SGD kernel: with momentum
``β``, Nesterov, learning rate ``1/ρ`` and dampening ``1 − c(1−β)``, where ``c = (ρ−σ)(ρ+σ)/(ρσ)``,
it equals BADM's step while its buffer holds ``c·m``. So there the dual is stored scaled, with the
factor as ``dual_scale`` in the state: adjusted when ``β`` changes, and undone for another path
or a checkpoint. Where ``c`` is close to 0 (``ρ ≈ σ``) or undefined (``β = 0``) the buffer cannot
hold ``m``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from badm.metrics import kernel
from badm.metrics.arithmetic import decay, descend, dual_step, foreach_dual_step
from badm.metrics.protocol import Metric, Operator, Parameters, Settings, State
from badm.metrics.raw_memory import by_layout

_SGD_DEVICES = ("cuda", "mps", "xpu")


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
        self._unscale(params)
        descend(params.w, foreach_dual_step(params.g, params.buffers("dual"), s.beta), s.lr)

    def fused(self, params: Parameters, s: Settings) -> Parameters:
        device = params.w[0].device.type
        on_cpu = device == "cpu" and kernel.available()
        if not on_cpu and not (device in _SGD_DEVICES and sgd_scale(s.beta)):
            return params
        blocks, rest = by_layout(params, "dual")
        for block in blocks:
            if on_cpu:
                self._unscale(block.params)
                kernel.euclidean(block, s)
            else:
                _sgd(block.params, s)
        return rest

    def _unscale(self, params: Parameters) -> None:
        for state in params.states:
            if "dual_scale" in state:
                self.make_portable(state)

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

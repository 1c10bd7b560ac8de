"""The four metrics ``Q``: which parameter gets which, what each remembers, and ``Q`` itself.

A metric is measured once per step, from the gradient ``g`` and the direction ``u = 2m⁺ − m``, and
is then a fixed positive definite operator. :class:`Operator` has both ``Q⁻¹`` and ``Q`` because
Algorithm 1 needs both; the optimizer, in update.py, needs ``Q⁻¹u`` alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from badm import kronecker
from badm.matrices import as_matrix, matrix_shape
from badm.orthogonal import polar_factor

METRICS = ("euclidean", "diagonal", "spectral", "kronecker")

# Of its recent peak: a direction that has fallen below is dying out. Noise and bursts of gradients
# stay far above it.
_DYING = 1e-2

State = dict[str, Any]

# What the state of a parameter holds, from its first step on.
_KEYS = {
    "euclidean": {"dual"},
    "diagonal": {"dual", "second_moment", "step"},
    "spectral": {"dual", "peak"},
    "kronecker": {"dual", "second_moment", "step", "refresh_in"},
}


def check_name(metric: object) -> None:
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")


def kind_for(metric: str, p: Tensor) -> str:
    """The metric a parameter gets: spectral and kronecker are for matrices, the rest is diagonal.

    Convolution kernels are matrices too, flattened to (out, in·kh·kw). A matrix with a side of
    length 1 is a vector, and one of which both sides are too long for a basis is to the kronecker
    metric, too.
    """
    if metric in ("euclidean", "diagonal"):
        return metric
    if p.ndim < 2 or p.numel() == 0:
        return "diagonal"
    shorter = min(matrix_shape(p))
    fits = shorter > 1 and (metric == "spectral" or kronecker.turns(shorter))
    return metric if fits else "diagonal"


def spectral_scale(p: Tensor) -> float:
    """``c = 0.2·√max(rows, cols)``: an orthogonal step then has the size of an Adam step."""
    return 0.2 * math.sqrt(max(matrix_shape(p)))


def liveliness(largest: Tensor, peak: Tensor, beta: float) -> Tensor:
    """The part of an orthogonal step that a direction ``u`` is worth: 1, or less where it dies out.

    Orthogonal steps have full length however small ``u`` is, so that a matrix whose gradients have
    stopped would follow what is left of its dual for ever. ``largest`` is ``max |u|`` and ``peak``
    its recent maximum, which is brought up to date and forgets half as fast as the dual does. Once
    gradients stop, ``max |u|`` falls behind the peak step by step, and below a hundredth of it the
    step shrinks in proportion. Gradients of any scale, a hundredfold drop and pauses of 80 steps
    (at β = 0.9) are left at full length. Takes one matrix or a stack of them.
    """
    tiny = torch.finfo(largest.dtype).tiny
    torch.maximum(peak * ((1 + beta) / 2), largest, out=peak)
    # What is below the smallest normal number is rounding that no average can get rid of.
    part = torch.where(largest < tiny, 0.0, largest / peak)
    return (part / _DYING).clamp(max=1.0)


def state_dtype(p: Tensor) -> torch.dtype:
    """Half precision parameters keep their state in float32: averages vanish in 8 or 11 bits."""
    return torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype


def zeros(kind: str, p: Tensor) -> Tensor:
    """A buffer for a parameter: of its shape, or of that of its blocks in the kronecker metric."""
    like = kronecker.cut(as_matrix(p.detach())[None]) if kind == "kronecker" else p
    return torch.zeros_like(like, dtype=state_dtype(p))


def new_state(kind: str, p: Tensor, index: int) -> State:
    """What the metric remembers of a parameter, the ``index``-th, before its first step."""
    state: State = {}
    if kind == "spectral":
        state["peak"] = torch.zeros((), dtype=state_dtype(p), device=p.device)
    if kind in ("diagonal", "kronecker"):
        # On the device, so that a step needs no word from it and can be captured in a graph.
        dtype = state_dtype(p).to_real()
        state["step"] = torch.zeros((), dtype=dtype, device=p.device)
        state["second_moment"] = zeros(kind, p)
    if kind == "kronecker":
        state.update(kronecker.new_state(index))
    return state


def misfit(kind: str, p: Tensor, state: State) -> str | None:
    """What is wrong with a state for a parameter, in half a sentence; None if it fits."""
    shape = kronecker.blocks_shape(*matrix_shape(p)) if kind == "kronecker" else tuple(p.shape)
    for key in ("dual", "second_moment"):
        if key in state and tuple(state[key].shape) != shape:
            found = f"a {key} of shape {tuple(state[key].shape)}"
            return f"has shape {tuple(p.shape)}, and its state has {found} instead of {shape}"
    optional = kronecker.KEYS if kind == "kronecker" else {"dual_scale"}
    if unknown := sorted(set(state) - _KEYS[kind] - optional):
        return f"has {', '.join(unknown)} in its state, which the {kind} metric does not know"
    if missing := sorted(_KEYS[kind] - set(state)):
        return f"lacks {', '.join(missing)} in its state, which the {kind} metric needs"
    return None


class Operator(Protocol):
    """A positive definite ``Q``, fixed for one step."""

    def inverse(self, x: Tensor) -> Tensor:
        """``Q⁻¹x``"""

    def forward(self, x: Tensor) -> Tensor:
        """``Qx``"""


@dataclass(frozen=True)
class Identity:
    """``Q = I``: the paper, word for word."""

    def inverse(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Diagonal:
    """``Q = diag(√v̂ + ε)``: the metric of Adam."""

    scale: Tensor

    def inverse(self, x: Tensor) -> Tensor:
        return x / self.scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@dataclass(frozen=True)
class Spectral:
    """``Q⁻¹x = c·Px`` with the ``P`` that makes ``Pu`` orthogonal; from the right where tall."""

    factor: Tensor
    tall: bool

    def inverse(self, x: Tensor) -> Tensor:
        matrix = as_matrix(x)
        product = matrix @ self.factor if self.tall else self.factor @ matrix
        return product.reshape(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve(self.factor, as_matrix(x), left=not self.tall)
        return solution.reshape(x.shape)


@dataclass(frozen=True)
class Kronecker:
    """``Q⁻¹x = U_L [(U_Lᵀ x U_R) / (√v̂ + ε)] U_Rᵀ``, block by block."""

    left: Tensor | None
    right: Tensor | None
    scale: Tensor

    def inverse(self, x: Tensor) -> Tensor:
        return self._scaled(x, 1 / self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self._scaled(x, self.scale)

    def _scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        matrix = as_matrix(x)
        rotated = kronecker.rotate(kronecker.cut(matrix[None]), self.left, self.right)
        scaled = kronecker.rotate_back(scale * rotated, self.left, self.right)
        return kronecker.join(scaled, *matrix.shape).reshape(x.shape)


def measure(
    kind: str, state: State, g: Tensor, u: Tensor, *, beta: float, beta2: float, eps: float
) -> Operator:
    """Bring ``state`` up to date with the gradient and return the ``Q`` of this step."""
    if kind == "euclidean":
        return Identity()
    if kind == "diagonal":
        return Diagonal(second_moment_scale(state, g, beta2, eps))
    if kind == "spectral":
        direction = as_matrix(u)
        tall = direction.shape[0] > direction.shape[1]
        factor = polar_factor(direction.mT if tall else direction)
        part = liveliness(u.abs().amax(), state["peak"], beta)
        part = torch.where(part > 0, part, 1.0)  # for zero any Q will do
        return Spectral(spectral_scale(u) * part * factor, tall)
    left, right = (None if basis is None else basis.clone() for basis in kronecker.bases([state]))
    blocks = kronecker.cut(kronecker.within_range(as_matrix(g)[None]))
    scale = second_moment_scale(state, kronecker.rotate(blocks, left, right), beta2, eps)
    kronecker.follow([state], blocks, beta2)
    return Kronecker(left, right, scale)


def second_moment_scale(state: State, g: Tensor, beta2: float, eps: float) -> Tensor:
    """``√v̂ + ε`` after ``v ← β₂v + (1−β₂)g²``, with ``v̂ = v/(1 − β₂ᵗ)``."""
    v: Tensor = state["second_moment"]
    # Not lerp: from a moment that has overflowed it would take infinity from infinity.
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    state["step"] += 1
    return (v / bias_correction(state["step"], beta2)).sqrt() + eps


def bias_correction(step: Tensor, beta2: float) -> Tensor:
    """``1 − β₂ᵗ`` without cancellation, which in float32 would cost four digits at the start."""
    return -torch.expm1(step * (math.log(beta2) if beta2 > 0 else -math.inf))

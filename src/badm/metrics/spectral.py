"""Internal: the spectral metric, ``Q⁻¹u = c·UVᵀ`` for ``u = UΣVᵀ``, as in Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from badm.distributed import fsdp
from badm.metrics.arithmetic import decay, descend, dual_step, foreach_dual_step, in_dtype_of
from badm.metrics.matrices import (
    as_matrix,
    is_matrix,
    largest_entry,
    matrix_shape,
    stack,
    stacks,
    unstack,
)
from badm.metrics.orthogonal import STEPS, Steps, orthogonalize, polar_factor
from badm.metrics.protocol import (
    Metric,
    Operator,
    Parameters,
    Settings,
    State,
    Step,
    local_parameters,
    new_scalar,
)

# Fraction of the recent peak below which a direction counts as fading out. Noisy and bursty
# gradients stay far above it.
FADING_BELOW = 1e-2

# Elements of a stack of equal shapes; a larger matrix uses all cores by itself.
_STACK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Polar:
    """``Q⁻¹x = c·Px`` with the ``P`` that makes ``Pu`` orthogonal; ``xP`` if ``x`` is tall."""

    factor: Tensor
    tall: bool

    def inverse(self, x: Tensor) -> Tensor:
        matrix = as_matrix(x)
        product = matrix @ self.factor if self.tall else self.factor @ matrix
        return product.reshape(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve(self.factor, as_matrix(x), left=not self.tall)
        return solution.reshape(x.shape)


def polar(u: Tensor, length: Tensor, steps: Steps = STEPS) -> Polar:
    """Return the ``Q`` whose ``Q⁻¹u`` is orthogonal, times ``length``."""
    matrix = as_matrix(u)
    tall = matrix.shape[0] > matrix.shape[1]
    return Polar(length * polar_factor(matrix.mT if tall else matrix, steps), tall)


class Spectral(Metric):
    """Orthogonal steps: all singular values of the direction become 1."""

    name = "spectral"
    state_keys = frozenset({"dual", "peak"})

    def applies_to(self, p: Tensor) -> bool:
        return is_matrix(p)

    def new_state(self, p: Tensor, index: int) -> State:
        return {"peak": new_scalar(p)}

    def upgrade_state(self, state: State, p: Tensor) -> None:
        if set(state) == {"dual"}:
            state.update(self.new_state(p, 0))

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        u = dual_step(g, state["dual"], s.beta)
        part = step_fraction(u.detach().abs().amax(), state["peak"], s.beta)
        return scale(u) * part * orthogonalize(as_matrix(u)).reshape(u.shape)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        part = step_fraction(u.abs().amax(), state["peak"], s.beta)
        part = torch.where(part > 0, part, 1.0)  # for u = 0 any Q will do
        return polar(u, scale(u) * part)

    def foreach(self, params: Parameters, s: Settings) -> None:
        for indices in stacks(params.w, [None] * len(params), _STACK_ELEMENTS):
            part = params.select(indices)
            u = stack(foreach_dual_step(part.g, part.buffers("dual"), s.beta))
            largest = largest_entry(u).flatten()
            length = scale(part.w[0]) * _step_fractions(largest, part.buffers("peak"), s.beta)
            x = orthogonalize(u).mul_(length[:, None, None])
            descend(part.w, unstack(x, part.w[0].shape), s.lr)

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        """Share out the matrices: each rank orthogonalizes some of them for all ranks."""
        own = local_parameters(params)
        duals = own.buffers("dual")
        g = list(torch._foreach_neg(own.g)) if s.maximize else own.g
        u = foreach_dual_step(in_dtype_of(duals, g), duals, s.beta)
        decay(own.w, s)
        x: dict[int, Tensor] = {}
        for indices, directions, largest in fsdp.map_matrices(u, params.w, _orthogonalized):
            parts = _step_fractions(largest, own.select(indices).buffers("peak"), s.beta)
            for i, direction, part in zip(indices, directions, parts.unbind(), strict=True):
                x[i] = direction.mul_(scale(params.w[i]) * part)
        descend(own.w, in_dtype_of(own.w, [x[i] for i in range(len(u))]), s.lr)


def scale(p: Tensor) -> float:
    """Return ``c = 0.4·√max(rows, cols)``: the entries of a step have a root mean square of 0.4.

    Adam's are near 1 in its first steps and near 0.2 once noise prevails. In between, the learning
    rates that are best for Adam are best here too, on average over tasks.
    """
    return 0.4 * math.sqrt(max(matrix_shape(p)))


def step_fraction(largest: Tensor, peak: Tensor, beta: float) -> Tensor:
    """Return the fraction of an orthogonal step to take: 1, or less where gradients have stopped.

    An orthogonal step has full length however small ``u`` is, so a matrix whose gradients have
    stopped would follow the rest of its dual forever. ``largest`` is ``max |u|`` and ``peak`` its
    recent maximum, which is updated here and decays half as fast as the dual. Once gradients stop,
    ``max |u|`` falls behind the peak step by step, and below a hundredth of it the step shrinks in
    proportion. Gradients of any scale, a hundredfold drop and pauses of 80 steps (at β = 0.9) still
    get full steps. Takes one matrix or a stack of them.
    """
    tiny = torch.finfo(largest.dtype).tiny
    torch.maximum(peak * ((1 + beta) / 2), largest, out=peak)
    # Below the smallest normal number there is only rounding error.
    part = torch.where(largest < tiny, 0.0, largest / peak)
    return (part / FADING_BELOW).clamp(max=1.0)


def _step_fractions(largest: Tensor, peaks: list[Tensor], beta: float) -> Tensor:
    peak = torch.stack(peaks)
    part = step_fraction(largest, peak, beta)
    torch._foreach_copy_(peaks, list(peak.unbind()))
    return part


def _orthogonalized(x: Tensor) -> Tensor:
    return orthogonalize(as_matrix(x)).reshape(x.shape)

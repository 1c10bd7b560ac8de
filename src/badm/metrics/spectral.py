"""Internal: the spectral metric, ``Q⁻¹u = c·UVᵀ`` for ``u = UΣVᵀ``, as in Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from badm.distributed import fsdp
from badm.metrics.arithmetic import decay, descend, dual_step, foreach_dual_step, in_dtype_of
from badm.metrics.matrices import (
    Blocks,
    as_stack,
    from_stack,
    is_matrix,
    largest_entry,
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
    """``Q⁻¹x = c·Px`` with the ``P`` that makes ``Pu`` orthogonal; ``xP`` if ``x`` is tall.

    One ``P`` for each matrix that a parameter is read as.
    """

    factor: Tensor
    tall: bool
    blocks: Blocks

    def inverse(self, x: Tensor) -> Tensor:
        matrices = as_stack(x, self.blocks)
        product = matrices @ self.factor if self.tall else self.factor @ matrices
        return from_stack(product, x.shape, self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        matrices = as_stack(x, self.blocks)
        solution = torch.linalg.solve(self.factor, matrices, left=not self.tall)
        return from_stack(solution, x.shape, self.blocks)


def polar(u: Tensor, lengths: Tensor, steps: Steps, blocks: Blocks) -> Polar:
    """Return the ``Q`` whose ``Q⁻¹u`` is orthogonal, times the length of each matrix."""
    matrices = as_stack(u, blocks)
    tall = matrices.shape[1] > matrices.shape[2]
    factor = polar_factor(matrices.mT if tall else matrices, steps)
    return Polar(lengths[:, None, None] * factor, tall, blocks)


class Spectral(Metric):
    """Orthogonal steps: all singular values of the direction become 1."""

    name = "spectral"
    reads_blocks = True
    state_keys = frozenset({"dual", "peak"})

    def applies_to(self, p: Tensor) -> bool:
        return is_matrix(p, self.blocks)

    def new_state(self, p: Tensor, index: int) -> State:
        peak = new_scalar(p)
        return {"peak": peak.new_zeros(math.prod(self.blocks)) if self.blocks else peak}

    def upgrade_state(self, state: State, p: Tensor) -> None:
        if set(state) == {"dual"}:
            state.update(self.new_state(p, 0))

    def state_mismatch(self, p: Tensor, state: State) -> str | None:
        peaks = math.prod(self.blocks)
        if "peak" in state and state["peak"].numel() != peaks:
            return f"is read as {peaks} matrices, and its state has {state['peak'].numel()} peaks"
        return super().state_mismatch(p, state)

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        u = dual_step(g, state["dual"], s.beta)
        x = as_stack(u, self.blocks)
        step = self._lengths(x, state["peak"], s)[:, None, None] * orthogonalize(x)
        return from_stack(step, u.shape, self.blocks)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        lengths = self._lengths(as_stack(u, self.blocks), state["peak"], s)
        lengths = torch.where(lengths > 0, lengths, 1.0)  # for u = 0 any Q will do
        return polar(u, lengths, STEPS, self.blocks)

    def _lengths(self, x: Tensor, peak: Tensor, s: Settings) -> Tensor:
        """Return how long the step of each matrix is, and update their peaks."""
        largest = largest_entry(x.detach()).flatten()
        return scale(x) * step_fraction(largest, peak.view(-1), s.beta)

    def foreach(self, params: Parameters, s: Settings) -> None:
        for indices in stacks(params.w, [None] * len(params), _STACK_ELEMENTS):
            part = params.select(indices)
            u = stack(foreach_dual_step(part.g, part.buffers("dual"), s.beta), self.blocks)
            largest = largest_entry(u).flatten()
            length = scale(u) * _step_fractions(largest, part.buffers("peak"), s.beta)
            x = orthogonalize(u).mul_(length[:, None, None])
            descend(part.w, unstack(x, part.w[0].shape, self.blocks), s.lr)

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        """Share out the matrices: each rank orthogonalizes some of them for all ranks."""
        own = local_parameters(params)
        duals = own.buffers("dual")
        g = list(torch._foreach_neg(own.g)) if s.maximize else own.g
        u = foreach_dual_step(in_dtype_of(duals, g), duals, s.beta)
        decay(own.w, s)
        x: dict[int, Tensor] = {}

        def whole_step(i: int, whole: Tensor) -> tuple[Tensor, Tensor]:
            matrices = as_stack(whole, self.blocks)
            peak = own.states[i]["peak"].clone()  # every rank updates its own below
            step = orthogonalize(matrices).mul_(self._lengths(matrices, peak, s)[:, None, None])
            return from_stack(step, whole.shape, self.blocks), largest_entry(matrices).flatten()

        of_each = math.prod(self.blocks)
        for indices, steps, largest in fsdp.map_matrices(u, params.w, whole_step, of_each):
            _step_fractions(largest.flatten(), own.select(indices).buffers("peak"), s.beta)
            x.update(zip(indices, steps, strict=True))
        descend(own.w, in_dtype_of(own.w, [x[i] for i in range(len(u))]), s.lr)


def scale(x: Tensor) -> float:
    """Return ``c = 0.4·√max(rows, cols)``: the entries of a step have a root mean square of 0.4.

    Adam's are near 1 in its first steps and near 0.2 once noise prevails. In between, the learning
    rates that are best for Adam are best here too, on average over tasks. Takes one matrix or a
    stack of them.
    """
    return 0.4 * math.sqrt(max(x.shape[-2:]))


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
    peak = torch.cat([one.view(-1) for one in peaks])
    part = step_fraction(largest, peak, beta)
    updated = torch.split(peak, [one.numel() for one in peaks])
    torch._foreach_copy_(
        peaks, [new.view(one.shape) for one, new in zip(peaks, updated, strict=True)]
    )
    return part

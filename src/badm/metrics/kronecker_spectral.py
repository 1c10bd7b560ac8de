"""Internal: the kronecker-spectral metric, the kronecker direction made orthogonal.

``Q⁻¹u = c·UVᵀ`` for ``Ku = UΣVᵀ``, where ``K`` is the inverse of the kronecker metric. Both maps
are positive definite; their product is invertible but not symmetric (docs/theory.md, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from badm.metrics.arithmetic import descend
from badm.metrics.kronecker import Kronecker, RotatedScale
from badm.metrics.matrices import Blocks, as_stack, from_stack, unstack
from badm.metrics.orthogonal import STEPS_WHITENED, orthogonalize
from badm.metrics.protocol import Metric, Operator, Parameters, Settings, State, Step
from badm.metrics.spectral import Polar, polar, scale

# Root mean square of the kronecker direction below which gradients count as having stopped. It is
# about 0.2 under pure noise, and smaller only while gradients are far below their recent size.
FADING_BELOW = 1e-2

_KRONECKER = Kronecker()

K = TypeVar("K", bound="KroneckerSpectral")


@dataclass(frozen=True)
class Composition:
    """``Q⁻¹x = P(Kx)``: the kronecker metric first, then the polar factor of ``Ku``."""

    scaled: RotatedScale
    polar: Polar

    def inverse(self, x: Tensor) -> Tensor:
        return self.polar.inverse(self.scaled.inverse(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled.forward(self.polar.forward(x))


class KroneckerSpectral(Metric):
    """Orthogonal steps along the kronecker direction; the state is that of the kronecker metric."""

    name = "kronecker-spectral"
    suits_output_layer = False
    differentiable = False
    symmetric = False
    beta2 = _KRONECKER.beta2
    state_keys = _KRONECKER.state_keys
    optional_state_keys = _KRONECKER.optional_state_keys
    reads_blocks = True
    shards_buffers = _KRONECKER.shards_buffers

    kronecker = _KRONECKER

    def with_blocks(self: K, blocks: Blocks) -> K:
        metric = super().with_blocks(blocks)
        metric.kronecker = _KRONECKER.with_blocks(blocks)
        return metric

    def applies_to(self, p: Tensor) -> bool:
        return self.kronecker.applies_to(p)

    def buffer_shape(self, p: Tensor) -> tuple[int, ...]:
        return self.kronecker.buffer_shape(p)

    def new_state(self, p: Tensor, index: int) -> State:
        return self.kronecker.new_state(p, index)

    def place_of(self, p: Tensor, index: int) -> int:
        return self.kronecker.place_of(p, index)

    def upgrade_state(self, state: State, p: Tensor) -> None:
        self.kronecker.upgrade_state(state, p)

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        x = as_stack(self.kronecker.direction(g, state, s), self.blocks)
        return from_stack(_orthogonal_steps(x), g.shape, self.blocks)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        scaled = self.kronecker.operator(g, u, state, s)
        x = scaled.inverse(u)
        c = lengths(as_stack(x, self.blocks))
        c = torch.where(c > 0, c, 1.0)  # for u = 0 any Q will do
        return Composition(scaled, polar(x, c, STEPS_WHITENED, self.blocks))

    def foreach(self, params: Parameters, s: Settings) -> None:
        for part, x in self.kronecker.stacked_directions(params, s):
            descend(part.w, unstack(_orthogonal_steps(x), part.w[0].shape, self.blocks), s.lr)

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        self.kronecker.sharded(params, s, step)


def _orthogonal_steps(x: Tensor) -> Tensor:
    return orthogonalize(x, STEPS_WHITENED).mul_(lengths(x)[:, None, None])


def lengths(x: Tensor) -> Tensor:
    """Return ``c`` of each matrix of a stack of kronecker directions."""
    return torch.stack([length(one) for one in x.unbind()])


def length(x: Tensor) -> Tensor:
    """Return ``c`` for a kronecker direction: the spectral metric's, or less where it fades out.

    An orthogonal step has full length however small ``x`` is, so a matrix whose gradients have
    stopped would move forever. The kronecker direction has no scale: its dual fades faster than the
    second moment it is divided by, and so it fades out itself.
    """
    fraction = (x.square().mean().sqrt() / FADING_BELOW).clamp(max=1.0)
    return scale(x) * fraction

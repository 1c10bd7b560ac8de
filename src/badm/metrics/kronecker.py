"""The kronecker metric: the diagonal one in the eigenbasis of the gradients' covariances.

``Q⁻¹u = U_L [(U_Lᵀ u U_R) / (√v̂ + ε)] U_Rᵀ``, the geometry of Shampoo and SOAP (Vyas et al. 2024).
Bases and covariances are in eigenbases.py; dual and second moment live in the basis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from badm.distributed import fsdp
from badm.metrics import eigenbases
from badm.metrics.arithmetic import decay, descend, dual_step, in_dtype_of
from badm.metrics.diagonal import foreach_direction, second_moment_scale
from badm.metrics.matrices import as_matrix, is_matrix, matrix_shape, stack, stacks, unstack
from badm.metrics.protocol import (
    Metric,
    Operator,
    Parameters,
    Settings,
    State,
    Step,
    number,
    own_parts,
    state_dtype,
)


@dataclass(frozen=True)
class RotatedScale:
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
        rotated = eigenbases.rotate(eigenbases.cut(matrix[None]), self.left, self.right)
        scaled = eigenbases.rotate_back(scale * rotated, self.left, self.right)
        return eigenbases.join(scaled, *matrix.shape).reshape(x.shape)


class Kronecker(Metric):
    """The diagonal metric in a basis of its own for the rows and the columns of each matrix."""

    name = "kronecker"
    differentiable = False  # eigenvectors are found by iteration, without a derivative
    keys = frozenset({"dual", "second_moment", "step", "refresh_in"})
    later_keys = eigenbases.KEYS

    def applies_to(self, p: Tensor) -> bool:
        """One of which both sides are too long for a basis is left to the diagonal metric."""
        return is_matrix(p) and eigenbases.turns(min(matrix_shape(p)))

    def buffer_shape(self, p: Tensor) -> tuple[int, ...]:
        return eigenbases.blocks_shape(*matrix_shape(p))

    def new_state(self, p: Tensor, index: int) -> State:
        moment = torch.zeros(self.buffer_shape(p), dtype=state_dtype(p), device=p.device)
        return {"step": number(p), "second_moment": moment, **eigenbases.new_state(index)}

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        left, right = eigenbases.bases([state])
        matrix = as_matrix(g)
        blocks = eigenbases.cut(eigenbases.within_range(matrix[None]))
        rotated = eigenbases.rotate(blocks, left, right)
        u = dual_step(rotated, state["dual"], s.beta)
        x = eigenbases.rotate_back(u / second_moment_scale(rotated, state, s), left, right)
        eigenbases.follow([state], blocks, s.beta2)
        return eigenbases.join(x, *matrix.shape).reshape(g.shape)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        left, right = (None if b is None else b.clone() for b in eigenbases.bases([state]))
        blocks = eigenbases.cut(eigenbases.within_range(as_matrix(g)[None]))
        scale = second_moment_scale(eigenbases.rotate(blocks, left, right), state, s)
        eigenbases.follow([state], blocks, s.beta2)
        return RotatedScale(left, right, scale)

    def foreach(self, params: Parameters, s: Settings) -> None:
        for indices in stacks(params.w, [eigenbases.has_bases(x) for x in params.states]):
            part = params.pick(indices)
            left, right = eigenbases.bases(part.states)
            g = eigenbases.within_range(stack(part.g))
            blocks = eigenbases.cut(g)
            rotated = eigenbases.rotate(blocks, left, right)
            of_each = list(torch.split(rotated, len(blocks) // len(part)))
            x = eigenbases.whole(foreach_direction(of_each, part.states, s))
            x = eigenbases.join(eigenbases.rotate_back(x, left, right), *g.shape[1:])
            descend(part.w, unstack(x, part.w[0].shape), s.lr)
            eigenbases.follow(part.states, blocks, s.beta2)

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        """Every rank gathers the gradients and keeps all bases: it saves no memory."""
        steps = [
            torch.zeros(w.shape, dtype=state["dual"].dtype, device=state["dual"].device)
            for w, state in zip(params.w, params.states, strict=True)
        ]
        gradients = [fsdp.gathered(g) for g in params.g]
        step(Parameters(steps, gradients, params.states), replace(s, weight_decay=0.0))
        own = own_parts(params)
        decay(own.w, s)
        parts = [fsdp.part_of(x, w) for x, w in zip(steps, params.w, strict=True)]
        torch._foreach_add_(own.w, in_dtype_of(own.w, parts))

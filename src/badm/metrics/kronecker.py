"""Internal: the kronecker metric, the diagonal one in the eigenbasis of the gradients' covariances.

``Q⁻¹u = U_L [(U_Lᵀ u U_R) / (√v̂ + ε)] U_Rᵀ``, the geometry of Shampoo and SOAP (Vyas et al. 2024).
Bases and covariances are in eigenbases.py; dual and second moment are kept in the basis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from badm.distributed import fsdp
from badm.metrics import eigenbases
from badm.metrics.arithmetic import decay, descend, dual_step, in_dtype_of
from badm.metrics.diagonal import foreach_direction, second_moment_scale
from badm.metrics.matrices import (
    Blocks,
    as_stack,
    from_stack,
    is_matrix,
    matrix_shape,
    stack,
    stacks,
    unstack,
)
from badm.metrics.protocol import (
    Metric,
    Parameters,
    Settings,
    State,
    Step,
    local_parameters,
    new_scalar,
    state_dtype,
)

# Elements of a stack of equal shapes. It copies their states, which gains time for small matrices
# only; a larger one steps in place.
_STACK_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class RotatedScale:
    """``Q⁻¹x = U_L [(U_Lᵀ x U_R) / (√v̂ + ε)] U_Rᵀ``, block by block."""

    left: Tensor | None
    right: Tensor | None
    scale: Tensor
    blocks: Blocks

    def inverse(self, x: Tensor) -> Tensor:
        return self._scaled(x, 1 / self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self._scaled(x, self.scale)

    def _scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        matrices = as_stack(x, self.blocks)
        rotated = eigenbases.rotate(eigenbases.to_blocks(matrices), self.left, self.right)
        scaled = eigenbases.rotate_back(scale * rotated, self.left, self.right)
        joined = eigenbases.from_blocks(scaled, *matrices.shape[1:])
        return from_stack(joined, x.shape, self.blocks)


class Kronecker(Metric):
    """The diagonal metric in an eigenbasis of the rows and of the columns of each matrix."""

    name = "kronecker"
    reads_blocks = True
    shards_buffers = False  # they are in the basis, which every rank has
    suits_output_layer = False
    differentiable = False  # eigenvectors are found by iteration, without a derivative
    beta2 = 0.95
    state_keys = frozenset({"dual", "second_moment", "step", "refresh_in"})
    optional_state_keys = eigenbases.KEYS

    def applies_to(self, p: Tensor) -> bool:
        """Return whether it is a matrix with a side short enough for a basis."""
        shape = matrix_shape(p, self.blocks) if p.ndim >= 2 else (1, 1)
        return is_matrix(p, self.blocks) and eigenbases.gets_basis(min(shape))

    def buffer_shape(self, p: Tensor) -> tuple[int, ...]:
        count, rows, cols = eigenbases.block_shape(*matrix_shape(p, self.blocks))
        return math.prod(self.blocks) * count, rows, cols

    def new_state(self, p: Tensor, index: int) -> State:
        moment = torch.zeros(self.buffer_shape(p), dtype=state_dtype(p), device=p.device)
        return {"step": new_scalar(p), "second_moment": moment, **eigenbases.new_state(index)}

    def place_of(self, p: Tensor, index: int) -> int:
        return index if p.is_meta else eigenbases.place_by_weights(fsdp.whole(p))

    def upgrade_state(self, state: State, p: Tensor) -> None:
        """Cut the dual of a state with larger blocks anew; its moments and bases start again."""
        eigenbases.upgrade(state)
        if tuple(state["dual"].shape) == self.buffer_shape(p) or state["dual"].ndim != 3:
            return
        if self.blocks:  # there were none when blocks were larger
            return
        height, width = matrix_shape(p)
        left, right = eigenbases.bases([state])
        whole = eigenbases.joined(eigenbases.rotate_back(state["dual"], left, right), height, width)
        if whole is not None:
            state.clear()
            state.update({"dual": eigenbases.to_blocks(whole), **self.new_state(p, 0)})

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        left, right = eigenbases.bases([state])
        matrices = as_stack(g, self.blocks)
        blocks = eigenbases.to_blocks(eigenbases.scale_into_range(matrices))
        rotated = eigenbases.rotate(blocks, left, right)
        u = dual_step(rotated, state["dual"], s.beta)
        x = eigenbases.rotate_back(u / second_moment_scale(rotated, state, s), left, right)
        eigenbases.update_bases([state], blocks, s.second_memory)
        joined = eigenbases.from_blocks(x, *matrices.shape[1:])
        return from_stack(joined, g.shape, self.blocks)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> RotatedScale:
        left, right = (None if b is None else b.clone() for b in eigenbases.bases([state]))
        matrices = as_stack(g, self.blocks)
        blocks = eigenbases.to_blocks(eigenbases.scale_into_range(matrices))
        scale = second_moment_scale(eigenbases.rotate(blocks, left, right), state, s)
        eigenbases.update_bases([state], blocks, s.second_memory)
        return RotatedScale(left, right, scale, self.blocks)

    def foreach(self, params: Parameters, s: Settings) -> None:
        for part, x in self.stacked_directions(params, s):
            descend(part.w, unstack(x, part.w[0].shape, self.blocks), s.lr)

    def stacked_directions(
        self, params: Parameters, s: Settings
    ) -> Iterator[tuple[Parameters, Tensor]]:
        """Yield the parameters of each stack with their ``Q⁻¹(2m⁺ − m)``; update their states."""
        kinds = [eigenbases.has_bases(state) for state in params.states]
        for indices in stacks(params.w, kinds, _STACK_ELEMENTS):
            part = params.select(indices)
            left, right = eigenbases.bases(part.states)
            g = eigenbases.scale_into_range(stack(part.g, self.blocks))
            blocks = eigenbases.to_blocks(g)
            rotated = eigenbases.rotate(blocks, left, right)
            joint = _joint_state(part.states)
            (x,) = foreach_direction([rotated], [joint], s)
            _copy_back(joint, part.states)
            x = eigenbases.from_blocks(eigenbases.rotate_back(x, left, right), *g.shape[1:])
            if s.later is None:
                eigenbases.update_bases(part.states, blocks, s.second_memory)
            else:
                s.later.append((eigenbases.update_bases, (part.states, blocks, s.second_memory)))
            yield part, x

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        """Gather the gradients and keep all bases on every rank: sharding saves no memory here."""
        steps = [
            torch.zeros(w.shape, dtype=state["dual"].dtype, device=state["dual"].device)
            for w, state in zip(params.w, params.states, strict=True)
        ]
        gradients = [fsdp.gather(g) for g in params.g]
        step(Parameters(steps, gradients, params.states), replace(s, weight_decay=0.0))
        own = local_parameters(params)
        decay(own.w, s)
        parts = [fsdp.local_part(x, w) for x, w in zip(steps, params.w, strict=True)]
        torch._foreach_add_(own.w, in_dtype_of(own.w, parts))


def _joint_state(states: list[State]) -> State:
    """Return dual, second moment and step count of a stack; a single state is not copied.

    Ten operations on lists of a thousand small tensors take longer than copies to and fro.
    """
    if len(states) == 1:
        return states[0]
    steps = torch.stack([state["step"] for state in states])
    of_blocks = steps.repeat_interleave(len(states[0]["dual"]))[:, None, None]
    joint = {key: eigenbases.concat([x[key] for x in states]) for key in ("dual", "second_moment")}
    return {**joint, "step": of_blocks}


def _copy_back(joint: State, states: list[State]) -> None:
    if len(states) == 1:
        return
    for key in ("dual", "second_moment"):
        eigenbases.copy_into([state[key] for state in states], joint[key])
    steps = joint["step"].flatten()[:: len(states[0]["dual"])]
    torch._foreach_copy_([state["step"] for state in states], list(steps.unbind()))

"""A metric of our own in one file: each row of a matrix has one scale, that of its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from badm.metrics import Metric, Settings, State, dual_step, state_dtype


@dataclass(frozen=True)
class Rows:
    scale: Tensor

    def inverse(self, x: Tensor) -> Tensor:
        return x / self.scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class RowScaled(Metric):
    name = "row-scaled"
    state_keys = frozenset({"dual", "row_moment"})

    def applies_to(self, p: Tensor) -> bool:
        return p.ndim == 2

    def new_state(self, p: Tensor, index: int) -> State:
        return {"row_moment": torch.zeros_like(p[:, :1], dtype=state_dtype(p))}

    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        u = dual_step(g, state["dual"], s.beta)
        return u / self._scale(g, state, s)

    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Rows:
        return Rows(self._scale(g, state, s))

    def _scale(self, g: Tensor, state: State, s: Settings) -> Tensor:
        state["row_moment"].lerp_(g.square().mean(1, keepdim=True), 1 - s.beta2)
        return state["row_moment"].sqrt() + s.eps

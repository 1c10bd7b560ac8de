"""What a metric is: one object that knows which parameters it is for, its state and its steps.

The rest of the library asks the object and never its name. A metric ``Q`` is measured once per
step, from the gradient ``g`` and the direction ``u = 2m⁺ − m``, and is then a fixed positive
definite operator. The optimizer needs ``Q⁻¹u`` alone; Algorithm 1 of the paper needs ``Q`` too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from badm.distributed import fsdp

State = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The numbers of one parameter group for one step."""

    lr: float | Tensor
    beta: float
    metric: str
    beta2: float
    eps: float
    weight_decay: float
    maximize: bool


@dataclass(frozen=True)
class Parameters:
    """Parameters with their gradients and states, in equal order."""

    w: list[Tensor]
    g: list[Tensor]
    states: list[State]

    def __len__(self) -> int:
        return len(self.w)

    def of(self, key: str) -> list[Tensor]:
        return [state[key] for state in self.states]

    def pick(self, indices: Sequence[int]) -> Parameters:
        return Parameters(
            [self.w[i] for i in indices],
            [self.g[i] for i in indices],
            [self.states[i] for i in indices],
        )


Step = Callable[[Parameters, Settings], None]


class Operator(Protocol):
    """A positive definite ``Q``, fixed for one step."""

    def inverse(self, x: Tensor) -> Tensor:
        """``Q⁻¹x``"""

    def forward(self, x: Tensor) -> Tensor:
        """``Qx``"""


class Metric(ABC):
    """The base of all metrics. ``direction`` and ``operator`` are enough; the rest has defaults.

    ``fallback`` names the metric of vectors, of complex numbers, which are taken as pairs of reals,
    and of what else this one does not apply to. ``for_output_layer`` says whether it suits the last
    layer of a network, ``linear`` whether it scales complex numbers as it does reals, and
    ``differentiable`` whether autograd can see through a step. ``keys`` are those of a state after
    its first step, ``later_keys`` those that may be added to it.
    """

    name: str
    fallback: str = "diagonal"
    for_output_layer: bool = True
    linear: bool = False
    differentiable: bool = True
    keys: frozenset[str] = frozenset({"dual"})
    later_keys: frozenset[str] = frozenset()

    def applies_to(self, p: Tensor) -> bool:
        return True

    def buffer_shape(self, p: Tensor) -> tuple[int, ...]:
        """The shape of a parameter's dual and second moment."""
        return tuple(p.shape)

    def new_state(self, p: Tensor, index: int) -> State:
        """What is remembered beside the dual of a parameter, the ``index``-th of its group."""
        return {}

    @abstractmethod
    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        """``Q⁻¹(2m⁺ − m)`` for one parameter, its state brought up to date. The oracle."""

    @abstractmethod
    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        """The ``Q`` of this step, for Algorithm 1, which keeps its duals itself."""

    def foreach(self, params: Parameters, s: Settings) -> None:
        """One step on parameters of one device, with gradients of the type of their duals."""
        for w, g, state in zip(params.w, params.g, params.states, strict=True):
            w.sub_(s.lr * self.direction(g, state, s))

    def fused(self, params: Parameters, s: Settings) -> Parameters:
        """Make the whole step where a kernel can do it in one pass; return the other parameters."""
        return params

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        """One step on DTensors. By default every rank makes ``step`` on the part that it has."""
        step(own_parts(params), s)

    def upgrade(self, state: State, p: Tensor) -> None:
        """Add to a state what it lacks, if it was saved before the metric kept that."""
        return

    def make_portable(self, state: State) -> None:
        """Bring a state into the form in which it is saved."""
        return

    def misfit(self, p: Tensor, state: State) -> str | None:
        """What is wrong with a state for a parameter, in half a sentence; None if it fits."""
        shape = self.buffer_shape(p)
        for key in ("dual", "second_moment"):
            if key in state and tuple(state[key].shape) != shape:
                found = f"a {key} of shape {tuple(state[key].shape)}"
                return f"has shape {tuple(p.shape)}, and its state has {found} instead of {shape}"
        if unknown := sorted(set(state) - self.keys - self.later_keys):
            names = ", ".join(unknown)
            return f"has {names} in its state, which the {self.name} metric does not know"
        if missing := sorted(self.keys - set(state)):
            names = ", ".join(missing)
            return f"lacks {names} in its state, which the {self.name} metric needs"
        return None


def own_parts(params: Parameters) -> Parameters:
    """What this rank has of sharded parameters, their gradients and states; the same memory."""
    return Parameters(
        [fsdp.to_local(w) for w in params.w],
        [fsdp.to_local(g) for g in params.g],
        [{key: fsdp.to_local(value) for key, value in state.items()} for state in params.states],
    )


def state_dtype(p: Tensor) -> torch.dtype:
    """Half precision parameters keep their state in float32: averages vanish in 8 or 11 bits."""
    return torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype


def number(p: Tensor) -> Tensor:
    """A zero on the device of a parameter, so that a step needs no word from it.

    A step whose counts are tensors can be captured in a graph.
    """
    return torch.zeros((), dtype=state_dtype(p).to_real(), device=p.device)

"""Internal: the interface of a metric: which parameters it applies to, its state and its steps.

The rest of the library calls the object and never compares names. A metric ``Q`` is computed once
per step, from the gradient ``g`` and the direction ``u = 2m⁺ − m``, and is then a fixed positive
definite operator. The optimizer needs ``Q⁻¹u`` alone; Algorithm 1 of the paper needs ``Q`` too.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from badm.distributed import fsdp
from badm.metrics.matrices import Blocks

State = dict[str, Any]


# Calls that cannot be compiled, with their arguments.
Later = list[tuple[Callable[..., None], tuple[Any, ...]]]


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of one parameter group for one step, as :class:`badm.BADM` takes them.

    >>> Settings(0.1, 0.9, "diagonal", 0.999, 1e-8, 0.0, False).beta
    0.9
    """

    lr: float | Tensor
    beta: float
    metric: str
    beta2: float | None  # None: the metric's own
    eps: float
    weight_decay: float
    maximize: bool
    blocks: Blocks = ()  # into how many blocks each axis is cut; (): one matrix
    later: Later | None = None  # what a compiled step leaves to do after it; None: do it at once

    def for_metric(self, metric: Metric) -> Settings:
        """Return the settings with the metric's own ``beta2`` where the group gives none.

        >>> from badm.metrics import find
        >>> s = Settings(0.1, 0.9, "diagonal", None, 1e-8, 0.0, False)
        >>> s.for_metric(find("diagonal")).beta2, s.for_metric(find("kronecker")).beta2
        (0.999, 0.95)
        """
        return self if self.beta2 is not None else replace(self, beta2=metric.beta2)

    @property
    def second_memory(self) -> float:
        """``beta2`` of settings that were made for a metric."""
        assert self.beta2 is not None
        return self.beta2


@dataclass(frozen=True)
class Parameters:
    """Parameters ``w`` with their gradients ``g`` and ``states``, in the same order.

    >>> params = Parameters([torch.ones(2)], [torch.ones(2)], [{"dual": torch.zeros(2)}])
    >>> len(params), params.buffers("dual")
    (1, [tensor([0., 0.])])
    """

    w: list[Tensor]
    g: list[Tensor]
    states: list[State]

    def __len__(self) -> int:
        return len(self.w)

    def buffers(self, key: str) -> list[Tensor]:
        """Return ``state[key]`` of every parameter."""
        return [state[key] for state in self.states]

    def select(self, indices: Sequence[int]) -> Parameters:
        """Return the parameters at these indices, with their gradients and states."""
        return Parameters(
            [self.w[i] for i in indices],
            [self.g[i] for i in indices],
            [self.states[i] for i in indices],
        )


Step = Callable[[Parameters, Settings], None]
M = TypeVar("M", bound="Metric")


class Operator(Protocol):
    """A positive definite operator ``Q``, fixed for one step.

    >>> from badm.metrics import Settings, find
    >>> s = Settings(0.1, 0.9, "euclidean", 0.999, 1e-8, 0.0, False)
    >>> x = torch.ones(2)
    >>> Q = find("euclidean").operator(x, x, {}, s)
    >>> Q.inverse(Q.forward(x)).equal(x)
    True
    """

    def inverse(self, x: Tensor) -> Tensor:
        """Return ``Q⁻¹x``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``Qx``."""


class Metric(ABC):
    """Base class of all metrics: subclass it, then :func:`badm.metrics.register` an instance.

    Only :meth:`direction` and :meth:`operator` are abstract; the other methods have defaults.

    Attributes:
        name: What ``BADM(metric=...)`` takes.
        fallback: Metric of parameters this one does not apply to, and of complex ones.
        suits_output_layer: Whether :func:`badm.parameter_groups` uses it for the last layer.
        linear: Whether ``Q`` is the same for complex parameters as for real ones.
        differentiable: Whether autograd can differentiate through a step.
        beta2: Memory of the second moment in groups that give none.
        symmetric: Whether ``Q`` is symmetric, as the theory of ADMM wants a metric to be.
        reads_blocks: Whether it can read a parameter as a stack of matrices.
        blocks: Into how many blocks the axes of a parameter are cut; ``()`` reads one matrix.
        shards_buffers: Whether a buffer with the shape of a sharded parameter is sharded too.
        state_keys: Keys of a state after its first step.
        optional_state_keys: Keys that a state may have besides.

    A metric that divides every step by a constant:

    >>> class Halved(Metric):
    ...     name = "halved"
    ...     def direction(self, g, state, s):
    ...         return dual_step(g, state["dual"], s.beta) / 2
    ...     def operator(self, g, u, state, s):
    ...         raise NotImplementedError("only for Algorithm 1")
    >>> from badm.metrics.arithmetic import dual_step
    >>> s = Settings(0.1, 0.0, "halved", 0.999, 1e-8, 0.0, False)
    >>> Halved().direction(torch.ones(2), {"dual": torch.zeros(2)}, s)
    tensor([1., 1.])
    """

    name: str
    fallback: str = "diagonal"
    suits_output_layer: bool = True
    linear: bool = False
    differentiable: bool = True
    beta2: float = 0.999
    symmetric: bool = True
    reads_blocks: bool = False
    shards_buffers: bool = True
    blocks: Blocks = ()
    state_keys: frozenset[str] = frozenset({"dual"})
    optional_state_keys: frozenset[str] = frozenset()

    def applies_to(self, p: Tensor) -> bool:
        """Return whether the metric can be used for a parameter."""
        return True

    @property
    def applies_to_all(self) -> bool:
        """Whether no parameter need be asked."""
        return type(self).applies_to is Metric.applies_to

    def with_blocks(self: M, blocks: Blocks) -> M:
        """Return the metric that reads parameters as so many blocks.

        To a metric that applies to vectors too, matrices make no difference.
        """
        if not self.reads_blocks and not self.applies_to_all:
            raise ValueError(
                f"metric {self.name!r} reads each parameter as one matrix, got blocks={blocks}"
            )
        if not self.reads_blocks:
            return self
        metric = copy.copy(self)
        metric.blocks = blocks
        return metric

    def buffer_shape(self, p: Tensor) -> tuple[int, ...]:
        """Return the shape of a parameter's dual and second moment."""
        return tuple(p.shape)

    def new_state(self, p: Tensor, index: int) -> State:
        """Create the state beside the dual of a parameter, the ``index``-th of its group.

        The index is that of :func:`badm.parameter_groups` if it made the groups, else
        :meth:`place_of`.
        """
        return {}

    def place_of(self, p: Tensor, index: int) -> int:
        """Return the ``index`` for :meth:`new_state` of a parameter in groups made by hand.

        By default its index there, which changes where optimizers share out the parameters.
        """
        return index

    def limit(self, g: Tensor) -> Tensor:
        """Return the gradient as the metric uses it: limited, if its square could overflow."""
        return g

    @abstractmethod
    def direction(self, g: Tensor, state: State, s: Settings) -> Tensor:
        """Return ``Q⁻¹(2m⁺ − m)`` for one parameter and update its state. The oracle."""

    @abstractmethod
    def operator(self, g: Tensor, u: Tensor, state: State, s: Settings) -> Operator:
        """Return the ``Q`` of this step, for Algorithm 1, which keeps its duals itself."""

    def foreach(self, params: Parameters, s: Settings) -> None:
        """Step on parameters of one device; gradients have the dtype of the duals."""
        for w, g, state in zip(params.w, params.g, params.states, strict=True):
            w.sub_(s.lr * self.direction(g, state, s))

    def fused(self, params: Parameters, s: Settings) -> Parameters:
        """Step in one pass where a kernel exists; return the parameters left to do."""
        return params

    def sharded(self, params: Parameters, s: Settings, step: Step) -> None:
        """Step on DTensors; by default every rank calls ``step`` on its local shards."""
        step(local_parameters(params), s)

    def upgrade_state(self, state: State, p: Tensor) -> None:
        """Add entries to a state that was saved before the metric had them."""
        return

    def make_portable(self, state: State) -> None:
        """Convert a state to the form in which it is saved, in place."""
        return

    def state_mismatch(self, p: Tensor, state: State) -> str | None:
        """Describe how a state does not match its parameter; None if it does."""
        shape = self.buffer_shape(p)
        for key in ("dual", "second_moment"):
            if key in state and tuple(state[key].shape) != shape:
                found = f"a {key} of shape {tuple(state[key].shape)}"
                return f"has shape {tuple(p.shape)}, and its state has {found} instead of {shape}"
        if unknown := sorted(set(state) - self.state_keys - self.optional_state_keys):
            names = ", ".join(unknown)
            return f"has {names} in its state, which the {self.name} metric does not use"
        if missing := sorted(self.state_keys - set(state)):
            names = ", ".join(missing)
            return f"lacks {names} in its state, which the {self.name} metric needs"
        return None


def local_parameters(params: Parameters) -> Parameters:
    """Return this rank's shards of parameters, gradients and states, sharing their memory."""
    return Parameters(
        [fsdp.to_local(w) for w in params.w],
        [fsdp.to_local(g) for g in params.g],
        [{key: fsdp.to_local(value) for key, value in state.items()} for state in params.states],
    )


def state_dtype(p: Tensor) -> torch.dtype:
    """Return the dtype of a parameter's state: float32 for half precision, else its own.

    Averages vanish in the 8 or 11 bits of half precision.

    >>> state_dtype(torch.ones(2, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype


def new_scalar(p: Tensor) -> Tensor:
    """Return a zero on the device of a parameter, so that a step need not wait for the device.

    A step whose counts are tensors can be captured in a CUDA graph.

    >>> new_scalar(torch.ones(2))
    tensor(0.)
    """
    return torch.zeros((), dtype=state_dtype(p).to_real(), device=p.device)

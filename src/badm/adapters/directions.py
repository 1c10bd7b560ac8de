"""Internal: the metrics in pure functions, for JAX and Keras: ``Q⁻¹(2m⁺ − m)`` and the new state.

They follow ``Metric.direction`` of ``badm.metrics``, the oracle, statement by statement. What does
not depend on an array library comes from there: constants, blocks, fallbacks, memories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch

from badm import metrics
from badm.adapters import eigenbases
from badm.adapters.arrays import Array, Arrays, finfo
from badm.adapters.axes import Axes, Shape, from_matrix, to_matrix
from badm.adapters.eigenbases import Entries, State
from badm.adapters.orthogonal import orthogonalize
from badm.metrics import kronecker_spectral, spectral
from badm.metrics.diagonal import largest_gradient
from badm.metrics.eigenbases import block_shape
from badm.metrics.orthogonal import STEPS_WHITENED

Memory = float | Array


@dataclass(frozen=True)
class Reading:
    """How one parameter is read: constant from step to step.

    Attributes:
        metric: The metric used for it, after fallbacks.
        shape: Its shape.
        axes: Which axes are the rows of its matrix; unused where the metric reads none.
        index: Its place among the parameters of its group, which decides when bases are due.
        dtype: Of its state.
    """

    metric: str
    shape: Shape
    axes: Axes
    index: int
    dtype: str

    @cached_property
    def length(self) -> float:
        """``c``, the length of an orthogonal step, as the spectral metric has it."""
        return spectral.scale(torch.empty(self.axes.matrix_shape(self.shape), device="meta"))


@dataclass(frozen=True)
class Memories:
    """``β`` and, where it is given, ``β₂`` of a step, and the ``ε`` of its metric."""

    beta: Memory
    beta2: Memory | None
    eps: Memory

    def second(self, metric: str) -> Memory:
        """Return ``β₂``: the metric's own where none is given."""
        return metrics.find(metric).beta2 if self.beta2 is None else self.beta2


def metric_for(metric: str, shape: Shape, axes: Axes | None) -> str:
    """Return the metric of a parameter: the one asked for, or its fallback where it has no matrix.

    >>> metric_for("kronecker", (3, 2), Axes((1,), (0,))), metric_for("kronecker", (3,), None)
    ('kronecker', 'diagonal')
    """
    as_torch_reads_it = shape if axes is None else axes.matrix_shape(shape)
    return metrics.metric_for(metric, torch.empty(as_torch_reads_it, device="meta")).name


def check_metric(metric: object) -> None:
    """Raise ``ValueError`` unless a metric is one of those that are written here.

    A metric of one's own is registered for torch alone.
    """
    if metric not in _DIRECTIONS:
        raise ValueError(f"metric must be one of {', '.join(_DIRECTIONS)}, got {metric!r}")


def entries(reading: Reading) -> Entries:
    """Return what a new state consists of: shape and first value of each entry, by key."""
    if reading.metric in _KRONECKER:
        rows, cols = reading.axes.matrix_shape(reading.shape)
        blocks = block_shape(rows, cols)
        return {
            "dual": (blocks, "zeros"),
            "second_moment": (blocks, "zeros"),
            **eigenbases.entries(rows, cols),
        }
    found: Entries = {"dual": (reading.shape, "zeros")}
    if reading.metric == "diagonal":
        found["second_moment"] = (reading.shape, "zeros")
    if reading.metric == "spectral":
        found["peak"] = ((), "zeros")
    return found


def direction(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, memories: Memories
) -> tuple[Array, State]:
    """Return ``Q⁻¹(2m⁺ − m)`` and the new state; ``step`` counts from 1."""
    g = arrays.cast(g, reading.dtype)
    return _DIRECTIONS[reading.metric](arrays, reading, g, state, step, memories)


def _euclidean(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, s: Memories
) -> tuple[Array, State]:
    u, m = _dual_step(g, state["dual"], s.beta)
    return u, {"dual": m}


def _diagonal(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, s: Memories
) -> tuple[Array, State]:
    largest = largest_gradient(getattr(torch, reading.dtype))
    limited = arrays.xp.clip(g, -largest, largest) + 0 * g  # NaN where g is infinite
    u, m = _dual_step(limited, state["dual"], s.beta)
    scale, v = _second_moment_scale(arrays, reading, limited, state["second_moment"], step, s)
    return u / scale, {"dual": m, "second_moment": v}


def _spectral(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, s: Memories
) -> tuple[Array, State]:
    xp = arrays.xp
    u, m = _dual_step(g, state["dual"], s.beta)
    largest = xp.max(xp.abs(u))
    # The fraction of an orthogonal step to take: less than 1 where gradients have stopped.
    peak = xp.maximum(state["peak"] * ((1 + s.beta) / 2), largest)
    fraction = xp.where(largest < finfo(reading.dtype).tiny, 0 * largest, largest / peak)
    fraction = xp.clip(fraction / spectral.FADING_BELOW, 0.0, 1.0)
    matrix = orthogonalize(arrays, to_matrix(arrays, u, reading.axes), reading.dtype)
    x = (reading.length * fraction) * matrix
    return from_matrix(arrays, x, reading.axes, reading.shape), {"dual": m, "peak": peak}


def _kronecker(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, s: Memories
) -> tuple[Array, State]:
    x, new = _kronecker_matrix(arrays, reading, g, state, step, s)
    return from_matrix(arrays, x, reading.axes, reading.shape), new


def _kronecker_spectral(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, s: Memories
) -> tuple[Array, State]:
    xp = arrays.xp
    x, new = _kronecker_matrix(arrays, reading, g, state, step, s)
    root_mean_square = xp.sqrt(xp.sum(x * x) / math.prod(reading.shape))
    fraction = xp.clip(root_mean_square / kronecker_spectral.FADING_BELOW, 0.0, 1.0)
    x = (reading.length * fraction) * orthogonalize(arrays, x, reading.dtype, STEPS_WHITENED)
    return from_matrix(arrays, x, reading.axes, reading.shape), new


def _kronecker_matrix(
    arrays: Arrays, reading: Reading, g: Array, state: State, step: Array, s: Memories
) -> tuple[Array, State]:
    matrix = to_matrix(arrays, g, reading.axes)
    blocks = eigenbases.to_blocks(arrays, _within_range(arrays, matrix, reading.dtype))
    rotated = eigenbases.rotate(arrays, blocks, state)
    u, m = _dual_step(rotated, state["dual"], s.beta)
    scale, v = _second_moment_scale(arrays, reading, rotated, state["second_moment"], step, s)
    x = eigenbases.rotate_back(arrays, u / scale, state)
    state = {**state, "dual": m, "second_moment": v}
    beta2 = s.second(reading.metric)
    new = eigenbases.updated(arrays, state, blocks, beta2, step, reading.index)
    return eigenbases.from_blocks(arrays, x, *matrix.shape), new


def _dual_step(g: Array, m: Array, beta: Memory) -> tuple[Array, Array]:
    """Return ``2m⁺ − m`` and ``m⁺ = m + θ(g − m)``, ``θ = 1 − β``."""
    d = (1 - beta) * (g - m)  # θ(g − m)
    new = m + d  # m⁺
    return new + d, new


def _second_moment_scale(
    arrays: Arrays, reading: Reading, g: Array, v: Array, step: Array, s: Memories
) -> tuple[Array, Array]:
    """Return ``√v̂ + ε`` and ``v ← β₂v + (1−β₂)g²``, with ``v̂ = v/(1 − β₂ᵗ)``."""
    beta2 = s.second(reading.metric)
    v = beta2 * v + (1 - beta2) * (g * g)
    if isinstance(beta2, float | int):
        logarithm = math.log(beta2) if beta2 > 0 else -math.inf
    else:
        logarithm = arrays.xp.log(beta2)
    correction = -arrays.xp.expm1(arrays.cast(step, reading.dtype) * logarithm)
    return arrays.xp.sqrt(v / correction) + s.eps, v


def _within_range(arrays: Arrays, g: Array, dtype: str) -> Array:
    """Scale a matrix down whose products would overflow."""
    xp = arrays.xp
    limit = finfo(dtype).max ** (1 / 3)
    return g * xp.clip(limit / xp.max(xp.abs(g)), 0.0, 1.0)


_KRONECKER = ("kronecker", "kronecker-spectral")

Direction = Callable[
    [Arrays, Reading, Array, State, Array, Memories],
    tuple[Array, State],
]

_DIRECTIONS: Mapping[str, Direction] = MappingProxyType(
    {
        "euclidean": _euclidean,
        "diagonal": _diagonal,
        "spectral": _spectral,
        "kronecker": _kronecker,
        "kronecker-spectral": _kronecker_spectral,
    }
)

"""Metrics ``Q`` that scale the step, by name: one file and one object each.

A new metric is a subclass of :class:`Metric` in a file of its own and a call of :func:`register`.
"""

from __future__ import annotations

from torch import Tensor

from badm.metrics.arithmetic import dual_step
from badm.metrics.diagonal import Diagonal
from badm.metrics.euclidean import Euclidean
from badm.metrics.kronecker import Kronecker
from badm.metrics.kronecker_spectral import KroneckerSpectral
from badm.metrics.matrices import Blocks
from badm.metrics.protocol import (
    Metric,
    Operator,
    Parameters,
    Settings,
    State,
    new_scalar,
    state_dtype,
)
from badm.metrics.spectral import Spectral

__all__ = [
    "Metric",
    "Operator",
    "Parameters",
    "Settings",
    "State",
    "dual_step",
    "find",
    "metric_for",
    "names",
    "new_scalar",
    "register",
    "state_dtype",
]

_METRICS: dict[str, Metric] = {}
_WITH_BLOCKS: dict[tuple[Metric, Blocks], Metric] = {}  # one object each: steps compare them


def register(metric: Metric) -> None:
    """Register a metric under its name, so that ``BADM(metric=...)`` finds it.

    >>> register(Diagonal())
    Traceback (most recent call last):
    ValueError: metric 'diagonal' is already registered
    """
    if metric.name in _METRICS:
        raise ValueError(f"metric {metric.name!r} is already registered")
    _METRICS[metric.name] = metric


def names() -> tuple[str, ...]:
    """List the registered metrics.

    >>> names()
    ('euclidean', 'diagonal', 'spectral', 'kronecker', 'kronecker-spectral')
    """
    return tuple(_METRICS)


def find(name: object, blocks: Blocks = ()) -> Metric:
    """Return the metric of that name; ``ValueError`` lists the registered ones.

    With ``blocks``, the one that reads parameters as stacks of matrices.

    >>> find("diagonal").name
    'diagonal'
    """
    if not isinstance(name, str) or name not in _METRICS:
        raise ValueError(f"metric must be one of {', '.join(_METRICS)}, got {name!r}")
    metric = _METRICS[name]
    if not blocks:
        return metric
    if (metric, blocks) not in _WITH_BLOCKS:
        _WITH_BLOCKS[metric, blocks] = metric.with_blocks(blocks)
    return _WITH_BLOCKS[metric, blocks]


def metric_for(name: str, p: Tensor, blocks: Blocks = ()) -> Metric:
    """Return the metric of a parameter in a group: the group's, or its fallback.

    >>> import torch
    >>> metric_for("spectral", torch.ones(3, 2)).name, metric_for("spectral", torch.ones(3)).name
    ('spectral', 'diagonal')
    """
    metric = find(name, blocks)
    return metric if metric.applies_to(p) else find(metric.fallback)


for _metric in (Euclidean(), Diagonal(), Spectral(), Kronecker(), KroneckerSpectral()):
    register(_metric)

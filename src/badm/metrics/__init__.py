"""The metrics ``Q`` there are, by name: one file and one object each.

A new metric is a subclass of :class:`Metric` in a file of its own, and a call of :func:`register`.
"""

from __future__ import annotations

from torch import Tensor

from badm.metrics.diagonal import Diagonal
from badm.metrics.euclidean import Euclidean
from badm.metrics.kronecker import Kronecker
from badm.metrics.protocol import Metric, Operator, Parameters, Settings, State
from badm.metrics.spectral import Spectral

__all__ = [
    "Metric",
    "Operator",
    "Parameters",
    "Settings",
    "State",
    "find",
    "metric_for",
    "names",
    "register",
]

_METRICS: dict[str, Metric] = {}


def register(metric: Metric) -> None:
    """Make a metric known under its name."""
    if metric.name in _METRICS:
        raise ValueError(f"there is a metric {metric.name!r} already")
    _METRICS[metric.name] = metric


def names() -> tuple[str, ...]:
    """
    >>> names()
    ('euclidean', 'diagonal', 'spectral', 'kronecker')
    """
    return tuple(_METRICS)


def find(name: object) -> Metric:
    """The metric of that name; ``ValueError`` names those there are."""
    if not isinstance(name, str) or name not in _METRICS:
        raise ValueError(f"metric must be one of {', '.join(_METRICS)}, got {name!r}")
    return _METRICS[name]


def metric_for(name: str, p: Tensor) -> Metric:
    """The metric a parameter gets in a group of that metric: its own, or the fallback.

    >>> import torch
    >>> metric_for("spectral", torch.ones(3, 2)).name, metric_for("spectral", torch.ones(3)).name
    ('spectral', 'diagonal')
    """
    metric = find(name)
    return metric if metric.applies_to(p) else find(metric.fallback)


for _metric in (Euclidean(), Diagonal(), Spectral(), Kronecker()):
    register(_metric)

"""BADM: as printed in the paper, in the other metrics, and with the library's defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

import badm
from badm import metrics
from badm.bench.method import Method, Range, Setting, optimizer_method
from badm.bench.paper import Paper


def groups(module: nn.Module, metric: str, weight_decay: float) -> list[dict[str, Any]]:
    """Return the groups of :func:`badm.parameter_groups`, without frozen parameters.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    >>> _ = model[0].requires_grad_(False)
    >>> [[tuple(p.shape) for p in group["params"]] for group in groups(model, "diagonal", 0.0)]
    [[(2, 4)], [(2,)]]
    """
    return badm.parameter_groups(module, metric=metric, weight_decay=weight_decay)


def _make(module: nn.Module, *, metric: str, weight_decay: float, **setting: Any) -> badm.BADM:
    return badm.BADM(groups(module, metric, weight_decay), **setting)


def _of_penalties(rho: float, sigma: float) -> Setting:
    return {"lr": 1 / sigma, "beta": rho / (rho + sigma)}


def stated_penalties(paper: Paper) -> Setting:
    """Convert the paper's penalties to a step and a memory.

    Where the paper states a learning rate too, it is ``1/(ρ+σ)``. So where it states only that,
    the penalties have this sum, in the ratio of its first task, 200 to 800.
    """
    if paper.rho is not None and paper.sigma is not None:
        return _of_penalties(paper.rho, paper.sigma)
    return {} if paper.lr is None else _of_penalties(0.2 / paper.lr, 0.8 / paper.lr)


def _in_metric(
    name: str,
    metric: str,
    description: str,
    paper: Callable[[Paper], Setting] | None = None,
    version: int = 1,
) -> Method:
    return optimizer_method(
        name,
        description,
        partial(_make, metric=metric),
        family="badm",
        defaults={
            "lr": 1e-2,
            "beta": 0.9,
            "beta2": metrics.find(metric).beta2,
            "eps": 1e-8,
            "weight_decay": 0.0,
        },
        space={"lr": Range(1e-4, 0.1)},  # the range that Adam has
        paper=paper,
        version=version,
    )


SPECTRAL_VERSION = 3  # 2: steps twice as long, a scale of 0.4; 3: output layer too

# The paper's penalties go to the paper's algorithm: as printed, and in the diagonal metric, in
# which they train at Adam's level. The other metrics are ours, and the paper states nothing of
# them: like every method it does not tune they get the task's learning rate and keep their memory.
METHODS = (
    _in_metric(
        "badm",
        "spectral",
        "BADM with the library's defaults: the spectral metric",
        version=SPECTRAL_VERSION,
    ),
    optimizer_method(
        "badm-printed",
        "the paper's Algorithm 1, word for word: the euclidean metric",
        partial(_make, metric="euclidean"),
        family="badm",
        defaults={**_of_penalties(200.0, 800.0), "weight_decay": 0.0},
        # At β = 0.2 it is stable up to half of SGD's steps (lr·curvature < 1 where SGD has 2), so
        # its range is slightly lower, and starts at the steps of the paper.
        space={"lr": Range(1e-3, 1.0, per_gradient=True)},
        paper=stated_penalties,
    ),
    _in_metric(
        "badm-diagonal", "diagonal", "BADM in the diagonal metric, that of Adam", stated_penalties
    ),
    _in_metric(
        "badm-spectral",
        "spectral",
        "BADM in the spectral metric: orthogonalized steps for matrices",
        version=SPECTRAL_VERSION,
    ),
    _in_metric(
        "badm-kronecker",
        "kronecker",
        "BADM in the kronecker metric, that of Shampoo and SOAP",
        # 3: β₂ 0.95, covariances at every step, bases every 5, output layer diagonal; 4: smaller
        # blocks of long sides
        version=4,
    ),
    _in_metric(
        "badm-kronecker-spectral",
        "kronecker-spectral",
        "BADM along the kronecker direction, orthogonalized",
        version=3,  # 2: three quintic steps; 3: smaller blocks of long sides
    ),
)

"""Internal: one step of BADM on the parameters of a group, by loop, foreach, fused or sharded.

With the memory ``β = ρ/(ρ+σ)``, ``θ = 1 − β`` and the step ``lr = 1/σ`` (docs/theory.md):

    m⁺ = m + θ(g − m)
    w⁺ = w − lr·Q⁻¹(2m⁺ − m)

Each path takes real parameters with their gradients and states, and asks the metric for ``Q⁻¹u``.
Nothing here waits for a device: ``lr`` may be a tensor, and every step count is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from badm.metrics import Metric, Parameters, Settings, find, metric_for
from badm.metrics.arithmetic import decay, in_dtype_of
from badm.metrics.matrices import Blocks
from badm.metrics.protocol import Step


def loop(params: Parameters, s: Settings) -> None:
    """Step on one parameter after another, one statement per equation: the oracle."""
    for w, g, state in zip(params.w, params.g, params.states, strict=True):
        if s.weight_decay:
            w.mul_(1 - s.lr * s.weight_decay)
        g = -g if s.maximize else g
        metric = metric_for(s.metric, w, s.blocks)
        g = g.to(state["dual"].dtype)
        w.sub_(s.lr * metric.direction(g, state, s.for_metric(metric)))


def foreach(params: Parameters, s: Settings) -> None:
    """Step on all parameters together, with matrices of equal shape in one stack."""
    if s.maximize:
        params = Parameters(params.w, list(torch._foreach_neg(params.g)), params.states)
    for metric, part in _by_metric(params, s):
        decay(part.w, s)
        g = in_dtype_of(part.buffers("dual"), part.g)
        metric.foreach(Parameters(part.w, g, part.states), s.for_metric(metric))


def fused(params: Parameters, s: Settings) -> None:
    """Step in one pass over memory where a kernel exists; the rest by ``foreach``."""
    for metric, part in _by_metric(params, s):
        rest = metric.fused(part, s.for_metric(metric))
        if len(rest):
            foreach(rest, s)


def sharded(params: Parameters, s: Settings, step: Step) -> None:
    """Step on parameters that are sharded over ranks; ``step`` is for plain tensors."""
    for metric, part in _by_metric(params, s):
        metric.sharded(part, s, step)


def settings_of(group: dict[str, Any]) -> Settings:
    """Return the settings of a parameter group for one step."""
    lr = group["lr"]
    return Settings(
        lr=lr.reshape(()) if isinstance(lr, Tensor) else lr,
        beta=group["beta"],
        metric=group["metric"],
        beta2=group["beta2"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        maximize=group["maximize"],
        blocks=as_blocks(group["blocks"]),
    )


def as_blocks(option: int | Sequence[int] | None) -> Blocks:
    """Return the ``blocks`` of a group as a tuple; none for a single matrix.

    >>> as_blocks(None), as_blocks(3), as_blocks([1, 3])
    ((), (3,), (1, 3))
    """
    if option is None:
        return ()
    return (option,) if isinstance(option, int) else tuple(option)


def _by_metric(params: Parameters, s: Settings) -> Iterator[tuple[Metric, Parameters]]:
    """Group parameters by metric and device."""
    metric = find(s.metric, s.blocks)
    if metric.applies_to_all and all(w.is_cpu for w in params.w):
        yield metric, params
        return
    parts: dict[tuple[Metric, torch.device | str], list[int]] = defaultdict(list)
    for i, w in enumerate(params.w):
        # is_cpu is faster than device.
        parts[metric_for(s.metric, w, s.blocks), "cpu" if w.is_cpu else w.device].append(i)
    for (metric, _), indices in parts.items():
        yield metric, params if len(indices) == len(params) else params.select(indices)

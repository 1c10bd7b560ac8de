"""How fast methods are over tasks: geometric means, their intervals, tests against a reference.

Intervals are Student's over tasks, on logarithms: they hold for tasks like these, of which each was
measured with its seeds. The scatter over tasks has that over seeds in it. One task has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from badm.bench.analysis.differences import holm, signed_rank_p
from badm.bench.analysis.intervals import Floats, geometric_interval, rounding_variance
from badm.bench.records.runs import NAN
from badm.bench.records.speeds import NEVER_COUNTS, PARTS, Bounded, MethodSpeed, TaskSpeed


def over_tasks(rows: Sequence[TaskSpeed], baseline: str, reference: str) -> list[MethodSpeed]:
    """One row for each method, in the order of the rows; tasks without a result are left out."""
    known = [row for row in rows if row.status != "missing"]
    made = []
    for method in dict.fromkeys(row.method for row in rows):
        own = {row.task: row for row in known if row.method == method}
        base = {row.task: row for row in known if row.method == reference}
        # The baseline has the whole budget by definition; other parts are rounded up to eighths.
        made.append(_method_speed(method, own, base, 0.0 if method == baseline else 1 / PARTS))
    return _with_p_values(made, known, reference)


def _method_speed(
    method: str, own: Mapping[str, TaskSpeed], base: Mapping[str, TaskSpeed], resolution: float
) -> MethodSpeed:
    parts = np.array([row.part for row in own.values()])
    counted = _bounded(_counted(parts), resolution)
    shared = [(own[task].part, base[task].part) for task in own if task in base]
    seconds = [row.seconds for row in own.values()]
    counted_seconds = [
        row.seconds if math.isfinite(row.seconds) else NEVER_COUNTS * row.step_time
        for row in own.values()
    ]
    never = int(np.isinf(parts).sum())
    return MethodSpeed(
        method,
        len(own),
        never,
        Bounded(math.inf, counted.low if len(own) > 1 else math.inf, math.inf)
        if never
        else counted,
        counted,
        geometric_mean(seconds),
        geometric_mean(counted_seconds),
        geometric_mean([row.step_time for row in own.values()]),
        geometric_mean([row.state for row in own.values()]),
        won=sum(mine < theirs for mine, theirs in shared),
        tied=sum(mine == theirs for mine, theirs in shared),
        lost=sum(mine > theirs for mine, theirs in shared),
        p_value=NAN,
    )


def geometric_mean(values: Sequence[float] | Floats) -> float:
    """
    >>> geometric_mean([0.25, 1.0]), geometric_mean([0.5, math.inf]), geometric_mean([])
    (0.5, inf, nan)
    """
    if len(values) == 0:
        return NAN
    if min(values) == max(values):  # without rounding
        return float(values[0])
    with np.errstate(divide="ignore"):
        return float(np.exp(np.mean(np.log(np.asarray(values, dtype=np.float64)))))


def _counted(parts: Floats) -> Floats:
    return np.where(np.isinf(parts), NEVER_COUNTS, parts)


def _bounded(parts: Floats, resolution: float) -> Bounded:
    if len(parts) == 0:
        return Bounded(NAN, NAN, NAN)
    interval = geometric_interval(parts, least=rounding_variance(parts, resolution))
    return Bounded(geometric_mean(parts), interval.low, interval.high)


def _with_p_values(
    speeds: Sequence[MethodSpeed], rows: Sequence[TaskSpeed], reference: str
) -> list[MethodSpeed]:
    """A Wilcoxon signed-rank test of log parts over tasks for each method, corrected as Holm does.

    It takes two tasks to test anything; eight tasks that all agree have p = 0.008.
    """
    parts = {(row.task, row.method): float(_counted(np.array(row.part))) for row in rows}
    p_values = {}
    for one in speeds:
        differences = [
            math.log(part / parts[task, reference])
            for (task, method), part in parts.items()
            if method == one.method != reference and (task, reference) in parts
        ]
        if len(differences) > 1:
            p_values[one.method] = signed_rank_p(differences)
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [replace(one, p_value=corrected.get(one.method, NAN)) for one in speeds]

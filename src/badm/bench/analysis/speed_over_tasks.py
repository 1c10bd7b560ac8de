"""How fast methods are over tasks: geometric means, their intervals, tests against a reference.

Intervals come from resampling tasks and, for each, seeds: the same seeds for all methods, with the
target and whether it is reached computed anew. Only the parts that were measured can be judged
again. Where a resample asks for another one, it gets the nearest: the smallest that is reached, or
the eighth above the largest that is not. So the intervals are a little too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from badm.bench.analysis.statistics import (
    RESAMPLES,
    ROUNDING,
    Floats,
    holm,
    signed_rank_p,
)
from badm.bench.records.runs import NAN
from badm.bench.records.speeds import NEVER_COUNTS, PARTS, Bounded, MethodSpeed, TaskSpeed
from badm.bench.task import Score

LEVEL = 0.95

Places = NDArray[np.intp]


def over_tasks(
    rows: Sequence[TaskSpeed], scores: Mapping[str, Score], baseline: str, reference: str
) -> list[MethodSpeed]:
    """One row for each method, in the order of the rows; tasks without a result are left out."""
    known = [row for row in rows if row.status != "missing"]
    resampled = _Resamples(known, scores, baseline)
    made = []
    for method in dict.fromkeys(row.method for row in rows):
        own = {row.task: row for row in known if row.method == method}
        base = {row.task: row for row in known if row.method == reference}
        made.append(_method_speed(method, own, base, resampled))
    return _with_p_values(made, known, reference)


def _method_speed(
    method: str, own: Mapping[str, TaskSpeed], base: Mapping[str, TaskSpeed], resampled: _Resamples
) -> MethodSpeed:
    parts = np.array([row.part for row in own.values()])
    drawn = resampled.parts(own)
    shared = [(own[task].part, base[task].part) for task in own if task in base]
    seconds = [row.seconds for row in own.values()]
    counted = [
        row.seconds if math.isfinite(row.seconds) else NEVER_COUNTS * row.step_time
        for row in own.values()
    ]
    return MethodSpeed(
        method,
        len(own),
        int(np.isinf(parts).sum()),
        _bounded(geometric_mean(parts), _means(drawn)),
        _bounded(geometric_mean(_counted(parts)), _means(_counted(drawn))),
        geometric_mean(seconds),
        geometric_mean(counted),
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


def _means(drawn: Floats) -> Floats:
    """The geometric mean of each resample, without those that have no task of the method."""
    logs = np.log(drawn)
    has_any = ~np.isnan(logs).all(axis=1)
    means: Floats = np.exp(np.nanmean(logs[has_any], axis=1))
    return means.round(12)


def _bounded(value: float, means: Floats) -> Bounded:
    if len(means) == 0:
        return Bounded(value, value, value)
    ordered = np.sort(means)
    tail = (1 - LEVEL) / 2 * (len(ordered) - 1)
    low, high = ordered[math.floor(tail)], ordered[math.ceil(len(ordered) - 1 - tail)]
    return Bounded(value, float(min(low, value)), float(max(high, value)))


class _Resamples:
    """Draws of tasks, and of seeds within each of them, which all methods share."""

    def __init__(
        self, rows: Sequence[TaskSpeed], scores: Mapping[str, Score], baseline: str
    ) -> None:
        self.scores, self.baseline = scores, baseline
        self.baselines = {row.task: _scores(row)[-1] for row in rows if row.method == baseline}
        self.tasks = list(self.baselines)
        random = np.random.default_rng(0)
        count = len(self.tasks)
        self.drawn_tasks: Places = random.integers(0, max(count, 1), (RESAMPLES, count))
        # Uniform numbers, which choose among as many seeds as a task has.
        most = max((len(values) for values in self.baselines.values()), default=0)
        self.uniform = random.random((RESAMPLES, count, most))

    def parts(self, rows: Mapping[str, TaskSpeed]) -> Floats:
        """The parts of a method, by resample and task drawn; NaN where it has no result."""
        parts = np.full(self.drawn_tasks.shape, NAN)
        for place, task in enumerate(self.tasks):
            drawn = self.drawn_tasks == place
            if task in rows:
                parts[drawn] = self._parts_on(rows[task], self.uniform[drawn])
        return parts

    def _parts_on(self, row: TaskSpeed, uniform: Floats) -> Floats:
        if row.method == self.baseline:  # the whole budget by definition
            return np.ones(len(uniform))
        base = self.baselines[row.task]
        seeds = (uniform[:, : len(base)] * len(base)).astype(np.intp)
        target = base[seeds].mean(axis=1)
        sign = 1.0 if self.scores[row.task].best == "high" else -1.0
        smallest = np.full(len(seeds), math.inf)
        largest_missed = np.zeros(len(seeds))
        for part, values in zip(row.parts, _scores(row), strict=True):
            mean = values[seeds].mean(axis=1)
            rounding = ROUNDING * np.maximum(np.abs(mean), np.abs(target))
            enough = sign * (mean - target) >= -rounding  # NaN, of a run that diverged, is not
            smallest = np.where(enough, np.minimum(smallest, part.part), smallest)
            largest_missed = np.where(enough, largest_missed, part.part)  # parts ascend
        above = largest_missed + 1 / PARTS
        unknown = np.where(above > 1, math.inf, above)
        return np.where(np.isinf(smallest), unknown, smallest)


def _scores(row: TaskSpeed) -> list[Floats]:
    return [np.asarray(part.scores, dtype=np.float64) for part in row.parts]


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

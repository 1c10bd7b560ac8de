"""The statistics of a comparison beside intervals and tests: times to a target, profiles, ranks.

Pure functions on plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from badm.bench.records.comparisons import PerformanceProfile, ResultRow
from badm.bench.task import Score


def time_to_target(
    at: Sequence[float], scores: Sequence[float], target: float, score: Score
) -> float:
    """The first point of ``at`` where the score is as good as the target, ``inf`` if none is.

    ``at`` are steps, seconds or gradients, ascending. A score that is NaN reaches nothing.

    >>> time_to_target([10, 20, 30], [0.5, 0.9, 0.8], 0.85, Score("accuracy"))
    20.0
    >>> time_to_target([10, 20, 30], [0.5, 0.9, 0.8], 0.95, Score("accuracy"))
    inf
    """
    for point, value in zip(at, scores, strict=True):
        if score.reaches(value, target):
            return float(point)
    return math.inf


def performance_profile(times: Mapping[str, Mapping[str, float]]) -> PerformanceProfile | None:
    """For each τ the part of tasks that a method solves within τ times the fastest on that task.

    ``times`` are steps to the target, by method and task. A miss (``inf``, or a task that the
    method has no time for) never counts. A task that no one solved counts for no one, yet is one of
    all tasks. τ goes from 1 to where no curve rises any more, and to 2 at least. None if no task
    has a target.

    >>> profile = performance_profile({"badm": {"a": 10, "b": 30}, "adam": {"a": 30, "b": 30}})
    >>> [(m, solved[0], solved[-1], profile.taus[-1]) for m, solved in profile.solved.items()]
    [('badm', 1.0, 1.0, 3.0), ('adam', 0.5, 1.0, 3.0)]
    """
    tasks = sorted({task for by_task in times.values() for task in by_task})
    if not tasks:
        return None
    table = np.array([[by_task.get(t, math.inf) for t in tasks] for by_task in times.values()])
    if not (table >= 0).all():
        raise ValueError(f"times must be at least 0, and inf for a miss, got {dict(times)}")
    fastest = table.min(axis=0)
    with np.errstate(all="ignore"):
        ratios = np.where(table == fastest, 1.0, table / fastest)
    ratios[np.isinf(table)] = math.inf
    largest = max(2.0, ratios[np.isfinite(ratios)].max(initial=1.0))
    taus = np.geomspace(1.0, largest, 60)
    solved = (ratios[:, None, :] <= taus[:, None]).mean(axis=2)
    return PerformanceProfile(taus.tolist(), dict(zip(times, solved.tolist(), strict=True)))


@dataclass(frozen=True)
class Sensitivity:
    """Which learning rates are good: those around the best that score almost as well as it."""

    best_lr: float
    best_score: float
    low: float  # the good range, of the tried learning rates
    high: float
    decades: float  # its width: log10(high / low)
    at_least: bool  # it ends where the tried ones do, so the true width may be larger
    tolerance: float


def sensitivity(
    points: Iterable[tuple[float, float | None]], score: Score, *, tolerance: float = 0.01
) -> Sensitivity | None:
    """How forgiving a method is to its learning rate, from tried ones and their scores.

    Good is what comes within ``tolerance`` of the best: 0.01 is one percentage point of a score in
    percent, and one hundredth of the best of any other. From the best learning rate (the smallest
    of several) the range goes on to either side up to the first that is not good. A rate tried
    more than once has its best score; ``None`` and NaN are runs that diverged, and are not good.
    None if all did.

    >>> tried = [(1e-4, 0.90), (1e-3, 0.965), (1e-2, 0.97), (1e-1, None)]
    >>> found = sensitivity(tried, Score("accuracy", percent=True))
    >>> found.best_lr, found.low, found.high, found.decades, found.at_least
    (0.01, 0.001, 0.01, 1.0, False)
    """
    costs: dict[float, float] = {}
    for lr, value in points:
        if not (lr > 0 and math.isfinite(lr)):
            raise ValueError(f"a learning rate must be positive and finite, got {lr}")
        kept = costs.setdefault(lr, math.inf)
        if value is not None and math.isfinite(value):
            costs[lr] = min(kept, _cost(value, score))
    lrs = sorted(costs)
    best_lr = min(lrs, key=lambda lr: costs[lr], default=math.nan)
    best = costs.get(best_lr, math.inf)
    if math.isinf(best):
        return None
    limit = best + tolerance * (1.0 if score.percent else abs(best))
    low = high = lrs.index(best_lr)
    while low > 0 and costs[lrs[low - 1]] <= limit:
        low -= 1
    while high < len(lrs) - 1 and costs[lrs[high + 1]] <= limit:
        high += 1
    return Sensitivity(
        best_lr=best_lr,
        best_score=_cost(best, score),
        low=lrs[low],
        high=lrs[high],
        decades=math.log10(lrs[high] / lrs[low]),
        at_least=low == 0 or high == len(lrs) - 1,
        tolerance=tolerance,
    )


def ranked(rows: Sequence[ResultRow], score: Score) -> list[ResultRow]:
    """The rows of one task, best mean test score first, equals by name, the unfinished last.

    >>> from badm.bench.analysis.intervals import mean_interval
    >>> rows = [ResultRow("digits", "sgd", "diverged")] + [
    ...     ResultRow("digits", name, "finished", test=mean_interval([value]))
    ...     for name, value in [("nadam", 0.97), ("adam", 0.97), ("badm", 0.98)]
    ... ]
    >>> [row.method for row in ranked(rows, Score("accuracy"))]
    ['badm', 'adam', 'nadam', 'sgd']
    """

    def place(row: ResultRow) -> tuple[bool, float, str]:
        if row.status != "finished" or row.test is None:
            return True, 0.0, row.method
        return False, _cost(row.test.value, score), row.method

    return sorted(rows, key=place)


def _cost(value: float, score: Score) -> float:
    # Lower is better, whatever the score; it is its own inverse.
    return -value if score.best == "high" else value

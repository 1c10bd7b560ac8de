"""The statistics of a comparison: intervals over seeds, tests, times to a target, profiles.

Pure functions on plain numbers. Equal input gives equal output, in whichever order the seeds come.

>>> accuracy = mean_interval([0.970, 0.978, 0.974])
>>> round(accuracy.value, 4), round(accuracy.low, 4), round(accuracy.high, 4)
(0.974, 0.97, 0.978)
>>> median_interval([40, 55, float("inf")]).value  # a miss counts
55.0
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from badm.bench.records.comparisons import Interval, PairedTest, PerformanceProfile, ResultRow
from badm.bench.task import Score

RESAMPLES = 9999
# Scores are computed in float32, whose last digit is at 1e-7 of the value: what is closer together
# than this is equal, and differs by rounding alone.
ROUNDING = 1e-6

Floats = NDArray[np.float64]


def mean_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """The mean with a bootstrap confidence interval, BCa or, where that is undefined, percentile.

    It lies within the smallest and the largest value. Three seeds have ten different resamples, so
    that theirs is narrower than its level promises; one value, or equal values, have no width.

    >>> mean_interval([0.5, 0.5])
    Interval(value=0.5, low=0.5, high=0.5, values=[0.5, 0.5])
    """
    ordered = _ordered(values)
    if not np.isfinite(ordered).all():
        raise ValueError(f"values must be finite, got {list(values)}")
    if ordered[0] == ordered[-1]:
        return _interval(ordered[0], ordered[0], ordered[0], values)
    value = float(np.mean(ordered))
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # BCa that is undefined: seen from the NaN below
            found = stats.bootstrap(
                (ordered,),
                np.mean,
                n_resamples=RESAMPLES,
                confidence_level=level,
                method=method,
                random_state=np.random.default_rng(0),  # called rng since scipy 1.15
            ).confidence_interval
        if not math.isnan(found.low + found.high):
            break
    return _interval(value, found.low, found.high, values)


def median_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """The median of times to a target with a bootstrap percentile interval; ``inf`` is a miss.

    Of an even number of values the median is the mean of the middle two, which is infinite as soon
    as one of them is: where half of the seeds miss the target, the method misses it. The ends of
    the interval are order statistics of the resampled medians, so that they may be infinite too.

    >>> interval = median_interval([30, 40, 50, float("inf")])
    >>> interval.value, interval.low, interval.high
    (45.0, 30.0, inf)
    >>> median_interval([30, float("inf")]).value
    inf
    """
    ordered = _ordered(values)
    if not (ordered >= 0).all():
        raise ValueError(f"times must be at least 0, and inf for a miss, got {list(values)}")
    resampled = np.random.default_rng(0).choice(ordered, (RESAMPLES, len(ordered)))
    # Not np.quantile: it interpolates, and between two misses inf - inf is NaN.
    medians = np.sort(np.median(resampled, axis=1))
    tail = (1 - level) / 2 * (RESAMPLES - 1)
    low, high = medians[math.floor(tail)], medians[math.ceil(RESAMPLES - 1 - tail)]
    return _interval(float(np.median(ordered)), low, high, values)


def _ordered(values: Sequence[float]) -> Floats:
    # Sorted, as the resampling is seeded: the order of the seeds must not matter.
    if len(values) == 0:
        raise ValueError("an interval needs at least one value, got none")
    return np.sort(np.asarray(values, dtype=np.float64))


def _interval(value: float, low: float, high: float, values: Sequence[float]) -> Interval:
    # BCa may leave out the value itself if the values are very skewed, and rounding may anyway.
    return Interval(
        value=float(value),
        low=float(min(low, value)),
        high=float(max(high, value)),
        values=[float(v) for v in values],
    )


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


def paired_tests(scores: Mapping[str, Sequence[float]], reference: str) -> dict[str, PairedTest]:
    """A two-sided paired t-test of each method against the reference, corrected for their number.

    ``scores`` are by seed, in the same order for every method: a seed fixes initialisation and
    batches, so that the difference at one seed is the pair to look at. The t-test takes the
    differences to be normally distributed, which a few seeds cannot show. Tests without that
    assumption (Wilcoxon, sign flips) have nothing to say here: with three seeds their p-value is
    never below 0.25.

    Corrected as Benjamini and Hochberg do: of the differences called significant at 0.05, at most
    one in twenty is expected to be none. This holds for tests that depend on each other positively,
    as those against one and the same reference do.

    Differences that are all equal have no variance, and a t-test would be certain of anything. If
    they are zero, p is 1; if not, p is that of flipping signs, 2 / 2ⁿ for n seeds.

    A method is left out that has fewer than two seeds, not as many as the reference, or a score
    that is not finite; so are all if that is true of the reference.

    >>> tests = paired_tests({"badm": [0.97, 0.98, 0.98], "adam": [0.95, 0.95, 0.96]}, "adam")
    >>> round(tests["badm"].difference, 4), round(tests["badm"].p_value, 4)
    (0.0233, 0.0198)
    """
    base = np.asarray(scores.get(reference, ()), dtype=np.float64)
    differences: dict[str, float] = {}
    p_values: dict[str, float] = {}
    for method, given in scores.items():
        own = np.asarray(given, dtype=np.float64)
        if method == reference or len(own) != len(base) or len(own) < 2:
            continue
        if np.isfinite(own).all() and np.isfinite(base).all():
            differences[method] = float(np.mean(own - base))
            p_values[method] = _paired_p(own, base)
    if not p_values:
        return {}
    corrected = stats.false_discovery_control(list(p_values.values()), method="bh")
    return {
        method: PairedTest(against=reference, difference=differences[method], p_value=float(p))
        for method, p in zip(p_values, corrected, strict=True)
    }


def _paired_p(own: Floats, base: Floats) -> float:
    differences = own - base
    rounding = ROUNDING * max(np.abs(own).max(), np.abs(base).max())
    if np.abs(differences).max() <= rounding:
        return 1.0
    if np.ptp(differences) <= rounding:
        return float(stats.binomtest(len(own), len(own)).pvalue)
    return float(stats.ttest_rel(own, base).pvalue)


def signed_rank_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test, exact with ties too.

    Differences of zero are left out, as Wilcoxon does; if there are no others, p is 1.

    >>> signed_rank_p([-1.0, -2.0, -3.0, -4.0]), signed_rank_p([0.0, 0.0])
    (0.125, 1.0)
    """
    given = np.round(np.asarray(differences, dtype=np.float64), 9)  # equals are ties
    given = given[given != 0]
    # Twice the ranks, which are whole also where ties share the mean of theirs.
    ranks = (2 * stats.rankdata(np.abs(given))).astype(np.int64)
    chances = np.ones(1)  # of each sum of the ranks whose sign is plus, by flipping signs
    for rank in ranks:
        stays, gains = np.append(chances, np.zeros(rank)), np.append(np.zeros(rank), chances)
        chances = (stays + gains) / 2
    middle = ranks.sum() / 2
    far = abs(ranks[given > 0].sum() - middle)
    return min(1.0, float(chances[np.abs(np.arange(len(chances)) - middle) >= far].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number as Holm does: below 0.05, any false one is unlikely.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - place)))
        corrected[index] = largest
    return corrected


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

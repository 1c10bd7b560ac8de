"""Confidence intervals over seeds and over tasks, which hold as often as their level says.

Pure functions on plain numbers. Equal input gives equal output, in whichever order the seeds come.
``benchmarks/coverage.py`` measures how often each of them holds.

>>> accuracy = mean_interval([0.970, 0.978, 0.974])
>>> round(accuracy.value, 4), round(accuracy.low, 4), round(accuracy.high, 4)
(0.974, 0.9641, 0.9839)
>>> median_interval([40, 55, float("inf")])  # a miss counts, and three seeds say little then
Interval(value=55.0, low=0.0, high=inf, values=[40.0, 55.0, inf])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from badm.bench.records.comparisons import Interval, ScoreNoise

LEVEL = 0.95
LEVEL_TEXT = f"{100 * LEVEL:.0f} %"
FEW = 5  # values; with fewer, order statistics alone cannot bound a median at the level

Floats = NDArray[np.float64]


def mean_interval(
    values: Sequence[float], *, level: float = LEVEL, fractions: bool = False
) -> Interval:
    """The mean with Student's t interval; one value, or equal values, have no width.

    That of ``fractions`` ends at 0 and 1.

    >>> mean_interval([0.5, 0.5])
    Interval(value=0.5, low=0.5, high=0.5, values=[0.5, 0.5])
    """
    ordered = _finite(values)
    if ordered[0] == ordered[-1]:
        return _interval(ordered[0], ordered[0], ordered[0], values)
    value, half = float(np.mean(ordered)), _t_half(ordered, level)
    low, high = value - half, value + half
    if fractions:
        low, high = max(0.0, low), min(1.0, high)
    return _interval(value, low, high, values)


def score_interval(
    values: Sequence[float], samples: int, *, level: float = LEVEL
) -> tuple[Interval, ScoreNoise | None]:
    """The mean of a score that is a fraction of test samples, over seeds and over such samples.

    Two things make it uncertain. Other seeds would train other models: Student's t. Another test
    split would have other samples: a fraction ``p`` of ``samples`` has at most the variance
    ``p (1 - p) / samples``, whatever the models. The noise states the half width that each has
    alone; the interval has both, as the root of the sum of their squares.

    Scores come in whole samples, so that seeds may agree by rounding alone: their standard
    deviation is taken to be at least half a sample.

    >>> interval, noise = score_interval([0.970, 0.978, 0.974], 400)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.954, 0.994)
    >>> round(noise.seeds, 4), round(noise.split, 4), noise.samples
    (0.0099, 0.0169, 400)
    """
    ordered = _finite(values)
    value, count = float(np.mean(ordered)), len(ordered)
    if not (ordered[0] >= 0 and ordered[-1] <= 1):
        raise ValueError(f"fractions must be between 0 and 1, got {list(values)}")
    if count == 1:
        return _interval(value, value, value, values), None
    of_seeds = max(float(np.var(ordered, ddof=1)), 0.25 / samples**2) / count
    # Two samples more of each kind, so that a score of 100 % is not certain.
    smoothed = (value * samples + 2) / (samples + 4)
    of_split = smoothed * (1 - smoothed) / samples
    noise = ScoreNoise(
        _t(count - 1, level) * math.sqrt(of_seeds),
        float(stats.norm.ppf((1 + level) / 2)) * math.sqrt(of_split),
        samples,
    )
    half = math.hypot(noise.seeds, noise.split)
    return _interval(value, max(0.0, value - half), min(1.0, value + half), values), noise


def median_interval(
    values: Sequence[float], *, resolution: float = 0.0, level: float = LEVEL
) -> Interval:
    """The median of times to a target with its interval; ``inf`` is a miss.

    Of an even number of values the median is the mean of the middle two, which is infinite as soon
    as one of them is: where half of the seeds miss the target, the method misses it.

    The interval of five values and more assumes nothing: it ends at order statistics, interpolated
    as Hettmansperger and Sheather do; five reach 93.8 %. Of fewer values, which would reach 75 %
    or less, it is Student's t on logarithms, for which these are taken to be symmetric; with a
    miss among them there is none: it goes from 0 to infinity.

    ``resolution`` is the time between two readings, to which times are rounded up.

    >>> interval = median_interval([30, 40, 45, 50, float("inf")])
    >>> interval.value, interval.low, interval.high
    (45.0, 30.0, inf)
    >>> median_interval([30, float("inf")]).value
    inf
    """
    ordered = _ordered(values)
    if not (ordered >= 0).all():
        raise ValueError(f"times must be at least 0, and inf for a miss, got {list(values)}")
    value = float(np.median(ordered))
    if ordered[0] == ordered[-1] and (len(ordered) == 1 or not resolution or value == math.inf):
        return _interval(value, value, value, values)
    if len(ordered) >= FEW:
        low, high = _order_statistics(ordered, level)
    elif math.isinf(ordered[-1]):
        low, high = 0.0, math.inf
    else:
        low, high = _log_t(ordered, resolution, level)
    return _interval(value, low, high, values)


def _log_t(times: Floats, resolution: float, level: float) -> tuple[float, float]:
    """Student's t interval on logarithms; at a time of 0, which has none, on the times."""
    if times[0] == 0:
        half = _t_half(times, level)
        return max(0.0, float(times.mean() - half)), float(times.mean() + half)
    logs = np.log(times)
    half = _t_half(logs, level, least=rounding_variance(times, resolution))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def rounding_variance(times: Sequence[float] | Floats, resolution: float) -> float:
    """The variance of the logarithms of times that rounding up to the next reading makes.

    >>> round(rounding_variance([10.0, 10.0], 5.0), 4)
    0.0208
    """
    relative = resolution / np.maximum(np.asarray(times, dtype=np.float64), resolution or 1.0)
    return float(np.mean(relative**2)) / 12


def _order_statistics(ordered: Floats, level: float) -> tuple[float, float]:
    """Ends that a median is between at the level: order statistics, interpolated."""
    place, share = _place_and_share(len(ordered), level)
    count = len(ordered)
    return (
        _between(ordered[place - 1], ordered[place], share),
        _between(ordered[count - place], ordered[count - place - 1], share),
    )


@cache
def _place_and_share(count: int, level: float) -> tuple[int, float]:
    """Which order statistic, and what share of the way to the next one further in."""

    def coverage(place: int) -> float:
        """How often the median is between the values of that place from below and from above."""
        return 1 - 2 * float(stats.binom.cdf(place - 1, count, 0.5))

    place = max([1, *(k for k in range(1, (count + 1) // 2) if coverage(k) >= level)])
    if place == (count + 1) // 2 or coverage(place) <= level:
        return place, 0.0
    between = (coverage(place) - level) / (coverage(place) - coverage(place + 1))
    return place, (count - place) * between / (place + (count - 2 * place) * between)


def _between(outer: float, inner: float, share: float) -> float:
    if share == 0 or outer == inner:  # between two misses inf - inf is NaN
        return float(outer)
    return float((1 - share) * outer + share * inner)


def ratio_interval(
    own: Sequence[float], base: Sequence[float], *, resolution: float = 0.0, level: float = LEVEL
) -> Interval | None:
    """The geometric mean of ratios of times, seed by seed, with Student's t interval on logarithms.

    None if a time is a miss, which has no ratio. A time of 0 counts as 1 step. What rounding to
    readings every ``resolution`` steps does is the least width that the interval has.

    >>> interval = ratio_interval([20, 30, 25], [40, 55, 52])
    >>> round(interval.value, 2), round(interval.low, 2), round(interval.high, 2)
    (0.51, 0.43, 0.6)
    """
    mine, theirs = (np.maximum(np.asarray(one, dtype=np.float64), 1.0) for one in (own, base))
    if not (np.isfinite(mine).all() and np.isfinite(theirs).all()):
        return None
    least = rounding_variance(mine, resolution) + rounding_variance(theirs, resolution)
    return geometric_interval(mine / theirs, least=least, level=level)


def geometric_interval(
    values: Sequence[float] | Floats, *, least: float = 0.0, level: float = LEVEL
) -> Interval:
    """The geometric mean of positive values, with Student's t interval on their logarithms.

    ``least`` is the smallest variance that the logarithms are taken to have. One value has no
    width.

    >>> interval = geometric_interval([0.25, 0.5, 1.0])
    >>> interval.value, round(interval.low, 3), round(interval.high, 3)
    (0.5, 0.089, 2.797)
    """
    ordered = _finite(list(values))
    if not ordered[0] > 0:
        raise ValueError(f"a geometric mean is one of positive numbers, got {list(values)}")
    logs = np.log(ordered)
    value = float(ordered[0]) if ordered[0] == ordered[-1] else math.exp(logs.mean())
    if len(logs) == 1:
        return _interval(value, value, value, list(values))
    half = _t_half(logs, level, least)
    return _interval(value, value * math.exp(-half), value * math.exp(half), list(values))


def _t_half(values: Floats, level: float, least: float = 0.0) -> float:
    """Half the width of Student's interval of a mean; ``least`` bounds the variance from below."""
    variance = max(float(np.var(values, ddof=1)), least)
    return _t(len(values) - 1, level) * math.sqrt(variance / len(values))


@cache
def _t(degrees: int, level: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, degrees))


def _finite(values: Sequence[float]) -> Floats:
    ordered = _ordered(values)
    if not np.isfinite(ordered).all():
        raise ValueError(f"values must be finite, got {list(values)}")
    return ordered


def _ordered(values: Sequence[float]) -> Floats:
    # Sorted, as sums depend on their order in the last digit: the order of the seeds must not.
    if len(values) == 0:
        raise ValueError("an interval needs at least one value, got none")
    return np.sort(np.asarray(values, dtype=np.float64))


def _interval(value: float, low: float, high: float, values: Sequence[float]) -> Interval:
    # The median may lie outside of an interval around the mean, and rounding does it anyway.
    return Interval(
        value=float(value),
        low=float(min(low, value)),
        high=float(max(high, value)),
        values=[float(v) for v in values],
    )

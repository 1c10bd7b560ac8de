"""Tests of differences between methods: paired by seed, against one method or the best rival.

A seed fixes initialisation and batches, so that the difference at one seed is the pair to look at.
The test is a paired t-test. It takes differences to be normally distributed, which a few seeds
cannot show; a test without that assumption (Wilcoxon, sign flips) has nothing to say here: with
three seeds its p-value is never below 0.25. ``benchmarks/calibration.py`` measures how often a
difference is called where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from badm.bench.analysis.intervals import mean_interval, ratio_interval, rounding_variance
from badm.bench.records.comparisons import PairedTest

SIGNIFICANT = 0.05
POWER = 0.8  # how often a difference is to be seen that is called large enough
# Scores are computed in float32, whose last digit is at 1e-7 of the value: what is closer together
# than this is equal, and differs by rounding alone.
ROUNDING = 1e-6
T_TEST, LOG_TEST, RANK_TEST = "paired t", "paired t on logarithms", "paired t on ranks"

Floats = NDArray[np.float64]
Values = Mapping[str, Sequence[float]]  # by method; of every method in the same order of seeds


@dataclass(frozen=True)
class _Difference:
    """Two methods, before any correction."""

    value: float
    low: float
    high: float
    p_value: float
    test: str

    def against(self, other: str, p_value: float, correction: str) -> PairedTest:
        named = f"{self.test}, {correction}" if correction else self.test
        return PairedTest(other, self.value, p_value, self.low, self.high, named)

    @property
    def reversed_difference(self) -> _Difference:
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    @property
    def reversed_ratio(self) -> _Difference:
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low)


Test = Callable[[Floats, Floats], _Difference]


def paired_tests(scores: Values, reference: str) -> dict[str, PairedTest]:
    """A two-sided paired t-test of each method's scores against the reference.

    P-values are corrected for the number of methods as Holm does: where no method differs from the
    reference, the chance that any is called different at 0.05 is at most 0.05.

    Differences that are all equal have no variance, and a t-test would be certain of anything. If
    they are zero, p is 1; if not, p is that of flipping signs, 2 / 2ⁿ for n seeds.

    A method is left out that has fewer than two seeds, not as many as the reference, or a score
    that is not finite; so are all if that is true of the reference.

    >>> tests = paired_tests({"badm": [0.97, 0.98, 0.98], "adam": [0.95, 0.95, 0.96]}, "adam")
    >>> round(tests["badm"].difference, 4), round(tests["badm"].p_value, 4)
    (0.0233, 0.0198)
    >>> round(tests["badm"].low, 4), round(tests["badm"].high, 4), tests["badm"].test
    (0.009, 0.0377, 'paired t, Holm')
    """
    return _against_one(_finite(scores), reference, _score_difference)


def rival_tests(scores: Values, best_first: Sequence[str]) -> dict[str, PairedTest]:
    """A paired t-test of each method's scores against the best of the others.

    The first method is tested against the second. That the two were chosen by their means needs no
    correction: among equals the first and the second are closer to each other than two methods
    chosen beforehand (Hung and Fithian, Rank verification, 2019). All others are tested against the
    first, which was chosen for being far from them: their p-values are corrected for all pairs of
    methods as Holm does.

    >>> scores = {"a": [0.9, 0.92, 0.91], "b": [0.8, 0.83, 0.81], "c": [0.7, 0.74, 0.71]}
    >>> tests = rival_tests(scores, ["a", "b", "c"])
    >>> {name: (test.against, round(test.p_value, 4)) for name, test in tests.items()}
    {'a': ('b', 0.0012), 'b': ('a', 0.0036), 'c': ('a', 0.0036)}
    """
    return _against_best(_finite(scores), best_first, _score_difference, "reversed_difference")


def step_tests(steps: Values, reference: str, resolution: float = 0.0) -> dict[str, PairedTest]:
    """Tests of each method's steps to the target against the reference, seed by seed.

    The difference is a ratio: the geometric mean over seeds. The test is a paired t-test of
    logarithms, corrected as Holm does. Where a seed misses the target its steps are infinite: there
    is no ratio, and the test is of ranks among the steps of both methods, in which a miss is last.

    Steps are rounded up to readings every ``resolution`` steps, so that seeds may agree by that
    alone: the variance is never taken to be smaller than what rounding makes.

    >>> steps = {"badm": [40, 45, 40], "adam": [95, 90, 110], "sgd": [180, math.inf, math.inf]}
    >>> tests = step_tests(steps, "adam", resolution=5)
    >>> round(tests["badm"].difference, 2), round(tests["badm"].p_value, 3), tests["badm"].test
    (0.42, 0.023, 'paired t on logarithms, Holm')
    >>> tests["sgd"].difference, tests["sgd"].test
    (nan, 'paired t on ranks, Holm')
    """
    return _against_one(_paired(steps), reference, partial(_step_ratio, resolution))


def step_rival_tests(
    steps: Values, best_first: Sequence[str], resolution: float = 0.0
) -> dict[str, PairedTest]:
    """Tests of each method's steps to the target against the fastest of the others.

    Corrected as :func:`rival_tests` does.
    """
    test = partial(_step_ratio, resolution)
    return _against_best(_paired(steps), best_first, test, "reversed_ratio")


def _paired(values: Values) -> dict[str, Floats]:
    return {method: np.asarray(given, dtype=np.float64) for method, given in values.items()}


def _finite(values: Values) -> dict[str, Floats]:
    return {method: own for method, own in _paired(values).items() if np.isfinite(own).all()}


def _are_pairs(own: Floats, base: Floats) -> bool:
    return len(own) == len(base) >= 2


def _against_one(values: Mapping[str, Floats], reference: str, test: Test) -> dict[str, PairedTest]:
    base = values.get(reference, np.empty(0))
    found = {
        method: test(own, base)
        for method, own in values.items()
        if method != reference and _are_pairs(own, base)
    }
    corrected = holm([one.p_value for one in found.values()])
    return {
        method: one.against(reference, p, "Holm")
        for (method, one), p in zip(found.items(), corrected, strict=True)
    }


def _against_best(
    values: Mapping[str, Floats], best_first: Sequence[str], test: Test, turned: str
) -> dict[str, PairedTest]:
    known = [method for method in best_first if method in values]
    pairs = {
        (one, other): test(values[one], values[other])
        for one, other in combinations(known, 2)
        if _are_pairs(values[one], values[other])
    }
    corrected = dict(zip(pairs, holm([one.p_value for one in pairs.values()]), strict=True))
    made = {}
    for place, method in enumerate(known):
        pair = (known[0], known[1] if place == 0 else method) if len(known) > 1 else None
        if pair not in pairs:
            continue
        found = pairs[pair]
        if place == 0:
            made[method] = found.against(pair[1], found.p_value, "")
        else:
            other_way: _Difference = getattr(found, turned)
            made[method] = other_way.against(pair[0], corrected[pair], "Holm over all pairs")
    return made


def _score_difference(own: Floats, base: Floats) -> _Difference:
    differences = own - base
    rounding = ROUNDING * float(max(np.abs(own).max(), np.abs(base).max()))
    interval = mean_interval(differences.tolist())
    return _Difference(
        float(np.mean(differences)),
        interval.low,
        interval.high,
        paired_p(differences, rounding=rounding),
        T_TEST,
    )


def _step_ratio(resolution: float, own: Floats, base: Floats) -> _Difference:
    interval = ratio_interval(own.tolist(), base.tolist(), resolution=resolution)
    if interval is None:
        ranks = stats.rankdata(np.concatenate([own, base]))
        p = paired_p(ranks[: len(own)] - ranks[len(own) :])
        return _Difference(math.nan, math.nan, math.nan, p, RANK_TEST)
    mine, theirs = np.maximum(own, 1.0), np.maximum(base, 1.0)
    least = rounding_variance(mine, resolution) + rounding_variance(theirs, resolution)
    p = paired_p(np.log(mine / theirs), rounding=ROUNDING, least=least)
    return _Difference(interval.value, interval.low, interval.high, p, LOG_TEST)


def paired_p(differences: Floats, *, rounding: float = 0.0, least: float = 0.0) -> float:
    """The two-sided p-value of a t-test of paired differences.

    Differences up to ``rounding`` are none, and those that are as equal have the p-value of
    flipping signs, unless ``least`` is known: the smallest variance that they are taken to have.

    >>> round(paired_p(np.array([0.01, 0.02, 0.03])), 3), paired_p(np.array([0.5, 0.5, 0.5]))
    (0.074, 0.25)
    """
    count, largest = len(differences), float(np.abs(differences).max())
    if largest <= rounding:
        return 1.0
    if np.ptp(differences) <= rounding and not least:
        return 2.0 ** (1 - count)
    scaled = differences / largest  # squares of tiny numbers would be zero
    variance = max(float(np.var(scaled, ddof=1)), (math.sqrt(least) / largest) ** 2)
    t = abs(float(np.mean(scaled))) / math.sqrt(variance / count)
    return 2 * float(special.stdtr(count - 1, -t))


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


@cache
def visible_difference(seeds: int, tests: int = 1) -> float:
    """How large a difference a paired t-test sees in four of five cases.

    In standard deviations of the differences over seeds, with the first of ``tests`` p-values
    corrected as Holm does.

    >>> [round(visible_difference(seeds), 2) for seeds in (3, 5, 10)]
    [3.26, 1.68, 1.0]
    """
    degrees = seeds - 1
    needed = float(stats.t.isf(SIGNIFICANT / tests / 2, degrees))

    def missing(size: float) -> float:
        return float(stats.nct.sf(needed, degrees, size * math.sqrt(seeds))) - POWER

    return float(optimize.brentq(missing, 1e-3, 2 * needed))


def seeds_sentence(seeds: int, tests: int) -> str:
    """What so many seeds can and cannot say, for the reader of a table with so many tests.

    >>> print(seeds_sentence(3, 1))  # doctest: +NORMALIZE_WHITESPACE
    With 3 seeds no test without assumptions has a p-value below 0.25; the paired t-test takes
    differences to be normal, and calls a difference in 4 of 5 cases if it is 3.3 times as large as
    its standard deviation over seeds.
    """
    if seeds < 2:
        return "With one seed nothing can be tested: any difference may be chance."
    least = f"{2.0 ** (1 - seeds):.2g}"
    corrected = f", corrected for {tests} tests," if tests > 1 else ""
    size = f"{visible_difference(seeds, max(1, tests)):.2g}"
    return (
        f"With {seeds} seeds no test without assumptions has a p-value below {least}; the paired "
        f"t-test takes differences to be normal, and{corrected} calls a difference in 4 of 5 cases "
        f"if it is {size} times as large as its standard deviation over seeds."
    )

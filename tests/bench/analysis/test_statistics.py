"""The statistics of a comparison: against other ways to compute them, and what they promise."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from badm.bench.analysis.statistics import (
    mean_interval,
    median_interval,
    paired_tests,
    performance_profile,
    ranked,
    sensitivity,
    time_to_target,
)
from badm.bench.records.comparisons import ResultRow
from badm.bench.task import Score

INF, NAN = math.inf, math.nan
ACCURACY = Score("accuracy", percent=True)
LOSS = Score("loss", best="low")

pytestmark = pytest.mark.filterwarnings("error")
a_score = st.floats(-10, 10, allow_subnormal=False)
a_time = st.one_of(st.integers(0, 1000).map(float), st.just(INF))
lists_of_times = st.lists(a_time, min_size=1, max_size=8)
few = settings(max_examples=40, deadline=None)  # each example resamples 9999 times


def test_mean_interval_is_the_bca_bootstrap_of_scipy():
    values = [0.91, 0.92, 0.92, 0.93, 0.91, 0.92, 0.93, 0.99]  # skewed: the percentiles differ
    interval = mean_interval(values)
    expected = stats.bootstrap(
        (np.array(values),), np.mean, n_resamples=200_000, batch=10_000, method="BCa"
    ).confidence_interval
    assert interval.value == pytest.approx(np.mean(values))
    assert interval.low == pytest.approx(expected.low, abs=2e-3)
    assert interval.high == pytest.approx(expected.high, abs=2e-3)
    assert interval.values == values


def test_mean_interval_of_two_seeds_is_their_range():
    interval = mean_interval([0.4, 0.2])
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.3, 0.2, 0.4))


def test_a_lower_level_gives_a_narrower_interval():
    values = [float(v) for v in range(12)]
    wide, narrow = mean_interval(values, level=0.95), mean_interval(values, level=0.5)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_mean_of_skewed_values_is_inside_an_interval_of_any_level():
    interval = mean_interval([1, 2, 3, 4, 5, 6, 100], level=0.02)
    assert interval.low <= interval.value <= interval.high


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.1, 0.1], [0.1] * 10])
def test_equal_values_have_an_interval_of_no_width(values):
    for interval in (mean_interval(values), median_interval(values)):
        assert (interval.value, interval.low, interval.high) == (0.1, 0.1, 0.1)


def test_where_bca_is_undefined_the_percentile_interval_stands_in():
    values = [1.0, 1.0, np.nextafter(1.0, 2.0)]  # the jackknife of these has no variance
    interval = mean_interval(values)
    assert 1.0 <= interval.low <= interval.value <= interval.high <= values[-1]


@pytest.mark.parametrize("values", [[], [0.5, NAN], [0.5, INF], [-INF]])
def test_mean_interval_refuses_what_has_no_mean(values):
    with pytest.raises(ValueError, match=r"values must be finite|at least one value"):
        mean_interval(values)


@pytest.mark.slow
@few
@given(st.lists(a_score, min_size=1, max_size=8), st.randoms())
def test_mean_interval_contains_its_value_whatever_the_order_of_seeds(values, order):
    interval = mean_interval(values)
    assert interval.low <= interval.value <= interval.high
    slack = 1e-12 * max(map(abs, values))
    assert min(values) - slack <= interval.low
    assert interval.high <= max(values) + slack
    shuffled = random.Random(order.random()).sample(values, len(values))
    again = mean_interval(shuffled)
    assert (again.value, again.low, again.high) == (interval.value, interval.low, interval.high)
    assert again.values == shuffled


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([30, 10, 20], 20),
        ([10, 20, 30, 40], 25),
        ([10, 20, INF], 20),
        ([10, 20, 30, INF], 25),
        ([10, INF], INF),  # half a miss is a miss
        ([10, 20, INF, INF], INF),
        ([INF, INF, INF], INF),
    ],
)
def test_median_counts_misses_as_infinite(values, median):
    assert median_interval(values).value == median


def test_median_interval_is_the_percentile_bootstrap_of_scipy():
    values = [12.0, 40.0, 25.0, 31.0, 18.0, 60.0, 22.0, 35.0, 28.0]
    interval = median_interval(values)
    expected = stats.bootstrap((np.array(values),), np.median, method="percentile")
    assert (interval.low, interval.high) == tuple(expected.confidence_interval)


def test_median_interval_ends_at_a_miss_that_may_be_the_median():
    # Of three seeds the median is a miss in 7 of 27 resamples, the smallest in as many.
    interval = median_interval([10, 20, INF])
    assert (interval.low, interval.value, interval.high) == (10, 20, INF)


@pytest.mark.parametrize("values", [[], [NAN], [10, NAN, INF], [-1.0]])
def test_median_interval_refuses_what_is_no_time(values):
    with pytest.raises(ValueError, match=r"times must be|at least one value"):
        median_interval(values)


@few
@given(lists_of_times, st.randoms())
def test_median_interval_contains_its_value_whatever_the_order_of_seeds(values, order):
    interval = median_interval(values)
    assert interval.low <= interval.value <= interval.high  # and so none is NaN
    shuffled = random.Random(order.random()).sample(values, len(values))
    again = median_interval(shuffled)
    assert (again.value, again.low, again.high) == (interval.value, interval.low, interval.high)


@few
@given(lists_of_times)
def test_a_miss_more_never_lowers_the_median(values):
    assert median_interval([*values, INF]).value >= median_interval(values).value


@pytest.mark.parametrize(
    ("scores", "target", "score", "expected"),
    [
        ([0.5, 0.9, 0.8, 0.95], 0.9, ACCURACY, 20),
        ([0.5, 0.6, 0.7, 0.8], 0.9, ACCURACY, INF),
        ([NAN, NAN, 0.95, NAN], 0.9, ACCURACY, 30),
        ([NAN] * 4, 0.9, ACCURACY, INF),
        ([2.0, 1.0, 0.5, 0.1], 0.5, LOSS, 30),
        ([INF, NAN, INF, 1.0], 0.5, LOSS, INF),
    ],
)
def test_time_to_target_is_the_first_point_that_reaches_it(scores, target, score, expected):
    assert time_to_target([10, 20, 30, 40], scores, target, score) == expected


def test_time_to_target_of_no_readings_is_a_miss():
    assert time_to_target([], [], 0.9, ACCURACY) == INF


def test_time_to_target_refuses_readings_that_do_not_match():
    with pytest.raises(ValueError, match="zip"):
        time_to_target([10, 20], [0.5], 0.9, ACCURACY)


def test_paired_test_is_students_on_the_differences():
    # Differences 0.01, 0.02, 0.03: t = 0.02 / (0.01 / √3) = 2√3, of 2 degrees of freedom.
    tests = paired_tests({"adam": [0.90, 0.91, 0.92], "badm": [0.91, 0.93, 0.95]}, "adam")
    assert tests.keys() == {"badm"}
    assert tests["badm"].against == "adam"
    assert tests["badm"].difference == pytest.approx(0.02)
    assert tests["badm"].p_value == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2))


def test_paired_tests_pair_seeds():
    # The seeds differ far more than the methods do: only pairs can tell.
    tests = paired_tests({"adam": [0.1, 0.5, 0.9], "badm": [0.11, 0.512, 0.909]}, "adam")
    assert tests["badm"].p_value < 0.02


def test_p_values_are_corrected_as_benjamini_and_hochberg_do():
    rng = np.random.default_rng(1)
    scores = {name: list(rng.normal(i / 2, 1, 6)) for i, name in enumerate("abcd")}
    raw = {m: stats.ttest_rel(v, scores["a"]).pvalue for m, v in scores.items() if m != "a"}
    order = sorted(raw, key=raw.__getitem__)
    scaled = [raw[method] * 3 / place for place, method in enumerate(order, 1)]
    expected = {method: min(scaled[i:]) for i, method in enumerate(order)}
    tests = paired_tests(scores, "a")
    assert {m: test.p_value for m, test in tests.items()} == pytest.approx(expected)
    assert all(tests[m].p_value >= raw[m] for m in raw)


def test_equal_scores_have_a_p_value_of_one():
    tests = paired_tests({"adam": [0.9, 0.8], "badm": [0.9, 0.8]}, "adam")
    assert (tests["badm"].difference, tests["badm"].p_value) == (0.0, 1.0)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_constant_difference_claims_no_more_than_flipping_signs_can(seeds):
    base = [0.3 + 0.1 * seed for seed in range(seeds)]
    # 0.4 - 0.3, 0.5 - 0.4 and so on differ in their last digits, in float32 even more.
    in_float32 = [float(np.float32(value)) + 0.1 for value in base]
    tests = paired_tests({"adam": base, "badm": in_float32}, "adam")
    assert tests["badm"].p_value == pytest.approx(2 / 2**seeds)


@pytest.mark.parametrize("bad", [[0.9], [], [0.9, 0.8], [0.9, 0.8, NAN], [0.9, INF, 0.7]])
def test_no_test_of_a_method_that_cannot_be_paired(bad):
    good = {"adam": [0.9, 0.91, 0.93], "nadam": [0.92, 0.91, 0.95]}
    alone = paired_tests(good, "adam")
    assert paired_tests({**good, "sgd": bad}, "adam") == alone  # nor does it count for the others
    assert paired_tests({**good, "sgd": bad}, "sgd") == {}


def test_no_tests_with_one_seed_or_without_the_reference():
    assert paired_tests({"adam": [0.9], "badm": [0.8]}, "adam") == {}
    assert paired_tests({"badm": [0.8, 0.9]}, "adam") == {}
    assert paired_tests({}, "adam") == {}


@pytest.mark.slow
@given(
    st.lists(st.tuples(a_score, a_score, a_score), min_size=2, max_size=6),
    st.randoms(),
)
def test_paired_tests_do_not_depend_on_the_order_of_seeds(seeds, order):
    def tests(seeds):
        a, b, c = zip(*seeds, strict=True)
        return paired_tests({"a": a, "b": b, "c": c}, "a")

    found, again = tests(seeds), tests(random.Random(order.random()).sample(seeds, len(seeds)))
    assert found.keys() == again.keys() == {"b", "c"}
    for method in found:
        assert 0 <= found[method].p_value <= 1
        assert found[method].p_value == pytest.approx(again[method].p_value, rel=1e-4)
        assert found[method].difference == pytest.approx(again[method].difference, abs=1e-12)


def test_performance_profile_by_hand():
    profile = performance_profile(
        {
            "badm": {"a": 10, "b": 40, "c": INF, "d": INF},
            "adam": {"a": 40, "b": 20, "c": 30, "d": INF},
            "sgd": {"a": INF, "b": 30},  # has no time on c and d: misses
        }
    )
    assert profile is not None
    taus = np.array(profile.taus)
    assert taus[0] == 1
    assert taus[-1] == 4
    assert np.ptp(np.diff(np.log(taus))) < 1e-12
    at_least = {"badm": [1, 2], "adam": [1, 1, 4], "sgd": [1.5]}  # ratios to the fastest
    for method, ratios in at_least.items():
        expected = [sum(ratio <= tau for ratio in ratios) / 4 for tau in taus]
        assert profile.solved[method] == expected


def test_performance_profile_goes_to_two_where_all_are_equally_fast():
    profile = performance_profile({"badm": {"a": 10}, "adam": {"a": 10}})
    assert profile is not None
    assert profile.taus[-1] == 2
    assert profile.solved == {"badm": [1.0] * 60, "adam": [1.0] * 60}


def test_a_task_no_one_solved_counts_for_no_one():
    profile = performance_profile({"badm": {"a": INF}, "adam": {"a": INF}})
    assert profile is not None
    assert profile.solved == {"badm": [0.0] * 60, "adam": [0.0] * 60}


def test_nothing_is_within_a_factor_of_a_target_reached_at_the_start():
    profile = performance_profile({"badm": {"a": 0}, "adam": {"a": 5}})
    assert profile is not None
    assert profile.solved == {"badm": [1.0] * 60, "adam": [0.0] * 60}


@pytest.mark.parametrize("times", [{}, {"badm": {}, "adam": {}}])
def test_no_performance_profile_without_a_target(times):
    assert performance_profile(times) is None


def test_performance_profile_refuses_nan():
    with pytest.raises(ValueError, match="times must be at least 0"):
        performance_profile({"badm": {"a": NAN}})


@given(
    st.dictionaries(
        st.sampled_from("xyz"), st.dictionaries(st.sampled_from("abcd"), a_time), min_size=1
    )
)
def test_performance_profile_is_a_rising_part_of_all_tasks(times):
    profile = performance_profile(times)
    assume(profile is not None)
    assert profile.solved.keys() == times.keys()
    assert np.all(np.diff(profile.taus) > 0)
    tasks = {task for by_task in times.values() for task in by_task}
    for method, solved in profile.solved.items():
        assert np.all(np.diff(solved) >= 0)
        reached = sum(math.isfinite(time) for time in times[method].values())
        assert 0 <= solved[0] <= solved[-1] <= reached / len(tasks)
        # The last τ is the largest ratio, so that whatever was solved is counted there.
        if all(time > 0 for by_task in times.values() for time in by_task.values()):
            assert solved[-1] == reached / len(tasks)


def test_sensitivity_is_the_range_around_the_best():
    tried = [(1e-1, 0.969), (1e-2, 0.90), (1e-3, 0.97), (1e-4, 0.965), (1e-5, 0.962), (1e-6, 0.5)]
    found = sensitivity(tried, ACCURACY)
    assert found is not None
    # 0.1 is as good, yet beyond a gap.
    assert (found.best_lr, found.best_score, found.low, found.high) == (1e-3, 0.97, 1e-5, 1e-3)
    assert found.decades == pytest.approx(2)
    assert not found.at_least


def test_sensitivity_of_a_loss_is_relative_and_knows_where_the_grid_ends():
    tried = [(0.1, 2.019), (0.2, 2.0), (0.4, 2.021)]
    found = sensitivity(tried, LOSS)
    assert found is not None
    assert (found.best_score, found.low, found.high, found.at_least) == (2.0, 0.1, 0.2, True)
    wider = sensitivity(tried, LOSS, tolerance=0.05)
    assert wider is not None
    assert (wider.high, wider.decades, wider.tolerance) == (0.4, pytest.approx(math.log10(4)), 0.05)


@pytest.mark.parametrize("diverged", [None, NAN, INF, -INF])
@pytest.mark.parametrize("score", [ACCURACY, LOSS])
def test_sensitivity_stops_at_what_diverged(diverged, score):
    found = sensitivity([(0.1, 0.5), (1.0, 0.5), (10.0, diverged), (100.0, 0.5)], score)
    assert found is not None
    assert (found.best_lr, found.low, found.high) == (0.1, 0.1, 1.0)
    assert sensitivity([(0.1, diverged)], score) is None


def test_sensitivity_of_nothing_tried_is_none():
    assert sensitivity([], ACCURACY) is None


def test_a_learning_rate_tried_twice_has_its_better_score():
    tried = [(0.1, 0.9), (0.01, None), (0.01, 0.9), (0.1, 0.2)]
    found = sensitivity(tried, ACCURACY)
    assert found is not None
    assert (found.low, found.high) == (0.01, 0.1)


@pytest.mark.parametrize("lr", [0.0, -1.0, NAN, INF])
def test_sensitivity_refuses_what_is_no_learning_rate(lr):
    with pytest.raises(ValueError, match="learning rate must be positive"):
        sensitivity([(lr, 0.5)], ACCURACY)


@given(
    st.dictionaries(
        st.sampled_from([10.0**k for k in range(-6, 2)]),
        st.one_of(st.none(), st.floats(0, 1)),
        min_size=1,
    )
)
def test_the_good_range_holds_the_best_and_only_good_ones(points):
    found = sensitivity(points.items(), ACCURACY)
    assume(found is not None)
    assert found.low <= found.best_lr <= found.high
    assert found.decades >= 0
    for lr, value in points.items():
        if found.low <= lr <= found.high:
            assert value is not None
            assert found.best_score - 0.01 - 1e-12 <= value <= found.best_score


def row(method: str, value: float | None, status: str = "finished") -> ResultRow:
    test = None if value is None else mean_interval([value])
    return ResultRow("digits", method, status, test=test)


def test_ranked_puts_the_best_first_equals_by_name_and_the_unfinished_last():
    rows = [
        row("sgd", 0.99, "diverged"),  # of the seeds that did not diverge
        row("nadam", 0.5),
        row("dladmm", None, "cannot"),
        row("adam", 0.5),
        row("badm", 0.9),
        row("muon", 0.1),
    ]
    order = [r.method for r in ranked(rows, ACCURACY)]
    assert order == ["badm", "adam", "nadam", "muon", "dladmm", "sgd"]
    order = [r.method for r in ranked(rows, LOSS)]
    assert order == ["muon", "adam", "nadam", "badm", "dladmm", "sgd"]

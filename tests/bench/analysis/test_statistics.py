"""Times to a target, profiles and ranks: against other ways to compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from badm.bench.analysis.intervals import mean_interval
from badm.bench.analysis.statistics import (
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
a_time = st.one_of(st.integers(0, 1000).map(float), st.just(INF))


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

"""Tests of differences: by hand, paired, corrected, and never surer than they can be."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from badm.bench.analysis.differences import (
    holm,
    paired_tests,
    rival_tests,
    seeds_sentence,
    step_rival_tests,
    step_tests,
    visible_difference,
)

INF, NAN = math.inf, math.nan

pytestmark = pytest.mark.filterwarnings("error")
a_score = st.floats(-10, 10, allow_subnormal=False)


def test_paired_test_is_students_on_the_differences():
    # Differences 0.01, 0.02, 0.03: t = 0.02 / (0.01 / √3) = 2√3, of 2 degrees of freedom.
    tests = paired_tests({"adam": [0.90, 0.91, 0.92], "badm": [0.91, 0.93, 0.95]}, "adam")
    assert tests.keys() == {"badm"}
    assert tests["badm"].against == "adam"
    assert tests["badm"].difference == pytest.approx(0.02)
    assert tests["badm"].p_value == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2))
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    ends = tests["badm"].low, tests["badm"].high
    assert ends == pytest.approx((0.02 - half, 0.02 + half))


def test_paired_tests_pair_seeds():
    # The seeds differ far more than the methods do: only pairs can tell.
    tests = paired_tests({"adam": [0.1, 0.5, 0.9], "badm": [0.11, 0.512, 0.909]}, "adam")
    assert tests["badm"].p_value < 0.02


def test_p_values_are_corrected_as_holm_does():
    rng = np.random.default_rng(1)
    scores = {name: list(rng.normal(i / 2, 1, 6)) for i, name in enumerate("abcd")}
    raw = {m: stats.ttest_rel(v, scores["a"]).pvalue for m, v in scores.items() if m != "a"}
    order = sorted(raw, key=raw.__getitem__)
    scaled = [min(1.0, raw[method] * (3 - place)) for place, method in enumerate(order)]
    expected = {method: max(scaled[: i + 1]) for i, method in enumerate(order)}
    tests = paired_tests(scores, "a")
    assert {m: test.p_value for m, test in tests.items()} == pytest.approx(expected)
    assert {test.test for test in tests.values()} == {"paired t, Holm"}


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
    assert rival_tests({**good, "sgd": bad}, ["nadam", "adam", "sgd"]) == rival_tests(
        good, ["nadam", "adam"]
    )


def test_no_tests_with_one_seed_or_without_the_reference():
    assert paired_tests({"adam": [0.9], "badm": [0.8]}, "adam") == {}
    assert paired_tests({"badm": [0.8, 0.9]}, "adam") == {}
    assert paired_tests({}, "adam") == {}
    assert rival_tests({"adam": [0.9], "badm": [0.8]}, ["adam", "badm"]) == {}
    assert rival_tests({"adam": [0.9, 0.8]}, ["adam"]) == {}
    assert step_tests({"adam": [40]}, "adam") == step_rival_tests({}, []) == {}


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


def test_the_first_is_tested_against_the_second_and_the_others_against_the_first():
    rng = np.random.default_rng(2)
    scores = {name: list(rng.normal(-i, 1, 5)) for i, name in enumerate("abc")}
    tests = rival_tests(scores, ["a", "b", "c"])
    assert {m: test.against for m, test in tests.items()} == {"a": "b", "b": "a", "c": "a"}
    p = {
        pair: stats.ttest_rel(scores[pair[0]], scores[pair[1]]).pvalue
        for pair in ("ab", "ac", "bc")
    }
    corrected = dict(zip(p, holm(list(p.values())), strict=True))
    assert tests["a"].p_value == pytest.approx(p["ab"])
    assert tests["b"].p_value == pytest.approx(corrected["ab"])
    assert tests["c"].p_value == pytest.approx(corrected["ac"])
    assert tests["c"].difference == pytest.approx(np.mean(scores["c"]) - np.mean(scores["a"]))
    assert tests["c"].low < tests["c"].difference < tests["c"].high < 0


def test_among_equals_the_best_is_called_better_in_at_most_one_of_twenty():
    rng = np.random.default_rng(0)
    called_first = called_any = 0
    for _ in range(400):
        scores = {name: list(rng.normal(0, 1, 5)) for name in "abcd"}
        order = sorted(scores, key=lambda name: -np.mean(scores[name]))
        p = {name: test.p_value for name, test in rival_tests(scores, order).items()}
        called_first += p.pop(order[0]) < 0.05
        called_any += min(p.values()) < 0.05
    assert called_first / 400 < 0.05
    assert called_any / 400 < 0.07  # 0.05 and two standard errors


def test_steps_are_compared_as_ratios_by_seed():
    # Logarithms of ratios: ln 2, ln 2, ln 4.
    tests = step_tests({"fast": [10, 100, 50], "slow": [20, 200, 200]}, "slow")
    logs = np.log([2, 2, 4])
    assert tests["fast"].difference == pytest.approx(math.exp(-logs.mean()))
    assert tests["fast"].p_value == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)
    assert tests["fast"].low < tests["fast"].difference < tests["fast"].high
    turned = step_rival_tests({"fast": [10, 100, 50], "slow": [20, 200, 200]}, ["fast", "slow"])
    assert turned["slow"].difference == pytest.approx(1 / tests["fast"].difference)
    assert turned["slow"].low == pytest.approx(1 / tests["fast"].high)


def test_a_miss_is_the_last_of_all_ranks():
    steps = {"good": [10, 20, 30], "bad": [40, INF, INF]}
    tests = step_tests(steps, "bad")
    # Ranks 1, 2, 3 and 4, 5.5, 5.5.
    expected = stats.ttest_rel([1, 2, 3], [4, 5.5, 5.5]).pvalue
    assert tests["good"].p_value == pytest.approx(expected)
    assert math.isnan(tests["good"].difference)
    assert tests["good"].test == "paired t on ranks, Holm"


def test_two_methods_that_miss_at_every_seed_do_not_differ():
    assert step_tests({"a": [INF] * 3, "b": [INF] * 3}, "a")["b"].p_value == 1.0


def test_steps_one_reading_apart_at_every_seed_are_not_surely_different():
    # 65/60, 70/65 and 65/60 are nearly equal: without their rounding a t-test would be sure.
    steps = {"a": [60, 65, 60], "b": [65, 70, 65]}
    assert step_tests(steps, "a")["b"].p_value < 0.001
    assert step_tests(steps, "a", resolution=5)["b"].p_value > 0.04


def test_a_ratio_that_is_equal_at_all_seeds_is_seen_where_readings_are_dense() -> None:
    steps = {"a": [40, 40, 40], "b": [80, 80, 80]}
    assert step_tests(steps, "a")["b"].p_value == pytest.approx(0.25)  # of flipping signs
    # Rounding: a variance of (1/8² + 1/16²) / 12, so that t = ln 2 / 0.0403 · √3.
    t = math.log(2) / math.sqrt((1 / 8**2 + 1 / 16**2) / 12 / 3)
    found = step_tests(steps, "a", resolution=5)["b"].p_value
    assert found == pytest.approx(2 * stats.t.sf(t, 2))


def test_a_visible_difference_is_seen_in_four_of_five_cases():
    rng = np.random.default_rng(3)
    for seeds, tests in ((3, 1), (5, 4), (10, 1)):
        size = visible_difference(seeds, tests)
        draws = rng.normal(size, 1, (20_000, seeds))
        p = stats.ttest_1samp(draws, 0, axis=1).pvalue
        assert np.mean(p * tests < 0.05) == pytest.approx(0.8, abs=0.01)


def test_what_seeds_can_say_is_said():
    assert "no test without assumptions has a p-value below 0.062" in seeds_sentence(5, 1)
    assert "corrected for 12 tests" in seeds_sentence(5, 12)
    assert seeds_sentence(1, 3).startswith("With one seed nothing can be tested")

"""Intervals: against other ways to compute them, by hand, and how often they hold."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from badm.bench.analysis.intervals import (
    geometric_interval,
    mean_interval,
    median_interval,
    ratio_interval,
    score_interval,
)
from badm.bench.records.speeds import Bounded
from benchmarks.coverage import SHAPES, coverage
from tests.helpers import ROOT

INF, NAN = math.inf, math.nan

pytestmark = pytest.mark.filterwarnings("error")
a_score = st.floats(-10, 10, allow_subnormal=False)
a_time = st.one_of(st.integers(0, 1000).map(float), st.just(INF))
lists_of_times = st.lists(a_time, min_size=1, max_size=12)


def test_mean_interval_is_students():
    values = [0.91, 0.92, 0.92, 0.99]
    interval = mean_interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert interval.value == pytest.approx(np.mean(values))
    assert interval.values == values


def test_mean_interval_of_two_seeds_by_hand():
    # 0.3 ± 12.7062 · (0.1 · √2) / √2
    interval = mean_interval([0.4, 0.2])
    expected = (0.3, 0.3 - 1.27062, 0.3 + 1.27062)
    assert (interval.value, interval.low, interval.high) == pytest.approx(expected, abs=1e-5)


def test_the_interval_of_a_mean_of_fractions_ends_where_they_do():
    interval = mean_interval([1.0, 0.9], fractions=True)
    assert (interval.low, interval.high) == (pytest.approx(0.95 - 0.635, abs=1e-3), 1.0)


def test_a_lower_level_gives_a_narrower_interval():
    values = [float(v) for v in range(12)]
    for interval in (mean_interval, median_interval):
        wide, narrow = interval(values, level=0.95), interval(values, level=0.5)
        assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.1, 0.1], [0.1] * 10])
def test_equal_values_have_an_interval_of_no_width(values):
    for interval in (mean_interval(values), median_interval(values)):
        assert (interval.value, interval.low, interval.high) == (0.1, 0.1, 0.1)


@pytest.mark.parametrize("values", [[], [0.5, NAN], [0.5, INF], [-INF]])
def test_mean_interval_refuses_what_has_no_mean(values):
    with pytest.raises(ValueError, match=r"values must be finite|at least one value"):
        mean_interval(values)


@given(st.lists(a_score, min_size=1, max_size=8), st.randoms())
def test_mean_interval_contains_its_value_whatever_the_order_of_seeds(values, order):
    interval = mean_interval(values)
    assert interval.low <= interval.value <= interval.high
    shuffled = random.Random(order.random()).sample(values, len(values))
    again = mean_interval(shuffled)
    assert (again.value, again.low, again.high) == (interval.value, interval.low, interval.high)
    assert again.values == shuffled


def test_the_interval_of_a_fraction_has_the_noise_of_seeds_and_of_samples():
    # Four seeds, 100 samples: 0.5 has the variance 0.25 / 100, the seeds 0.02² / 3 · 4 / 4.
    values = [0.48, 0.48, 0.52, 0.52]
    of_seeds, of_split = 0.02**2 * 4 / 3 / 4, 0.25 / 100
    interval, noise = score_interval(values, 100)
    half = math.sqrt(noise.seeds**2 + noise.split**2)
    assert (interval.low, interval.high) == pytest.approx((0.5 - half, 0.5 + half))
    assert noise.seeds == pytest.approx(stats.t.ppf(0.975, 3) * math.sqrt(of_seeds))
    assert noise.split == pytest.approx(1.959964 * math.sqrt(of_split))
    assert noise.samples == 100


def test_many_test_samples_leave_the_noise_of_seeds_alone():
    values = [0.48, 0.5, 0.53]
    interval, _ = score_interval(values, 10**9)
    alone = mean_interval(values)
    assert (interval.low, interval.high) == pytest.approx((alone.low, alone.high), abs=1e-4)


def test_seeds_that_agree_on_a_few_samples_are_not_certain():
    interval, noise = score_interval([1.0, 1.0, 1.0], 50)
    assert noise.seeds == pytest.approx(stats.t.ppf(0.975, 2) * 0.5 / 50 / math.sqrt(3))
    assert (interval.value, interval.high) == (1.0, 1.0)  # no fraction is above 1
    assert interval.low < 0.97


def test_a_fraction_of_one_seed_has_no_interval():
    interval, noise = score_interval([0.9], 100)
    assert (interval.low, interval.value, interval.high) == (0.9, 0.9, 0.9)
    assert noise is None


def test_a_fraction_must_be_one():
    with pytest.raises(ValueError, match=r"between 0 and 1, got \[97\.0, 96\.0\]"):
        score_interval([97.0, 96.0], 100)


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


def test_the_median_of_few_seeds_has_students_interval_on_logarithms():
    interval = median_interval([10, 20, 40])
    half = stats.t.ppf(0.975, 2) * math.log(2) / math.sqrt(3)
    expected = (20 * math.exp(-half), 20, 20 * math.exp(half))
    assert (interval.low, interval.value, interval.high) == pytest.approx(expected)


def test_the_median_of_five_is_between_the_first_and_the_last():
    interval = median_interval([12, 40, 25, 31, 18])
    assert (interval.low, interval.value, interval.high) == (12, 25, 40)


def test_the_median_of_ten_is_between_interpolated_order_statistics():
    # Between the 2nd and the 9th in 97.85 %, the 3rd and the 8th in 89.06 % (binomial): 95 % is at
    # I = 2.85 / 8.79 = 0.324, and λ = 8 I / (2 + 6 I) = 0.658 of the way.
    interval = median_interval([float(v) for v in range(10, 110, 10)])
    assert (interval.low, interval.high) == pytest.approx((26.58, 83.42), abs=0.02)


def test_a_miss_among_few_seeds_leaves_no_interval():
    interval = median_interval([10, 20, INF])
    assert (interval.low, interval.value, interval.high) == (0, 20, INF)
    assert not interval.has_ends
    assert median_interval([10, 20, 30, 40, INF]).has_ends


def test_equal_times_are_known_to_the_distance_of_readings_alone():
    interval = median_interval([40, 40, 40], resolution=20)
    half = stats.t.ppf(0.975, 2) * 0.5 / math.sqrt(12) / math.sqrt(3)
    expected = (40 * math.exp(-half), 40, 40 * math.exp(half))
    assert (interval.low, interval.value, interval.high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [NAN], [10, NAN, INF], [-1.0]])
def test_median_interval_refuses_what_is_no_time(values):
    with pytest.raises(ValueError, match=r"times must be|at least one value"):
        median_interval(values)


@given(lists_of_times, st.randoms(), st.sampled_from([0.0, 5.0]))
def test_median_interval_contains_its_value_whatever_the_order(values, order, resolution):
    interval = median_interval(values, resolution=resolution)
    assert 0 <= interval.low <= interval.value <= interval.high  # and so none is NaN
    shuffled = random.Random(order.random()).sample(values, len(values))
    again = median_interval(shuffled, resolution=resolution)
    assert (again.value, again.low, again.high) == (interval.value, interval.low, interval.high)


@given(lists_of_times)
def test_a_miss_more_never_lowers_the_median(values):
    assert median_interval([*values, INF]).value >= median_interval(values).value


def test_a_ratio_of_steps_is_paired_by_seed():
    # The seeds differ by far more than the methods do.
    interval = ratio_interval([10, 100, 1000], [21, 200, 1950])
    assert interval is not None
    assert interval.value == pytest.approx((10 / 21 * 0.5 * 1000 / 1950) ** (1 / 3))
    assert 0.4 < interval.low < interval.high < 0.6
    assert ratio_interval([10, INF], [10, 20]) is None


def test_equal_ratios_are_known_to_the_distance_of_readings_alone():
    exact = ratio_interval([20, 20, 20], [40, 40, 40])
    rounded = ratio_interval([20, 20, 20], [40, 40, 40], resolution=5)
    assert exact is not None
    assert rounded is not None
    assert exact.low == exact.high == 0.5
    assert rounded.low < 0.5 < rounded.high


def test_geometric_interval_refuses_what_has_no_logarithm():
    with pytest.raises(ValueError, match=r"positive numbers, got \[0\.0, 1\.0\]"):
        geometric_interval([0.0, 1.0])


@pytest.mark.parametrize(
    "shape", [s for s in SHAPES if s.promised], ids=lambda s: f"{s.kind}, {s.name}"
)
def test_an_interval_of_three_seeds_holds_as_often_as_it_says(shape):
    """Within 2 points of 95 %, or more often for what comes in whole samples or readings."""
    error = 3 * math.sqrt(0.95 * 0.05 / 400)
    found = coverage(shape, 3, draws=400)
    assert found > 0.93 - error
    assert found < 0.97 + error or shape.discrete


def test_what_was_measured_is_what_is_promised():
    """The committed measurement: two points either way, and a half for the number of draws."""
    made = json.loads((ROOT / "results" / "coverage.json").read_text(encoding="utf-8"))
    promised = [row for row in made["intervals"] if row["promised"]]
    assert {row["name"] for row in promised} == {s.name for s in SHAPES if s.promised}
    for row in promised:
        assert min(row["held"].values()) > 0.925
        assert max(row["held"].values()) < 0.975 or row["discrete"]
    assert all(rate < 0.062 for row in made["tests"] for rate in row["called"].values())


def test_a_bootstrap_of_three_seeds_does_not_hold_as_often_as_it_says():
    """So the measurement can tell: this is what the intervals were once."""

    def bootstrap(values):
        drawn = np.random.default_rng(0).choice(values, (500, len(values))).mean(axis=1)
        return Bounded(np.mean(values), *np.quantile(drawn, [0.025, 0.975]))

    normal = next(shape for shape in SHAPES if shape.name == "normal")
    assert coverage(replace(normal, interval=bootstrap), 3, draws=400) < 0.85

"""Speed over tasks: geometric means, their intervals, and tests against a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from badm.bench.analysis.differences import holm, signed_rank_p
from badm.bench.analysis.speed import reaches
from badm.bench.analysis.speed_over_tasks import over_tasks
from badm.bench.records.speeds import MeasuredPart, MethodSpeed, TaskSpeed
from badm.bench.task import Score

ACCURACY = Score("accuracy")
TARGET = (0.80, 0.82)  # of the baseline, by seed


def measured(part: float, scores: Sequence[float]) -> MeasuredPart:
    mean = sum(scores) / len(scores)
    enough = reaches(scores, sum(TARGET) / len(TARGET), ACCURACY)
    return MeasuredPart(part, round(part * 80), {}, [], list(scores), mean, enough, part)


def row(task: str, method: str, parts: dict[float, Sequence[float]]) -> TaskSpeed:
    made = [measured(part, scores) for part, scores in sorted(parts.items())]
    smallest = min((one.part for one in made if one.reached), default=math.inf)
    status = "reached" if math.isfinite(smallest) else "never"
    return TaskSpeed(task, method, status, smallest, 80 * smallest, smallest, 1.5, 1.0, made)


def over(rows: list[TaskSpeed]) -> dict[str, MethodSpeed]:
    return {one.method: one for one in over_tasks(rows, "base", "base")}


def base(task: str) -> TaskSpeed:
    return row(task, "base", {1.0: TARGET})


def test_a_diverged_seed_does_not_reach_whatever_the_others_do() -> None:
    assert not reaches([1.0, math.nan], 0.5, ACCURACY)
    assert not reaches([1.0, None], 0.5, ACCURACY)
    assert reaches([0.5 - 1e-9], 0.5, ACCURACY)  # up to rounding
    assert reaches([0.1], 0.2, Score("kid", "low"))
    assert not reaches([0.5], None, ACCURACY)


def test_the_mean_is_geometric_and_never_counts_as_two_budgets() -> None:
    rows = [base("a"), base("b")]
    rows += [
        row("a", "fast", {0.5: (0.9, 0.9), 0.25: (0.9, 0.9), 0.125: (0.9, 0.9)}),
        row("b", "fast", {0.5: (0.9, 0.9), 0.25: (0.1, 0.1), 0.375: (0.1, 0.1)}),
        row("a", "mixed", {0.5: (0.9, 0.9), 0.25: (0.1, 0.1), 0.375: (0.1, 0.1)}),
        row("b", "mixed", {p / 8: (0.1, 0.1) for p in (4, 6, 7, 8)}),
    ]
    found = over(rows)
    assert found["fast"].part.value == pytest.approx(0.25)
    assert (found["fast"].won, found["fast"].tied, found["fast"].lost) == (2, 0, 0)
    assert found["mixed"].part.value == math.inf
    assert (found["mixed"].never, found["mixed"].tasks) == (1, 2)
    assert found["mixed"].counted.value == pytest.approx(1.0)
    assert found["mixed"].seconds == math.inf
    assert found["mixed"].seconds_counted == pytest.approx(math.sqrt(0.5 * 2 * 1.5))
    assert found["base"].part.low == found["base"].part.high == 1
    # Logarithms ln 1/4 ± ln 2, of two tasks.
    half = stats.t.ppf(0.975, 1) * math.log(2)
    ends = found["fast"].part.low, found["fast"].part.high
    assert ends == pytest.approx((0.25 * math.exp(-half), 0.25 * math.exp(half)))
    assert (found["mixed"].part.low, found["mixed"].part.high) == (
        found["mixed"].counted.low,
        math.inf,
    )


def test_parts_that_agree_are_known_to_an_eighth_alone() -> None:
    half = {0.5: (0.9, 0.9), 0.375: (0.1, 0.1)}
    tasks = [one for name in "abc" for one in (base(name), row(name, "fast", half))]
    found = over(tasks)["fast"].part
    rounding = stats.t.ppf(0.975, 2) * 0.25 / math.sqrt(12) / math.sqrt(3)
    expected = (0.5 * math.exp(-rounding), 0.5, 0.5 * math.exp(rounding))
    assert (found.low, found.value, found.high) == pytest.approx(expected)


def test_one_task_has_no_interval_over_tasks() -> None:
    found = over([base("a"), row("a", "fast", {0.5: (0.9, 0.9), 0.375: (0.1, 0.1)})])["fast"].part
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_eight_tasks_that_agree_are_significant_and_two_are_not() -> None:
    names = "abcdefgh"
    good = {0.5: (0.9, 0.9), 0.25: (0.1, 0.1), 0.375: (0.1, 0.1)}
    rows = [one for name in names for one in (base(name), row(name, "fast", good))]
    assert over(rows)["fast"].p_value == pytest.approx(2 / 2**8)
    assert over(rows[:4])["fast"].p_value == 0.5
    assert math.isnan(over(rows[:2])["fast"].p_value)
    assert math.isnan(over(rows)["base"].p_value)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True), st.data())
def test_the_signed_rank_test_is_scipys_exact_one(sizes: list[int], data: st.DataObject) -> None:
    values = [size * data.draw(st.sampled_from((-1, 1))) for size in sizes]
    assert signed_rank_p(values) == pytest.approx(stats.wilcoxon(values).pvalue)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lies_between_the_p_values_and_bonferroni(
    p_values: list[float],
) -> None:
    corrected = holm(p_values)
    for p, holm_p in zip(p_values, corrected, strict=True):
        assert p <= holm_p <= min(1, p * len(p_values)) or holm_p == pytest.approx(max(corrected))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)

"""Schedules: without a warm-up as they always were; with one, a ramp and the rest of the steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from badm.bench.engine.schedules import MOST_WARMUP, SCHEDULES, check_warmup, lr_factor

NAMES = st.sampled_from(sorted(SCHEDULES))


@given(NAMES, st.integers(1, 10_000), st.data())
def test_without_warmup_the_factor_is_the_schedule_bit_for_bit(
    name: str, steps: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, steps))
    assert lr_factor(name, 0.0, step, steps) == SCHEDULES[name]((step - 1) / steps)


@given(NAMES, st.floats(0, MOST_WARMUP), st.integers(1, 500))
def test_the_factor_rises_to_one_and_never_above_and_falls_after_it(
    name: str, warmup: float, steps: int
) -> None:
    factors = [lr_factor(name, warmup, step, steps) for step in range(1, steps + 1)]
    rising = round(warmup * steps)
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:rising] == sorted(factors[:rising])
    assert factors[rising:] == sorted(factors[rising:], reverse=True)
    assert factors[max(rising - 1, 0)] == 1


def test_the_schedule_takes_the_steps_that_the_warmup_leaves() -> None:
    factors = [lr_factor("linear", 0.2, step, 10) for step in range(1, 11)]
    assert factors == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


@pytest.mark.parametrize("warmup", [-0.1, 0.95, float("nan")])
def test_a_warmup_that_leaves_no_steps_is_refused(warmup: float) -> None:
    with pytest.raises(ValueError, match=r"warmup must be a number from 0 to 0\.9, got"):
        check_warmup(warmup)

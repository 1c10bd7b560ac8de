"""Schedules: without a warm-up as they always were; with one, a ramp and the rest of the steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from badm.bench.engine import schedules
from badm.bench.engine.schedules import (
    MOST_WARMUP,
    SCHEDULES,
    UnknownSchedule,
    check_warmup,
    lr_factor,
)
from badm.bench.errors import MethodError

NAMES = st.sampled_from(sorted(SCHEDULES))


@given(NAMES, st.integers(1, 10_000), st.data())
def test_without_warmup_the_factor_is_the_schedule_bit_for_bit(
    name: str, steps: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, steps))
    assert lr_factor(name, 0.0, step, steps) == SCHEDULES[name](step - 1, steps)


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


def learning_rates(make: object, base: float, steps: int) -> list[float]:
    """What torch's schedule states in closed form for every step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    schedule = make(optimizer, steps)  # type: ignore[operator]
    rates = []
    for step in range(steps):
        schedule.last_epoch = step
        rates += schedule._get_closed_form_lr()
    return rates


@given(st.floats(1e-6, 10), st.integers(1, 300))
def test_schedules_that_torch_has_are_torchs_to_the_bit(base: float, steps: int) -> None:
    torchs = {
        "constant": lambda o, n: lr_scheduler.ConstantLR(o, 1.0, n),
        "linear": lambda o, n: lr_scheduler.LinearLR(o, 1.0, 0.0, n),
        "cosine": lambda o, n: lr_scheduler.CosineAnnealingLR(o, n),
    }
    for name, make in torchs.items():
        ours = [base * lr_factor(name, 0.0, step, steps) for step in range(1, steps + 1)]
        assert ours == learning_rates(make, base, steps), name


def test_wsd_stays_and_decays_over_its_last_fifth() -> None:
    factors = [lr_factor("wsd", 0.2, step, 125) for step in range(1, 126)]
    assert factors[24] == 1
    assert factors[25:106] == [1.0] * 81
    assert factors[105:] == pytest.approx([1 - i / 20 for i in range(20)])


def test_cosine_of_now_is_another_run_than_cosine_of_before() -> None:
    assert [schedules.find(name).stored for name in SCHEDULES] == [
        "constant",
        "linear",
        "cosine@2",
        "wsd",
    ]


def written(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(f"def falls(done):\n    {body}\nHALF = 0.5\n")
    return f"{folder / 'mine.py'}:falls"


def test_a_function_of_the_users_is_a_schedule_with_its_own_version(tmp_path: Path) -> None:
    first = schedules.find(written(tmp_path, "return (1 - done) ** 2"))
    assert [lr_factor(first.stored, 0.5, k, 4) for k in (1, 2, 3, 4)] == [0.5, 1.0, 1.0, 0.25]
    assert first.source == f"{tmp_path / 'mine.py'}:falls"
    second = schedules.find(written(tmp_path, "return 1 - done"))
    assert first.stored != second.stored
    assert lr_factor(second.stored, 0.0, 2, 2) == 0.5
    assert lr_factor(first.stored, 0.0, 2, 2) == 0.25


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return -done", UnknownSchedule, r"of at least 0, got -0.01 when 0.01 of the steps are"),
        ("return 'low'", UnknownSchedule, "must return a finite number of at least 0, got 'low'"),
        ("return 1 / done", MethodError, "raised ZeroDivisionError: .*mine.py, line 2"),
    ],
)
def test_a_function_that_is_no_schedule_is_refused_before_any_run(
    tmp_path: Path, body: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        schedules.find(written(tmp_path, body))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("linnear", r"schedule must be one of constant, .*, got 'linnear'; did you mean linear\?"),
        ("nowhere.py:falls", "there is no file nowhere.py"),
        ("mine.py", "must name a function of the file, as in .*mine.py:falls"),
        ("mine.py:HALF", "must name a function of the file"),
    ],
)
def test_a_schedule_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    written(tmp_path, "return 1.0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownSchedule, match=message):
        schedules.find(source)

"""Which settings a search tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from badm.bench.compare.trial_settings import at_edge, trial_settings
from badm.bench.method import Choice, Range

SPACES = {
    "one": {"lr": Range(1e-4, 1e-1)},
    "linear": {"beta": Range(0.5, 0.99, log=False)},
    "two": {"lr": Range(1e-4, 1e-1), "beta": Range(0.5, 0.99, log=False)},
    "choice": {"lr": Range(1e-4, 1e-1), "metric": Choice(("diagonal", "spectral"))},
    "none": {},
}


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        (1, [0.00316]),
        (3, [0.000316, 0.00316, 0.0316]),
        (6, [0.000178, 0.000562, 0.00178, 0.00562, 0.0178, 0.0562]),
    ],
)
def test_learning_rates_are_fixed_and_readable(trials: int, expected: list[float]) -> None:
    assert [setting["lr"] for setting in trial_settings(SPACES["one"], trials)] == expected


def test_several_things_are_searched_at_points_fixed_for_good() -> None:
    # Another sequence would make runs of before worthless: change it knowingly.
    assert trial_settings(SPACES["two"], 3) == [
        {"lr": 0.00316, "beta": 0.663},
        {"lr": 0.000562, "beta": 0.827},
        {"lr": 0.0178, "beta": 0.554},
    ]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_design_has_as_many_settings_as_trials_and_is_the_same_twice(space: dict) -> None:
    for trials in (1, 2, 7, 20):
        settings = trial_settings(space, trials)
        assert len(settings) == trials
        assert settings == trial_settings(space, trials)
        assert all(list(setting) == list(space) for setting in settings)


@given(
    low=st.floats(1e-6, 1e3), factor=st.floats(1.0001, 1e4), log=st.booleans(),
    trials=st.integers(1, 40),
)  # fmt: skip
def test_values_are_inside_their_range_and_in_order(
    low: float, factor: float, log: bool, trials: int
) -> None:
    space = {"lr": Range(low, low * factor, log)}
    values = [setting["lr"] for setting in trial_settings(space, trials)]
    assert values == sorted(values)
    assert all(low <= value <= low * factor for value in values)


@pytest.mark.parametrize("trials", [2, 4, 12])
def test_every_choice_has_its_share(trials: int) -> None:
    values = ("diagonal", "spectral")
    alone = [setting["metric"] for setting in trial_settings({"metric": Choice(values)}, trials)]
    assert [alone.count(value) for value in values] == [trials / 2] * 2
    together = [setting["metric"] for setting in trial_settings(SPACES["choice"], trials)]
    assert set(together) == set(values)


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({"lr": 0.000316}, ["lr"]),
        ({"lr": 0.00316}, []),
        ({"lr": 0.0316}, ["lr"]),
    ],
)
def test_the_smallest_and_largest_value_tried_are_the_edge(
    best: dict[str, float], expected: list[str]
) -> None:
    assert at_edge(SPACES["one"], trial_settings(SPACES["one"], 3), best) == expected


def test_two_values_and_choices_have_no_edge() -> None:
    settings = trial_settings(SPACES["one"], 2)
    assert at_edge(SPACES["one"], settings, settings[0]) == []
    settings = trial_settings(SPACES["choice"], 4)
    assert at_edge({"metric": SPACES["choice"]["metric"]}, settings, settings[0]) == []

"""torch, optax and Keras on each of its backends take the same steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tests.helpers import trajectories
from tests.helpers.trajectories import ALL, QUICK, Case, Weights, deviation, in_torch

# Of the largest weight of a tensor. In half precision an ulp, where the same number before rounding
# is just above a tie in one framework and just below in another.
TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}

NEEDS = {
    "optax": "optax",
    "keras-torch": "keras",
    "keras-jax": "jax",
    "keras-tensorflow": "tensorflow",
}

Run = Callable[[str, str], dict[str, list[Weights]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = str(tmp_path_factory.mktemp("keras"))

    @cache
    def once(program: str, which: str) -> dict[str, list[Weights]]:
        pytest.importorskip("keras" if program.startswith("keras") else "jax")
        if importlib.util.find_spec(NEEDS[program]) is None:
            pytest.skip(f"needs {NEEDS[program]}")
        return trajectories.run(program, which, home)

    return once


def check(case: Case, found: dict[str, list[Weights]]) -> None:
    assert deviation(found[case.name], in_torch(case)) < TOLERANCES[case.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
@pytest.mark.parametrize("program", ["optax", "keras-torch", "keras-jax"])
def test_a_hundred_steps_are_those_of_torch(program: str, case: Case, run: Run) -> None:
    check(case, run(program, "quick"))


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_keras_on_torch_takes_the_steps_of_torch_in_every_case(case: Case, run: Run) -> None:
    check(case, run("keras-torch", "all"))


def test_another_step_is_found() -> None:
    case = QUICK[0]
    steps = in_torch(case)
    assert deviation(steps, steps) == 0
    moved = [[np.array(w) for w in weights] for weights in steps]
    moved[2][1].flat[5] += 1e-9
    assert deviation(moved, steps) > TOLERANCES["float64"]


def test_cases_are_all_metrics_dtypes_decays_and_schedules() -> None:
    assert len(ALL) == 5 * 4 * 2 * 2
    assert {case.metric for case in QUICK} == set(trajectories.METRICS)
    assert {case.scheduled for case in QUICK} == {bool(case.weight_decay) for case in QUICK}
    assert len(QUICK) == 10

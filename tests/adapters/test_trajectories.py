"""torch, optax and Keras on each of its backends take the same steps."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tests.helpers import ROOT, trajectories
from tests.helpers.trajectories import ALL, QUICK, Case, Weights, deviation, in_torch

# Of the largest weight of a tensor. In half precision an ulp: before rounding, a number may be just
# above a tie in one framework and just below it in another.
TOLERANCES = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}

# A compiler takes seconds for each case: optax has them all, Keras on JAX a few.
CASES = {
    "optax": QUICK,
    "keras-torch": QUICK,
    "keras-jax": tuple(case for case in QUICK if case.metric in ("diagonal", "kronecker-spectral")),
}
PAIRS = [
    pytest.param(program, case, id=f"{program}: {case.name}")
    for program, cases in CASES.items()
    for case in cases
]

Run = Callable[[str], dict[str, list[Weights]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    @cache
    def once(program: str) -> dict[str, list[Weights]]:
        for name in trajectories.PACKAGES[program]:
            if importlib.util.find_spec(name) is None:
                pytest.skip(f"needs {name}")
        return trajectories.run(program, CASES[program], str(tmp_path_factory.mktemp("keras")))

    return once


@pytest.mark.slow
@pytest.mark.parametrize(("program", "case"), PAIRS)
def test_a_hundred_steps_are_those_of_torch(program: str, case: Case, run: Run) -> None:
    found = run(program)[case.name]
    assert deviation(found, in_torch(case)) < TOLERANCES[case.dtype]


def test_another_step_is_found() -> None:
    case = QUICK[0]
    steps = in_torch(case)
    assert deviation(steps, steps) == 0
    moved = [[np.array(w) for w in weights] for weights in steps]
    moved[2][1].flat[5] += 1e-11
    assert deviation(moved, steps) > TOLERANCES["float64"]


def test_what_was_measured_is_within_the_tolerance() -> None:
    """benchmarks/adapters.py measures more cases than a test has time for."""
    report = json.loads((ROOT / "results" / "adapters.json").read_text(encoding="utf-8"))
    for program in CASES:
        row = report["deviations"][program]
        assert {case.name for case in QUICK} <= set(row)
        for case in ALL:
            assert row.get(case.name, 0.0) < TOLERANCES[case.dtype], f"{program}: {case.name}"

"""BADM euclidean against independent code: quasi-hyperbolic momentum and SGD."""

from __future__ import annotations

import pytest
import torch
from pytorch_optimizer import QHM

from badm import BADM
from tests.helpers.support import PATHS, assert_near, drive, parameters, restless, values

STEPS = 200


def qhm(rho: float, sigma: float) -> list[torch.Tensor]:
    """a = 1/σ, β = ρ/(ρ+σ), ν = 1 − σ/ρ = 2 − 1/β.

    The package refuses ν outside [0, 1], which is what ρ < σ takes: it is made with ν = 0 and given
    the real ν afterwards. Its update is the same line for every ν.
    """
    params = parameters()
    optimizer = QHM(params, lr=1 / sigma, momentum=rho / (rho + sigma), nu=0.0)
    optimizer.param_groups[0]["nu"] = 2 - (rho + sigma) / rho
    return drive(optimizer, params, STEPS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("rho", "sigma"),
    [(9.0, 1.0), (60.0, 3.0), (200.0, 800.0), (800.0, 200.0), (5.0, 5.0), (0.3, 10.0), (99.0, 1.0)],
)
def test_badm_is_quasi_hyperbolic_momentum(rho: float, sigma: float, path: str) -> None:
    params = parameters()
    optimizer = BADM.from_penalties(params, rho, sigma, metric="euclidean", **PATHS[path])
    assert_near(drive(optimizer, params, STEPS), qhm(rho, sigma), 1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_equal_penalties_are_plain_sgd(path: str) -> None:
    ours, theirs = parameters(), parameters()
    badm = BADM.from_penalties(ours, 4.0, 4.0, metric="euclidean", **PATHS[path])
    sgd = torch.optim.SGD(theirs, lr=0.25)
    assert_near(drive(badm, ours, STEPS), drive(sgd, theirs, STEPS), 1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("rho", "sigma"), [(30.0, 10.0), (10.0, 30.0), (10.0, 10.0)])
def test_first_step_has_length_two_over_the_sum_of_penalties(
    rho: float, sigma: float, path: str
) -> None:
    params = parameters()
    before, gradients = values(params), restless(0, params)
    optimizer = BADM.from_penalties(params, rho, sigma, metric="euclidean", **PATHS[path])
    after = drive(optimizer, params, 1)
    expected = [w - 2 / (rho + sigma) * g for w, g in zip(before, gradients, strict=True)]
    assert_near(after, expected, 1e-14)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, 0.9])
def test_under_a_constant_gradient_the_step_tends_to_lr(beta: float, path: str) -> None:
    params = parameters()
    gradient = restless(0, params)
    optimizer = BADM(params, lr=0.01, beta=beta, metric="euclidean", **PATHS[path])
    before = drive(optimizer, params, 400, lambda step, params: gradient)
    after = drive(optimizer, params, 1, lambda step, params: gradient)
    assert_near(after, [w - 0.01 * g for w, g in zip(before, gradient, strict=True)], 1e-13)

"""sigmoid-ADMM: each step against brute force, what falls in theory falls, runs resume."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from badm.bench.methods import find
from badm.bench.methods.sigmoid_admm import SigmoidADMM, majorant, slope
from tests.helpers.layer_wise import Idle, assert_resumes, mlp_of, problem_of

SIZES, SAMPLES = (3, 4, 5, 2), 12


def admm_of(seed: int = 0, beta: float = 1.0, lam: float = 1e-3) -> SigmoidADMM:
    mlp = mlp_of(SIZES, SAMPLES, seed=seed, activation=nn.Sigmoid)
    admm = SigmoidADMM(mlp, beta, lam)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*admm.V[1:], *admm.U[1:]):
        tensor += 0.3 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    return admm


@given(seed=st.integers(0, 10**6), exponent=st.floats(-2, 1.5))
@settings(max_examples=30)
def test_every_step_but_that_of_the_multipliers_lowers_the_lagrangian(
    seed: int, exponent: float
) -> None:
    admm = admm_of(seed, beta=10**exponent)
    for _ in range(2):
        value = admm.lagrangian()
        steps: list[Callable[[], None]] = [
            *(lambda i=i: admm.update_W(i) for i in reversed(range(admm.last + 1))),
            *(lambda i=i: admm.update_V(i) for i in range(1, admm.last + 1)),
            admm.update_output,
        ]
        for number, step in enumerate(steps):
            step()
            after = admm.lagrangian()
            assert after <= value + 1e-9 * (1 + abs(value)), number
            value = after
        for i in range(1, admm.last + 2):
            admm.update_U(i)


def lowest(admm: SigmoidADMM, variable: list[Tensor], i: int) -> float:
    """The Lagrangian at its minimum over one variable, by a general solver."""

    def at(point: np.ndarray) -> float:
        variable[i] = torch.from_numpy(point.reshape(shape).copy())
        return admm.lagrangian()

    before, shape = variable[i], tuple(variable[i].shape)
    found = minimize(at, before.numpy().ravel(), method="L-BFGS-B", options={"maxiter": 500})
    variable[i] = before
    return found.fun


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_steps_without_a_sigmoid_in_the_way_are_minimisers(seed: int, beta: float) -> None:
    for variable, index, update in (
        ("W", 2, lambda admm: admm.update_W(2)),
        ("V", 2, lambda admm: admm.update_V(2)),
        ("V", 3, lambda admm: admm.update_output()),
    ):
        admm = admm_of(seed, beta)
        best = lowest(admm, getattr(admm, variable), index)
        update(admm)
        assert admm.lagrangian() <= best + 1e-7, (variable, index)


@pytest.mark.parametrize("seed", range(3))
def test_steps_with_a_sigmoid_in_the_way_minimise_the_parabola(seed: int) -> None:
    admm = admm_of(seed, beta=2.0)
    B, T = admm.V[1] - admm.U[1] / 2.0, admm.V[0] @ admm.W[0][:, :-1].T + admm.W[0][:, -1]
    G, h = slope(T, B), majorant(B)
    ones = torch.ones(SAMPLES, 1, dtype=torch.float64)
    data = torch.cat((admm.V[0], ones), 1)

    def parabola(W: np.ndarray) -> float:
        new = data @ torch.from_numpy(W.reshape(4, 4)).T
        fit = (G * (new - T)).sum() + h / 2 * (new - T).square().sum()
        return (2.0 * fit).item() + admm.lam / 2 * (W**2).sum()

    best = minimize(parabola, admm.W[0].numpy().ravel(), options={"gtol": 1e-9})
    admm.update_W(0)
    assert parabola(admm.W[0].numpy().ravel()) <= best.fun + 1e-9

    admm = admm_of(seed, beta=2.0)
    W, b = admm.W[1][:, :-1], admm.W[1][:, -1]
    B, C = admm.V[2] - admm.U[2] / 2.0, admm.layer(0) + admm.U[1] / 2.0
    T = admm.V[1] @ W.T + b
    G, h = slope(T, B), majorant(B)

    def of_V(V: np.ndarray) -> float:
        V = torch.from_numpy(V.reshape(SAMPLES, 4))
        fit = (G * (V @ W.T + b - T)).sum() + h / 2 * (V @ W.T + b - T).square().sum()
        return (2.0 * fit + (V - C).square().sum()).item()

    best = minimize(of_V, admm.V[1].numpy().ravel(), options={"gtol": 1e-9})
    admm.update_V(1)
    assert of_V(admm.V[1].numpy().ravel()) <= best.fun + 1e-9


@given(b=st.floats(-3, 3), t=st.floats(-12, 12))
@settings(max_examples=200)
def test_the_parabola_lies_above(b: float, t: float) -> None:
    B, T = torch.tensor([b]).double(), torch.tensor([t]).double()
    new = torch.linspace(-20, 20, 801, dtype=torch.float64)
    square = (new.sigmoid() - B).square() / 2
    touching = (T.sigmoid() - B).square() / 2 + slope(T, B) * (new - T)
    assert (square <= touching + majorant(B) / 2 * (new - T).square() + 1e-12).all()


def test_multipliers_follow_the_defects() -> None:
    admm = admm_of(beta=3.0)
    admm.update_V(1)
    U, defect = admm.U[1].clone(), admm.layer(0) - admm.V[1]
    admm.update_U(1)
    torch.testing.assert_close(admm.U[1], U + 3.0 * defect)


def test_the_module_has_the_weights_and_the_loss_is_its_own() -> None:
    problem = problem_of(SIZES, SAMPLES, nn.Sigmoid)
    method = find("sigmoid-admm")
    trainer = method.build(problem, method.setting({}))
    work = Idle()
    losses = [trainer.step(work) for _ in range(30)]
    x, y = problem.supervised()
    out = problem.module(x)
    error = 0.5 * (out - nn.functional.one_hot(y, 2)).square().sum(1).mean().item()
    assert losses[-1] == pytest.approx(error, rel=1e-4)
    assert losses[-1] < 0.5 * losses[0]
    assert work.gradients > 30


@pytest.mark.parametrize("at", [3, 7, 17])
def test_resuming_is_bitwise_exact(at: int) -> None:
    method = find("sigmoid-admm")
    assert_resumes(method, at, 30, sizes=(8, 16, 12, 3), count=50, activation=nn.Sigmoid)

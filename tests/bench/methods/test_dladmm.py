"""dlADMM: every sub-problem against brute force, what falls in theory falls, runs resume."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench.engine.options import RunOptions
from badm.bench.engine.run import Interrupted, run
from badm.bench.methods import find, proximal
from badm.bench.methods.anderson import AcceleratedDLADMM, Anderson
from badm.bench.methods.dladmm import DLADMM, Penalties, doubled
from badm.bench.paper import Paper
from badm.bench.records.runs import Run, RunConfig, RunStore
from badm.bench.tasks import find as find_task
from tests.helpers.layer_wise import Idle, assert_resumes, mlp_of, problem_of, through_a_file

numbers = st.floats(-5, 5)
SIZES, SAMPLES = (4, 6, 5, 3), 20


def admm_of(
    seed: int = 0, rho: float = 1e-2, first: float = 1e-4, sizes: tuple[int, ...] = SIZES
) -> DLADMM:
    admm = DLADMM(mlp_of(sizes, SAMPLES, seed=seed), Penalties(rho, first, first, highest=0.1))
    generator = torch.Generator().manual_seed(seed)
    # Away from the start, where z and a are in step and u is nought.
    for tensor in (*admm.z, *admm.a[1:]):
        tensor += 0.5 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    admm.u += rho * torch.randn(admm.u.shape, generator=generator, dtype=torch.float64)
    for i in range(1, admm.last + 1):
        admm.c[i] = admm.a[i] @ admm.W[i].T
    return admm


def same(a: DLADMM, b: DLADMM) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.W + a.b, b.W + b.b, strict=True))


@pytest.mark.slow
@given(c=numbers, a=numbers)
@settings(max_examples=300)
def test_hidden_z_is_the_global_minimiser(c: float, a: float) -> None:
    def cost(z: np.ndarray | float) -> np.ndarray:
        return (z - c) ** 2 + (a - np.maximum(z, 0)) ** 2

    z = proximal.hidden(torch.tensor([c]).double(), torch.tensor([a]).double()).item()
    grid = np.linspace(-11, 11, 44001)
    assert cost(z) <= cost(grid).min() + 1e-12


@pytest.mark.parametrize("rho", [1e-2, 0.1, 1.0, 10.0])
def test_output_z_is_the_proximal_point(rho: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z, target = 3 * torch.randn(2, 8, 4, generator=generator, dtype=torch.float64)
    y = torch.arange(8) % 4
    found = proximal.output(z, target, y, rho, iterations=2000, tolerance=0.0).numpy()
    for n in range(8):
        hot = np.eye(4)[n % 4]

        def cost(p: np.ndarray, n: int = n, hot: np.ndarray = hot) -> float:
            distance = rho / 2 * ((p - target[n].numpy()) ** 2).sum()
            return np.logaddexp.reduce(p) - p @ hot + distance

        def slope(p: np.ndarray, n: int = n, hot: np.ndarray = hot) -> np.ndarray:
            p_softmax = np.exp(p - np.logaddexp.reduce(p))
            return p_softmax - hot + rho * (p - target[n].numpy())

        best = minimize(cost, target[n].numpy(), jac=slope, method="BFGS", options={"gtol": 1e-9})
        assert cost(found[n]) <= best.fun + 1e-10
        np.testing.assert_allclose(found[n], best.x, atol=1e-5)


@given(
    seed=st.integers(0, 10**6),
    exponent=st.floats(-8, 1),
    iterations=st.integers(1, 60),
)
@settings(max_examples=60)
def test_output_z_is_never_worse_than_its_start(
    seed: int, exponent: float, iterations: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    z, target = 5 * torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    y, rho = torch.arange(6) % 3, 10**exponent

    def cost(p: Tensor) -> float:
        distance = rho / 2 * (p - target).square().sum()
        return (cross_entropy(p, y, reduction="sum") + distance).item()

    found = proximal.output(z, target, y, rho, iterations=iterations)
    assert cost(found) <= cost(z) + 1e-12


def test_fista_takes_the_steps_of_the_paper() -> None:
    z, target = torch.randn(2, 7, 4, dtype=torch.float64)
    y, rho, eta = torch.arange(7) % 4, 1e-2, 2.0
    hot = nn.functional.one_hot(y, 4)
    found = proximal.output(z, target, y, rho, iterations=9, tolerance=0.0)
    zeta, lam = z, 1.0
    for _ in range(9):
        new = (rho * target + (z - eta * (z.softmax(1) - hot)) / eta) / (rho + 1 / eta)
        next_lam = (1 + math.sqrt(1 + 4 * lam**2)) / 2
        gamma, lam = (1 - lam) / next_lam, next_lam
        z, zeta = (1 - gamma) * new + gamma * zeta, new
    torch.testing.assert_close(found, zeta)


def test_fista_stops_within_its_tolerance_of_the_optimum() -> None:
    z = torch.zeros(50, 5, dtype=torch.float64)
    target, y = torch.randn(50, 5, dtype=torch.float64), torch.arange(50) % 5
    exact = proximal.output(z, target, y, 0.5, iterations=1000, tolerance=0.0)
    torch.testing.assert_close(proximal.output(z, target, y, 0.5), exact, atol=0.02, rtol=0)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), exponent=st.floats(-6, 0), first=st.floats(-8, 1))
@settings(max_examples=30)
def test_every_step_but_the_dual_one_lowers_the_lagrangian(
    seed: int, exponent: float, first: float
) -> None:
    admm = admm_of(seed, rho=10**exponent, first=10**first)
    value = [admm.lagrangian()]

    def lowering(name: str) -> None:
        step = getattr(admm, name)

        def checked(i: int) -> None:
            before = value[-1]
            step(i)
            value.append(admm.lagrangian())
            assert value[-1] <= before + 1e-9 * (1 + abs(before)), (name, i)

        setattr(admm, name, checked)

    for name in ("update_W", "update_b", "update_a", "update_z"):
        lowering(name)
    for _ in range(2):
        admm.sweep()
        value.append(admm.lagrangian())  # after the dual step
    assert len(value) == 1 + 2 * (2 * (4 * admm.last + 3) + 1)


@given(seed=st.integers(0, 10**6), exponent=st.floats(-6, 0))
@settings(max_examples=20)
def test_b_is_the_minimiser(seed: int, exponent: float) -> None:
    admm = admm_of(seed, rho=10**exponent)
    for i in range(admm.last + 1):
        admm.update_b(i)
        best = admm.lagrangian()
        for step in (1e-3, -1e-3):
            for unit in range(len(admm.b[i])):
                admm.b[i][unit] += step
                assert admm.lagrangian() > best
                admm.b[i][unit] -= step


def test_the_dual_step_is_that_of_the_constraint() -> None:
    admm = admm_of()
    i, u = admm.last, admm.u.clone()
    r = admm.z[i] - admm.a[i] @ admm.W[i].T - admm.b[i]
    admm.update_u()
    torch.testing.assert_close(admm.u, u + admm.penalties.rho * r)


class Naive:
    """Section by section as the paper has it: columns are samples, nothing is kept, loops try θ."""

    def __init__(self, admm: DLADMM) -> None:
        self.rho, self.theta, self.tau = (
            getattr(admm.penalties, name) for name in ("rho", "theta", "tau")
        )
        self.y, self.last = admm.y, admm.last
        self.W = [W.clone() for W in admm.W]
        self.b = [b.clone()[:, None] for b in admm.b]
        self.z, self.a = [z.T.clone() for z in admm.z], [a.T.clone() for a in admm.a]
        self.u = [torch.zeros_like(z) for z in self.z[:-1]] + [admm.u.T.clone()]

    def phi(self, i: int, W: Tensor, a: Tensor) -> Tensor:
        r = self.z[i] - W @ a - self.b[i] + self.u[i] / self.rho
        return self.rho / 2 * r.square().sum()

    def backtrack(self, f: object, x: Tensor, first: float) -> Tensor:
        x = x.clone().requires_grad_()
        value = f(x)  # type: ignore[operator]
        (g,) = torch.autograd.grad(value, x)
        x = x.detach()
        while True:
            new = x - g / first
            step = new - x
            bound = value + (g * step).sum() + first / 2 * step.square().sum()
            if f(new) <= bound + 1e-14 * value.abs():  # type: ignore[operator]
                return new
            first *= 2

    def update_W(self, i: int) -> None:
        self.W[i] = self.backtrack(lambda W: self.phi(i, W, self.a[i]), self.W[i], self.theta)

    def update_b(self, i: int) -> None:
        r = self.W[i] @ self.a[i] + self.b[i] - self.z[i] - self.u[i] / self.rho
        self.b[i] = self.b[i] - r.mean(1, keepdim=True)

    def update_a(self, i: int) -> None:
        def objective(a: Tensor) -> Tensor:
            gap = (a - self.z[i - 1].relu()).square().sum()
            return self.phi(i, self.W[i], a) + self.rho / 2 * gap

        self.a[i] = self.backtrack(objective, self.a[i], self.tau)

    def update_z(self, i: int) -> None:
        c = self.W[i] @ self.a[i] + self.b[i] - self.u[i] / self.rho
        if i == self.last:
            self.z[i] = proximal.output(self.z[i].T, c.T, self.y, self.rho).T
            return
        a = self.a[i + 1]
        options = torch.stack([c.clamp(max=0), ((c + a) / 2).clamp(min=0)])
        costs = (options - c).square() + (a - options.relu()).square()
        self.z[i] = torch.where(costs[0] <= costs[1], options[0], options[1])

    def sweep(self) -> None:
        last = self.last
        for update in (self.update_z, self.update_b, self.update_W):
            update(last)
        for i in range(last - 1, -1, -1):
            self.update_a(i + 1)
            for update in (self.update_z, self.update_b, self.update_W):
                update(i)
        for i in range(last):
            for update in (self.update_W, self.update_b, self.update_z):
                update(i)
            self.update_a(i + 1)
        for update in (self.update_W, self.update_b, self.update_z):
            update(last)
        r = self.z[last] - self.W[last] @ self.a[last] - self.b[last]
        self.u[last] = self.u[last] + self.rho * r


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sizes", [(4, 6, 5, 3), (4, 5, 3), (4, 3), (5, 4, 4, 4, 3)])
def test_sweeps_with_kept_products_are_those_of_the_paper(
    seed: int, sizes: tuple[int, ...]
) -> None:
    admm = admm_of(seed, rho=0.03, first=0.01, sizes=sizes)
    naive = Naive(admm)
    for _ in range(3):
        admm.sweep()
        naive.sweep()
    for i in range(admm.last + 1):
        torch.testing.assert_close(admm.W[i], naive.W[i], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(admm.b[i], naive.b[i][:, 0], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(admm.z[i], naive.z[i].T, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(admm.a[i], naive.a[i].T, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(admm.c[i], admm.a[i] @ admm.W[i].T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(admm.u, naive.u[-1].T, rtol=1e-8, atol=1e-9)


def test_the_start_is_that_of_the_public_code() -> None:
    problem = problem_of((30, 40, 3), 60)
    method = find("dladmm")
    torch.manual_seed(1)
    admm = method.build(problem, method.setting({})).algorithm
    drawn = torch.cat([p.detach().flatten() for p in problem.module.parameters()])
    assert abs(drawn.std().item() - 0.1) < 0.01
    x, y = problem.supervised()
    torch.testing.assert_close(admm.a[1], problem.module[:2](x).detach())
    assert torch.equal(admm.z[1], 2 * nn.functional.one_hot(y, 3).float() - 1)
    assert not admm.u.any()
    assert (admm.penalties.rho, admm.penalties.theta, admm.penalties.highest) == (1e-6, 1, 0.1)


@pytest.mark.parametrize("name", ["dladmm", "aa-dladmm", "sigmoid-admm"])
def test_what_the_paper_states_of_a_task_is_not_for_these(name: str) -> None:
    method = find(name)
    assert method.paper_setting(Paper(lr=1e-3, rho=200, sigma=800)) == method.defaults


def test_the_models_own_weights_can_be_kept() -> None:
    problem = problem_of(SIZES, SAMPLES)
    before = [p.detach().clone() for p in problem.module.parameters()]
    method = find("dladmm")
    method.build(problem, method.setting({"std": 0.0}))
    assert all(map(torch.equal, problem.module.parameters(), before))


def test_penalties_rise_after_three_rises_in_a_row_up_to_their_limit() -> None:
    admm = DLADMM(mlp_of(SIZES, SAMPLES), Penalties(1e-3, 1.0, 2.0, highest=0.05))
    seen = []
    for loss in (20, 21, 22, 1, 2, 3, 2, 3, 4, 5, 6, 7):  # the first is compared with nothing
        admm.check_loss(float(loss))
        seen.append(admm.penalties.rho)
    assert seen == [1e-3] * 9 + [1e-2] + [0.05] * 2
    assert (admm.penalties.theta, admm.penalties.tau) == (100.0, 200.0)


@pytest.mark.parametrize("enough", [math.nan, math.inf])
def test_doublings_are_capped(enough: float) -> None:
    assert doubled(1.0, enough) <= 2.0**60


def test_a_step_without_direction_goes_nowhere() -> None:
    admm = admm_of()
    admm.z[0] = admm.c[0] + admm.b[0]  # no residual
    W = admm.W[0].clone()
    admm.update_W(0)
    assert torch.equal(admm.W[0], W)


@pytest.mark.parametrize("name", ["dladmm", "aa-dladmm"])
def test_an_epoch_has_one_iteration_and_counts_what_it_costs(name: str) -> None:
    problem = problem_of(SIZES, SAMPLES, steps_per_epoch=4)
    method = find(name)
    trainer = method.build(problem, method.setting({"rho": 1e-2}))
    work, weights, losses, counts = Idle(), [], [], []
    for _ in range(12):
        losses.append(trainer.step(work))
        weights.append(torch.cat([p.detach().flatten() for p in problem.module.parameters()]))
        counts.append(work.gradients)
    changed = [not torch.equal(a, b) for a, b in pairwise(weights)]
    assert changed == [k % 4 == 3 for k in range(11)]
    x, y = problem.supervised()
    after = cross_entropy(problem.module(x), y).item()
    assert trainer.step(Idle()) == pytest.approx(after, rel=1e-5)
    assert losses[1:4] == [losses[1]] * 3
    # 4·6 products in the first layer, 6·5 + 5·3 above: twice and three times in a gradient.
    epochs = (5 * 24 + 10 * 45) / (2 * 24 + 3 * 45)
    if name == "dladmm":
        assert counts == pytest.approx([4 * epochs] * 4 + [8 * epochs] * 4 + [12 * epochs] * 4)
    else:
        assert counts[-1] > 12 * epochs


@pytest.mark.parametrize("name", ["dladmm", "aa-dladmm"])
@pytest.mark.parametrize("at", [3, 7, 17])
def test_resuming_is_bitwise_exact(name: str, at: int) -> None:
    assert_resumes(find(name), at, steps=30, sizes=(8, 16, 12, 3), count=50)


def test_what_is_saved_is_what_is_loaded() -> None:
    admm = admm_of(rho=1e-3)
    for _ in range(3):
        admm.iterate()
    admm.penalties.rises = 2
    saved = through_a_file(admm.state_dict())
    other = admm_of(seed=1)
    other.load_state_dict(saved)
    torch.testing.assert_close(other.state_dict(), saved, rtol=0, atol=0)
    assert other.iterations == 3
    assert other.penalties == admm.penalties


def test_anderson_solves_a_linear_map_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    n = 4
    M = torch.randn(n, n, generator=generator, dtype=torch.float64)
    M = 0.9 * M / torch.linalg.matrix_norm(M, 2)
    shift = torch.randn(n, generator=generator, dtype=torch.float64)
    solution = torch.linalg.solve(torch.eye(n, dtype=torch.float64) - M, shift)
    anderson, x = Anderson(memory=n), torch.zeros(n, dtype=torch.float64)
    for _ in range(n + 2):
        x = anderson.next(x, M @ x + shift)
    torch.testing.assert_close(x, solution, atol=1e-6, rtol=0)


def test_anderson_of_equal_points_stays_there() -> None:
    anderson, x = Anderson(memory=3), torch.ones(3)
    for _ in range(4):
        x = anderson.next(x, x)
    assert torch.equal(x, torch.ones(3))


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), exponent=st.floats(-5, -1))
@settings(max_examples=15)
def test_the_safeguard_never_ends_above_a_plain_sweep(seed: int, exponent: float) -> None:
    accelerated = AcceleratedDLADMM(admm_of(seed, rho=10**exponent), memory=3)
    for _ in range(6):
        plain = admm_of(seed)
        with torch.no_grad():
            for mine, theirs in zip(
                plain.W + plain.b, accelerated.plain.W + accelerated.plain.b, strict=True
            ):
                mine.copy_(theirs)
        plain.load_state_dict(through_a_file(accelerated.plain.state_dict()))
        plain.sweep()
        accelerated.iterate()
        assert accelerated.loss <= plain.network_loss() * (1 + 1e-12)


def test_a_candidate_that_is_not_a_number_is_taken_back() -> None:
    accelerated = AcceleratedDLADMM(admm_of(), memory=3)
    plain = DLADMM(mlp_of(SIZES, SAMPLES), Penalties(1.0, 1.0, 1.0, 1.0))
    plain.load_state_dict(through_a_file(accelerated.plain.state_dict()))
    plain.sweep()
    accelerated.anderson.next = lambda x, g: g * math.nan  # type: ignore[method-assign]
    accelerated.iterate()
    assert accelerated.accepted == 0
    assert same(accelerated.plain, plain)


def digits(
    folder: Path, name: str, options: RunOptions | None = None, steps: int = 200, **setting: float
) -> Run:
    task, method = find_task("digits").task, find(name)
    config = RunConfig("digits", "1", "cpu", steps, name, method.setting(setting), seed=0)
    return run(config, task, method, RunStore(folder), options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dladmm", "aa-dladmm"])
def test_digits_are_learnt(name: str, tmp_path: Path) -> None:
    result = digits(tmp_path, name, rho=1e-2).result
    assert result.status == "finished", result.message
    assert result.score > 0.88
    assert result.gradients > 200  # an iteration is more than an epoch of gradients


@pytest.mark.slow
def test_a_run_on_digits_resumes_bitwise(tmp_path: Path) -> None:
    whole = digits(tmp_path / "whole", "aa-dladmm", rho=1e-3)
    calls = iter(range(1000))
    stop = RunOptions(should_stop=lambda: next(calls) == 77)
    with pytest.raises(Interrupted):
        digits(tmp_path / "cut", "aa-dladmm", stop, rho=1e-3)
    resumed = digits(tmp_path / "cut", "aa-dladmm", rho=1e-3)
    assert resumed.result.weights == whole.result.weights
    assert resumed.result.gradients == whole.result.gradients

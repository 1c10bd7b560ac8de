"""SISA: its equations, its limit, sub-batches that come and go, schedule and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from badm.bench.method import TrainingSetup
from badm.bench.methods import find
from badm.bench.methods.sisa import SisaTrainer
from badm.paper.algorithm1 import Algorithm1
from tests.helpers.layer_wise import through_a_file


@dataclass
class Given:
    """Work whose sub-batches have given weights and gradients."""

    parameters: list[nn.Parameter]
    gradients: list[list[Tensor]]
    alpha: list[float]
    lr_factor: float = 1.0
    points: list[Tensor] = field(default_factory=list)  # where the gradients were asked for

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        for alpha, row in zip(self.alpha, self.gradients, strict=True):
            for p, g in zip(self.parameters, row, strict=True):
                p.grad = g.clone()
            self.points.append(self.parameters[0].detach().clone())
            yield alpha, float(row[0].sum())

    def gradient(self) -> float:
        raise AssertionError("sisa takes the gradients of sub-batches")

    def count_gradients(self, gradients: float) -> None: ...


def parameters(seed: int = 0) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(3, 2).double()), nn.Parameter(torch.randn(2).double())]


def gradients(step: int, sub_batches: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(step)
    return [
        [torch.randn(shape, generator=generator).double() for shape in ((3, 2), (2,))]
        for _ in range(sub_batches)
    ]


ALPHA = [0.5, 0.3, 0.2]


def test_with_constant_moments_it_is_algorithm_1() -> None:
    # √v̂ + ε is as good as constant, and ρ(√v̂ + ε) is 2.
    ours, theirs = parameters(), [p.detach().clone() for p in parameters()]
    sisa = SisaTrainer(ours, rho=2e-12, sigma=5.0, eps=1e12)
    algorithm1 = Algorithm1(theirs, 3, rho=2.0, sigma=5.0, alpha=ALPHA)
    for step in range(20):
        sisa.step(Given(ours, gradients(step, 3), ALPHA))
        algorithm1.step(gradients(step, 3))
    for p, w in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-9)
    for part, duals in zip(sisa.parts, algorithm1.duals, strict=True):
        torch.testing.assert_close(part.pi, duals, rtol=1e-9, atol=1e-9)


def test_a_step_is_that_of_the_equations() -> None:
    ours = parameters()
    rho, sigma, beta, lam, eps = 7.0, 2.0, 0.9, 0.5, 1e-3
    sisa = SisaTrainer(ours, rho, sigma, beta, lam, eps)
    w = ours[0].detach().clone()
    v, pi = [torch.zeros(3, 2).double()] * 3, [torch.zeros(3, 2).double()] * 3
    for step in range(4):
        rows = gradients(step, 3)
        work = Given(ours, rows, ALPHA)
        loss = sisa.step(work)
        assert loss == pytest.approx(sum(a * r[0].sum() for a, r in zip(ALPHA, rows, strict=True)))
        assert all(torch.equal(point, work.points[0]) for point in work.points)
        total = torch.zeros_like(w)
        for s in range(3):
            g = rows[s][0] + pi[s]
            v[s] = beta * v[s] + (1 - beta) * g**2
            root = (v[s] / (1 - beta ** (step + 1))).sqrt()
            w_s = w - g / (sigma + rho * (root + eps))
            pi[s] = pi[s] + sigma * (w_s - w)
            total += ALPHA[s] * (sigma * w_s + pi[s])
        w = total / (sigma + lam)
        torch.testing.assert_close(ours[0].detach(), w)


def test_sub_batches_that_are_missing_from_a_batch_wait() -> None:
    ours = parameters()
    sisa = SisaTrainer(ours, rho=100.0, sigma=1.0)
    sisa.step(Given(ours, gradients(0, 3), ALPHA))
    waiting = deepcopy(sisa.parts[2])
    sisa.step(Given(ours, gradients(1, 2), [0.75, 0.25]))
    assert sisa.parts[2].steps == waiting.steps == 1
    assert all(map(torch.equal, sisa.parts[2].pi + sisa.parts[2].v, waiting.pi + waiting.v))
    sisa.step(Given(ours, gradients(2, 3), ALPHA))
    assert [part.steps for part in sisa.parts] == [3, 3, 2]


def test_weights_that_do_not_sum_to_one_are_brought_to_it() -> None:
    mean, total = parameters(), parameters()
    for ours, alpha in ((mean, [0.5, 0.5]), (total, [1.0, 1.0])):
        sisa = SisaTrainer(ours, rho=100.0, sigma=1.0)
        for step in range(3):
            sisa.step(Given(ours, gradients(step, 2), alpha))
    torch.testing.assert_close(mean, total)


def test_the_schedule_divides_both_penalties() -> None:
    scaled, divided = parameters(), parameters()
    with_factor = SisaTrainer(scaled, rho=50.0, sigma=2.0)
    without = SisaTrainer(divided, rho=200.0, sigma=8.0)
    for step in range(4):
        with_factor.step(Given(scaled, gradients(step, 3), ALPHA, lr_factor=0.25))
        without.step(Given(divided, gradients(step, 3), ALPHA))
    assert all(map(torch.equal, scaled, divided))


def test_resuming_is_bitwise_exact() -> None:
    whole, first, second = parameters(), parameters(), parameters(1)
    trainers = [SisaTrainer(p, rho=100.0, sigma=1.0) for p in (whole, first, second)]
    for step in range(9):
        sub_batches = 2 if step % 4 == 3 else 3  # the last batch of an epoch is smaller
        alpha = [0.75, 0.25] if sub_batches == 2 else ALPHA
        if step == 5:
            with torch.no_grad():
                for p, q in zip(second, first, strict=True):
                    p.copy_(q)
            trainers[2].load_state_dict(through_a_file(trainers[1].state_dict()))
        for trainer, ours in zip(trainers, (whole, first, second), strict=True):
            if (trainer is trainers[1] and step < 5) or trainer is trainers[0] or step >= 5:
                trainer.step(Given(ours, gradients(step, sub_batches), alpha))
    assert all(map(torch.equal, whole, second))


def test_the_learning_rate_is_that_of_both_penalties() -> None:
    method = find("sisa")
    trainer = method.build(
        TrainingSetup(nn.Linear(2, 2), 1), method.setting({"lr": 0.01, "sigma": 20})
    )
    assert isinstance(trainer, SisaTrainer)
    assert (trainer.rho, trainer.sigma) == (80.0, 20)

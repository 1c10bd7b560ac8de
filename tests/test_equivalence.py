"""The collapse: BADM with one buffer is Algorithm 1 with its 2S copies of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d

from badm import BADM, Partition
from badm.paper.algorithm1 import Algorithm1
from tests.helpers.support import (
    METRICS,
    PATHS,
    assert_identical,
    assert_near,
    duals,
    normal,
    rng,
    values,
)

STEPS = 200
TOLERANCE = 1e-12

# A direction that no gradient has taken yet has a place in the kronecker basis only up to rounding,
# magnified by the shift that keeps it there.
KRONECKER_TOLERANCE = 1e-10

# An example takes a second: one that fails is shown as it was drawn, not made smaller for minutes.
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)

Schedule = Callable[[int], float]

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda step: 1.0,
    "cosine": lambda step: 0.55 + 0.45 * math.cos(math.pi * step / STEPS),
    "warm-up and drops": lambda step: min(1.0, (step + 1) / 20) * 0.3 ** (step // 70),
    "jumps": lambda step: (1.0, 0.25, 0.7)[step % 3],
}


@st.composite
def penalties(draw: st.DrawFn) -> tuple[float, float]:
    """(ρ, σ) with β from 0.02 to 0.98, ρ = σ among them.

    Steps 1/σ are short enough to descend: a step that overshoots makes chaos of the last digit.
    """
    sigma = draw(st.floats(15.0, 800.0))
    kind = draw(st.sampled_from(("below", "equal", "nearly equal", "above")))
    ratio = {
        "below": draw(st.floats(0.02, 0.9)),
        "equal": 1.0,
        "nearly equal": 1 + draw(st.sampled_from((-1e-3, -1e-7, 1e-7, 1e-3))),
        "above": draw(st.floats(1.1, 50.0)),
    }[kind]
    return ratio * sigma, sigma


class Network:
    """A scalar, a vector, a matrix and a convolution kernel, and the loss of each sample."""

    def __init__(self, samples: int, seed: int) -> None:
        self.x = normal((samples, 2, 4, 4), seed)
        self.y = normal((samples, 3), seed + 1)

    @staticmethod
    def start() -> list[Tensor]:
        return [
            torch.tensor(0.8, dtype=torch.float64, requires_grad=True),
            normal((3,), 2, scale=0.1).requires_grad_(),
            normal((27, 3), 3, scale=0.3).requires_grad_(),
            normal((3, 2, 2, 2), 4, scale=0.3).requires_grad_(),
        ]

    def losses(self, params: Sequence[Tensor], indices: Tensor) -> Tensor:
        gain, bias, matrix, kernel = params
        hidden = torch.tanh(conv2d(self.x[indices], kernel)).flatten(1)
        error = gain * torch.tanh(hidden @ matrix + bias) - self.y[indices]
        return 0.1 * error.square().sum(1)


def follow_algorithm1(
    network: Network, partition: Partition, rho: float, sigma: float, schedule: Schedule
) -> list[Tensor]:
    """Every sub-batch has its own backward pass, local points and duals."""
    w = network.start()
    batches = list(partition.batches())
    alpha = partition.alpha_s.tolist()
    algorithm = Algorithm1(w, len(alpha), rho, sigma, alpha)
    for step in range(STEPS):
        factor = schedule(step)
        algorithm.rho, algorithm.sigma = rho / factor, sigma / factor
        algorithm.step(
            [
                torch.autograd.grad(network.losses(w, part).mean(), w)
                for part in batches[step % len(batches)]
            ]
        )
    return values(w)


def follow_badm(
    network: Network,
    partition: Partition,
    rho: float,
    sigma: float,
    schedule: Schedule,
    path: str,
) -> list[Tensor]:
    """One backward pass of the batch, each sample with the weight α_s/|N_bs|."""
    w = network.start()
    batches = list(partition.batches())
    optimizer = BADM.from_penalties(w, rho, sigma, metric="euclidean", **PATHS[path])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for step in range(STEPS):
        parts = batches[step % len(batches)]
        weights = torch.cat(
            [
                a.expand(len(part)) / len(part)
                for a, part in zip(partition.alpha_s, parts, strict=True)
            ]
        )
        optimizer.zero_grad()
        (weights * network.losses(w, torch.cat(parts))).sum().backward()
        optimizer.step()
        scheduler.step()
    return values(w)


@pytest.mark.slow
@settings(max_examples=15, phases=AS_DRAWN)
@given(
    penalties=penalties(),
    sub_batches=st.integers(1, 16),
    samples=st.integers(16, 40),
    batches=st.integers(1, 3),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    seed=st.integers(0, 1000),
)
def test_badm_is_algorithm1_on_real_gradients(
    penalties: tuple[float, float],
    sub_batches: int,
    samples: int,
    batches: int,
    schedule: str,
    seed: int,
) -> None:
    batch_size = -(-samples // batches)
    assume(samples % batch_size == 0 or samples % batch_size >= sub_batches)
    assume(sub_batches <= batch_size)
    partition = Partition(samples, batch_size, sub_batches=sub_batches, generator=rng(seed))
    network = Network(samples, seed)
    expected = follow_algorithm1(network, partition, *penalties, SCHEDULES[schedule])
    for path in PATHS:
        actual = follow_badm(network, partition, *penalties, SCHEDULES[schedule], path)
        assert_near(actual, expected, TOLERANCE)


def test_the_network_has_gradients_worth_following() -> None:
    """Guards the test above: it would hold for gradients of zero too."""
    network, partition = Network(24, 0), Partition(24, 24, sub_batches=3)
    moved = follow_algorithm1(network, partition, 60.0, 20.0, SCHEDULES["constant"])
    for before, after in zip(network.start(), moved, strict=True):
        assert (after - before).norm() > 0.01 * before.norm()


def gradients_of_sub_batches(
    step: int, params: Sequence[Tensor], sub_batches: int, seed: int
) -> list[list[Tensor]]:
    """``gradients[s][i]``: a nonlinear function of the point, and noise that does not die out."""
    return [
        [
            0.3 * torch.sin(0.3 * w.detach() + s)
            + normal(w.shape, seed + 31 * (step * sub_batches + s) + i)
            for i, w in enumerate(params)
        ]
        for s in range(sub_batches)
    ]


def weighted_mean(gradients: list[list[Tensor]], alpha: Sequence[float]) -> list[Tensor]:
    return [
        sum(a * g for a, g in zip(alpha, column, strict=True))
        for column in zip(*gradients, strict=True)
    ]


# Shapes repeat, so that foreach has stacks to make, and regular patterns have refreshes to spread.
SHAPES = ((), (5,), (4, 6), (4, 6), (6, 3), (3, 2, 2, 2))


def start(seed: int) -> list[Tensor]:
    return [normal(shape, 50 + seed + i) for i, shape in enumerate(SHAPES)]


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=5, phases=AS_DRAWN)
@given(
    penalties=penalties(),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    beta2=st.sampled_from((0.9, 0.99, 0.999)),
    seed=st.integers(0, 1000),
)
def test_badm_is_algorithm1_in_every_metric(
    metric: str,
    penalties: tuple[float, float],
    sizes: list[int],
    schedule: str,
    beta2: float,
    seed: int,
) -> None:
    (rho, sigma), factor = penalties, SCHEDULES[schedule]
    alpha = [size / sum(sizes) for size in sizes]
    w = start(seed)
    algorithm = Algorithm1(w, len(sizes), rho, sigma, alpha, metric, beta2=beta2)
    for step in range(STEPS):
        algorithm.rho, algorithm.sigma = rho / factor(step), sigma / factor(step)
        algorithm.step(gradients_of_sub_batches(step, w, len(sizes), seed))
    expected = values(w)

    for flags in PATHS.values():
        w = start(seed)
        optimizer = BADM.from_penalties(w, rho, sigma, metric=metric, beta2=beta2, **flags)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        for step in range(STEPS):
            gradients = gradients_of_sub_batches(step, w, len(sizes), seed)
            for p, g in zip(w, weighted_mean(gradients, alpha), strict=True):
                p.grad = g
            optimizer.step()
            scheduler.step()
        assert_near(w, expected, KRONECKER_TOLERANCE if metric == "kronecker" else TOLERANCE)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("path", PATHS)
def test_the_negated_mean_dual_is_that_of_algorithm1(metric: str, path: str) -> None:
    alpha, w, v = [0.5, 0.3, 0.2], start(0), start(0)
    algorithm = Algorithm1(w, 3, 30.0, 10.0, alpha, metric)
    optimizer = BADM.from_penalties(v, 30.0, 10.0, metric=metric, **PATHS[path])
    for step in range(30):
        algorithm.step(gradients_of_sub_batches(step, w, 3, 0))
        for p, g in zip(
            v, weighted_mean(gradients_of_sub_batches(step, v, 3, 0), alpha), strict=True
        ):
            p.grad = g
        optimizer.step()
    expected = [-m for m in weighted_mean(algorithm.duals, alpha)]
    assert_near(duals(optimizer), expected, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
def test_the_number_of_sub_batches_does_not_matter(metric: str) -> None:
    """16 equal parts, joined to 4 and to 1: the same samples, the same trajectory."""
    ends = []
    for count in (1, 4, 16):
        w = start(0)
        algorithm = Algorithm1(w, count, 40.0, 10.0, metric=metric)
        for step in range(STEPS):
            finest = gradients_of_sub_batches(step, w, 16, 0)
            joined = [finest[s : s + 16 // count] for s in range(0, 16, 16 // count)]
            algorithm.step([weighted_mean(part, [count / 16] * (16 // count)) for part in joined])
        ends.append(values(w))
    assert_near(ends[1], ends[0], TOLERANCE)
    assert_near(ends[2], ends[0], TOLERANCE)


def test_both_weightings_agree_when_sub_batches_are_equal() -> None:
    """α_bs renormalised within its batch is then α_s."""
    partition = Partition(24, 12, sub_batches=4, generator=rng(0))
    ends = []
    for exact in (False, True):
        w = start(0)
        algorithm = Algorithm1(w, 4, 40.0, 10.0, partition.alpha_s.tolist())
        for step in range(50):
            row = partition.alpha_bs[step % 2]
            alpha = (row / row.sum()).tolist() if exact else None
            algorithm.step(gradients_of_sub_batches(step, w, 4, 0), alpha=alpha)
        ends.append(values(w))
    assert_near(ends[1], ends[0], 1e-14)


CHANGES_OF_PATH = {
    "there and back": ("fused", "loop", "fused", "foreach"),
    "often": ("loop", "fused", "foreach", "fused", "fused", "loop", "foreach", "foreach"),
}


def wander(
    metric: str,
    path: Callable[[int], str],
    beta: Callable[[int], float],
    steps: int = 60,
    weight_decay: float = 0.1,
) -> tuple[BADM, list[Tensor]]:
    w = start(0)
    optimizer = BADM(w, lr=0.05, metric=metric, weight_decay=weight_decay)
    (group,) = optimizer.param_groups
    for step in range(steps):
        group.update({"foreach": None, "fused": None, **PATHS[path(step)]}, beta=beta(step))
        for p, g in zip(w, gradients_of_sub_batches(step, w, 1, 0)[0], strict=True):
            p.grad = g
        optimizer.step()
    return optimizer, w


def changing_beta(step: int) -> float:
    """Over and under ρ = σ, through it, and through no memory at all."""
    return (0.9, 0.9, 0.5, 0.2, 0.0, 0.7, 0.95, 0.95)[step // 3 % 8]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("path", ["foreach", "fused"])
def test_changing_beta_between_steps_equals_the_loop(metric: str, path: str) -> None:
    loop, expected = wander(metric, lambda step: "loop", changing_beta)
    other, actual = wander(metric, lambda step: path, changing_beta)
    assert_near(actual, expected, TOLERANCE)
    assert_near(duals(other), duals(loop), TOLERANCE)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("change", CHANGES_OF_PATH)
@pytest.mark.parametrize("beta", [lambda step: 0.9, lambda step: 0.3, changing_beta])
def test_changing_path_between_steps_equals_the_loop(
    metric: str, change: str, beta: Callable[[int], float]
) -> None:
    paths = CHANGES_OF_PATH[change]
    loop, expected = wander(metric, lambda step: "loop", beta)
    other, actual = wander(metric, lambda step: paths[step % len(paths)], beta)
    assert_near(actual, expected, TOLERANCE)
    assert_near(duals(other), duals(loop), TOLERANCE)


@pytest.mark.parametrize("beta", [0.9, 0.3, 0.5001, 0.5 + 1e-6, 0.5 - 1e-9, 0.5, 0.0])
def test_a_checkpoint_shows_the_plain_dual_after_fused_steps(beta: float) -> None:
    loop, _ = wander("euclidean", lambda step: "loop", lambda step: beta)
    fused, _ = wander("euclidean", lambda step: "fused", lambda step: beta)
    state = fused.state_dict()["state"]
    assert all(set(entry) == {"dual"} for entry in state.values())
    assert_near(duals(fused), duals(loop), TOLERANCE)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("before", PATHS)
@pytest.mark.parametrize("after", PATHS)
def test_a_checkpoint_in_mid_run_continues_on_any_path(
    metric: str, before: str, after: str
) -> None:
    _, expected = wander(metric, lambda step: "loop", lambda step: 0.8, steps=40)
    optimizer, w = wander(metric, lambda step: before, lambda step: 0.8, steps=23)
    saved = optimizer.state_dict()

    v = [p.detach().clone() for p in w]
    fresh = BADM(v, lr=1.0)
    fresh.load_state_dict(saved)
    fresh.param_groups[0].update({"foreach": None, "fused": None, **PATHS[after]})
    for step in range(23, 40):
        for p, g in zip(v, gradients_of_sub_batches(step, v, 1, 0)[0], strict=True):
            p.grad = g
        fresh.step()
    assert_near(v, expected, TOLERANCE)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("path", PATHS)
def test_a_restored_run_is_bitwise_that_which_was_saved(metric: str, path: str) -> None:
    optimizer, w = wander(metric, lambda step: path, lambda step: 0.8, steps=23)
    v = [p.detach().clone() for p in w]
    restored = BADM(v, lr=1.0)
    restored.load_state_dict(optimizer.state_dict())
    for step in range(23, 40):
        for run in (w, v):
            for p, g in zip(run, gradients_of_sub_batches(step, run, 1, 0)[0], strict=True):
                p.grad = g
        optimizer.step()
        restored.step()
    assert_identical(v, w)

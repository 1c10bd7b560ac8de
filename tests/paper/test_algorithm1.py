"""Algorithm 1 against pencil and paper, and against itself in plain Python numbers."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from badm import metrics
from badm.paper.algorithm1 import Algorithm1
from tests.helpers.support import METRICS, assert_near, normal, values


def scalar(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_two_steps_by_hand() -> None:
    """ρ = 1, σ = 3, α = (¾, ¼), w = 8.

    Step 1, gradients 4 and 8:   w_s = 8 − 4/4 = 7 and 8 − 8/4 = 6
                                 π_s = 3(7 − 8) = −3 and 3(6 − 8) = −6
                                 w = ¾(7 − 1) + ¼(6 − 2) = 5.5
    Step 2, gradients 5 and 2:   w_s = 5.5 − 2/4 = 5 and 5.5 + 4/4 = 6.5
                                 π_s = −3 + 3(5 − 5.5) = −4.5 and −6 + 3(6.5 − 5.5) = −3
                                 w = ¾(5 − 1.5) + ¼(6.5 − 1) = 4
    """
    w = scalar(8.0)
    algorithm = Algorithm1([w], 2, rho=1.0, sigma=3.0, alpha=[0.75, 0.25])
    algorithm.step([[scalar(4.0)], [scalar(8.0)]])
    assert [x[0].item() for x in algorithm.locals] == [7.0, 6.0]
    assert [x[0].item() for x in algorithm.duals] == [-3.0, -6.0]
    assert w.item() == 5.5
    algorithm.step([[scalar(5.0)], [scalar(2.0)]])
    assert [x[0].item() for x in algorithm.locals] == [5.0, 6.5]
    assert [x[0].item() for x in algorithm.duals] == [-4.5, -3.0]
    assert w.item() == 4.0


def test_an_empty_sub_batch_keeps_its_local_point_and_dual() -> None:
    """The step after: w_1 = 5.5 − (5 − 3)/4 = 5, π_1 = −4.5; w_2 = 6, π_2 = −6 as before;
    w = ¾(5 − 1.5) + ¼(6 − 2) = 3.625."""
    w = scalar(8.0)
    algorithm = Algorithm1([w], 2, rho=1.0, sigma=3.0, alpha=[0.75, 0.25])
    algorithm.step([[scalar(4.0)], [scalar(8.0)]])
    algorithm.step([[scalar(5.0)], None])
    assert [x[0].item() for x in algorithm.locals] == [5.0, 6.0]
    assert [x[0].item() for x in algorithm.duals] == [-4.5, -6.0]
    assert w.item() == 3.625


def test_weights_that_change_by_batch_follow_the_formula() -> None:
    """Plain Python numbers, sub-batch by sub-batch: local, dual, then Σ_s α_s (w_s + π_s/σ)."""
    draw = random.Random(0)
    rho, sigma, count = 2.0, 5.0, 3
    w = scalar(1.0)
    algorithm = Algorithm1([w], count, rho, sigma)
    point, local, dual = 1.0, [1.0] * count, [0.0] * count
    for step in range(50):
        sizes = [draw.randint(0, 6) for _ in range(count - 1)] + [1]
        alpha = [size / sum(sizes) for size in sizes]
        gradients = [draw.gauss(0, 1) for _ in range(count)]
        present = [size > 0 for size in sizes]
        for s in range(count):
            if present[s]:
                local[s] = point - (gradients[s] + dual[s]) / (rho + sigma)
                dual[s] = dual[s] + sigma * (local[s] - point)
        point = sum(a * (x + p / sigma) for a, x, p in zip(alpha, local, dual, strict=True))
        algorithm.step(
            [[scalar(g)] if here else None for g, here in zip(gradients, present, strict=True)],
            alpha=alpha,
        )
        assert w.item() == pytest.approx(point, abs=1e-13), step


def test_equal_weights_are_the_default() -> None:
    ends = []
    for alpha in (None, [0.25] * 4):
        w = normal((3, 2))
        algorithm = Algorithm1([w], 4, 2.0, 5.0, alpha)
        for step in range(5):
            algorithm.step([[normal((3, 2), 10 * step + s)] for s in range(4)])
        ends.append(w)
    assert_near(ends[:1], ends[1:], 0.0)


@pytest.mark.parametrize("metric", METRICS)
def test_penalty_and_proximal_term_are_measured_in_the_metric(metric: str) -> None:
    """The Q of a step is one operator: Q Q⁻¹ = I, symmetric and positive definite.

    The composition of two such maps is not symmetric, but has positive eigenvalues all the same.
    """
    shape = (3, 5)
    w = normal(shape)
    algorithm = Algorithm1([w], 2, 2.0, 5.0, metric=metric)
    for step in range(12):
        algorithm.step([[normal(shape, 10 * step + s)] for s in range(2)])
    (Q,) = algorithm._operators
    units = torch.eye(15, dtype=torch.float64).reshape(15, *shape)
    inverse = torch.stack([Q.inverse(unit).flatten() for unit in units])
    forward = torch.stack([Q.forward(unit).flatten() for unit in units])
    torch.testing.assert_close(inverse @ forward, torch.eye(15, dtype=torch.float64))
    if metrics.find(metric).symmetric:
        torch.testing.assert_close(forward, forward.T)
    else:
        assert not torch.allclose(forward, forward.T, rtol=1e-3)
    eigenvalues = torch.linalg.eigvals(forward)
    assert eigenvalues.real.min() > 0
    assert eigenvalues.imag.abs().max() < 1e-9 * eigenvalues.real.max()


@pytest.mark.parametrize("metric", METRICS)
def test_a_gradient_of_zero_leaves_the_point(metric: str) -> None:
    """As a layer that is not reached: the optimizer stays put, and so must its oracle."""
    w = normal((3, 5))
    before = values([w])
    algorithm = Algorithm1([w], 2, 2.0, 5.0, metric=metric)
    for _ in range(3):
        algorithm.step([[torch.zeros_like(w)]] * 2)
    assert_near([w], before, 1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": []}, r"params must contain at least one tensor"),
        ({"sub_batches": 0}, r"sub_batches must be at least 1, got 0"),
        ({"rho": 0.0}, r"rho must be .*greater than 0, got 0\.0"),
        ({"rho": float("nan")}, r"rho must be .*greater than 0, got nan"),
        ({"sigma": -1.0}, r"sigma must be .*greater than 0, got -1\.0"),
        ({"sigma": float("inf")}, r"sigma must be .*, got inf"),
        ({"metric": "manhattan"}, r"metric must be one of euclidean, .*, got 'manhattan'"),
        ({"alpha": [1.0]}, r"alpha must have 2 weights, got 1"),
        ({"alpha": [0.5, 0.6]}, r"alpha must be weights .* sum to 1, got \[0\.5, 0\.6\]"),
        ({"alpha": [1.5, -0.5]}, r"alpha must be weights of at least 0 .*, got \[1\.5, -0\.5\]"),
        ({"alpha": [float("nan"), 1.0]}, r"alpha must be weights .*, got \[nan, 1\.0\]"),
    ],
)
def test_bad_values_are_named(change: dict[str, object], message: str) -> None:
    arguments = {"params": [scalar(0.0)], "sub_batches": 2, "rho": 1.0, "sigma": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        Algorithm1(**arguments)


def test_a_missing_sub_batch_is_an_error() -> None:
    algorithm = Algorithm1([scalar(0.0)], 2, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"gradients must have one entry per sub-batch, 2, got 1"):
        algorithm.step([[scalar(1.0)]])


def test_a_missing_parameter_is_an_error() -> None:
    algorithm = Algorithm1([scalar(0.0), scalar(1.0)], 1, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"gradients.* 2.* 1"):
        algorithm.step([[scalar(1.0)]])

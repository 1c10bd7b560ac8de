"""Gradients, states and groups that no training loop should produce, and some do."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from badm import BADM
from tests.helpers.support import METRICS, PATHS, normal

MATRIX = (6, 9)
ADAPTIVE = tuple(metric for metric in METRICS if metric != "euclidean")

crossed = pytest.mark.parametrize(
    ("metric", "path"), [(metric, path) for metric in METRICS for path in PATHS]
)


def started(
    metric: str, path: str = "foreach", shape: tuple[int, ...] = MATRIX, **options: Any
) -> tuple[Tensor, BADM]:
    dtype = options.pop("dtype", torch.float32)
    w = normal(shape, 1, dtype).requires_grad_()
    return w, BADM([w], metric=metric, **PATHS[path], **options)


def step(w: Tensor, optimizer: torch.optim.Optimizer, g: Tensor) -> None:
    w.grad = g.to(w.dtype)
    optimizer.step()


def is_finite(w: Tensor, optimizer: torch.optim.Optimizer) -> bool:
    tensors = [w, *(x for x in optimizer.state[w].values() if isinstance(x, Tensor))]
    return all(bool(x.isfinite().all()) for x in tensors)


def moved_after_death(
    optimizer: torch.optim.Optimizer, w: Tensor, scale: float = 1.0, steps: int = 1000
) -> Tensor:
    """How far ``w`` goes in so many steps without gradient that follow ten with one."""
    for seed in range(10):
        step(w, optimizer, scale * normal(w.shape, seed))
    before = w.detach().clone()
    for _ in range(steps):
        step(w, optimizer, torch.zeros(w.shape))
    return (w.detach() - before).norm()


class TestGradientsThatStop:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("path", "scale", "dtype"),
        [
            ("loop", 1.0, torch.float32),
            ("foreach", 1.0, torch.float32),
            ("foreach", 1.0, torch.float64),
            ("foreach", 1.0, torch.bfloat16),
            ("foreach", 1e-30, torch.float32),
            ("foreach", 1e30, torch.float32),
            ("loop", 1e-30, torch.bfloat16),
        ],
    )
    def test_a_matrix_comes_to_rest(self, path: str, scale: float, dtype: torch.dtype) -> None:
        w, optimizer = started("spectral", path, dtype=dtype)
        full_step = 1e-2 * 0.4 * math.sqrt(max(MATRIX)) * math.sqrt(min(MATRIX))
        assert moved_after_death(optimizer, w, scale) < 150 * 1.4 * full_step
        before = w.detach().clone()
        step(w, optimizer, torch.zeros(MATRIX))
        assert torch.equal(w, before)

    @pytest.mark.slow
    @pytest.mark.parametrize("beta", [0.0, 0.5, 0.95, 0.99])
    def test_whatever_the_memory(self, beta: float) -> None:
        w, optimizer = started("spectral", beta=beta)
        moved_after_death(optimizer, w, steps=200 if beta < 0.9 else 40 * round(1 / (1 - beta)))
        before = w.detach().clone()
        for _ in range(100):
            step(w, optimizer, torch.zeros(MATRIX))
        assert torch.equal(w, before)

    @pytest.mark.slow
    def test_a_neighbour_in_the_same_stack_goes_on(self) -> None:
        dead, alive = (normal(MATRIX, seed, torch.float32).requires_grad_() for seed in (1, 2))
        alone = alive.detach().clone().requires_grad_()
        both, one = BADM([dead, alive]), BADM([alone])
        for seed in range(400):
            g = normal(MATRIX, seed, torch.float32)
            dead.grad = g if seed < 10 else torch.zeros(MATRIX)
            alive.grad, alone.grad = g.clone(), g.clone()
            both.step()
            one.step()
        assert torch.equal(alive, alone)

    @pytest.mark.slow
    def test_training_goes_on_at_full_length_when_gradients_come_back(self) -> None:
        w, optimizer = started("spectral")
        moved_after_death(optimizer, w)
        before = w.detach().clone()
        step(w, optimizer, normal(MATRIX, 99))
        assert (w - before).norm() > 0.6 * 1e-2 * 0.4 * math.sqrt(max(MATRIX) * min(MATRIX))

    def test_small_gradients_are_not_dead_ones(self) -> None:
        """A hundredfold drop, or pauses of fifty steps, are training as usual."""
        for pattern in (lambda t: 1.0 if t < 20 else 1e-2, lambda t: float(t % 50 == 0)):
            w, optimizer = started("spectral")
            for t in range(200):
                before = w.detach().clone()
                step(w, optimizer, pattern(t) * normal(MATRIX, t))
                assert (w - before).norm() > 0.6 * 1e-2 * 0.4 * math.sqrt(54)


class TestScales:
    @crossed
    @pytest.mark.parametrize("exponent", [-44, -38, -30, -19, 19, 25, 30])
    def test_weights_stay_finite_where_those_of_adam_do(
        self, metric: str, path: str, exponent: int
    ) -> None:
        w, optimizer = started(metric, path)
        for seed in range(30):
            step(w, optimizer, 10.0**exponent * normal(MATRIX, seed))
            assert w.isfinite().all()

    @pytest.mark.parametrize("metric", ADAPTIVE)
    @pytest.mark.parametrize("path", PATHS)
    def test_a_spike_leaves_finite_weights_of_the_same_size(self, metric: str, path: str) -> None:
        w, optimizer = started(metric, path)
        for seed in range(40):
            step(w, optimizer, (1e28 if seed == 15 else 1.0) * normal(MATRIX, seed))
        assert w.isfinite().all()
        assert (w - normal(MATRIX, 1)).abs().max() < 1.0

    @pytest.mark.parametrize("path", ["loop", "foreach"])
    def test_covariances_and_bases_survive_a_spike(self, path: str) -> None:
        w, optimizer = started("kronecker", path)
        for seed in range(40):
            step(w, optimizer, (1e28 if seed == 15 else 1.0) * normal(MATRIX, seed))
        assert is_finite(w, optimizer)
        basis = optimizer.state[w]["left_basis"][0]
        assert torch.allclose(basis.mT @ basis, torch.eye(6), atol=1e-4)


class TestStatesThatDoNotFit:
    @pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
    @pytest.mark.parametrize("key", ["dual", "second_moment"])
    def test_fused_refuses_a_buffer_of_another_size(self, metric: str, key: str) -> None:
        w, optimizer = started(metric, "fused")
        step(w, optimizer, normal(MATRIX, 0))
        if key not in optimizer.state[w]:
            pytest.skip(f"the {metric} metric has no {key}")
        optimizer.state[w][key] = torch.zeros(2, 2)
        with pytest.raises(RuntimeError, match=rf"{key}.*\(2, 2\).*\(6, 9\)"):
            step(w, optimizer, normal(MATRIX, 0))

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("shape", [(2, 2), (60, 90), (9, 6), (54,)])
    def test_data_replaced_by_another_shape_is_named(
        self, metric: str, path: str, shape: tuple[int, ...]
    ) -> None:
        w, optimizer = started(metric, path)
        step(w, optimizer, normal(MATRIX, 0))
        if path == "fused" and w.numel() == math.prod(shape) and metric != "spectral":
            return  # of the same size, element by element: no memory but its own is touched
        w.data = torch.zeros(shape)
        w.grad = None
        with pytest.raises(RuntimeError, match=r"parameter 0 .*6, 9\)"):
            step(w, optimizer, torch.ones(shape))

    @pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
    def test_fused_takes_gradients_with_a_negative_bit(self, metric: str) -> None:
        g = torch.complex(torch.zeros(MATRIX), normal(MATRIX, 3, torch.float32))
        negative = torch.conj(g).imag
        assert negative.is_neg()
        ends = []
        for gradient in (negative, negative.resolve_neg().contiguous()):
            w, optimizer = started(metric, "fused")
            w.grad = gradient
            optimizer.step()
            ends.append(w.detach())
        assert torch.equal(*ends)

    @crossed
    def test_conjugate_gradients_of_complex_parameters(self, metric: str, path: str) -> None:
        g = normal((4, 4), 2, torch.complex64)
        ends = []
        for gradient in (torch.conj(g), torch.conj(g).resolve_conj()):
            w, optimizer = started(metric, path, (4, 4), dtype=torch.complex64)
            w.grad = gradient
            optimizer.step()
            ends.append(w.detach())
        assert torch.equal(*ends)


class TestLoadedStates:
    @crossed
    @pytest.mark.parametrize("shape", [(9, 6), (6, 8), (3, 18), (54,)])
    def test_another_shape_is_named_and_nothing_is_loaded(
        self, metric: str, path: str, shape: tuple[int, ...]
    ) -> None:
        other, donor = started(metric, path, shape)
        step(other, donor, normal(shape, 0))
        w, optimizer = started(metric, path)
        step(w, optimizer, normal(MATRIX, 0))
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=r"parameter 0 has shape \(6, 9\)"):
            optimizer.load_state_dict(donor.state_dict())
        assert str(optimizer.state_dict()) == str(before)

    @pytest.mark.parametrize("theirs", METRICS)
    @pytest.mark.parametrize("ours", METRICS)
    def test_another_metric_is_said_and_taken_over(self, ours: str, theirs: str) -> None:
        if ours == theirs:
            return
        other, donor = started(theirs)
        step(other, donor, normal(MATRIX, 0))
        w, optimizer = started(ours)
        with pytest.warns(UserWarning, match=f"metric='{theirs}'.*metric='{ours}'"):
            optimizer.load_state_dict(donor.state_dict())
        with torch.no_grad():
            w.copy_(other)
        for seed in range(1, 15):
            for parameter, opt in ((w, optimizer), (other, donor)):
                step(parameter, opt, normal(MATRIX, seed))
        assert torch.equal(w, other)

    def test_the_state_of_adam_is_refused(self) -> None:
        _, optimizer = started("diagonal")
        adam = torch.optim.Adam([normal(MATRIX, 1, torch.float32).requires_grad_()])
        step(adam.param_groups[0]["params"][0], adam, normal(MATRIX, 0))
        state = {**optimizer.state_dict(), "state": adam.state_dict()["state"]}
        with pytest.raises(ValueError, match=r"exp_avg"):
            optimizer.load_state_dict(state)

    def test_a_missing_buffer_is_named(self) -> None:
        w, optimizer = started("diagonal")
        step(w, optimizer, normal(MATRIX, 0))
        state = copy.deepcopy(optimizer.state_dict())
        del state["state"][0]["second_moment"]
        with pytest.raises(ValueError, match="second_moment"):
            optimizer.load_state_dict(state)

    def test_a_spectral_state_from_before_peaks_were_kept_loads(self) -> None:
        w, optimizer = started("spectral")
        step(w, optimizer, normal(MATRIX, 0))
        state = copy.deepcopy(optimizer.state_dict())
        del state["state"][0]["peak"]
        resumed = BADM([w], metric="spectral")
        resumed.load_state_dict(state)
        step(w, resumed, normal(MATRIX, 1))
        assert w.isfinite().all()


class TestMetricsThatChange:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("after", METRICS)
    @pytest.mark.parametrize("before", METRICS)
    def test_the_state_starts_anew_and_that_is_said(
        self, before: str, after: str, path: str
    ) -> None:
        if before == after or {before, after} == {"kronecker", "kronecker-spectral"}:
            return  # these two have one state
        w, optimizer = started(before, path)
        for seed in range(13):
            step(w, optimizer, normal(MATRIX, seed))
        fresh = w.detach().clone().requires_grad_()
        anew = BADM([fresh], metric=after, **PATHS[path])
        optimizer.param_groups[0]["metric"] = after
        with pytest.warns(UserWarning, match=f"'{before}'.*'{after}'"):
            step(w, optimizer, normal(MATRIX, 13))
        step(fresh, anew, normal(MATRIX, 13))
        for seed in range(14, 30):
            step(w, optimizer, normal(MATRIX, seed))
            step(fresh, anew, normal(MATRIX, seed))
        assert torch.equal(w, fresh)

    def test_vectors_keep_their_state_between_matrix_metrics(self) -> None:
        w, optimizer = started("spectral", shape=(7,))
        step(w, optimizer, normal((7,), 0))
        dual = optimizer.state[w]["dual"].clone()
        optimizer.param_groups[0]["metric"] = "kronecker"
        step(w, optimizer, torch.zeros(7))
        assert torch.allclose(optimizer.state[w]["dual"], 0.9 * dual)

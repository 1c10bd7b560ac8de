"""BADM in a training script: closures, hooks, schedules, scalers, accumulation, autograd."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from badm import BADM
from tests.helpers.support import (
    METRICS,
    PATHS,
    assert_identical,
    assert_near,
    drive,
    normal,
    parameters,
    restless,
    trajectory,
    values,
)

every_metric = pytest.mark.parametrize("metric", METRICS)
every_path = pytest.mark.parametrize("path", PATHS)


@every_metric
@every_path
def test_a_closure_computes_the_gradients_and_its_loss_is_returned(metric: str, path: str) -> None:
    (plain,), (closed,) = parameters(((3, 4),)), parameters(((3, 4),))
    plain_optimizer = BADM([plain], metric=metric, **PATHS[path])
    optimizer = BADM([closed], metric=metric, **PATHS[path])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = closed.square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        plain_optimizer.zero_grad()
        expected = plain.square().sum()
        expected.backward()
        assert plain_optimizer.step() is None
        assert torch.equal(optimizer.step(closure), expected)
    assert_identical([closed], [plain])


@every_path
def test_step_hooks_are_called_around_the_step(path: str) -> None:
    (w,) = parameters(((3,),))
    optimizer = BADM([w], metric="euclidean", **PATHS[path])
    seen: list[tuple[str, Tensor]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(("before", w.detach().clone())))
    optimizer.register_step_post_hook(lambda *_: seen.append(("after", w.detach().clone())))
    start = w.detach().clone()
    (end,) = drive(optimizer, [w], 1)
    assert [name for name, _ in seen] == ["before", "after"]
    assert_identical([value for _, value in seen], [start, end])


@every_metric
@every_path
def test_accumulated_gradients_are_their_sum(metric: str, path: str) -> None:
    x = normal((8, 4), 1)
    ends = []
    for parts in (1, 4):
        (w,) = parameters(((3, 4),))
        optimizer = BADM([w], metric=metric, lr=0.01, **PATHS[path])
        for _ in range(5):
            optimizer.zero_grad()
            for chunk in x.chunk(parts):
                ((chunk @ w.T).sin().sum() / len(x)).backward()
            optimizer.step()
        ends.append(w)
    assert_near(ends[:1], ends[1:], 1e-12)


@every_metric
@every_path
def test_gradients_through_a_scaler_are_unscaled(metric: str, path: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ends = []
    for scaled in (False, True):
        (w,) = parameters(((3, 4),), dtype=torch.float32)
        optimizer = BADM([w], metric=metric, lr=0.01, **PATHS[path])
        for _ in range(5):
            optimizer.zero_grad()
            loss = (w.sin() + w).sum()
            if scaled:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
        ends.append(w)
    # A power of two comes off without a trace.
    assert_identical(ends[:1], ends[1:])


@every_metric
@every_path
def test_a_scaler_skips_a_step_with_infinite_gradients(metric: str, path: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    params = parameters(((3, 4), (5,)), dtype=torch.float32)
    optimizer = BADM(params, metric=metric, lr=0.01, **PATHS[path])
    scaler.scale(sum(w.sin().sum() for w in params)).backward()
    scaler.step(optimizer)
    scaler.update()
    before = values(params)
    state = [s["dual"].clone() for s in optimizer.state_dict()["state"].values()]
    optimizer.zero_grad()
    scaler.scale(sum(w.sum() for w in params) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert_identical(params, before)
    assert_identical([s["dual"] for s in optimizer.state_dict()["state"].values()], state)


SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 5, 0.3),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.05, 25, cycle_momentum=False),
    "LambdaLR from 0": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 10)),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=10),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 20),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
}


def scheduled(
    metric: str, path: str, scheduler: str, lr: float | Tensor
) -> tuple[list[Tensor], list[float]]:
    params, rates = parameters(), []
    optimizer = BADM(params, lr, metric=metric, **PATHS[path])
    schedule = SCHEDULERS[scheduler](optimizer)
    for step in range(24):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        drive(optimizer, params, 1, start=step)
        schedule.step()
    return values(params), rates


@every_metric
@every_path
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_schedule_sets_the_step_of_each_step(metric: str, path: str, scheduler: str) -> None:
    """As setting lr by hand does, for a float and for a tensor that changes in place."""
    scheduled_end, rates = scheduled(metric, path, scheduler, 0.01)
    assert len(set(rates)) > 1
    by_hand = parameters()
    optimizer = BADM(by_hand, 0.01, metric=metric, foreach=False)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        drive(optimizer, by_hand, 1, start=step)
    assert_near(scheduled_end, by_hand, 1e-12)

    lr = torch.tensor(0.01, dtype=torch.float64)
    assert_near(scheduled(metric, path, scheduler, lr)[0], by_hand, 1e-12)


@every_metric
@every_path
def test_a_step_of_length_zero_moves_nothing_but_remembers(metric: str, path: str) -> None:
    params = parameters()
    optimizer = BADM(params, 0.01, metric=metric, weight_decay=0.1, **PATHS[path])
    optimizer.param_groups[0]["lr"] = 0.0
    drive(optimizer, params, 3)
    assert_identical(params, parameters())
    assert all(s["dual"].abs().sum() > 0 for s in optimizer.state_dict()["state"].values())


@every_metric
@every_path
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_lr_equals_a_number(
    metric: str, path: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    number = 0.0078125  # the same in single precision
    lr = torch.full(shape, number, dtype=dtype)
    options = {"metric": metric, "weight_decay": 0.5, **PATHS[path]}
    # A fused step computes 1/ρ from lr, in the precision that lr has.
    tolerance = 1e-13 if dtype == torch.float64 else 1e-8
    assert_near(trajectory(lr=lr, **options), trajectory(lr=number, **options), tolerance)
    assert torch.equal(lr, torch.full(shape, number, dtype=dtype))


@every_metric
@every_path
def test_a_tensor_lr_can_change_in_place(metric: str, path: str) -> None:
    params, by_number = parameters(), parameters()
    lr = torch.tensor(0.01, dtype=torch.float64)
    optimizer = BADM(params, lr, metric=metric, **PATHS[path])
    other = BADM(by_number, 0.01, metric=metric, **PATHS[path])
    for step in range(10):
        lr.fill_(0.01 / (step + 1))
        other.param_groups[0]["lr"] = 0.01 / (step + 1)
        drive(optimizer, params, 1, start=step)
        drive(other, by_number, 1, start=step)
    assert_near(params, by_number, 1e-13)


def through_steps(metric: str, w: Tensor, lr: Tensor, scale: Tensor, steps: int = 2) -> Tensor:
    """The end as a function of the start, of lr and of what the gradients depend on."""
    w = w.clone()
    optimizer = BADM(
        [w], lr, metric=metric, beta2=0.9, eps=1e-3, weight_decay=0.1, differentiable=True
    )
    for step in range(steps):
        # Of a clone: the step changes w in place, and cos keeps what it was given.
        w.grad = scale * torch.cos(w.clone()) + normal(w.shape, 60 + step)
        optimizer.step()
    return w


# The kronecker metric refuses: see test_arguments.py.
smooth_metric = pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])


@smooth_metric
@pytest.mark.parametrize("shape", [(3,), (3, 3), (2, 4)])
def test_autograd_sees_through_two_steps(metric: str, shape: tuple[int, ...]) -> None:
    """Derivatives by start, lr and gradient are those of finite differences."""
    inputs = (
        normal(shape, 1).requires_grad_(),
        torch.tensor(0.05, dtype=torch.float64, requires_grad=True),
        torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(
        lambda *x: through_steps(metric, *x), inputs, atol=1e-6, rtol=1e-4
    )


@smooth_metric
def test_autograd_sees_through_many_steps(metric: str) -> None:
    inputs = (
        normal((3, 3), 1).requires_grad_(),
        torch.tensor(0.05, dtype=torch.float64, requires_grad=True),
        torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
    )
    gradients = torch.autograd.grad(through_steps(metric, *inputs, steps=25).sum(), inputs)
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


@smooth_metric
def test_a_differentiable_step_equals_the_loop(metric: str) -> None:
    inputs = normal((3, 4), 1), *torch.tensor([0.05, 0.7], dtype=torch.float64)
    w = inputs[0].clone().requires_grad_()
    options = {"metric": metric, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1}

    def gradients(step: int, params: Any) -> list[Tensor]:
        return [0.7 * torch.cos(params[0].detach()) + normal((3, 4), 60 + step)]

    drive(BADM([w], 0.05, foreach=False, **options), [w], 25, gradients)
    assert_near([through_steps(metric, *inputs, steps=25)], [w], 1e-12)


def test_a_model_learns() -> None:
    """From end to end, with groups as a user makes them: digits of noise, learned by heart."""
    from badm import parameter_groups

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5)
    )
    x, y = normal((40, 1, 8, 8), 1, torch.float32), torch.arange(40) % 5
    for metric in ("diagonal", "spectral", "kronecker"):
        for layer in (model[0], model[3]):
            layer.reset_parameters()
        optimizer = BADM(parameter_groups(model, metric=metric), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        assert math.isfinite(loss.item())
        assert loss.item() < 0.1


def test_gradients_of_the_table_are_finite() -> None:
    """Guards the file: a NaN would equal a NaN nowhere and hide in a mean."""
    for g in restless(0, parameters()):
        assert g.isfinite().all()

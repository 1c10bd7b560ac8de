"""Our Keras optimizers walk where Keras's own walk, start from its defaults, and resume exactly."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from badm.bench.methods.keras_optimizers import OPTIMIZERS, KerasOptimizer
from tests.helpers.support import assert_identical, drive, normal, parameters, restless, rng

# Of Keras 3.15 with numpy 2.4, at every conversion.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

STEPS = 100
SHAPES = ((), (5,), (4, 3), (3, 2, 2, 2))
NAN, INF = float("nan"), float("inf")

# What Keras calls our options, and those of its options that we have only as they are.
KERAS_NAMES = {"lr": "learning_rate", "beta1": "beta_1", "beta2": "beta_2", "eps": "epsilon"}
LEFT_OUT = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "amsgrad": False,
    "centered": False,
    "momentum": 0.0,
}


@dataclass(frozen=True)
class Case:
    """One of our optimizers, with options of ours, beside its class in Keras."""

    name: str
    keras_class: str
    options: dict[str, float] = field(default_factory=dict)

    def ours(self, params: Sequence[Tensor]) -> KerasOptimizer:
        return OPTIMIZERS[self.name](params, **self.options)

    def keras(self, keras: ModuleType) -> Any:
        options = {KERAS_NAMES.get(name, name): value for name, value in self.options.items()}
        if self.name == "sgd-momentum":
            options = {"momentum": 0.9, **options}
        return getattr(keras.optimizers, self.keras_class)(**options)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])


DEFAULTS = [
    Case("sgd", "SGD"),
    Case("sgd-momentum", "SGD"),
    Case("adagrad", "Adagrad"),
    Case("rmsprop", "RMSprop"),
    Case("adam", "Adam"),
    Case("nadam", "Nadam"),
    Case("adamax", "Adamax"),
]
BETAS = {"lr": 0.003, "beta1": 0.7, "beta2": 0.95, "eps": 1e-3}
OTHERS = [
    Case("sgd", "SGD", {"lr": 0.003, "nesterov": True}),
    Case("sgd-momentum", "SGD", {"lr": 0.003, "momentum": 0.5, "nesterov": True}),
    Case("adagrad", "Adagrad", {"lr": 0.02, "initial_accumulator_value": 1e-3, "eps": 1e-2}),
    Case("rmsprop", "RMSprop", {"lr": 0.003, "rho": 0.6, "eps": 1e-2}),
    Case("adam", "Adam", BETAS),
    Case("nadam", "Nadam", BETAS),
    Case("adamax", "Adamax", BETAS),
]


@cache
def gradients(step: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """From 1e-6, where eps decides, to 10, element by element."""
    made = []
    for i, shape in enumerate(SHAPES):
        exponent = 7 * torch.rand(shape, generator=rng(9000 + 10 * step + i)) - 6
        made.append((normal(shape, 10 * step + i) * 10.0**exponent).to(dtype))
    return tuple(made)


def deviation(
    keras: ModuleType,
    case: Case,
    dtype: torch.dtype,
    lr_from_50: float | None = None,
    missing: bool = False,
) -> float:
    """The largest distance between our weights and Keras's, over all of the steps."""
    params = parameters(SHAPES, dtype=dtype)
    kind = str(dtype).removeprefix("torch.")
    variables = [keras.Variable(w.detach().numpy().copy(), dtype=kind) for w in params]
    ours, theirs = case.ours(params), case.keras(keras)
    theirs.build(variables)
    (group,) = ours.param_groups
    if dtype == torch.float64:
        group["lr"] = as_kept_by_keras(group["lr"])
    farthest = 0.0
    for step in range(STEPS):
        if step == 50 and lr_from_50 is not None:
            theirs.learning_rate = lr_from_50
            group["lr"] = as_kept_by_keras(lr_from_50) if dtype == torch.float64 else lr_from_50
        grads: list[Any] = list(gradients(step, dtype))
        if missing:
            grads[step % 3] = None
        for w, g in zip(params, grads, strict=True):
            w.grad = g
        ours.step()
        theirs.apply([g if g is None else keras.ops.convert_to_tensor(g) for g in grads], variables)
        for w, variable in zip(params, variables, strict=True):
            away = np.abs(w.detach().numpy() - keras.ops.convert_to_numpy(variable)).max()
            assert np.isfinite(away)
            farthest = max(farthest, float(away))
    return farthest


def as_kept_by_keras(lr: float) -> float:
    """In float32, whatever the weights are: 5e-8 off, which float64 would show."""
    return float(np.float32(lr))


@pytest.mark.parametrize("lr_from_50", [None, 2e-4])
@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_the_trajectory_is_that_of_keras(
    keras: ModuleType, case: Case, lr_from_50: float | None
) -> None:
    assert deviation(keras, case, torch.float32, lr_from_50) <= 1e-6


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("case", DEFAULTS + OTHERS, ids=str)
def test_nothing_but_rounding_is_between_us_and_keras(keras: ModuleType, case: Case) -> None:
    """In float64, where a slip that float32 hides would show; with steps that lack a gradient."""
    assert deviation(keras, case, torch.float64, lr_from_50=2e-4, missing=True) <= 1e-12


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_the_defaults_are_those_of_keras(keras: ModuleType, case: Case) -> None:
    optimizer = case.ours(one())
    (group,) = optimizer.param_groups
    ours = {KERAS_NAMES.get(name, name): group[name] for name in optimizer.options}
    theirs = case.keras(keras).get_config()
    del theirs["name"]
    left_out = {name: LEFT_OUT[name] for name in theirs if name not in ours}
    assert theirs == {**left_out, **{k: pytest.approx(v, rel=1e-7) for k, v in ours.items()}}


def one() -> list[Tensor]:
    return parameters(((3,),))


def of_squares(step: int, params: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the sum of squares."""
    return [2 * w.detach() for w in params]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_from_a_file_is_bitwise_equal(name: str, tmp_path: Path) -> None:
    params = parameters(dtype=torch.float32)
    optimizer = OPTIMIZERS[name](params, lr=0.02)
    drive(optimizer, params, 7)
    torch.save({"w": params, "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    unbroken = drive(optimizer, params, 7, start=7)

    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = [w.detach().requires_grad_() for w in saved["w"]]
    optimizer = OPTIMIZERS[name](resumed)
    optimizer.load_state_dict(saved["optimizer"])
    assert_identical(drive(optimizer, resumed, 7, start=7), unbroken)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_copy_goes_the_same_way(name: str) -> None:
    params = parameters()
    optimizer = OPTIMIZERS[name](params)
    drive(optimizer, params, 3)
    params_too, optimizer_too = copy.deepcopy((params, optimizer))
    expected = drive(optimizer, params, 3, start=3)
    assert_identical(drive(optimizer_too, params_too, 3, start=3), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_closure_gives_the_loss_and_the_gradients(name: str) -> None:
    params, expected = parameters(), parameters()
    optimizer = OPTIMIZERS[name](params)

    def closure() -> float:
        optimizer.zero_grad()
        loss = sum((w**2).sum() for w in params)
        loss.backward()
        return float(loss.item())

    assert optimizer.step(closure) == pytest.approx(sum((w**2).sum().item() for w in expected))
    drive(OPTIMIZERS[name](expected), expected, 1, of_squares)
    assert_identical(params, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_any_gradient_nothing_moves_and_nothing_is_counted(name: str) -> None:
    params, expected = parameters(), parameters()
    optimizer = OPTIMIZERS[name](params)
    optimizer.step()
    assert not optimizer.state
    assert_identical(params, parameters())
    drive(OPTIMIZERS[name](expected), expected, 2)
    assert_identical(drive(optimizer, params, 2), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_are_left_as_they_are(name: str) -> None:
    params = parameters()
    drive(OPTIMIZERS[name](params), params, 1)
    assert_identical([w.grad for w in params], restless(0, parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_have_their_own_options(name: str) -> None:
    params, first, second = parameters(), parameters()[:2], parameters()[2:]
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.05}]
    drive(OPTIMIZERS[name](groups), params, 3, of_squares)
    drive(OPTIMIZERS[name](first), first, 3, of_squares)
    drive(OPTIMIZERS[name](second, 0.05), second, 3, of_squares)
    assert_identical(params, first + second)


def test_plain_sgd_keeps_no_buffers_until_it_has_a_momentum() -> None:
    params = parameters()
    optimizer = OPTIMIZERS["sgd"](params)
    drive(optimizer, params, 2)
    assert not any(optimizer.state.values())
    optimizer.param_groups[0]["momentum"] = 0.5  # as torch's CyclicLR does
    drive(optimizer, params, 1)
    assert all("velocity" in optimizer.state[w] for w in params)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_are_refused(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.eye(3, 2).to_sparse()
    with pytest.raises(RuntimeError, match=r"\w+ needs dense gradients, got .* of \(3, 2\)"):
        OPTIMIZERS[name]([weight]).step()


BAD = [
    ("sgd", {"lr": 0.0}, r"lr must be a finite number greater than 0, got 0\.0"),
    ("sgd", {"lr": INF}, r"lr must be a finite number greater than 0, got inf"),
    ("sgd", {"lr": NAN}, r"lr must be a finite number greater than 0, got nan"),
    ("sgd", {"lr": "0.1"}, r"lr must be a number, got 0\.1"),
    ("sgd", {"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1\.0"),
    ("sgd", {"nesterov": 1}, r"nesterov must be True or False, got 1"),
    ("adagrad", {"initial_accumulator_value": -0.1}, r"initial_.* of at least 0, got -0\.1"),
    ("adagrad", {"eps": NAN}, r"eps must be a finite number of at least 0, got nan"),
    ("rmsprop", {"rho": -0.1}, r"rho must be in \[0, 1\), got -0\.1"),
    ("adam", {"beta1": 1}, r"beta1 must be in \[0, 1\), got 1"),
    ("nadam", {"beta2": NAN}, r"beta2 must be in \[0, 1\), got nan"),
    ("adamax", {"eps": -1e-7}, r"eps must be a finite number of at least 0, got -1e-07"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_bad_values_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPTIMIZERS[name](one(), **options)
    with pytest.raises(ValueError, match=message):
        OPTIMIZERS[name]([{"params": one(), **options}])


def test_an_option_of_another_optimizer_is_named() -> None:
    with pytest.raises(ValueError, match=r"RMSprop takes lr, rho, eps, got beta1=0\.9"):
        OPTIMIZERS["rmsprop"](one(), beta1=0.9)

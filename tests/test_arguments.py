"""Bad values raise errors that name the argument, what it takes and what it was given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from badm import BADM, penalties
from tests.helpers.support import parameters

NAN, INF = float("nan"), float("inf")


def one() -> list[Tensor]:
    return parameters(((3,),))


BAD = [
    ({"lr": -1e-3}, r"lr must be .* at least 0, got -0\.001"),
    ({"lr": NAN}, r"lr must be a finite number .*, got nan"),
    ({"lr": INF}, r"lr must be a finite number .*, got inf"),
    ({"lr": torch.tensor(-1.0)}, r"lr must be .* at least 0, got -1\.0|got tensor\(-1\.\)"),
    ({"lr": torch.tensor([0.1, 0.2])}, r"lr must be .* tensor with 1 element, got .*2"),
    ({"beta": -0.1}, r"beta must be in \[0, 1\), got -0\.1"),
    ({"beta": 1.0}, r"beta must be in \[0, 1\), got 1\.0"),
    ({"beta": NAN}, r"beta must be in \[0, 1\), got nan"),
    ({"beta2": -0.1}, r"beta2 must be in \[0, 1\), got -0\.1"),
    ({"beta2": 1.0}, r"beta2 must be in \[0, 1\), got 1\.0"),
    ({"beta2": NAN}, r"beta2 must be in \[0, 1\), got nan"),
    ({"eps": -1e-8}, r"eps must be .* at least 0, got -1e-08"),
    ({"eps": NAN}, r"eps must be .* at least 0, got nan"),
    ({"weight_decay": -0.1}, r"weight_decay must be .* at least 0, got -0\.1"),
    ({"weight_decay": INF}, r"weight_decay must be a finite .*, got inf"),
    (
        {"metric": "manhattan"},
        r"metric must be one of euclidean, diagonal, spectral, kronecker, kronecker-spectral, "
        r"got 'manhattan'",
    ),
    ({"metric": None}, r"metric must be one of .*, got None"),
    ({"foreach": True, "fused": True}, r"foreach and fused .*, got foreach=True and fused=True"),
    ({"differentiable": True, "fused": True}, r"differentiable=True excludes .*fused=True"),
    ({"differentiable": True, "foreach": True}, r"differentiable=True excludes .*foreach=True"),
    # Its bases are renewed in place, by a QR that has no derivative where rank is missing.
    ({"differentiable": True, "metric": "kronecker"}, r"differentiable=True excludes .*kronecker"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_values_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BADM(one(), **options)


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_values_of_a_group_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BADM([{"params": one(), **options}])
    optimizer = BADM(one())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": one(), **options})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name", ["rho", "sigma"])
@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0.0"), (-2.0, "-2.0"), (NAN, "nan"), (INF, "inf")]
)
def test_bad_penalties_are_named(name: str, value: float, shown: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be .* greater than 0, got {shown}"):
        BADM.from_penalties(one(), **{name: value})


@pytest.mark.parametrize(("name", "value"), [("lr", 0.1), ("beta", 0.9)])
def test_what_follows_from_the_penalties_is_not_taken(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} follows from rho and sigma, got {name}={value}"):
        BADM.from_penalties(one(), 1.0, 2.0, **{name: value})


def test_penalties_whose_memory_rounds_to_one_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"(rho|beta) .*, got"):
        BADM.from_penalties(one(), 1e20, 1.0)


@pytest.mark.parametrize("params", [[], iter(()), ()], ids=["list", "iterator", "tuple"])
def test_no_parameters_are_an_error(params: Any) -> None:
    with pytest.raises(ValueError, match=r"params must be .*, got an empty list"):
        BADM(params)


def test_groups_without_any_parameter_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"params must be .*, got .*empty"):
        BADM([{"params": []}, {"params": []}])


def test_an_empty_group_beside_others_is_taken_as_in_torch() -> None:
    """Trainers that part parameters by weight decay make one for a model without biases."""
    (w,) = one()
    optimizer = BADM([{"params": [w]}, {"params": []}])
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert optimizer.state[w]["dual"].abs().sum() > 0


def test_a_bare_tensor_is_an_error() -> None:
    with pytest.raises(TypeError, match="iterable of Tensors or dicts"):
        BADM(one()[0])


@pytest.mark.parametrize(("rho", "sigma"), [(200.0, 800.0), (1e-3, 1e3), (5.0, 5.0), (40.0, 0.1)])
def test_penalties_go_there_and_back(rho: float, sigma: float) -> None:
    (group,) = BADM.from_penalties(one(), rho, sigma).param_groups
    assert group["lr"] == pytest.approx(1 / sigma, rel=1e-15)
    assert group["beta"] == pytest.approx(rho / (rho + sigma), rel=1e-15)
    assert penalties(group) == pytest.approx((rho, sigma), rel=1e-12)


def test_scaling_lr_scales_both_penalties() -> None:
    (group,) = BADM.from_penalties(one(), 200.0, 800.0).param_groups
    group["lr"] = group["lr"] / 4
    assert penalties(group) == pytest.approx((800.0, 3200.0), rel=1e-12)


def test_penalties_of_a_tensor_lr_and_of_lr_zero() -> None:
    (group,) = BADM(one(), torch.tensor(0.5), 0.5).param_groups
    assert penalties(group) == (2.0, 2.0)
    group["lr"] = 0.0
    assert penalties(group) == (INF, INF)


def test_the_defaults() -> None:
    (group,) = BADM(one()).param_groups
    del group["params"]
    assert group == {
        "lr": 1e-2,
        "beta": 0.9,
        "momentum": 0.9,
        "metric": "spectral",
        "beta2": None,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "blocks": None,
        "maximize": False,
        "foreach": None,
        "fused": None,
        "differentiable": False,
    }


def test_a_learning_rate_of_zero_leaves_the_weights_as_they_are() -> None:
    """A warm-up may start there."""
    (w,) = one()
    before = w.detach().clone()
    optimizer = BADM([w], lr=0.0)
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert w.equal(before)


def test_named_parameters_and_generators_are_taken() -> None:
    model = torch.nn.Linear(2, 3)
    assert len(BADM(model.parameters()).param_groups[0]["params"]) == 2
    assert len(BADM(model.named_parameters()).param_groups[0]["params"]) == 2

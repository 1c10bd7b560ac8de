"""Schedulers that cycle the momentum find the memory, and a memory changed by hand counts too."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from badm import BADM
from tests.helpers.support import assert_identical, drive, parameters, restless, values

SHAPES = ((4,), (3, 4))


def momenta(scheduler: Any, optimizer: BADM, params: list[Tensor], steps: int) -> list[float]:
    """The memory that each step had."""
    had = []
    for step in range(steps):
        drive(optimizer, params, 1, start=step)
        had.append(optimizer.param_groups[0]["beta"])
        scheduler.step()
    return had


def test_one_cycle_changes_the_memory() -> None:
    params = parameters(SHAPES)
    optimizer = BADM(params)
    scheduler = OneCycleLR(optimizer, 0.1, total_steps=10, base_momentum=0.8, max_momentum=0.95)
    had = momenta(scheduler, optimizer, params, 10)
    assert had[0] == 0.95
    assert min(had) == pytest.approx(0.8)
    assert len(set(had)) > 5


def test_cyclic_changes_the_memory() -> None:
    params = parameters(SHAPES)
    optimizer = BADM(params)
    scheduler = CyclicLR(optimizer, 0.01, 0.1, 2, base_momentum=0.8, max_momentum=0.9)
    assert momenta(scheduler, optimizer, params, 4) == pytest.approx([0.9, 0.85, 0.8, 0.85])


def test_steps_with_a_cycled_momentum_are_those_with_this_beta() -> None:
    ends = []
    for key in ("momentum", "beta"):
        params = parameters(SHAPES)
        optimizer = BADM(params, metric="euclidean")
        for step, value in enumerate((0.5, 0.7, 0.2)):
            optimizer.param_groups[0][key] = value
            drive(optimizer, params, 1, start=step)
            (group,) = optimizer.param_groups
            assert group["momentum"] == group["beta"] == value
        ends.append(values(params))
    assert_identical(ends[0], ends[1])
    still = parameters(SHAPES)
    drive(BADM(still, metric="euclidean"), still, 3)
    assert not torch.equal(still[0], ends[0][0])


def test_both_names_are_saved_and_loaded() -> None:
    params = parameters(SHAPES)
    optimizer = BADM(params)
    drive(optimizer, params, 1)
    optimizer.param_groups[0]["momentum"] = 0.6
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["beta"] == 0.6
    again = BADM(parameters(SHAPES))
    again.load_state_dict(saved)
    assert again.param_groups[0]["momentum"] == again.param_groups[0]["beta"] == 0.6


def test_a_checkpoint_from_before_the_second_name_loads() -> None:
    params = parameters(SHAPES)
    optimizer = BADM(params, beta=0.7)
    drive(optimizer, params, 1)
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["momentum"]
    again = BADM(parameters(SHAPES))
    again.load_state_dict(saved)
    assert again.param_groups[0]["momentum"] == again.param_groups[0]["beta"] == 0.7


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_follows_both_names(copied: Any) -> None:
    optimizer = copied(BADM(parameters(SHAPES), beta=0.7))
    (group,) = optimizer.param_groups
    for key, value in (("beta", 0.5), ("momentum", 0.4), ("beta", 0.3)):
        group[key] = value
        for p, g in zip(group["params"], restless(0, group["params"]), strict=True):
            p.grad = g
        optimizer.step()
        assert group["momentum"] == group["beta"] == value


@pytest.mark.parametrize("key", ["beta", "momentum"])
def test_a_group_may_use_either_name(key: str) -> None:
    optimizer = BADM([{"params": parameters(SHAPES), key: 0.5}])
    assert optimizer.param_groups[0]["beta"] == optimizer.param_groups[0]["momentum"] == 0.5
    assert BADM(parameters(SHAPES), **{key: 0.4}).param_groups[0]["beta"] == 0.4


def test_two_values_for_one_number_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"one number, got beta=0\.9 and momentum=0\.8"):
        BADM(parameters(SHAPES), beta=0.9, momentum=0.8)


def test_the_defaults_make_the_same_optimizer() -> None:
    optimizer = BADM(parameters(SHAPES), beta=0.7, metric="diagonal")
    assert BADM(parameters(SHAPES), **optimizer.defaults).defaults == optimizer.defaults

"""A fifth metric in a file of its own works everywhere, and no other file is touched for it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from badm import BADM, metrics, parameter_groups
from badm.paper.algorithm1 import Algorithm1
from tests.helpers.ranks import on_ranks
from tests.helpers.row_scaled import RowScaled
from tests.helpers.support import PATHS, assert_near, drive, normal, parameters, restless

NAME = RowScaled.name
SHAPES = ((), (5,), (4, 4), (3, 7), (8, 2))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """For these tests alone: others list the metrics there are."""
    metrics.register(RowScaled())
    yield
    del metrics._METRICS[NAME]


@pytest.mark.parametrize("path", PATHS)
def test_every_path_equals_the_loop(path: str) -> None:
    ends = []
    for flags in (PATHS["loop"], PATHS[path]):
        params = parameters(SHAPES)
        ends.append(drive(BADM(params, metric=NAME, lr=0.01, **flags), params, 20, restless))
    assert_near(ends[0], ends[1], 1e-13)


def test_it_is_algorithm_1_in_that_metric() -> None:
    w, v = (normal((4, 6), 1) for _ in range(2))
    w.requires_grad_()
    rho, sigma = 90.0, 10.0
    optimizer = BADM.from_penalties([w], rho, sigma, metric=NAME)
    algorithm = Algorithm1([v], sub_batches=3, rho=rho, sigma=sigma, metric=NAME)
    for step in range(50):
        gradients = [normal((4, 6), 3 * step + s) for s in range(3)]
        algorithm.step([[g] for g in gradients])
        w.grad = sum(gradients) / 3
        optimizer.step()
    assert_near([w], [v], 1e-12)


def test_checkpoints_resume_exactly_and_foreign_states_are_refused() -> None:
    params = parameters(SHAPES)
    optimizer = BADM(params, metric=NAME)
    drive(optimizer, params, 5, restless)
    copies = [p.detach().clone().requires_grad_() for p in params]
    resumed = BADM(copies, metric=NAME)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for params_, optimizer_ in ((params, optimizer), (copies, resumed)):
        drive(optimizer_, params_, 5, restless)
    assert_near(params, copies, 0.0)
    state = copy.deepcopy(optimizer.state_dict())
    del state["state"][2]["row_moment"]
    with pytest.raises(ValueError, match="row_moment"):
        resumed.load_state_dict(state)


def test_groups_know_it() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    assert [group["metric"] for group in parameter_groups(model, metric=NAME)] == [NAME, "diagonal"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def train(model: nn.Module, optimizer: BADM, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(normal((8, 6), step)).square().mean().backward()
        optimizer.step()


def sharded() -> list[Tensor]:
    metrics.register(RowScaled())  # in this process, too
    model = fully_shard(net())
    optimizer = BADM(model.parameters(), metric=NAME, lr=0.01)
    train(model, optimizer, 6)
    states = get_state_dict(model, optimizer)
    again = fully_shard(net())
    resumed = BADM(again.parameters(), metric=NAME, lr=0.01)
    set_state_dict(again, resumed, model_state_dict=states[0], optim_state_dict=states[1])
    train(again, resumed, 6)
    return [p.full_tensor().detach() for p in again.parameters()]  # type: ignore[attr-defined]


@pytest.mark.distributed
def test_two_ranks_of_fsdp_equal_one_process() -> None:
    model = net()
    optimizer = BADM(model.parameters(), metric=NAME, lr=0.01)
    train(model, optimizer, 6)
    train(model, optimizer, 6)
    for rank in on_ranks(2, sharded):
        assert not isinstance(rank, Exception), rank
        assert_near(rank, list(model.parameters()), 1e-10)

"""torch's ZeRO-1: ranks share out the states, and train as one process does."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from badm import BADM, parameter_groups
from tests.helpers.ranks import on_ranks
from tests.helpers.support import METRICS, assert_near

pytestmark = pytest.mark.distributed

STEPS = 12
SAMPLES = 8  # in a batch, of all ranks together


def network() -> nn.Module:
    """Layers of several sizes, so that ranks get other places for them than one process."""
    torch.manual_seed(0)
    widths = (6, 9, 4, 4, 7, 5, 5, 3)
    return nn.Sequential(*(nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(widths)))


def train(model: nn.Module, optimizer: Any) -> None:
    rank, ranks = (int(os.environ.get(key, d)) for key, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        x, y = (part.tensor_split(ranks)[rank] for part in (x, x[:, :3].sin()))
        optimizer.zero_grad()
        mse_loss(model(x).tanh(), y).backward()
        optimizer.step()


def given(model: nn.Module, metric: str, grouped: bool) -> tuple[Any, dict[str, Any]]:
    if grouped:
        return parameter_groups(model, metric=metric, weight_decay=0.1), {}
    return model.parameters(), {"metric": metric}


def in_one_process(metric: str, grouped: bool) -> list[Tensor]:
    model = network()
    params, options = given(model, metric, grouped)
    train(model, BADM(params, lr=0.01, **options))
    return [p.detach() for p in model.parameters()]


def with_zero() -> dict[tuple[str, bool], list[Tensor]]:
    trained = {}
    for metric in METRICS:
        for grouped in (False, True):
            model = network()
            params, options = given(model, metric, grouped)
            optimizer = ZeroRedundancyOptimizer(params, BADM, lr=0.01, **options)
            train(DistributedDataParallel(model), optimizer)
            trained[metric, grouped] = [p.detach() for p in model.parameters()]
    return trained


@pytest.mark.slow
def test_zero_of_two_ranks_equals_one_process() -> None:
    """The kronecker metric too, whose matrices refresh their bases in different steps."""
    for trained in on_ranks(2, with_zero):
        for (metric, grouped), params in trained.items():
            assert_near(params, in_one_process(metric, grouped), 1e-10)

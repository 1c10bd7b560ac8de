"""BADM under DDP and FSDP2: real processes on gloo, equal to one process up to rounding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from badm import BADM
from tests.helpers.ranks import on_ranks
from tests.helpers.support import METRICS

pytestmark = pytest.mark.distributed

STEPS = 12
SAMPLES = 8  # in a batch, of all ranks together
OPTIONS: dict[str, dict[str, Any]] = {
    **{metric: {"metric": metric} for metric in METRICS},
    "decay": {"metric": "spectral", "weight_decay": 0.1, "maximize": True, "lr": 1e-3},
    "loop": {"metric": "spectral", "foreach": False},
    "fused": {"metric": "diagonal", "fused": True},
    "fused-euclidean": {"metric": "euclidean", "fused": True},
}


class Net(nn.Module):
    """Matrices of more and of fewer rows than ranks, a kernel, vectors, and one without use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kernel = nn.Conv2d(1, 3, 2, dtype=torch.float64)
        self.hidden = nn.Linear(12, 7, dtype=torch.float64)
        self.twin = nn.Linear(7, 7, bias=False, dtype=torch.float64)
        self.head = nn.Linear(7, 2, dtype=torch.float64)
        self.unused = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.kernel(x).tanh().flatten(1)
        return self.head(self.twin(self.hidden(x).tanh()).tanh())


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 1, 3, 3, generator=generator, dtype=torch.float64)
    return x, x.flatten(1)[:, :2].sin()


def train(model: nn.Module, optimizer: BADM, first: int, last: int) -> None:
    """This rank's part of every batch; of all of it without ranks."""
    rank, ranks = (int(os.environ.get(key, d)) for key, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    for step in range(first, last):
        x, y = (part.tensor_split(ranks)[rank] for part in batch(step))
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()


def in_one_process(options: dict[str, Any]) -> list[Tensor]:
    model = Net()
    train(model, BADM(model.parameters(), **{"lr": 0.01, **options}), 0, STEPS)
    return [p.detach() for p in model.parameters()]


def with_ddp() -> dict[str, list[Tensor]]:
    trained = {}
    for name, options in OPTIONS.items():
        model = Net()
        optimizer = BADM(model.parameters(), **{"lr": 0.01, **options})
        train(DistributedDataParallel(model, find_unused_parameters=True), optimizer, 0, STEPS)
        trained[name] = [p.detach() for p in model.parameters()]
    return trained


def sharded_net(shape: tuple[int, ...]) -> Net:
    names = ("replicas", "shards")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = Net()
    fully_shard(model.hidden, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor().detach() for p in model.parameters()]  # type: ignore[attr-defined]


def with_fsdp(shape: tuple[int, ...]) -> dict[str, Any]:
    trained: dict[str, Any] = {}
    for name, options in OPTIONS.items():
        model = sharded_net(shape)
        optimizer = BADM(model.parameters(), **{"lr": 0.01, **options})
        train(model, optimizer, 0, STEPS)
        trained[name] = whole(model)
        if not options["metric"].startswith("kronecker"):
            for p, state in optimizer.state.items():
                assert state["dual"].placements == p.placements  # type: ignore[attr-defined]
    return trained


def assert_equal_to_one_process(trained: dict[str, list[Tensor]]) -> None:
    for name, params in trained.items():
        for found, expected in zip(params, in_one_process(OPTIONS[name]), strict=True):
            assert (found - expected).abs().max() < 1e-10, name


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_equals_one_process(ranks: int) -> None:
    for trained in on_ranks(ranks, with_ddp):
        assert_equal_to_one_process(trained)


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2)], ids=["2", "4", "2 replicas of 2 shards"])
def test_fsdp2_equals_one_process(shape: tuple[int, ...]) -> None:
    for trained in on_ranks(torch.Size(shape).numel(), with_fsdp, shape):
        assert_equal_to_one_process(trained)


LAYERS: dict[str, list[tuple[torch.dtype, int, int]]] = {
    "one float64 matrix": [(torch.float64, 6, 5)],
    "one bfloat16 matrix": [(torch.bfloat16, 6, 5)],
    "float64 beside a float32": [(torch.float64, 6, 5), (torch.float32, 5, 5)],
    "bfloat16 beside a float64 of two rows": [(torch.bfloat16, 5, 5), (torch.float64, 2, 5)],
    "all of them": [
        (torch.float32, 3, 4),
        (torch.bfloat16, 4, 3),
        (torch.float64, 1, 4),
        (torch.float64, 7, 1),
        (torch.float64, 2, 2),
        (torch.float16, 9, 4),
    ],
}


def layers_of(name: str) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.Linear(columns, rows, dtype=dtype) for dtype, rows, columns in LAYERS[name]
    )


def drive_layers(layers: nn.ModuleList, foreach: bool | None) -> None:
    """The same samples on every rank, so that the mean of the gradients is exact in any type."""
    optimizer = BADM(layers.parameters(), lr=0.01, foreach=foreach)
    for step in range(4):
        optimizer.zero_grad()
        for layer in layers:
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(3, layer.in_features, generator=generator).to(layer.weight.dtype)
            layer(x).square().sum().backward()
        optimizer.step()


def with_layers_of_several_types() -> dict[str, list[Tensor]]:
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    trained = {}
    for name in LAYERS:
        layers = layers_of(name)
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        drive_layers(layers, foreach=None)
        trained[name] = whole(layers)
    return trained


@pytest.mark.parametrize("ranks", [2, 3])
def test_matrices_of_any_type_are_shared_out_also_where_a_rank_gets_none(ranks: int) -> None:
    for trained in on_ranks(ranks, with_layers_of_several_types):
        for name, params in trained.items():
            alone = layers_of(name)
            drive_layers(alone, foreach=False)
            for found, expected in zip(params, alone.parameters(), strict=True):
                assert found.dtype == expected.dtype
                assert not torch.equal(found, torch.zeros_like(found))
                near = 8 * torch.finfo(found.dtype).eps
                torch.testing.assert_close(found, expected.detach(), rtol=near, atol=near)


def save_half_way(folder: str) -> None:
    for metric in METRICS:
        model = sharded_net((int(os.environ["WORLD_SIZE"]),))
        optimizer = BADM(model.parameters(), lr=0.01, metric=metric)
        train(model, optimizer, 0, STEPS // 2)
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{metric}")


def go_on(folder: str) -> dict[str, list[Tensor]]:
    trained = {}
    for metric in METRICS:
        model = sharded_net((int(os.environ["WORLD_SIZE"]),))
        optimizer = BADM(model.parameters(), lr=0.01, metric=metric)
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": state}
        # Partial, as with any optimizer that has no state of a parameter without use.
        partial = dcp.DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(saved, checkpoint_id=f"{folder}/{metric}", planner=partial)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )
        train(model, optimizer, STEPS // 2, STEPS)
        trained[metric] = whole(model)
    return trained


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(
    before: int, after: int, tmp_path: Path
) -> None:
    assert on_ranks(before, save_half_way, str(tmp_path)) == [None] * before
    for trained in on_ranks(after, go_on, str(tmp_path)):
        assert_equal_to_one_process(trained)

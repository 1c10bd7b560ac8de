"""What torch itself has around an optimizer."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel

from tests.clients.harness import (
    SAVED_AT,
    STEPS,
    Run,
    batch,
    loss,
    network,
    train_with_torch,
    weights,
)


def with_compile(run: Run) -> list[Tensor]:
    """The whole training step is one compiled function."""
    model = network()
    optimizer = run.make(model)

    @torch.compile(backend="aot_eager")
    def train_step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()

    saved = {"model": model, "optimizer": optimizer}
    return train_with_torch(run, model, lambda k: train_step(*batch(k, run)), saved)


def with_grad_scaler(run: Run) -> list[Tensor]:
    model = network()
    optimizer = run.make(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(k: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            error = loss(model, k, run)
        scaler.scale(error).backward()
        scaler.step(optimizer)
        scaler.update()

    saved = {"model": model, "optimizer": optimizer, "scaler": scaler}
    return train_with_torch(run, model, step, saved)


def with_averages(run: Run) -> list[Tensor]:
    model = network()
    optimizer = run.make(model)
    average = AveragedModel(model)
    schedule = SWALR(optimizer, swa_lr=0.005, anneal_epochs=4)

    def step(k: int) -> None:
        optimizer.zero_grad()
        loss(model, k, run).backward()
        optimizer.step()
        average.update_parameters(model)
        schedule.step()

    saved = {"model": model, "optimizer": optimizer, "average": average, "schedule": schedule}
    return train_with_torch(run, average.module, step, saved)


def with_zero(run: Run) -> list[Tensor]:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    kind, options = run.arguments
    optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.01, **options)

    def step(k: int) -> None:
        optimizer.zero_grad()
        loss(model, k, run).backward()
        optimizer.step()
        if k + 1 == SAVED_AT:
            optimizer.consolidate_state_dict(to=0)

    found = train_with_torch(run, model, step, {"model": model, "optimizer": optimizer})
    dist.destroy_process_group()
    return found


def with_dcp(run: Run) -> list[Tensor]:
    """FSDP2 with a checkpoint of torch.distributed, resumed on another number of ranks."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (run.ranks,))
    model = network()
    fully_shard(model, mesh=mesh)
    optimizer = run.make(model)
    folder = run.checkpoint.with_name("dcp")
    start = 0
    if folder.exists():
        model_state, state = get_state_dict(model, optimizer)
        loaded = {"model": model_state, "optimizer": state}
        dcp.load(loaded, checkpoint_id=folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )
        start = SAVED_AT
    for k in range(start, STEPS):
        optimizer.zero_grad()
        loss(model, k, run).backward()
        optimizer.step()
        if k + 1 == SAVED_AT:
            model_state, state = get_state_dict(model, optimizer)
            dcp.save({"model": model_state, "optimizer": state}, checkpoint_id=folder)
        run.after_step(k + 1)
    found = [w.full_tensor() for w in weights(model)]
    dist.destroy_process_group()
    return found

"""skorch, timm's factory, safetensors and DeepSpeed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from badm import BADM, state_from_tensors, state_to_tensors
from tests.clients.harness import (
    ADAMW,
    BATCH,
    SAVED_AT,
    STEPS,
    Run,
    loss,
    network,
    samples,
    train_with_torch,
    weights,
)


def with_skorch(run: Run) -> list[Tensor]:
    import skorch

    kind, options = run.arguments
    net = skorch.NeuralNetRegressor(
        network(),
        optimizer=kind,
        lr=0.01,
        batch_size=BATCH,
        iterator_train__shuffle=False,
        train_split=None,
        verbose=0,
        **{f"optimizer__{name}": value for name, value in options.items()},
    )
    net.initialize()
    parts = {"f_params": "params.pt", "f_optimizer": "optimizer.pt"}
    files = {key: str(run.checkpoint.with_name(name)) for key, name in parts.items()}
    start = 0
    if run.checkpoint.exists():
        net.load_params(**files)
        start = SAVED_AT
    x, y = samples()
    for k in range(start, STEPS):  # one batch each
        part = slice(k * BATCH, (k + 1) * BATCH)
        net.partial_fit(x[part].numpy(), y[part].numpy())
        if k + 1 == SAVED_AT:
            net.save_params(**files)
            run.checkpoint.touch()
        run.after_step(k + 1)
    return weights(net.module_)


def with_timm(run: Run) -> list[Tensor]:
    """timm's factory makes groups of its own: with and without decay."""
    from timm.optim import OptimInfo, create_optimizer_v2
    from timm.optim._optim_factory import default_registry

    model = network()
    name, options = "adamw", {}
    if run.optimizer != ADAMW:
        name, options = "badm", {"metric": run.optimizer}
        info = OptimInfo(name, BADM, "batch ADMM", has_betas=False, has_momentum=False)
        default_registry.register(info)
    optimizer = create_optimizer_v2(model, name, lr=0.01, weight_decay=0.1, **options)
    return _plain(run, model, optimizer)


def _plain(run: Run, model: torch.nn.Module, optimizer: Any) -> list[Tensor]:
    def step(k: int) -> None:
        optimizer.zero_grad()
        loss(model, k, run).backward()
        optimizer.step()

    return train_with_torch(run, model, step, {"model": model, "optimizer": optimizer})


def with_safetensors(run: Run) -> list[Tensor]:
    """Weights and all of the state in files that hold tensors and text alone."""
    import safetensors
    from safetensors.torch import load_file, save_file

    model = network()
    optimizer = run.make(model)
    file = run.checkpoint.with_suffix(".safetensors")
    weights_file, start = file.with_stem("weights"), 0
    if file.exists():
        model.load_state_dict(load_file(weights_file))
        with safetensors.safe_open(file, "pt") as opened:
            text = opened.metadata()
        optimizer.load_state_dict(state_from_tensors(load_file(file), text))
        start = SAVED_AT
    for k in range(start, STEPS):
        optimizer.zero_grad()
        loss(model, k, run).backward()
        optimizer.step()
        if k + 1 == SAVED_AT:
            save_file(model.state_dict(), weights_file)
            tensors, text = state_to_tensors(optimizer.state_dict())
            save_file(tensors, file, text)
        run.after_step(k + 1)
    return weights(model)


def with_deepspeed(run: Run) -> list[Tensor]:
    import deepspeed

    model = network()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=run.make(model),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    start = 0
    folder = str(run.checkpoint.with_name("deepspeed"))
    if run.checkpoint.exists():
        engine.load_checkpoint(folder)
        start = SAVED_AT
    for k in range(start, STEPS):
        engine.backward(loss(engine, k, run))
        engine.step()
        if k + 1 == SAVED_AT:
            engine.save_checkpoint(folder)
            run.checkpoint.touch()
        run.after_step(k + 1)
    return weights(engine.module)

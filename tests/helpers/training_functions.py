"""Training functions of milliseconds, right and wrong: a file for commands too.

``FUNCTION_GATE`` names a file whose presence ends the process of a run before its seventh step.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import badm.bench

STEPS = 12


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(120, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] + 0.5 * x[:, 1] > 0.2).long()
    return [(x[i::3], y[i::3]) for i in range(3)]


def accuracy(model: nn.Module, split: tuple[torch.Tensor, torch.Tensor]) -> float:
    x, y = split
    return (model(x).argmax(1) == y).double().mean().item()


def small() -> nn.Module:
    model = nn.Linear(2, 2)
    with torch.no_grad():  # on the wrong side, so that steps have to be long enough
        model.weight.add_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    return model


def step(model: nn.Module, optimizer: Any, split: tuple[torch.Tensor, torch.Tensor]) -> float:
    x, y = split
    picked = torch.randperm(len(x))[:10]
    loss = cross_entropy(model(x[picked]), y[picked])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


FACTS: dict[str, Any] = {"score": "accuracy", "percent": True, "budget": STEPS}


@badm.bench.training(**FACTS, target=0.7, name="side")
def side(trial: badm.bench.Trial) -> None:
    """Which side of a line a point is on."""
    train, validation, test = data()
    model = small()
    optimizer = trial.optimizer(model)
    scheduler = trial.scheduler(optimizer)
    trial.test(lambda: {"accuracy": accuracy(model, test)})
    print("begun with seed", trial.seed)
    for number in range(STEPS):  # of its own, whatever the budget is
        loss = step(model, optimizer, train)
        scheduler.step()
        if number % 2:
            trial.report(number, accuracy=accuracy(model, validation), train_loss=loss)


@badm.bench.training(**FACTS, name="resumes")
def resumes(trial: badm.bench.Trial) -> None:
    train, validation, test = data()
    model = small()
    optimizer = trial.optimizer(model)
    scheduler = trial.scheduler(optimizer)
    trial.test(lambda: {"accuracy": accuracy(model, test)})
    start = trial.checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    print("from", start)
    for number in range(start, trial.steps):
        gate = os.environ.get("FUNCTION_GATE")
        if gate and number == 6 and Path(gate).exists():
            Path(gate).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, train)
        scheduler.step()
        noise = 1e-9 * (random.random() + np.random.rand())  # noqa: NPY002
        trial.report(number, accuracy=accuracy(model, validation) + noise)


@badm.bench.training(**FACTS, name="two-players", keep="last")
def two_players(trial: badm.bench.Trial) -> None:
    train, validation, test = data()
    first, second = small(), small()
    optimizers = trial.optimizer(first), trial.optimizer(second)
    for number in range(trial.steps):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            step(model, optimizer, train)
        trial.report(number, accuracy=accuracy(first, validation))
    trial.test(accuracy=accuracy(second, test))


@badm.bench.training(**FACTS, name="no-test", test=False, notes=("Points in a plane.",))
def no_test(trial: badm.bench.Trial) -> None:
    train, validation, _ = data()
    model = small()
    optimizer = trial.optimizer(model)
    for number in range(trial.steps):
        step(model, optimizer, train)
        with trial.evaluation():
            now = accuracy(model, validation)
        trial.report(number, accuracy=now)


def wrong(name: str) -> Any:
    return badm.bench.training(**FACTS, name=name, test=False)


def loop(trial: badm.bench.Trial, steps: int | None = None, **reported: Any) -> None:
    train, *_ = data()
    model = small()
    optimizer = trial.optimizer(model)
    for number in range(steps or trial.steps):
        step(model, optimizer, train)
        if reported:
            trial.report(number, **reported)


@wrong("never-reports")
def never_reports(trial: badm.bench.Trial) -> None:
    loop(trial)


@wrong("reports-loss-alone")
def reports_loss_alone(trial: badm.bench.Trial) -> None:
    loop(trial, train_loss=0.5)


@wrong("other-score")
def other_score(trial: badm.bench.Trial) -> None:
    loop(trial, f1=0.5)


@wrong("word")
def word(trial: badm.bench.Trial) -> None:
    loop(trial, accuracy="high")


@wrong("nan")
def nan(trial: badm.bench.Trial) -> None:
    loop(trial, accuracy=float("nan"))


@wrong("raises")
def raises(trial: badm.bench.Trial) -> None:
    loop(trial, 3, accuracy=0.5)
    raise LookupError("no such thing")


@wrong("exits")
def exits(trial: badm.bench.Trial) -> None:
    raise SystemExit(0)


@wrong("own-optimizer")
def own_optimizer(trial: badm.bench.Trial) -> None:
    pass


@wrong("no-model")
def no_model(trial: badm.bench.Trial) -> None:
    trial.optimizer([nn.Parameter(torch.zeros(1))])  # type: ignore[arg-type]


@wrong("stops-early")
def stops_early(trial: badm.bench.Trial) -> None:
    loop(trial, 5, accuracy=0.5)


@badm.bench.training(**FACTS, name="forgets-test")
def forgets_test(trial: badm.bench.Trial) -> None:
    loop(trial, accuracy=0.5)


@badm.bench.training(**FACTS, name="bad-test")
def bad_test(trial: badm.bench.Trial) -> None:
    trial.test(lambda: {"f1": 0.5})
    loop(trial, accuracy=0.5)


@wrong("blows-up")
def blows_up(trial: badm.bench.Trial) -> None:
    train, *_ = data()
    model = small()
    optimizer = trial.optimizer(model)
    step(model, optimizer, train)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    trial.report(0, accuracy=0.5)

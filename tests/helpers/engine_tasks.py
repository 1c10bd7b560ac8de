"""Small tasks and a plain method to try the engine with. It is a task file too."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from badm.bench import Method, Player, Range, Score, Splits, Task
from badm.bench.engine.options import RunOptions
from badm.bench.engine.run import run
from badm.bench.method import (
    OptimizerLike,
    OptimizerTrainer,
    Setting,
    Trainer,
    TrainingSetup,
    optimizer_method,
    trainable_parameters,
)
from badm.bench.records.runs import Run, RunConfig, RunStore
from badm.bench.tasks.scores.image_grids import sample_grid


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


class Noisy(Task):
    """Randomness of all three kinds in the loss, BatchNorm, dropout, a sampled score, artifacts."""

    name = "noisy"
    description = "Three classes of noise"
    score = Score("accuracy", percent=True)
    batch_size = 16
    steps = 40
    evaluate_every = 4
    artifacts_at = (0.25, 1.0)

    def data(self) -> Splits:
        x, y = normal(150, 6), torch.arange(150) % 3
        x[:, 0] += y
        parts = [(x[i : i + 50], y[i : i + 50]) for i in (0, 50, 100)]
        return Splits(*parts, synthetic=True, notes=("noise",))

    def model(self, splits: Splits) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        x = x + 0.1 * torch.randn_like(x) + 0.1 * float(np.random.standard_normal())  # noqa: NPY002
        return (1 + 0.1 * random.random()) * cross_entropy(model(x), y)

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        x, y = split
        logits = model(x + 0.1 * torch.randn_like(x))
        accuracy = (logits.argmax(1) == y).double().mean().item()
        return {"accuracy": accuracy, "loss": cross_entropy(logits, y).item()}

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        drawn = torch.randn(3).tolist()
        return {"a picture": sample_grid(torch.zeros(3, 1, 4, 4)), "a text": f"blättert {drawn}"}


class Line(Task):
    """Linear regression in float64, without any randomness: 10 samples."""

    name = "line"
    score = Score("error", best="low")
    batch_size = 4
    steps = 6
    evaluate_every = 2
    normed = False

    def data(self) -> Splits:
        x = normal(10, 3, dtype=torch.float64)
        split = x, x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
        return Splits(split, split, split)

    def model(self, splits: Splits) -> nn.Module:
        layers = [nn.BatchNorm1d(3)] if self.normed else []
        return nn.Sequential(*layers, nn.Linear(3, 1)).double()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return mse_loss(model(batch[0]), batch[1], reduction=self.reduction)

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        return {"error": mse_loss(model(split[0]), split[1]).item()}


class Fine(Line):
    """The second stage of two: the weight of the first, frozen, and a bias of its own."""

    name = "fine"
    after = "line"

    def model(self, splits: Splits) -> nn.Module:
        model = super().model(splits)
        model[0].weight.requires_grad_(False)
        return model

    def load_pretrained(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        model[0].weight.copy_(weights["0.weight"])


class Gan(Task):
    """Two players who learn a normal distribution."""

    name = "gan"
    score = Score("distance", best="low")
    batch_size = 8
    steps = 6
    evaluate_every = 3
    keep = "last"

    def data(self) -> Splits:
        x = 2 + normal(40, 2)
        return Splits(x[:24], x[24:32], x[32:])

    def model(self, splits: Splits) -> nn.Module:
        return nn.ModuleDict(
            {
                "generator": nn.Linear(3, 2),
                "discriminator": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)),
            }
        )

    def players(self, model: nn.Module) -> list[Player]:
        return [
            Player("discriminator", model["discriminator"], self.tell_apart),
            Player("generator", model["generator"], self.loss),
        ]

    def tell_apart(self, model: nn.Module, real: Tensor) -> Tensor:
        with torch.no_grad():
            made = model["generator"](torch.randn(len(real), 3))
        logits = model["discriminator"](torch.cat([real, made]))
        truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        return binary_cross_entropy_with_logits(logits, truth)

    def loss(self, model: nn.Module, real: Tensor) -> Tensor:
        logits = model["discriminator"](model["generator"](torch.randn(len(real), 3)))
        return binary_cross_entropy_with_logits(logits, torch.ones_like(logits))

    def evaluate(self, model: nn.Module, split: Tensor) -> Mapping[str, float]:
        made = model["generator"](torch.randn(64, 3))
        return {"distance": (made.mean(0) - split.mean(0)).norm().item()}


class Graph(Task):
    """All nodes go through the model, which has the graph as buffers; splits are indices."""

    name = "graph"
    score = Score("accuracy")
    batch_size = 5
    steps = 8
    evaluate_every = 4

    def data(self) -> Splits:
        return Splits(torch.arange(12), torch.arange(12, 16), torch.arange(16, 20))

    def model(self, splits: Splits) -> nn.Module:
        class Nodes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("features", normal(20, 4))
                self.register_buffer("edges", (normal(20, 20, seed=1) > 1).float() + torch.eye(20))
                self.register_buffer("seen", torch.tensor(0))
                self.layer = nn.Linear(4, 2)

            def forward(self) -> Tensor:
                if self.training:
                    self.seen += 1
                logits: Tensor = self.layer(self.edges @ self.features)
                return logits

        return Nodes()

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(model()[batch], batch % 2)

    def evaluate(self, model: nn.Module, split: Tensor) -> Mapping[str, float]:
        return {"accuracy": (model()[split].argmax(1) == split % 2).float().mean().item()}


class Momentum:
    """Gradient steps with momentum 0.9; torch's own would import its compiler for seconds."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]
        self.buffers = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.param_groups
        for p, buffer in zip(group["params"], self.buffers, strict=True):
            if p.grad is not None:
                p.sub_(buffer.mul_(0.9).add_(p.grad), alpha=group["lr"])

    def state_dict(self) -> dict[str, Any]:
        return {"buffers": self.buffers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for buffer, saved in zip(self.buffers, state_dict["buffers"], strict=True):
            buffer.copy_(saved)


def _momentum(module: nn.Module, lr: float) -> OptimizerLike:
    return Momentum(trainable_parameters(module), lr)


MOMENTUM = optimizer_method(
    "momentum", "heavy ball", _momentum, defaults={"lr": 0.01}, space={"lr": Range(1e-3, 1.0)}
)


def variant(base: type[Task], **changed: Any) -> Task:
    """The task with other facts or methods."""
    return type(base.__name__, (base,), changed)()


def config_of(
    task: Task, method: Method = MOMENTUM, *, seed: int = 0, steps: int | None = None, **more: Any
) -> RunConfig:
    setting = method.setting(more.pop("setting", {}))
    steps = steps or task.steps
    more.setdefault("method_version", method.identity)
    return RunConfig(task.name, "1", task.scale, steps, method.name, setting, seed, **more)


def train(
    task: Task,
    folder: Path,
    method: Method = MOMENTUM,
    options: RunOptions | None = None,
    **config: Any,
) -> Run:
    """A run as the engine does it."""
    return run(config_of(task, method, **config), task, method, RunStore(folder), options)


def comparable(done: Run) -> dict[str, Any]:
    """All of a run that must be equal for equal runs: not its seconds, nor its memory."""
    assert done.result is not None
    points = [{**asdict(point), "seconds": None} for point in done.points]
    return {
        "config": done.config.to_dict(),
        "facts": done.facts,
        "points": points,
        "result": {**asdict(done.result), "seconds": None, "peak_bytes": None},
    }


class Sabotaged(OptimizerTrainer):
    """Plain momentum, but in step 3 something happens to the module."""

    def __init__(self, module: nn.Module, lr: float) -> None:
        super().__init__(Momentum(trainable_parameters(module), lr))
        self.module, self.steps = module, 0

    def step(self, work: Any) -> float:
        loss = super().step(work)
        self.steps += 1
        if self.steps == 3:
            self.happen()
        return loss

    def happen(self) -> None: ...


def method_of(trainer: type[Sabotaged], name: str = "sabotaged") -> Method:
    def build(problem: TrainingSetup, setting: Setting) -> Trainer:
        return trainer(problem.module, **setting)

    return Method(name, "", "peer", build, {"lr": 0.01}, {})


def recording(seen: list[Any], look: Any) -> Method:
    """Momentum that writes down what ``look(module, work)`` says after every step."""

    class Recording(Sabotaged):
        def step(self, work: Any) -> float:
            loss = super().step(work)
            seen.append(look(self.module, work))
            return loss

    return method_of(Recording, "recording")

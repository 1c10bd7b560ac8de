"""What the tests of the layer-wise methods share: small problems, work, and a resumed run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.method import Method, Trainer, TrainingSetup
from badm.bench.methods.perceptron import Perceptron, perceptron


def network(
    sizes: tuple[int, ...], activation: type[nn.Module] = nn.ReLU, seed: int = 0
) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1])


def samples(count: int, inputs: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Clouds around as many centres as there are classes, all classes in use."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count).remainder(classes)
    centres = 2 * torch.randn(classes, inputs, generator=generator)
    return centres[y] + torch.randn(count, inputs, generator=generator), y


def problem_of(
    sizes: tuple[int, ...],
    count: int,
    activation: type[nn.Module] = nn.ReLU,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    steps_per_epoch: int = 3,
) -> TrainingSetup:
    x, y = samples(count, sizes[0], sizes[-1], seed)
    module = network(sizes, activation, seed).to(dtype)
    return TrainingSetup(module, 30, steps_per_epoch, supervised=lambda: (x.to(dtype), y))


def mlp_of(*args: Any, activation: type[nn.Module] = nn.ReLU, **options: Any) -> Perceptron:
    """A small perceptron in float64."""
    problem = problem_of(*args, activation=activation, dtype=torch.float64, **options)
    return perceptron(problem, "a method", activation)


@dataclass
class Idle:
    """Work of which nothing is taken but the count."""

    lr_factor: float = 1.0
    gradients: float = 0.0

    def gradient(self) -> float:
        raise AssertionError("a layer-wise method takes no gradient")

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        raise AssertionError("a layer-wise method takes no gradients")

    def count_gradients(self, gradients: float) -> None:
        self.gradients += gradients


def train(trainer: Trainer, steps: int) -> list[float]:
    work = Idle()
    return [trainer.step(work) for _ in range(steps)]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def assert_resumes(method: Method, at: int, steps: int, **problem: Any) -> None:
    """A run that is cut in two by a file ends with the same bits and the same losses."""
    setting = method.setting({})
    whole = problem_of(**problem)
    losses = train(method.build(whole, setting), steps)

    first = problem_of(**problem)
    trainer = method.build(first, setting)
    train(trainer, at)
    saved = through_a_file({"model": first.module.state_dict(), "trainer": trainer.state_dict()})
    second = problem_of(**problem)
    torch.manual_seed(99)  # whatever is drawn when it is built must not matter
    resumed = method.build(second, setting)
    second.module.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["trainer"])
    assert train(resumed, steps - at) == losses[at:]
    for p, q in zip(second.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(p, q)

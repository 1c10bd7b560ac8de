"""A short trajectory of every method in float64: numbers that change when its arithmetic does.

So does one of the engine, which deals out the batches and seeds all draws. Run as a script it
writes them all down anew, but for what has changed and kept its version.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from badm.bench.method import Method, Trainer, TrainingSetup, package_versions, trainable_parameters
from badm.bench.methods import METHODS, find
from badm.bench.methods.replicas import MODES
from badm.bench.records.runs import ENGINE
from tests.helpers.engine_tasks import MOMENTUM, Line, train
from tests.helpers.layer_wise import Idle
from tests.helpers.ranks import on_ranks

TABLE = Path(__file__).with_name("fingerprints.json")
# Bases are chosen anew every ten steps.
STEPS = 13
LONG = 150  # so that a dual of which a tenth is forgotten in every step is gone
# Rounding of another processor is some 1e-13 after so few steps.
TOLERANCE = 1e-9


def drawn(count: int, *place: int) -> list[float]:
    """Numbers between -1 and 1 that are the same on every machine and under every version."""
    seed = 0
    for part in place:
        seed = (seed * 1_000_003 + part + 1) % 2**31
    numbers = []
    for _ in range(count):
        seed = (seed * 1_103_515_245 + 12_345) % 2**31
        numbers.append(seed / 2**30 - 1)
    return numbers


def tensor(shape: Sequence[int], *place: int) -> Tensor:
    values = drawn(math.prod(shape) + 7, *place)[7:]  # the first ones are near to each other's
    return torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))


class Layers(nn.Module):
    """A kernel, square matrices and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(2, 8, 2)
        self.words = nn.Embedding(5, 5)
        self.hidden = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(4, 4)
        filled(self.double())


class Wide(nn.Module):
    """Matrices that are wide and tall."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv1d(2, 5, 3)
        self.hidden = nn.Linear(7, 3)
        self.tall = nn.Linear(2, 6)
        self.head = nn.Linear(4, 3)
        filled(self.double())


class Dying(nn.Module):
    """Its gradients stop after a while, and the run goes on for long."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        filled(self.double())


class LongSides(nn.Module):
    """What the metrics of BADM treat apart: sides that are cut, sides that keep the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Linear(600, 3)
        self.identity = nn.Linear(10_001, 2, bias=False)
        self.words = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 4)
        filled(self.double())


def filled(module: nn.Module) -> None:
    with torch.no_grad():
        for number, p in enumerate(module.parameters()):
            p.copy_(tensor(p.shape, number))


@dataclass
class Pull:
    """Work with gradients that depend on the point and do not die out, two sub-batches of them."""

    module: nn.Module
    step: int
    lr_factor: float = 1.0
    loss_weight: float = 1.0
    rank: int = 0
    noise: float = 0.0  # relative, for those who want to know what rounding comes to

    def gradient(self) -> float:
        return self._pull(0) + self._pull(1, add=True)

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        for part in range(2):
            yield 0.5, self._pull(part)

    def count_gradients(self, gradients: float) -> None: ...

    def _pull(self, part: int, add: bool = False) -> float:
        loss = 0.0
        for number, p in enumerate(trainable_parameters(self.module)):
            draw = tensor(p.shape, self.step, part + 2 * self.rank, number)
            g = draw + 0.3 * torch.sin(p.detach())
            if isinstance(self.module, Dying) and self.step >= STEPS:
                g = torch.zeros_like(g)
            if isinstance(self.module, LongSides) and p is self.module.words.weight:
                g[0], g[1] = 0.0, (g[1] if self.step == 0 else 0.0)  # never reached, reached once
            if self.noise:
                g = g * (1 + self.noise * torch.randn_like(g))
            p.grad = p.grad + g if add and p.grad is not None else g
            loss += float((draw * p.detach() - 0.3 * torch.cos(p.detach())).sum())
        return loss


def of_weights(module: nn.Module) -> list[float]:
    """Two numbers for each parameter: its length, and which way it points."""
    numbers = []
    for number, p in enumerate(module.parameters()):
        w = p.detach()
        numbers += [float(w.norm()), float((w * tensor(p.shape, 99, number)).sum())]
    return numbers


def fingerprint(method: Method, setting: dict[str, Any], noise: float = 0.0) -> list[float]:
    """Losses on the way, and the weights at the end, as trained and as evaluated."""
    if method.family == "replicas":
        return _of_replicas()[method.name]
    if method.family == "layer-wise":
        problems = [perceptron(method)]
    else:
        # Gradients of square matrices have full rank. Which basis a part has that no gradient has
        # reached is up to the processor, but for the metrics of BADM.
        modules: list[type[nn.Module]] = [Layers]
        modules += [Wide, Dying] if method.name not in ("soap", "shampoo") else []
        modules += [LongSides] if method.family == "badm" else []
        problems = [TrainingSetup(kind(), LONG if kind is Dying else STEPS) for kind in modules]
    return [v for problem in problems for v in _values(method, setting, problem, noise=noise)]


def _values(
    method: Method,
    setting: dict[str, Any],
    problem: TrainingSetup,
    rank: int = 0,
    noise: float = 0.0,
) -> Iterator[float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for methods that draw their first weights
        trainer: Trainer = method.build(problem, dict(setting))
    for step in range(problem.steps):
        factor = 1 - step / (2 * problem.steps)
        work: Any = Pull(problem.module, step, factor, rank=rank, noise=noise)
        loss = trainer.step(Idle(factor) if method.family == "layer-wise" else work)
        if step % 4 == 0 and step < STEPS:
            yield loss
    yield from of_weights(problem.module)
    with trainer.evaluation_weights():
        yield from of_weights(problem.module)


REPLICAS = [f"sgd+{mode}" for mode in MODES]
ON_RANKS = {"ranks": 2, "every": 4, "warm_up": 0.3}


@cache
def _of_replicas() -> dict[str, list[float]]:
    """Of all ways to meet, on two ranks with gradients of their own; as the first one has it."""
    found: dict[str, list[float]]
    found, _ = on_ranks(2, _on_this_rank)
    return found


def _on_this_rank() -> dict[str, list[float]]:
    rank = torch.distributed.get_rank()
    found = {}
    for name in REPLICAS:
        method = find(name)
        given = {option: value for option, value in ON_RANKS.items() if option in method.defaults}
        setting = method.setting(given)
        found[name] = list(_values(method, setting, TrainingSetup(Layers(), STEPS), rank))
    return found


class Drawn(Line):
    """Linear regression with draws of all three kinds in its loss."""

    steps = 20
    sub_batch_size = 2
    gradients = "sub-batches"

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        x = x + 0.1 * torch.randn(x.shape, dtype=x.dtype)
        factor = 1 + 0.1 * random.random() + 0.1 * float(np.random.standard_normal())  # noqa: NPY002
        return super().loss(model, (factor * x, y))


def engine() -> list[float]:
    """Of a run: seeds, batches, their sub-batches and the schedule all have a part in it."""
    with TemporaryDirectory() as folder:
        done = train(Drawn(), Path(folder), MOMENTUM, seed=3, schedule="cosine")
    assert done.result is not None
    assert done.result.test is not None
    losses = [loss for point in done.points for loss in (point.losses or {}).values()]
    return [*losses, *done.validation_curve("error")[1], done.result.test["error"]]


def perceptron(method: Method) -> TrainingSetup:
    """Two classes, and a network of the kind that a layer-wise method trains."""
    activation = nn.Sigmoid if method.name == "sigmoid-admm" else nn.ReLU
    module = nn.Sequential(nn.Linear(3, 5), activation(), nn.Linear(5, 4), activation())
    module.append(nn.Linear(4, 2)).double()
    filled(module)
    x, y = tensor((12, 3), 7), torch.arange(12) % 2
    x[:, 0] += y
    return TrainingSetup(module, STEPS, 2, supervised=lambda: (x, y))


@dataclass(frozen=True)
class Known:
    """What the table says of a method, or of the engine."""

    version: str
    package: str  # of others that has a part in it, with its version
    values: list[float]
    setting: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)


def known() -> dict[str, Known]:
    return {name: Known(**fields) for name, fields in json.loads(TABLE.read_text()).items()}


def names() -> list[str]:
    return ["engine", *METHODS, *REPLICAS]


def now(name: str, setting: dict[str, Any] | None = None) -> Known:
    """What the table should say; with a setting that it has, if one is given."""
    if name == "engine":
        return Known(
            str(ENGINE), f"torch {package_versions()['torch'].partition('+')[0]}", engine()
        )
    method = find(name)
    defaults = method.setting({})
    return Known(
        str(method.version),
        method.identity.partition(", ")[2],
        fingerprint(method, setting or defaults),
        defaults,
        {part: asdict(where) for part, where in method.space.items()},  # type: ignore[call-overload]
    )


def near(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(
        math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=TOLERANCE) for x, y in zip(a, b, strict=True)
    )


def unversioned(current: Known, before: Known) -> bool:
    """Whether something else is done under a version that was there before."""
    same = (current.version, current.package) == (before.version, before.package)
    return same and not near(current.values, before.values)


def main() -> None:
    torch.set_num_threads(1)
    before = known() if TABLE.exists() else {}
    for name in names():
        if name in before and unversioned(now(name, before[name].setting), before[name]):
            sys.exit(f"{name} has changed: raise its version first")
    rows = []
    for name in names():
        current = asdict(now(name))
        current["values"] = [float(f"{value:.12g}") for value in current["values"]]
        rows.append(f"{json.dumps(name)}: {json.dumps(current)}")
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()

"""What a method is: a way to train, its settings and the space they are searched in.

A :class:`Method` builds a :class:`Trainer` for a :class:`Problem`, that is for a module to train.
In every step the engine hands the trainer a piece of :class:`Work`, from which it takes what it
needs: the gradient of the batch, those of its sub-batches, or nothing, if it is a layer-wise method
that works on the whole training set. Most methods are optimizers, and ``optimizer_method`` makes
one of anything that behaves like a ``torch.optim.Optimizer``:

>>> import torch
>>> sgd = optimizer_method(
...     "sgd",
...     "plain gradient steps",
...     lambda module, lr: torch.optim.SGD(module.parameters(), lr=lr),
...     defaults={"lr": 0.01},
...     space={"lr": Range(3e-3, 3.0)},
... )
>>> sgd.setting({"lr": 0.1})
{'lr': 0.1}
>>> sgd.setting({"momentum": 0.9})
Traceback (most recent call last):
ValueError: sgd takes lr, got momentum
>>> sgd.setting({"lr": float("nan")})
Traceback (most recent call last):
ValueError: lr of sgd must be a finite number of at least 0, got nan
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from reprlib import repr as short
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

import badm
from badm.bench.paper import Paper

Setting = dict[str, Any]  # of numbers, strings and booleans: it is written to files as it is
Family = Literal["badm", "keras", "torch", "peer", "layer-wise", "replicas"]


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, searched on a logarithmic scale unless told otherwise.

    ``per_gradient`` says that they multiply the gradient as it is, as the learning rate of SGD
    does and that of Adam does not: where a loss is a sum, they are searched as much lower.
    """

    low: float
    high: float
    log: bool = True
    per_gradient: bool = False


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]


Space = Mapping[str, Range | Choice]

LEARNING_RATE = Range(0.0, math.inf)  # what a learning rate may be, wherever it is searched


class CannotTrain(Exception):
    """A method cannot train this model at all; the message says why in one sentence."""


@dataclass(frozen=True)
class TrainingSetup:
    """What a method is given to train.

    ``supervised`` gives inputs and labels of the whole training set where the task has them; it
    is for methods that do not work by batches. ``calibrate`` passes some training batches through
    the module, in training mode and without gradients; it is for methods that are judged by other
    weights than those they train, for which BatchNorm has seen nothing yet. ``weight`` is that of
    this rank among those that share the run: how many samples it has.
    """

    module: nn.Module
    steps: int
    steps_per_epoch: int = 1  # batches that make up the training set
    supervised: Callable[[], tuple[Tensor, Tensor] | None] = lambda: None
    calibrate: Callable[[], None] = lambda: None
    weight: float = 1.0


class StepBatch(Protocol):
    """One step's batch. Every gradient that is taken of it is counted."""

    lr_factor: float  # what the schedule multiplies the learning rate with at this step
    loss_weight: (
        float  # what the mean loss of this rank counts for among the ranks; 1 if it is alone
    )

    def gradient(self) -> float:
        """Put the gradient of the batch into ``.grad`` of the module's parameters; the loss."""

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        """For each sub-batch put its gradient into ``.grad``; its weight α_s and its loss."""

    def count_gradients(self, gradients: float) -> None:
        """Say that work worth so many gradients of a batch was done in some other way."""


class Trainer(Protocol):
    """A method at work on one module."""

    def step(self, batch: StepBatch) -> float:
        """Train on the batch; the training loss, before the step."""

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """A context in which the module has the weights to be judged; afterwards all is as before.

        For most methods these are the weights it has anyway.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs beside the module: tensors, numbers, strings in dicts and lists."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Method:
    """A way to train, with its settings.

    ``defaults`` names every setting there is. ``space`` says which of them are searched, and where;
    for fairness every range of a learning rate spans three decades. ``paper`` turns what the paper
    states of a task into a setting; without it the learning rate is taken over if one is stated.
    ``limits`` says what a setting may be at all, beside being of the type of its default: numbers
    are finite and whole ones at least 1 in any case.
    """

    name: str
    description: str
    family: Family
    build: Callable[[TrainingSetup, Setting], Trainer]
    defaults: Mapping[str, Any]
    space: Space
    paper: Callable[[Paper], Setting] | None = None
    limits: Space = field(default_factory=dict)
    # To be changed by whatever changes the results: old runs are then not reused.
    version: int | str = 1
    package: str = ""  # of others, whose code does the steps: its version counts as well

    @property
    def identity(self) -> str:
        """The version, and that of the package: what tells runs with this code from others.

        >>> from badm.bench.methods import find
        >>> find("adam").identity
        '1'
        >>> find("soap").identity  # doctest: +SKIP
        '1, pytorch_optimizer 4.1.0'
        """
        if not self.package:
            return str(self.version)
        # What follows a plus says how a package was built, for example for which GPU.
        installed = package_versions().get(self.package, "missing").partition("+")[0]
        return f"{self.version}, {self.package} {installed}"

    def ranks(self, setting: Setting) -> int:
        """How many processes a run takes."""
        return int(setting["ranks"]) if self.family == "replicas" else 1

    def setting(self, given: Mapping[str, Any]) -> Setting:
        """``given`` completed with the defaults; ``ValueError`` names what cannot be used."""
        limits = {"lr": LEARNING_RATE, **self.limits}
        for name, value in given.items():
            if name not in self.defaults:
                takes = ", ".join(self.defaults) or "no settings"
                raise ValueError(f"{self.name} takes {takes}, got {name}")
            wanted = _misfit(value, self.defaults[name], limits.get(name))
            if wanted:
                raise ValueError(f"{name} of {self.name} must be {wanted}, got {short(value)}")
        return {**self.defaults, **given}

    def paper_setting(self, paper: Paper | None) -> Setting:
        """The setting of the paper, or the defaults where it states none."""
        if paper is None:
            return self.setting({})
        if self.paper is not None:
            return self.setting(self.paper(paper))
        return self.setting({} if paper.lr is None else {"lr": paper.lr})


def _misfit(value: Any, default: Any, limits: Range | Choice | None) -> str:
    """What a setting should have been, in words; nothing if the value will do.

    >>> _misfit(1.5, 4, Range(1, 64)), _misfit(3, 4, Range(1, 64)), _misfit(1e-3, 0.1, None)
    ('a whole number from 1 to 64', '', '')
    """
    if isinstance(limits, Choice):
        return "" if value in limits.values else f"one of {', '.join(map(str, limits.values))}"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if not isinstance(default, (int, float)):
        return "" if isinstance(value, type(default)) else "a text"
    whole = isinstance(default, int)
    low, high = (limits.low, limits.high) if limits else (1 if whole else -math.inf, math.inf)
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    # NaN is in no range, and a whole number that no float can hold is not in this one.
    if number and max(low, -sys.float_info.max) <= value <= min(high, sys.float_info.max):
        return ""
    kind = "a whole number" if whole else "a finite number"
    if high < math.inf:
        return f"{kind} from {low:g} to {high:g}"
    return f"{kind} of at least {low:g}" if low > -math.inf else kind


class OptimizerLike(Protocol):
    """What of ``torch.optim.Optimizer`` is needed here."""

    param_groups: list[dict[str, Any]]

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass
class OptimizerTrainer:
    """A trainer out of an optimizer: take the gradient, set the learning rate, step."""

    optimizer: OptimizerLike
    base_lrs: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, batch: StepBatch) -> float:
        loss = batch.gradient()
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * batch.lr_factor
        self.optimizer.step()
        return loss

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def optimizer_method(
    name: str,
    description: str,
    make: Callable[..., OptimizerLike],
    *,
    defaults: Mapping[str, Any],
    space: Space,
    family: Family = "peer",
    paper: Callable[[Paper], Setting] | None = None,
    version: int | str = 1,
    package: str = "",
) -> Method:
    """The method of an optimizer that ``make(module, **setting)`` gives."""

    def build(problem: TrainingSetup, setting: Setting) -> Trainer:
        return OptimizerTrainer(make(problem.module, **setting))

    return Method(
        name, description, family, build, defaults, space, paper, version=version, package=package
    )


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module that want a gradient."""
    return [p for p in module.parameters() if p.requires_grad]


PACKAGES = ("numpy", "scipy", "scikit-learn", "optuna", "pytorch_optimizer", "schedulefree")


@cache
def package_versions() -> dict[str, str]:
    found = {"badm": badm.__version__, "torch": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

"""What a method is: a way to train, its settings and the space they are searched in.

A :class:`Method` builds a :class:`Trainer` for a :class:`TrainingSetup`: a module to train and for
how many steps. At every step the engine passes the trainer a :class:`StepBatch`, which computes
what the trainer asks for: the gradient of the batch, those of its sub-batches, or nothing, if the
method trains layer by layer on the whole training set. Most methods are optimizers, and
``optimizer_method`` makes one from anything that behaves like a ``torch.optim.Optimizer``:

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
from typing import TYPE_CHECKING, Any, Literal, Protocol

import badm
from badm.bench.errors import MethodError
from badm.bench.names import suggestion
from badm.bench.paper import Paper

if TYPE_CHECKING:  # the commands import this file, and `badm --help` is not to wait for torch
    from torch import Tensor, nn

Setting = dict[str, Any]  # numbers, strings and booleans by name, saved as JSON
Family = Literal["badm", "keras", "torch", "peer", "layer-wise", "replicas"]


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Whether to search on a logarithmic scale, as learning rates should be.
        per_gradient: Whether the value scales the raw gradient, as SGD's learning rate does and
            Adam's does not; where a loss is a sum, the range is divided by its number of terms.
        complement: Whether it is the distance to 1 that is searched on a logarithmic scale, as for
            a memory, of which 1/(1 − β) is the length in steps.
    """

    low: float
    high: float
    log: bool = True
    per_gradient: bool = False
    complement: bool = field(default=False, kw_only=True, repr=False)


@dataclass(frozen=True)
class Choice:
    """One of a few values, each of which is tried.

    >>> Choice((True, False)).values
    (True, False)
    """

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Anything:
    """A setting that only its optimizer can check."""


ANYTHING = Anything()
Space = Mapping[str, Range | Choice]

LEARNING_RATE = Range(0.0, math.inf)  # valid learning rates, whichever are searched


class CannotTrain(Exception):
    """Raised by a method that cannot train a model; the message says why in one sentence."""


@dataclass(frozen=True)
class TrainingSetup:
    """What a method is given to train.

    Attributes:
        module: The module whose parameters are trained.
        steps: Length of the run, for methods whose settings depend on it.
        steps_per_epoch: Number of batches in the training set.
        supervised: Returns inputs and labels of the whole training set, or ``None`` if the task has
            none; for methods that do not train on batches.
        calibrate: Passes some training batches through the module, in training mode and without
            gradients; for methods that evaluate other weights than they train, for which BatchNorm
            has no statistics yet.
        weight: Weight of this rank among those that share the run: its number of samples.
    """

    module: nn.Module
    steps: int
    steps_per_epoch: int = 1
    supervised: Callable[[], tuple[Tensor, Tensor] | None] = lambda: None
    calibrate: Callable[[], None] = lambda: None
    weight: float = 1.0


class StepBatch(Protocol):
    """The batch of one step. Every gradient that is computed on it is counted.

    Attributes:
        lr_factor: What the schedule multiplies the learning rate by at this step.
        loss_weight: Weight of this rank's mean loss among the ranks; 1 in a single process.
    """

    lr_factor: float
    loss_weight: float

    def gradient(self) -> float:
        """Compute the gradient of the batch into the parameters' ``.grad``; return the loss."""

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        """Compute the gradient of each sub-batch into ``.grad``; yield its weight α_s and loss."""

    def count_gradients(self, gradients: float) -> None:
        """Add to the count work that costs as much as ``gradients`` gradients of a batch."""


class Trainer(Protocol):
    """What trains one module, step by step."""

    def step(self, batch: StepBatch) -> float:
        """Train on the batch and return the training loss before the step."""

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """Swap in the weights to evaluate, and swap back when the context ends.

        For most methods these are the weights that are trained, and nothing is swapped.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs beside the module: tensors, numbers, strings, dicts, lists."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Method:
    """A way to train: an optimizer or another algorithm, with its settings.

    Attributes:
        name: What people type, unique among the methods.
        description: What ``badm list methods`` and reports show beside the name.
        family: Group of methods it is listed with.
        build: Called as ``build(setup, setting)``; returns the trainer of one module.
        defaults: Every setting with its default value.
        space: Which settings are searched, and where; learning rates span three decades each.
        paper: Maps what the paper states for a task to settings; by default takes its ``lr``.
        limits: Valid values of settings, beside the type of the default; integers are at least 1.
        version: Change it with anything that changes results, so that old runs are not reused.
        package: Installed package whose code does the steps; its version counts as well.
        wide_space: What ``--search wide`` searches. Default: the space, and the memory, ``beta2``
            and ``weight_decay`` where the method has them, in the ranges that all methods share.
        fixed: Settings stated in brackets, as in ``badm[beta=0.95]``, which no search changes.
        source: What other processes find the method by, if that is not its name.
    """

    name: str
    description: str
    family: Family
    build: Callable[[TrainingSetup, Setting], Trainer]
    defaults: Mapping[str, Any]
    space: Space
    paper: Callable[[Paper], Setting] | None = None
    limits: Mapping[str, Range | Choice | Anything] = field(default_factory=dict)
    version: int | str = 1
    package: str = ""
    wide_space: Space | None = None
    fixed: frozenset[str] = frozenset()
    source: str = ""

    @property
    def identity(self) -> str:
        """The version and that of the package, which are part of the key of a run.

        >>> from badm.bench.methods import find
        >>> find("adam").identity
        '1'
        >>> find("soap").identity  # doctest: +SKIP
        '1, pytorch_optimizer 4.1.0'
        """
        if not self.package:
            return str(self.version)
        # A local version, after a plus, says how a package was built, for example for which GPU.
        installed = package_versions().get(self.package, "missing").partition("+")[0]
        return f"{self.version}, {self.package} {installed}"

    @property
    def found_by(self) -> str:
        """What any process finds the method by."""
        return self.source or self.name

    def confirm(self, version: str) -> None:
        """Raise ``MethodError`` if the code of a method changed since a run was planned."""
        if self.source and self.identity != version:
            raise MethodError(f"{self.source} was changed while it was being compared")

    def ranks(self, setting: Setting) -> int:
        """Number of processes of a run."""
        return int(setting["ranks"]) if self.family == "replicas" else 1

    def setting(self, given: Mapping[str, Any]) -> Setting:
        """Complete ``given`` with the defaults; ``ValueError`` names what is not valid."""
        limits = {"lr": LEARNING_RATE, **self.limits}
        for name, value in given.items():
            if name not in self.defaults:
                takes = ", ".join(self.defaults) or "no settings"
                near = suggestion(name, self.defaults)
                meant = f"; {near.strip()}" if near else ""
                raise ValueError(f"{self.name} takes {takes}, got {name}{meant}")
            wanted = _misfit(value, self.defaults[name], limits.get(name))
            if wanted:
                raise ValueError(f"{name} of {self.name} must be {wanted}, got {short(value)}")
        return {**self.defaults, **given}

    def paper_setting(self, paper: Paper | None) -> Setting:
        """Return the settings the paper states for a task, or the defaults if it states none."""
        if paper is None:
            return self.setting({})
        if self.paper is not None:
            return self.setting(self.paper(paper))
        return self.setting({} if paper.lr is None else {"lr": paper.lr})


def _misfit(value: Any, default: Any, limits: Range | Choice | Anything | None) -> str:
    """Say what a value of a setting must be, or ``""`` if it is valid.

    >>> _misfit(1.5, 4, Range(1, 64)), _misfit(3, 4, Range(1, 64)), _misfit(1e-3, 0.1, None)
    ('a whole number from 1 to 64', '', '')
    """
    if isinstance(limits, Anything):
        return ""
    if isinstance(limits, Choice):
        return "" if value in limits.values else f"one of {', '.join(map(str, limits.values))}"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if not isinstance(default, (int, float)):
        return "" if isinstance(value, type(default)) else "a string"
    whole = isinstance(default, int)
    low, high = (limits.low, limits.high) if limits else (1 if whole else -math.inf, math.inf)
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    # NaN compares false with both ends; an integer too large for a float is refused.
    if number and max(low, -sys.float_info.max) <= value <= min(high, sys.float_info.max):
        return ""
    kind = "a whole number" if whole else "a finite number"
    if high < math.inf:
        return f"{kind} from {low:g} to {high:g}"
    return f"{kind} of at least {low:g}" if low > -math.inf else kind


class OptimizerLike(Protocol):
    """The part of ``torch.optim.Optimizer`` that a trainer uses."""

    param_groups: list[dict[str, Any]]

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass
class OptimizerTrainer:
    """Train with an optimizer: compute the gradient, set the learning rate, step."""

    optimizer: OptimizerLike
    base_lrs: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, batch: StepBatch) -> float:
        loss = batch.gradient()
        self.set_rates(batch.lr_factor)
        self.optimizer.step()
        return loss

    def set_rates(self, factor: float) -> None:
        """Set every learning rate to ``factor`` times what it was at first."""
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor

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
    """Make a method of the optimizer that ``make(module, **setting)`` returns."""

    def build(setup: TrainingSetup, setting: Setting) -> Trainer:
        return OptimizerTrainer(make(setup.module, **setting))

    return Method(
        name, description, family, build, defaults, space, paper, version=version, package=package
    )


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module that require gradients."""
    return [p for p in module.parameters() if p.requires_grad]


PACKAGES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "optuna",
    "pytorch_optimizer",
    "schedulefree",
    "heavyball",
)


@cache
def package_versions() -> dict[str, str]:
    """Return the installed versions of badm, torch and the packages that methods use."""
    import torch

    found = {"badm": badm.__version__, "torch": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

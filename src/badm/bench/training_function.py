"""What a training function is: an existing training script, compared with a few added lines.

A function that trains a model is marked with what its results mean, and is given a trial, which
makes the optimizer that is under test::

    import badm.bench

    @badm.bench.training(score="accuracy", percent=True, budget=600, target=0.95)
    def train(trial):
        model, loader = Net(), ...
        optimizer = trial.optimizer(model)
        scheduler = trial.scheduler(optimizer)
        trial.test(lambda: {"accuracy": accuracy(model, test_set)})
        for step, (x, y) in enumerate(loader):
            ...
            trial.report(step, accuracy=accuracy(model, validation_set))

``badm compare train.py`` runs it for every method, setting and seed. Torch, numpy and ``random``
have been seeded, so that every method starts from the same weights and sees the same data. A
:class:`badm.bench.Task` does more: it resumes exactly by itself, reads the test split with the best
weights of every kind of method and trains with methods that are no optimizers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Literal, Protocol

from badm.bench.task import MOST, NAME, RESERVED, Scale, Score, Task

if TYPE_CHECKING:  # the commands import this file, and `badm --help` is not to wait for torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

    from badm.bench.paper import Paper


class Trial(Protocol):
    """What a training function is given: one method with one setting and one seed.

    In a loop it is used so::

        optimizer = trial.optimizer(model)
        scheduler = trial.scheduler(optimizer)
        trial.test(lambda: {"accuracy": accuracy(model, test_set)})
        for step in range(trial.steps):
            ...
            trial.report(step, accuracy=accuracy(model, validation_set))

    Attributes:
        seed: Seed of the run; the generators of torch, numpy and ``random`` have been seeded.
        steps: Steps of the optimizer that the run may take: the budget, or a part of it.
        device: Where to train: ``"cpu"``, ``"cuda"`` or ``"mps"``.
        scale: What ``--scale`` says: ``"smoke"``, ``"cpu"`` or ``"paper"``.
        method: Name of the method.
        setting: Its hyperparameters, by name.
    """

    seed: int
    steps: int
    device: str
    scale: Scale
    method: str
    setting: Mapping[str, Any]

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the optimizer of a model: the method under test, its setting, its groups.

        Of a model with two players, such as a GAN, each can have one of its own.
        """

    def scheduler(self, optimizer: Optimizer) -> LambdaLR:
        """Make the schedule of the comparison, to be stepped after every step of the optimizer."""

    def report(self, step: int, **metrics: Any) -> None:
        """Report metrics of the validation split, the score among them.

        The run counts the steps of the optimizer, so that ``step`` may be the script's own count,
        of epochs for example. ``train_loss`` is shown as the training loss; a score or a loss
        that is no finite number ends the run as diverged. After the last step that the run may
        take, the first report ends it.
        """

    def test(self, measure: Callable[[], Mapping[str, Any]] | None = None, **metrics: Any) -> None:
        """Say how to measure the test split, or what was measured on it.

        Args:
            measure: Called once at the end of a final run and in no other, with the weights of
                the best report; returns metrics by name. To be given before the training loop.
            **metrics: Instead of a function, numbers of the last weights.
        """

    def checkpoint(self, **objects: Any) -> int:
        """Let a run that was killed go on; without this it starts again.

        To be called once, before the training loop, with the model, the optimizer and whatever
        else has ``state_dict`` and ``load_state_dict``. They are saved now and then with a report
        and restored by this call, the random generators too.

        Returns:
            The steps that were taken before, to go on from: 0 at the beginning.
        """

    def trainer_callback(self) -> Any:
        """Make a callback of Hugging Face's ``Trainer`` that reports its evaluations."""

    def lightning_callback(self) -> Any:
        """Make a callback of Lightning that reports what the module logs as ``val_...``."""

    def evaluation(self) -> AbstractContextManager[None]:
        """A context with the weights that a method evaluates, if it trains others.

        Of the built-in methods only ``schedule-free`` needs it, and does not run without.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingFunction:
    """A function that trains, and what its results mean; made by :func:`training`.

    The attributes are those of a :class:`badm.bench.Task`, which a comparison can have beside it.
    """

    function: Callable[[Trial], Any]
    name: str
    description: str
    score: Score
    steps: int
    target: float | None = None
    epoch: int = 0
    test: bool = True
    keep: Literal["best", "last"] = "best"
    notes: tuple[str, ...] = ()
    data_files: Sequence[str | Path] = ()
    scale: Scale = "cpu"
    # What a task may state and a function does not.
    batch_size: int = field(default=0, init=False)
    evaluate_every: int = field(default=0, init=False)
    terms: int = field(default=1, init=False)
    after: str | None = field(default=None, init=False)
    paper: Paper | None = field(default=None, init=False)
    dataset_name: str = field(default="", init=False)

    @property
    def file(self) -> str:
        """The file of the function."""
        return self.function.__code__.co_filename

    @property
    def __wrapped__(self) -> Callable[[Trial], Any]:
        return self.function

    def __call__(self, trial: Trial) -> Any:
        return self.function(trial)


def training(
    *,
    score: str,
    budget: int,
    best: Literal["high", "low"] = "high",
    percent: bool = False,
    target: float | None = None,
    epoch: int = 0,
    test: bool = True,
    keep: Literal["best", "last"] = "best",
    name: str = "",
    notes: Sequence[str] = (),
    data_files: Sequence[str | Path] = (),
) -> Callable[[Callable[[Trial], Any]], TrainingFunction]:
    """Mark a function as one that trains, for ``badm compare`` to find it in its file.

    Args:
        score: The metric, as ``trial.report`` names it, by which runs are compared.
        budget: Steps of the optimizer in a run, unless ``--steps`` gives another number.
        best: Whether high or low scores are good.
        percent: Whether scores are fractions to be shown as percentages.
        target: Validation score that "steps to target" counts to. Default: not counted.
        epoch: Steps of the optimizer in an epoch, for ``--epochs``. Default: not known.
        test: Whether the function says with ``trial.test`` how to measure a test split. Without
            one the validation score takes its place, and the report says so.
        keep: Which weights are measured on the test split: of the best report, or the last.
        name: Lower-case letters, digits and ``- . _``; runs are kept in a folder of this name.
            Default: that of the file.
        notes: Sentences about the data that readers of the results should know.
        data_files: Files and folders that the function reads; runs are redone if they change.

    Example:
        >>> @training(score="accuracy", percent=True, budget=600, name="net")
        ... def train(trial):
        ...     '''A network of two layers.'''
        >>> train.name, train.description, train.steps
        ('net', 'A network of two layers.', 600)
    """
    facts = {"best": best in ("high", "low"), "keep": keep in ("best", "last")}
    allowed = {"best": "'high' or 'low'", "keep": "'best' or 'last'"}
    for fact, right in facts.items():
        _require(fact, right, allowed[fact], best if fact == "best" else keep)
    named = isinstance(score, str) and score.isidentifier()
    _require("score", named, "the name of a metric that trial.report is given", score)
    whole = isinstance(budget, int) and not isinstance(budget, bool)
    wanted = f"a whole number of steps from 1 to {MOST:,}"
    _require("budget", whole and 1 <= budget <= MOST, wanted, budget)
    whole = isinstance(epoch, int) and not isinstance(epoch, bool)
    _require("epoch", whole and 0 <= epoch <= MOST, "a whole number of steps", epoch)

    def mark(function: Callable[[Trial], Any]) -> TrainingFunction:
        code = getattr(function, "__code__", None)
        _require("the training function", code is not None, "a function", function)
        given = name or _name(function)
        right = re.fullmatch(NAME, given) is not None and given not in RESERVED
        _require("name", right, "lower-case letters, digits and - . _", given)
        lines = (function.__doc__ or "").strip().splitlines()
        return TrainingFunction(
            function=function,
            name=given,
            description=lines[0] if lines else "",
            score=Score(score, best, percent),
            steps=budget,
            target=target,
            epoch=epoch,
            test=test,
            keep=keep,
            notes=tuple(notes),
            data_files=data_files,
        )

    return mark


Runnable = Task | TrainingFunction  # what a comparison is on


def _name(function: Callable[[Trial], Any]) -> str:
    """The name of the file, with that of the function if it is not ``train``."""
    stem, own = Path(function.__code__.co_filename).stem, function.__name__
    both = stem if own in ("train", stem) else f"{stem}-{own}"
    return re.sub(r"[^a-z0-9._-]+", "-", both.lower()).strip("-._") or "train"


def _require(what: str, right: bool, wanted: str, got: object) -> None:
    if not right:
        raise ValueError(f"{what} must be {wanted}, got {short(got)}")

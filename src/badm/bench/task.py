"""What a task is: data, a model, a loss and a score. This file is the guide to adding one.

A task of your own is a class with six facts and four methods, in a file that ``badm compare`` is
given by its path::

    import torch
    from sklearn.datasets import make_moons
    from torch import nn
    from torch.nn.functional import cross_entropy

    from badm.bench import Score, Splits, Task


    class Moons(Task):
        name = "moons"
        description = "Two half circles, a small network"
        score = Score("accuracy", percent=True)
        batch_size = 32
        steps = 300
        evaluate_every = 20

        def data(self):
            x, y = make_moons(600, noise=0.2, random_state=0)
            x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
            return Splits(
                train=(x[:400], y[:400]),
                validation=(x[400:500], y[400:500]),
                test=(x[500:], y[500:]),
            )

        def model(self, splits):
            return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

        def loss(self, model, batch):
            x, y = batch
            return cross_entropy(model(x), y)

        def evaluate(self, model, split):
            x, y = split
            logits = model(x)
            accuracy = (logits.argmax(1) == y).float().mean().item()
            return {"accuracy": accuracy, "loss": cross_entropy(logits, y).item()}

The engine does the rest. It seeds torch, numpy and ``random`` before every call of yours, so that
equal seeds give equal initialisation, batches, dropout and samples to every method, and a run that
was killed goes on as if nothing had happened. Draw random numbers from those three and from nowhere
else, and keep whatever changes in the course of training in the model, as parameters or buffers.

What is not a classifier of independent samples has its place too:

- **Two players** (a GAN): put both networks into one module and override :meth:`Task.players`. In
  every step each player in turn takes a step on its own loss, with a trainer of its own.
- **A graph whose forward pass covers all nodes**: a split holds the indices of its nodes; the
  model keeps the graph as buffers and ``loss`` picks the rows of the batch.
- **Samples that have to be merged** (molecules, texts): a split is whatever you like; override
  :meth:`Task.samples` and :meth:`Task.batch`, and :meth:`Task.split_batch` if there are
  sub-batches.
- **Two stages** (pre-training, fine-tuning): two tasks, the second with ``after = "first"`` and
  :meth:`Task.load_pretrained`. The engine runs the first with the same method and seed and
  hands over its weights. A stage with frozen layers is one more task; parameters with
  ``requires_grad=False`` are left alone.
- **A score that is sampled** (KID, IoU): sample in ``evaluate``; every method gets the same draw.
- **Sub-batches**: with ``gradients = "sub-batches"`` the gradient of a batch is the weighted sum of
  those of its sub-batches, so that BatchNorm and dropout see one sub-batch at a time. With
  ``"batch"`` it is taken at once, which is the same for everything that is a mean over samples.
- **A loss that is a sum** over samples and not a mean: ``reduction = "sum"``, and about how
  many ``terms`` it has.
- **Averaged weights for evaluation** (EMA): a second copy inside the model, updated in
  :meth:`Task.after_step`.
- **A run that ends without failing, but should not be taken for a success** (a generator that makes
  the same image again and again): :meth:`Task.warning`.
- **Data in files**: say which in ``data_files``, so that runs with other data are not taken for
  these. Modules beside the file of the task that it imports are part of the task without a word.
- **Something to look at** (predictions, samples, filled blanks): :meth:`Task.artifacts`.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

import badm
from badm.bench.paper import Paper

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "paper")
NAME = r"[a-z0-9][a-z0-9._-]{0,99}"  # of a task: its runs are kept in a folder of that name
RESERVED = ("comparisons", "report.html", "search.db")  # what else is in the folder of the runs
MOST = 1_000_000_000  # steps, samples of a batch


@dataclass(frozen=True)
class Score:
    """What a task is judged by: a name ``evaluate`` reports, and which end of it is good.

    >>> Score("accuracy", percent=True).format(0.97345)
    '97.3 %'
    >>> Score("kid", best="low").format(0.15849)
    '0.1585'
    """

    name: str
    best: Literal["high", "low"] = "high"
    percent: bool = False

    def is_better(self, a: float, b: float) -> bool:
        """Whether ``a`` is strictly better than ``b``."""
        return a > b if self.best == "high" else a < b

    def reaches(self, value: float, target: float) -> bool:
        """Whether ``value`` is as good as ``target``."""
        return value >= target if self.best == "high" else value <= target

    @property
    def worst(self) -> float:
        return -float("inf") if self.best == "high" else float("inf")

    def format(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"


@dataclass(frozen=True)
class Splits:
    """The data of a task. A split is what the task makes of it: by default a nest of tensors.

    ``synthetic`` says that the data are made up, and is shown wherever a result is. ``notes`` are
    what a reader of the results should know of the data.
    """

    train: Any
    validation: Any
    test: Any
    synthetic: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Player:
    """A part of the model with a loss of its own: ``loss(model, batch)`` of the whole model."""

    name: str
    module: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]


class Task(ABC):
    """Data, model, loss and score, at a scale. The module's docstring is the guide to writing one.

    ``smoke`` is for tests (seconds, synthetic data), ``cpu`` for two cores, ``paper`` for the
    paper's sizes. A task that has one size only ignores ``self.scale``.
    """

    name: str
    description: str = ""
    score: Score
    batch_size: int
    sub_batch_size: int | None = None  # None: the batch is one sub-batch
    steps: int
    evaluate_every: int  # steps between two readings of the validation split
    target: float | None = None  # of the validation score: what "steps to target" counts to

    gradients: Literal["batch", "sub-batches"] = "batch"
    reduction: Literal["mean", "sum"] = "mean"
    terms: int = 1  # that a sum has in a batch, about: learning rates of SGD are as much lower
    order: Literal["shuffled", "fixed"] = "shuffled"  # anew in every epoch, or as the split has it
    keep: Literal["best", "last"] = "best"  # the weights the test split is read with
    after: str | None = None  # the task whose weights this one starts from
    artifacts_at: Sequence[float] = (1.0,)  # when to call artifacts, as parts of all steps
    paper: Paper | None = None
    # The files and folders that ``data`` reads, as ``open`` takes them: where one of them holds
    # something else, old runs are not reused.
    data_files: Sequence[str | Path] = ()
    dataset_name: str = ""  # of `badm data list`: its files count too, but at ``smoke`` scale
    # To be changed by whatever changes the results: old runs are then not reused.
    version: int | str = 1

    required: ClassVar = ("name", "score", "batch_size", "steps", "evaluate_every")

    def __init__(self, scale: Scale = "cpu") -> None:
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        self.scale = scale

    @abstractmethod
    def data(self) -> Splits:
        """Load the three splits. Called once in a process; the same for every seed."""

    @abstractmethod
    def model(self, splits: Splits) -> nn.Module:
        """A new model, initialised with torch's generator, which is seeded."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The training loss of a batch; the model is in training mode."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        """Figures over a whole split, the score among them; in evaluation mode, no gradients."""

    def samples(self, split: Any) -> int:
        """How many samples a split has: the length of its first tensor."""
        return len(_first_tensor(split))

    def batch(self, split: Any, indices: Tensor) -> Any:
        """Those samples of a split, as ``loss`` takes them: every tensor indexed alike."""
        return _index(split, indices)

    def split_batch(self, batch: Any, sub_batches: int) -> list[Any]:
        """The sub-batches of a batch, for ``gradients = "sub-batches"``."""
        return badm.split(batch, sub_batches)

    def size(self, batch: Any) -> float:
        """What the mean of ``loss`` is over: samples, or tokens; the weight of a sub-batch."""
        return len(_first_tensor(batch))

    def players(self, model: nn.Module) -> list[Player]:
        """Who trains what; one player for all unless overridden."""
        return [Player("model", model, self.loss)]

    def load_pretrained(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Take over what is wanted of the weights of the task named by ``after``."""
        raise NotImplementedError(f"{self.name} has after = {self.after!r} and must define start")

    def after_step(self, model: nn.Module) -> None:  # noqa: B027
        """Called after every step, without gradients."""

    def supervised(self, split: Any) -> tuple[Tensor, Tensor] | None:
        """Inputs and labels of a whole split, for methods that train layer by layer."""
        if isinstance(split, (tuple, list)) and len(split) == 2:
            x, y = split
            if isinstance(x, Tensor) and isinstance(y, Tensor):
                return x, y
        return None

    def sample_labels(self, split: Any) -> Tensor | None:
        """The label of every sample, for ranks that are to have labels of their own."""
        pair = self.supervised(split)
        return None if pair is None else pair[1]

    def warning(self, metrics: Mapping[str, float]) -> str:
        """What a reader of the results must know of a run that ended with those figures, if any.

        The figures are those of the last reading of the validation split, whichever weights are
        kept. The remark stands among the notes of a comparison.
        """
        return ""

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        """Pictures (PNG bytes) and texts for the report, by title; of the validation split."""
        return {}


def check_task(task: Task) -> None:
    """Raise ``ValueError`` that says what a task lacks or has wrong."""
    what = type(task).__name__
    missing = [fact for fact in task.required if not hasattr(task, fact)]
    if missing:
        raise ValueError(f"task {what} must state {', '.join(missing)}")
    if not hasattr(task, "scale"):
        raise ValueError(f"task {what} must call super().__init__(scale) in its __init__")
    for fact, right, wanted in _rules(task):
        if not right:
            value = getattr(task, fact)
            raise ValueError(f"{fact} of task {what} must be {wanted}, got {short(value)}")


def _rules(task: Task) -> Iterator[tuple[str, bool, str]]:
    """Each fact of a task: whether it is right, and what would be."""
    named = isinstance(task.name, str) and bool(re.fullmatch(NAME, task.name))
    yield "name", named, "lower-case letters, digits and - . _, at most 100 of them"
    taken = ", ".join(RESERVED)
    yield "name", task.name not in RESERVED, f"another than {taken}, which badm uses itself"
    yield "description", isinstance(task.description, str), "a text"
    yield "score", isinstance(task.score, Score), 'a Score, such as Score("accuracy")'
    known = isinstance(task.score.name, str) and task.score.name != ""
    yield "score", known, "a Score whose name is a text that evaluate reports"
    yield "score", task.score.best in ("high", "low"), "a Score whose best is 'high' or 'low'"
    for fact in ("batch_size", "sub_batch_size", "steps", "evaluate_every", "terms"):
        value = getattr(task, fact)
        if value is not None or fact != "sub_batch_size":
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            yield fact, whole, "a whole number of at least 1"
            yield fact, value <= MOST, f"at most {MOST:,}"
    choices = {
        "gradients": ("batch", "sub-batches"),
        "reduction": ("mean", "sum"),
        "order": ("shuffled", "fixed"),
        "keep": ("best", "last"),
    }
    for fact, allowed in choices.items():
        yield fact, getattr(task, fact) in allowed, " or ".join(map(repr, allowed))
    yield "target", task.target is None or _is_finite(task.target), "a finite number or None"
    named = task.after is None or isinstance(task.after, str)
    yield "after", named, "the name of the task before or None"
    parts = isinstance(task.artifacts_at, Sequence) and all(map(_is_part, task.artifacts_at))
    yield "exhibit_at", parts, "a tuple of numbers above 0 and up to 1, such as (0.5, 1.0)"
    yield "paper", task.paper is None or isinstance(task.paper, Paper), "a Paper or None"
    yield "version", isinstance(task.version, (int, str)), "a number or a text"


def _is_finite(value: Any) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and abs(value) <= sys.float_info.max


def _is_part(value: Any) -> bool:
    return _is_finite(value) and 0 < value <= 1


def _first_tensor(nest: Any) -> Tensor:
    if isinstance(nest, Tensor):
        return nest
    parts = nest.values() if isinstance(nest, Mapping) else nest
    if isinstance(nest, (Mapping, tuple, list)):
        for part in parts:
            try:
                return _first_tensor(part)
            except TypeError:
                continue
    raise TypeError(
        "a split or batch must hold tensors in tuples, lists and dicts, got "
        f"{type(nest).__name__}; for anything else override samples, batch and size"
    )


def _index(nest: Any, indices: Tensor) -> Any:
    if isinstance(nest, Tensor):
        return nest[indices]
    if isinstance(nest, Mapping):
        return {key: _index(value, indices) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return tuple(_index(value, indices) for value in nest)
    return nest

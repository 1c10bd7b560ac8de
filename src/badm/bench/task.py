"""What a task is: data, a model, a loss and a score. This file is the guide to adding one.

A task of your own is a class with six attributes and four methods. Put it into a file and pass the
path to ``badm compare``::

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

The engine does the rest. It seeds torch, numpy and ``random`` before it calls your methods, so that
for a given seed every optimizer gets the same initialisation, batches and dropout masks, and a run
that was killed resumes exactly. Draw random numbers from those three generators only, and keep
whatever changes during training in the model, as parameters or buffers.

Tasks other than classification of independent samples:

- **Two players** (a GAN): put both networks into one module and override :meth:`Task.players`. At
  every step each player in turn takes a step on its own loss, with its own optimizer.
- **A graph whose forward pass covers all nodes**: a split holds the indices of its nodes; the
  model keeps the graph as buffers and ``loss`` selects the rows of the batch.
- **Samples that have to be collated** (molecules, texts): a split may be any object; override
  :meth:`Task.samples` and :meth:`Task.batch`, and :meth:`Task.split_batch` if there are
  sub-batches.
- **Two stages** (pre-training, fine-tuning): two tasks, the second with ``after = "first"`` and
  :meth:`Task.load_pretrained`. The engine runs the first with the same method and seed and
  passes its weights on. A stage with frozen layers is one more task; parameters with
  ``requires_grad=False`` are not trained.
- **A score computed from samples** (KID): sample in ``evaluate``; every method gets the same noise.
- **Sub-batches**: with ``gradients = "sub-batches"`` the gradient of a batch is the weighted sum of
  those of its sub-batches, so that BatchNorm and dropout see one sub-batch at a time. With
  ``"batch"`` it is computed at once, which is the same for a loss that is a mean over samples.
- **A loss that is a sum** over samples and not a mean: set ``reduction = "sum"`` and ``terms``.
- **Averaged weights for evaluation** (EMA): keep a second copy inside the model and update it in
  :meth:`Task.after_step`.
- **A run that finishes but did not succeed** (a generator that always makes the same image): say
  so in :meth:`Task.warning`.
- **Data in files**: list them in ``data_files``, so that runs on other data are not reused. Modules
  that the task's file imports from its own folder are tracked without being listed.
- **A GPU**: write tasks as for the CPU. The engine moves the model, every batch, and splits that
  are tensors, tuples, lists or dicts; make new tensors on the device of those you are given. A
  split of a class of your own stays where it is: move what ``evaluate`` takes of it with
  :func:`to_device`.
- **Something to look at** (predictions, samples, filled blanks): :meth:`Task.artifacts`.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import badm
from badm.bench.paper import Paper

if TYPE_CHECKING:  # the commands import this file, and `badm --help` is not to wait for torch
    import torch
    from torch import Tensor, nn

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "cpu", "paper")
NAME = r"[a-z0-9][a-z0-9._-]{0,99}"  # of a task: its runs are kept in a folder of that name
RESERVED = ("comparisons", "report.html", "search.db")  # also in the folder of the runs
MOST = 1_000_000_000  # number of steps, or of samples in a batch


@dataclass(frozen=True)
class Score:
    """The metric by which runs of a task are compared.

    Attributes:
        name: Key of the metric in what ``evaluate`` returns.
        best: Whether high or low values are good.
        percent: Whether values are fractions to be shown as percentages.

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
        """Whether ``value`` is at least as good as ``target``."""
        return value >= target if self.best == "high" else value <= target

    @property
    def worst(self) -> float:
        return -float("inf") if self.best == "high" else float("inf")

    def format(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self.percent else f"{value:.4g}"


@dataclass(frozen=True)
class Splits:
    """The data of a task: three splits, each by default tensors in tuples, lists and dicts.

    Attributes:
        train: Samples to train on.
        validation: Samples to choose settings and weights by.
        test: Samples that are evaluated once, at the end of a final run.
        synthetic: Whether the data are generated; shown beside every result.
        notes: Sentences about the data that readers of the results should know.
    """

    train: Any
    validation: Any
    test: Any
    synthetic: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Player:
    """A part of the model that is trained on a loss of its own.

    Attributes:
        name: Different for every player of a task.
        module: The part of the model whose parameters it trains.
        loss: Called as ``loss(model, batch)`` with the whole model; returns a scalar tensor.

    >>> from torch import nn
    >>> generator = nn.Linear(2, 1)
    >>> Player("generator", generator, lambda model, batch: model(batch).mean()).name
    'generator'
    """

    name: str
    module: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]


class Task(ABC):
    """Data, a model, a loss and a score. The module's docstring is the guide to writing one.

    A task is made for a scale: ``smoke`` is for tests (seconds, synthetic data), ``cpu`` for two
    cores, ``paper`` for the sizes of the paper. A task of one size ignores ``self.scale``.

    Attributes:
        name: Lower-case letters, digits and ``- . _``; runs are kept in a folder of this name.
        description: What ``badm list tasks`` and reports show beside the name.
        score: The metric by which runs are compared; ``evaluate`` reports it.
        batch_size: Samples per step, over all ranks.
        sub_batch_size: Samples per sub-batch; ``None``: the batch is one sub-batch.
        steps: Training steps of a run, unless ``--steps`` gives another number.
        evaluate_every: Steps between evaluations of the validation split.
        target: Validation score that "steps to target" counts to; ``None``: not counted.
        gradients: Whether gradients are computed per batch, or per sub-batch and added up.
        reduction: Whether ``loss`` is the mean or the sum over samples.
        terms: Approximate number of terms in a summed loss; SGD's learning rates are divided by it.
        order: Whether samples are shuffled in every epoch or keep the order of the split.
        keep: Which weights the test split is evaluated with: best validation score, or last.
        after: Name of the task whose trained weights this one starts from, if any.
        artifacts_at: When to call ``artifacts``, as fractions of all steps; by default at the end.
        paper: Settings and scores that the paper states for this task, if any.
        data_files: Files and folders that ``data`` reads; runs are redone if they change.
        dataset_name: Dataset of ``badm data list`` that ``data`` reads, except at scale ``smoke``.
        version: Change it with anything that changes results, so that old runs are not reused.
    """

    name: str
    description: str = ""
    score: Score
    batch_size: int
    sub_batch_size: int | None = None
    steps: int
    evaluate_every: int
    target: float | None = None

    gradients: Literal["batch", "sub-batches"] = "batch"
    reduction: Literal["mean", "sum"] = "mean"
    terms: int = 1
    order: Literal["shuffled", "fixed"] = "shuffled"
    keep: Literal["best", "last"] = "best"
    after: str | None = None
    artifacts_at: Sequence[float] = (1.0,)
    paper: Paper | None = None
    data_files: Sequence[str | Path] = ()
    dataset_name: str = ""
    version: int | str = 1

    required: ClassVar = ("name", "score", "batch_size", "steps", "evaluate_every")

    def __init__(self, scale: Scale = "cpu") -> None:
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        self.scale = scale

    @abstractmethod
    def data(self) -> Splits:
        """Load the three splits. Called once per process; the same for every seed."""

    @abstractmethod
    def model(self, splits: Splits) -> nn.Module:
        """Make a new model. Torch's generator has been seeded for its initialisation."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Compute the training loss of a batch; the model is in training mode."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        """Compute metrics over a whole split, the score among them.

        Called in evaluation mode and without gradients. If there is a metric named ``loss``, it
        decides between settings of equal score.
        """

    def samples(self, split: Any) -> int:
        """Count the samples of a split; by default the length of its first tensor."""
        return len(_first_tensor(split))

    def scored_samples(self, split: Any) -> int | None:
        """Count the samples that the score is the mean of, each from 0 to 1; ``None`` if it is not.

        Reports add the chance in the choice of these samples to the interval of the score. By
        default it is all samples for a score in percent, and ``None`` for any other.
        """
        return self.samples(split) if self.score.percent else None

    def batch(self, split: Any, indices: Tensor) -> Any:
        """Collate the samples at ``indices`` for ``loss``; by default index every tensor."""
        return _index(split, indices)

    def split_batch(self, batch: Any, sub_batches: int) -> list[Any]:
        """Split a batch into sub-batches, for ``gradients = "sub-batches"``."""
        return badm.split(batch, sub_batches)

    def size(self, batch: Any) -> float:
        """Count what ``loss`` averages over, samples or tokens: the weight of a sub-batch."""
        return len(_first_tensor(batch))

    def players(self, model: nn.Module) -> list[Player]:
        """List the parts that are trained on losses of their own; by default the whole model."""
        return [Player("model", model, self.loss)]

    def load_pretrained(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Copy what is needed from the weights of the task named by ``after`` into the model."""
        raise NotImplementedError(
            f"{self.name} has after = {self.after!r} and must define load_pretrained"
        )

    def after_step(self, model: nn.Module) -> None:  # noqa: B027
        """Update what is averaged or counted in the model; called after every step."""

    def supervised(self, split: Any) -> tuple[Tensor, Tensor] | None:
        """Return inputs and labels of a whole split, for methods that train layer by layer."""
        from torch import Tensor  # late: a task can be listed without torch

        if isinstance(split, (tuple, list)) and len(split) == 2:
            x, y = split
            if isinstance(x, Tensor) and isinstance(y, Tensor):
                return x, y
        return None

    def sample_labels(self, split: Any) -> Tensor | None:
        """Return the label of every sample, for ranks that each train on labels of their own."""
        pair = self.supervised(split)
        return None if pair is None else pair[1]

    def warning(self, metrics: Mapping[str, float]) -> str:
        """Say what readers must know about a run that ended with these metrics, or ``""``.

        The metrics are those of the last evaluation of the validation split, whichever weights are
        kept. The warning is shown among the notes of a comparison.
        """
        return ""

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        """Make images (PNG bytes) and texts for the report, by title, from the validation split."""
        return {}


def check_task(task: Task) -> None:
    """Raise ``ValueError`` that names the first attribute of a task that is missing or wrong."""
    what = type(task).__name__
    missing = [attribute for attribute in task.required if not hasattr(task, attribute)]
    if missing:
        raise ValueError(f"task {what} must state {', '.join(missing)}")
    if not hasattr(task, "scale"):
        raise ValueError(f"task {what} must call super().__init__(scale) in its __init__")
    for attribute, right, wanted in _rules(task):
        if not right:
            value = getattr(task, attribute)
            raise ValueError(f"{attribute} of task {what} must be {wanted}, got {short(value)}")


def _rules(task: Task) -> Iterator[tuple[str, bool, str]]:
    """Yield each attribute of a task, whether it is valid, and what would be valid."""
    named = isinstance(task.name, str) and bool(re.fullmatch(NAME, task.name))
    yield "name", named, "lower-case letters, digits and - . _, at most 100 of them"
    taken = ", ".join(RESERVED)
    yield "name", task.name not in RESERVED, f"other than {taken}, which badm uses itself"
    yield "description", isinstance(task.description, str), "a string"
    yield "score", isinstance(task.score, Score), 'a Score, such as Score("accuracy")'
    known = isinstance(task.score.name, str) and task.score.name != ""
    yield "score", known, "a Score whose name is a string that evaluate reports"
    yield "score", task.score.best in ("high", "low"), "a Score whose best is 'high' or 'low'"
    for attribute in ("batch_size", "sub_batch_size", "steps", "evaluate_every", "terms"):
        value = getattr(task, attribute)
        if value is not None or attribute != "sub_batch_size":
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            yield attribute, whole, "a whole number of at least 1"
            yield attribute, value <= MOST, f"at most {MOST:,}"
    choices = {
        "gradients": ("batch", "sub-batches"),
        "reduction": ("mean", "sum"),
        "order": ("shuffled", "fixed"),
        "keep": ("best", "last"),
    }
    for attribute, allowed in choices.items():
        yield attribute, getattr(task, attribute) in allowed, " or ".join(map(repr, allowed))
    yield "target", task.target is None or _is_finite(task.target), "a finite number or None"
    named = task.after is None or isinstance(task.after, str)
    yield "after", named, "the name of the task before or None"
    parts = isinstance(task.artifacts_at, Sequence) and all(map(_is_part, task.artifacts_at))
    yield "artifacts_at", parts, "a tuple of numbers above 0 and up to 1, such as (0.5, 1.0)"
    yield "paper", task.paper is None or isinstance(task.paper, Paper), "a Paper or None"
    yield "version", isinstance(task.version, (int, str)), "a number or a string"


def _is_finite(value: Any) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and abs(value) <= sys.float_info.max


def _is_part(value: Any) -> bool:
    return _is_finite(value) and 0 < value <= 1


def device_of(model: nn.Module) -> torch.device:
    """The device that a model is on."""
    import torch

    return next((p.device for p in model.parameters()), torch.device("cpu"))


def to_device(nest: Any, device: torch.device | str) -> Any:
    """Move all tensors in a nest of mappings, tuples, lists and dataclasses to a device.

    What else has a method ``to`` is moved with it, but for modules, which would change in place.

    >>> import torch
    >>> to_device({"x": torch.zeros(2), "name": "x"}, "meta")
    {'x': tensor(..., device='meta', size=(2,)), 'name': 'x'}
    """
    from badm.paper.partition import map_leaves

    return map_leaves(partial(_leaf_to_device, device), nest)


def _leaf_to_device(device: torch.device | str, leaf: Any) -> Any:
    from torch import nn

    if is_dataclass(leaf) and not isinstance(leaf, type):
        fields_before = {field.name: getattr(leaf, field.name) for field in fields(leaf)}
        moved = {name: to_device(value, device) for name, value in fields_before.items()}
        changed = {name: x for name, x in moved.items() if x is not fields_before[name]}
        return replace(leaf, **changed) if changed else leaf
    movable = hasattr(leaf, "to") and not isinstance(leaf, (nn.Module, type))
    return leaf.to(device) if movable else leaf


def _first_tensor(nest: Any) -> Tensor:
    from torch import Tensor

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
    from torch import Tensor

    if isinstance(nest, Tensor):
        return nest[indices]
    if isinstance(nest, Mapping):
        return {key: _index(value, indices) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return tuple(_index(value, indices) for value in nest)
    return nest

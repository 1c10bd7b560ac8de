"""Find tasks: the registered ones by name, and tasks of users in their own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

from badm.bench.errors import ProtocolError, TaskError, described, error_location
from badm.bench.method import Method, Setting
from badm.bench.names import suggestion
from badm.bench.records.runs import ENGINE, RunConfig
from badm.bench.task import Scale, Task, check_task
from badm.bench.tasks.bbbp import Bbbp, BbbpPadded
from badm.bench.tasks.cgan import TASKS as CGAN_TASKS
from badm.bench.tasks.character_model import CharacterModel
from badm.bench.tasks.data_identity import identity, missing_data
from badm.bench.tasks.ddim import TASKS as DDIM_TASKS
from badm.bench.tasks.detection import Detection, DetectionScaled
from badm.bench.tasks.digits import Digits
from badm.bench.tasks.image_classification import TASKS as IMAGE_TASKS
from badm.bench.tasks.masked_language import TASKS as MASKED_LANGUAGE_TASKS
from badm.bench.tasks.mnist_mlp import FashionMlp, FashionMlpSigmoid, MnistMlp, MnistMlpSigmoid
from badm.bench.tasks.node_classification import TASKS as NODE_TASKS
from badm.bench.tasks.text_classification import TextClassification
from badm.bench.training_function import Runnable, TrainingFunction
from badm.bench.user_code.loading import in_file, load
from badm.processes.signals import raised_by_signal

TASKS: dict[str, Callable[[Scale], Task]] = {
    "digits": Digits,
    **NODE_TASKS,
    "bbbp": Bbbp,
    "bbbp-padded": BbbpPadded,
    **IMAGE_TASKS,
    "detection": Detection,
    "detection-scaled": DetectionScaled,
    **CGAN_TASKS,
    **DDIM_TASKS,
    "text-imdb": TextClassification,
    **MASKED_LANGUAGE_TASKS,
    "char-imdb": CharacterModel,
    "mnist-mlp": MnistMlp,
    "mnist-mlp-sigmoid": MnistMlpSigmoid,
    "fashion-mlp": FashionMlp,
    "fashion-mlp-sigmoid": FashionMlpSigmoid,
}


@cache
def by_dataset() -> dict[str, tuple[str, ...]]:
    """Map the name of each dataset to the names of the tasks that read it.

    >>> by_dataset()["cora"][:2]
    ('node-cora-dnn', 'node-cora-gnn')
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, make in TASKS.items():
        dataset = make("cpu").dataset_name
        if dataset:
            found[dataset] = (*found.get(dataset, ()), name)
    return found


class UnknownTask(ValueError):
    """There is no such task; the message suggests near names."""


@dataclass(frozen=True)
class FoundTask:
    """A task, the name or path it was found by, and the version in the keys of its runs.

    A training function stands for a task.
    """

    source: str
    task: Runnable
    version: str
    previous_stage: str | None  # source of the task named by ``after``
    folder: Path  # that relative paths start from; the code of a task may change directory

    @property
    def is_function(self) -> bool:
        """Whether it is a training function, which runs its own loop in one process."""
        return isinstance(self.task, TrainingFunction)

    def require_single_process(self, method: Method) -> None:
        """Raise ``ProtocolError`` for a method of several ranks and a function that has one."""
        if self.is_function and method.family == "replicas":
            raise ProtocolError(
                f"{method.name} takes several ranks, and {self.task.name} is a training function, "
                "which runs in one process: leave it out or write a badm.bench.Task"
            )

    @cached_property
    def data(self) -> str:
        """The digest of its data files: part of the key of its runs."""
        return identity(self.task)

    @property
    def missing_data(self) -> str:
        """What it or an earlier stage lacks of its dataset and how to fetch it, or ``""``."""
        missing = missing_data(self.task)
        if missing or self.previous_stage is None:
            return missing
        return _find(self.previous_stage, self.task.scale, self.folder).missing_data

    def require_data(self) -> None:
        """Raise ``TaskError`` if its dataset, or that of an earlier stage, is not there."""
        if self.missing_data:
            raise TaskError(f"task {self.task.name}: {self.missing_data}")

    def config(
        self,
        method: Method,
        setting: Setting,
        seed: int,
        *,
        steps: int | None = None,
        schedule: str = "constant",
        test: bool = True,
        after: RunConfig | None = None,
        threads: int = 1,
        device: str = "cpu",
        warmup: float = 0.0,
        evaluate_every: int = 0,
        clip_norm: float = 0.0,
    ) -> RunConfig:
        """Return the configuration of a run: everything that its result depends on.

        ``evaluate_every`` is in steps; 0 is the task's own number.
        """
        return RunConfig(
            self.task.name,
            self.version,
            self.task.scale,
            steps or self.task.steps,
            method.name,
            setting,
            seed,
            schedule,
            test,
            after,
            method.identity,
            self.data,
            threads,
            ENGINE,
            device,
            warmup,
            # The task's own is not stated: the run is the same one. A training function decides.
            0 if evaluate_every == self.task.evaluate_every or self.is_function else evaluate_every,
            clip_norm,
        )

    def confirm(self, config: RunConfig) -> None:
        """Raise ``TaskError`` if the task or its data changed since a run was planned."""
        if self.version != config.task_version:
            raise TaskError(f"{self.source} was changed while it was being compared")
        if self.data != config.data:
            raise TaskError(f"the data of {self.source} were changed while it was being compared")


def find(source: str, scale: Scale = "cpu", folder: Path | None = None) -> FoundTask:
    """Find a task by name or file: ``digits``, ``my_task.py``, ``my_task.py:moons``.

    Relative paths start from ``folder``, by default the working directory.

    >>> find("digits").task.score.name
    'accuracy'
    >>> find("digit")
    Traceback (most recent call last):
    badm.bench.tasks.UnknownTask: there is no task 'digit'; did you mean digits? ...
    """
    found = _find(source, scale, folder or Path.cwd())
    _check_stages(found)
    return found


def _find(source: str, scale: Scale, folder: Path) -> FoundTask:
    place = in_file(source)
    if place is not None:
        return _find_in_file(*place, scale, folder)
    if source not in TASKS:
        raise UnknownTask(
            f"there is no task {source!r}; {suggestion(source, TASKS)}`badm list tasks` shows all, "
            "and the name of a file ends with .py"
        )
    task = TASKS[source](scale)
    check_task(task)
    return FoundTask(source, task, str(task.version), task.after, folder)


def _check_stages(found: FoundTask) -> None:
    """Refuse a task whose ``after`` does not exist, or leads back to the task itself."""
    chain = [found]
    while (before := chain[-1].previous_stage) is not None:
        task = chain[-1].task
        try:
            chain.append(_find(before, task.scale, found.folder))
        except UnknownTask as error:
            raise TaskError(f"after of task {task.name} must be a task: {error}") from None
        if chain[-1].source in [one.source for one in chain[:-1]]:
            order = " after ".join(one.task.name for one in chain)
            raise TaskError(f"task {found.task.name} cannot come after itself, got {order}")


def _find_in_file(path: Path, wanted: str, scale: Scale, folder: Path) -> FoundTask:
    loaded = load(path, folder, unknown=UnknownTask, raised=TaskError)
    file, version = loaded.file, loaded.version
    functions = _functions(loaded.module)
    classes = _classes(loaded.module, path, may_be_none=bool(functions))
    found: list[type[Task] | TrainingFunction] = [*functions, *classes]
    if wanted:
        chosen = [c for c in found if getattr(c, "name", "") == wanted]
    else:
        # A file means its last stage, not one that another of its tasks starts from.
        earlier = [c.after for c in classes]
        # If they form a cycle, any of them reports it.
        chosen = [c for c in found if getattr(c, "name", "") not in earlier] or found[:1]
    if len(chosen) != 1:
        names = ", ".join(f"{path}:{_name(c)}" for c in found)
        if wanted and chosen:
            raise TaskError(f"{path}: one task must have the name {wanted!r}, got {len(chosen)}")
        what = f"no task {wanted!r}" if wanted else "several tasks"
        raise UnknownTask(f"{path} has {what}: choose one of {names}")
    (only,) = chosen
    if isinstance(only, TrainingFunction):
        function = replace(only, scale=scale)
        return FoundTask(f"{file}:{function.name}", function, version, None, folder)
    try:
        task = only(scale)
    except BaseException as error:
        if raised_by_signal(error):
            raise
        raise TaskError(
            f"{path}: {only.__name__}({scale!r}) raised {described(error)} "
            f"({error_location(error, str(file))})"
        ) from error
    try:
        check_task(task)
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from None
    except BaseException as error:  # an attribute may be a property that raises
        if raised_by_signal(error):
            raise
        raise TaskError(
            f"{path}: {described(error)} ({error_location(error, str(file))})"
        ) from error
    inside = any(getattr(c, "name", "") == task.after for c in classes)
    before = f"{file}:{task.after}" if inside else task.after
    return FoundTask(f"{file}:{task.name}", task, version, before, folder)


def _name(found: type[Task] | TrainingFunction) -> str:
    return str(getattr(found, "name", "") or getattr(found, "__name__", ""))


def _functions(module: ModuleType) -> list[TrainingFunction]:
    """List the training functions a file defines."""
    found = [value for value in vars(module).values() if isinstance(value, TrainingFunction)]
    return [one for one in dict.fromkeys(found) if one.function.__module__ == module.__name__]


def _classes(module: ModuleType, path: Path, *, may_be_none: bool) -> list[type[Task]]:
    """List the tasks a file defines; an incomplete class is an error and is not skipped."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    ]
    if not found and may_be_none:
        return []
    if not found:
        raise TaskError(
            f"{path} defines no task: a subclass of badm.bench.Task, or a training function, which "
            'has @badm.bench.training(score="accuracy", budget=600) before its def train(trial)'
        )
    bases = {base for c in found for base in c.__mro__[1:]}
    whole = [c for c in found if c not in bases]
    for c in whole:
        missing = sorted(getattr(c, "__abstractmethods__", ()))
        if missing:
            raise TaskError(f"{path}: task {c.__name__} must define {', '.join(missing)}")
    return whole

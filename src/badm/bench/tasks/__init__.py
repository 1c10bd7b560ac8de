"""The tasks there are, by the names people type, and tasks in files of their own."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from badm.bench.data_files import identity
from badm.bench.faults import TaskError, place
from badm.bench.method import Method, Setting
from badm.bench.names import suggestion
from badm.bench.neighbours import LOADED, PREFIX, Neighbours
from badm.bench.store import ENGINE, Config, reason
from badm.bench.task import Scale, Task, check
from badm.bench.tasks.bbbp import Bbbp, BbbpPadded
from badm.bench.tasks.cgan import TASKS as CGAN_TASKS
from badm.bench.tasks.ddim import TASKS as DDIM_TASKS
from badm.bench.tasks.detection import Detection, DetectionScaled
from badm.bench.tasks.digits import Digits
from badm.bench.tasks.image_classification import TASKS as IMAGE_TASKS
from badm.bench.tasks.masked_language import TASKS as MASKED_LANGUAGE_TASKS
from badm.bench.tasks.mnist_mlp import FashionMlp, FashionMlpSigmoid, MnistMlp, MnistMlpSigmoid
from badm.bench.tasks.node_classification import TASKS as NODE_TASKS
from badm.bench.tasks.text_classification import TextClassification

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
    "mnist-mlp": MnistMlp,
    "mnist-mlp-sigmoid": MnistMlpSigmoid,
    "fashion-mlp": FashionMlp,
    "fashion-mlp-sigmoid": FashionMlpSigmoid,
}


class UnknownTask(ValueError):
    """There is no such task; the message says which come near."""


@dataclass(frozen=True)
class Found:
    """A task, what it was found by, and the version that its runs are filed under."""

    source: str
    task: Task
    version: str
    before: str | None  # the source of the stage before

    @cached_property
    def data(self) -> str:
        """What tells its data files from others, wherever they lie."""
        return identity(self.task)

    def config(
        self,
        method: Method,
        setting: Setting,
        seed: int,
        *,
        steps: int | None = None,
        schedule: str = "constant",
        test: bool = True,
        after: Config | None = None,
        threads: int = 1,
    ) -> Config:
        """A run of the task, with all that its result depends on."""
        return Config(
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
        )

    def confirm(self, config: Config) -> None:
        """Raise ``TaskError`` if the task is not, or not any more, what a run was planned for."""
        if self.version != config.task_version:
            raise TaskError(f"{self.source} was changed while it was being compared")
        if self.data != config.data:
            raise TaskError(f"the data of {self.source} were changed while it was being compared")


def find(source: str, scale: Scale = "cpu") -> Found:
    """The task of that name, or in that file: ``digits``, ``my_task.py``, ``my_task.py:moons``.

    >>> find("digits").task.score.name
    'accuracy'
    >>> find("digit")
    Traceback (most recent call last):
    badm.bench.tasks.UnknownTask: there is no task 'digit'; did you mean digits? ...
    """
    in_file = re.fullmatch(r"(.*\.py)(?::(.*))?", source)
    if in_file:
        return _in_file(Path(in_file[1]), in_file[2] or "", scale)
    if source not in TASKS:
        raise UnknownTask(
            f"there is no task {source!r}; {suggestion(source, TASKS)}`badm list tasks` shows all, "
            "and a file of your own is named with its .py"
        )
    task = TASKS[source](scale)
    check(task)
    return Found(source, task, str(task.version), task.after)


def _in_file(path: Path, wanted: str, scale: Scale) -> Found:
    if not path.is_file():
        raise UnknownTask(f"there is no file {path}")
    module, version = _module(path)
    classes = _classes(module, path)
    if wanted:
        chosen = [c for c in classes if getattr(c, "name", "") == wanted]
    else:
        # A stage that another one of the file starts from is not what a reader of the file means.
        earlier = {c.after for c in classes}
        chosen = [c for c in classes if getattr(c, "name", "") not in earlier]
    if len(chosen) != 1:
        names = ", ".join(f"{path}:{getattr(c, 'name', c.__name__)}" for c in classes)
        raise UnknownTask(
            f"{path} has no task {wanted!r}, but {names}" if wanted else f"choose one of {names}"
        )
    try:
        task = chosen[0](scale)
    except Exception as error:
        where = place(error, str(path.absolute()))
        raise TaskError(
            f"{path}: {chosen[0].__name__}({scale!r}) raised {type(error).__name__}: {error} "
            f"({where})"
        ) from error
    try:
        check(task)
    except ValueError as error:
        raise TaskError(f"{path}: {error}") from None
    inside = any(getattr(c, "name", "") == task.after for c in classes)
    before = f"{path}:{task.after}" if inside else task.after
    return Found(f"{path}:{task.name}", task, version, before)


def _module(path: Path) -> tuple[ModuleType, str]:
    """The file as a module, made once in a process for each version of it, and the version."""
    file = path.absolute()
    try:
        neighbours = Neighbours(file, file.read_bytes())
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {reason(error)}") from None
    where = hashlib.sha256(str(file).encode(errors="surrogateescape")).hexdigest()[:12]
    name = f"{PREFIX}{where}_{neighbours.version}"
    known = LOADED.get(name)
    if known is not None and known.unchanged():
        return sys.modules[name], known.version
    LOADED.pop(name, None)
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    try:
        with neighbours.importable():
            # Not by an importer: that would take an older version from its cache for this one.
            exec(compile(neighbours.content, str(file), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        where = "" if isinstance(error, SyntaxError) else f" ({place(error, str(file))})"
        raise TaskError(
            f"{path} cannot be imported: {type(error).__name__}: {error}{where}"
        ) from error
    neighbours.settle()
    LOADED[name] = neighbours
    neighbours.stay_importable()
    return module, neighbours.version


def _classes(module: ModuleType, path: Path) -> list[type[Task]]:
    """The tasks a file defines; a class that is not whole is an error, not something to skip."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    ]
    if not found:
        raise TaskError(f"{path} defines no task: a class made from badm.bench.Task")
    bases = {base for c in found for base in c.__mro__[1:]}
    whole = [c for c in found if c not in bases]
    for c in whole:
        missing = sorted(getattr(c, "__abstractmethods__", ()))
        if missing:
            raise TaskError(f"{path}: task {c.__name__} must define {', '.join(missing)}")
    return whole

"""Tasks and methods as people name them, turned into the names a plan has."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badm.bench.engine.streams import same_directory
from badm.bench.method import Method
from badm.bench.methods import METHODS
from badm.bench.methods import find as find_method
from badm.bench.methods.own_methods import source_of
from badm.bench.methods.sources import as_json, split_list, written
from badm.bench.task import Task
from badm.bench.tasks import TASKS, suite
from badm.bench.training_function import TrainingFunction

if TYPE_CHECKING:
    from badm.bench.compare import MethodLike, MethodsLike, TasksLike


def method_sources(methods: MethodsLike) -> tuple[str, ...]:
    """What each method is found by; ``all`` and patterns such as ``badm*`` stand for several.

    >>> method_sources("adam,badm-d*,badm[beta=0.95]")
    ('adam', 'badm-diagonal', 'badm[beta=0.95]')
    >>> method_sources(["sgd", "adam"])
    ('sgd', 'adam')
    """
    if isinstance(methods, str):
        parts: list[MethodLike] = [*split_list(methods)]
    else:
        parts = [methods] if isinstance(methods, (type, Method)) else [*methods]
    names: list[str] = []
    for part in parts:
        if not isinstance(part, str):
            names.append(source_of(part))
        elif part == "all":
            names += METHODS
        elif "*" in part and "[" not in part:
            found = [name for name in METHODS if fnmatchcase(name, part)]
            names += found or [find_method(part).name]
        elif part.strip():
            names.append(part.strip())
    if not names:
        raise ValueError(f"methods must name at least one method, got {methods!r}")
    return tuple(dict.fromkeys(names))


def method_names(methods: MethodsLike) -> tuple[str, ...]:
    """The names of methods, which results state; those of the user's own have files beside them.

    >>> method_names("adam,badm-d*")
    ('adam', 'badm-diagonal')
    """
    with same_directory():
        found = [find_method(source).name for source in method_sources(methods)]
    return tuple(dict.fromkeys(found))


def named(method: MethodLike, names: Sequence[str]) -> str:
    """The name of a method that is given as people name methods.

    >>> named("badm[beta=0.95]", ["badm", "badm[beta=0.95]"]), named("adam", ["badm"])
    ('badm[beta=0.95]', 'adam')
    """
    if isinstance(method, str) and (method in names or not any(c in method for c in ":[")):
        return method
    return method_names([method])[0]


def range_texts(space: Mapping[str, Any] | Iterable[str]) -> tuple[str, ...]:
    """Ranges by name as people type them.

    >>> range_texts({"lr": (1e-4, 0.1), "nesterov": [True, False, True]})
    ('lr=0.0001..0.1', 'nesterov=True|False|True')
    >>> range_texts("lr=1e-4..1e-1,beta=0.8..0.98")
    ('lr=1e-4..1e-1', 'beta=0.8..0.98')
    """
    if isinstance(space, str):
        return tuple(split_list(space))
    if not isinstance(space, Mapping):
        return tuple(part for text in space for part in split_list(text))
    texts = []
    for name, values in space.items():
        numbers = [x for x in values if isinstance(x, (int, float)) and not isinstance(x, bool)]
        is_range = isinstance(values, tuple) and len(numbers) == len(values) == 2
        texts.append(f"{name}={('..' if is_range else '|').join(map(written, values))}")
    return tuple(texts)


def setting_texts(setting: Mapping[str, Any] | Iterable[str] | None) -> tuple[str, ...]:
    """Settings by name as people type them.

    >>> setting_texts({"weight_decay": 0.1}), setting_texts(["weight_decay=0.1"])
    (('weight_decay=0.1',), ('weight_decay=0.1',))
    """
    if setting is not None and not isinstance(setting, Mapping):
        return tuple(setting)
    return tuple(f"{name}={written(as_json(value))}" for name, value in (setting or {}).items())


def task_sources(tasks: TasksLike) -> tuple[str, ...]:
    """What each task is found by: a name, or a file and the name of a task in it.

    ``suite`` stands for the tasks of the speed protocol's suite.

    >>> from badm.bench.tasks.digits import Digits
    >>> task_sources(["bbbp", Digits])
    ('bbbp', 'digits')
    >>> task_sources(["suite", "bbbp"])[:3]
    ('digits', 'node-cora-gnn', 'node-citeseer-dnn')
    """
    several = [tasks] if isinstance(tasks, (str, type, TrainingFunction)) else tasks
    sources: list[str] = []
    for one in several:
        if one == suite.NAME:
            sources += (name for name in suite.BUDGETS if name not in sources)
        else:
            sources.append(one if isinstance(one, str) else _source(one))
    return tuple(sources)


def _source(task: type[Task] | TrainingFunction) -> str:
    if isinstance(task, TrainingFunction):
        return f"{Path(task.file).absolute()}:{task.name}"
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ValueError(f"a task must be a name, a file or a class made from Task, got {task!r}")
    name = getattr(task, "name", "")
    if TASKS.get(name) is task:
        return name
    try:
        file = inspect.getsourcefile(task)
    except (OSError, TypeError):  # a class of a notebook or of an interactive session
        file = None
    if file is None or not file.endswith(".py"):
        raise ValueError(
            f"task {task.__name__} must be in a .py file: its runs are done by other processes, "
            "which have to find it there"
        )
    return f"{file}:{name}"

"""Tasks and methods as people name them, turned into the names a plan has."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from fnmatch import fnmatchcase

from badm.bench.methods import METHODS
from badm.bench.methods import find as find_method
from badm.bench.task import Task
from badm.bench.tasks import TASKS, suite


def method_names(methods: str | Iterable[str]) -> tuple[str, ...]:
    """The names of methods; ``all`` and patterns such as ``badm*`` stand for several.

    >>> method_names("adam,badm-d*")
    ('adam', 'badm-diagonal')
    >>> method_names(["sgd", "adam"])
    ('sgd', 'adam')
    """
    parts = methods.split(",") if isinstance(methods, str) else methods
    names: list[str] = []
    for part in filter(None, (part.strip() for part in parts)):
        if part == "all":
            found = list(METHODS)
        elif "*" in part:
            found = [name for name in METHODS if fnmatchcase(name, part)]
        else:
            found = []
        names += found or [find_method(part).name]
    if not names:
        raise ValueError(f"methods must name at least one method, got {methods!r}")
    return tuple(dict.fromkeys(names))


def task_sources(tasks: str | type[Task] | Iterable[str | type[Task]]) -> tuple[str, ...]:
    """What each task is found by: a name, or a file and the name of a task in it.

    ``suite`` stands for the tasks of the speed protocol's suite.

    >>> from badm.bench.tasks.digits import Digits
    >>> task_sources(["bbbp", Digits])
    ('bbbp', 'digits')
    >>> task_sources(["suite", "bbbp"])[:3]
    ('digits', 'node-cora-gnn', 'node-citeseer-dnn')
    """
    several = [tasks] if isinstance(tasks, (str, type)) else tasks
    sources: list[str] = []
    for one in several:
        if one == suite.NAME:
            sources += (name for name in suite.BUDGETS if name not in sources)
        else:
            sources.append(one if isinstance(one, str) else _source(one))
    return tuple(sources)


def _source(task: type[Task]) -> str:
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

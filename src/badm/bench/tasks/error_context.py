"""Whose fault it was: errors that name the task, its method and the line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap
from types import FunctionType

from badm.bench.data.dataset import MissingData
from badm.bench.errors import MethodError, TaskError, described, error_location
from badm.bench.method import CannotTrain
from badm.bench.task import Task
from badm.bench.training_function import Runnable, TrainingFunction
from badm.distributed.ranks import RankLostError
from badm.processes.signals import raised_by_signal


@contextmanager
def task_errors(task: Runnable, what: str) -> Iterator[None]:
    """Turn whatever the code of a task raises into a ``TaskError`` that names the line."""
    try:
        yield
    except TaskError:
        raise
    except MissingData as error:  # not an error of the task, and the message says what to do
        raise TaskError(f"task {task.name}: {error}") from None
    except BaseException as error:  # sys.exit() too: it would end the command without a result
        if raised_by_signal(error):
            raise
        raise TaskError(
            f"task {task.name}: {what} raised {described(error)} "
            f"({error_location(error, *_source_files(task))})"
        ) from error


def _source_files(task: Runnable) -> set[str]:
    """List the source files of a task's class and its base classes, or the file of a function."""
    if isinstance(task, TrainingFunction):
        return {task.file}
    classes = [c for c in type(task).__mro__ if c is not Task]
    members = [unwrap(f) for c in classes for f in vars(c).values() if callable(f)]
    return {f.__code__.co_filename for f in members if isinstance(f, FunctionType)}


@contextmanager
def method_errors() -> Iterator[None]:
    """Tell what a method raises from the errors of a task, which it may call, and of the store."""
    try:
        yield
    except (TaskError, CannotTrain, RankLostError):  # the last is nobody's fault
        raise
    except BaseException as error:
        if raised_by_signal(error):
            raise
        raise MethodError(f"{described(error)} ({error_location(error)})") from error

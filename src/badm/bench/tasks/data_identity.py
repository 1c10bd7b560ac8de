"""What tells the data files of a task from others: a digest of their names and contents.

Equal data have equal ones wherever they lie. Files are read once: the digest is kept in the cache
(``BADM_CACHE``) until the size or a date of one of them changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from badm.bench.data.availability import path as dataset_folder
from badm.bench.data.availability import required_files, shortages
from badm.bench.data.catalogue import find
from badm.bench.data.checksums import sha256
from badm.bench.data.dataset import Dataset, MissingData
from badm.bench.data.folder import root
from badm.bench.errors import TaskError
from badm.bench.files import cache_folder, os_error_reason, write_atomically
from badm.bench.task import Task
from badm.bench.tasks.error_context import task_errors

# Dates of files go in steps: one that was changed just now may be changed again without a trace.
SETTLED_SECONDS = 2.0

Row = tuple[str, str, int, int, int, int]  # name, path, size, inode, dates of content and of status


# Where the process was when a task was first asked: its code may go elsewhere with ``os.chdir``.
_asked_from: WeakKeyDictionary[Task, Path] = WeakKeyDictionary()


def identity(task: Task) -> str:
    """Of the files a task reads, as far as it states them; nothing if there are none.

    >>> from badm.bench.tasks.digits import Digits
    >>> identity(Digits())
    ''
    """
    with task_errors(task, "data_files"):
        stated = task.data_files
    try:
        files = list(_stated(stated, task))
        if task.dataset_name and task.scale != "smoke":
            files += _of_dataset(task.dataset_name)
        return _identity(files)
    except _Unusable as error:
        raise TaskError(f"task {task.name}: {error}") from None


def missing_data(task: Task) -> str:
    """Say what is missing of the dataset a task reads, and how to fetch it; ``""`` if nothing is.

    >>> from badm.bench.tasks.digits import Digits
    >>> missing_data(Digits())
    ''
    """
    if not task.dataset_name or task.scale == "smoke":
        return ""
    try:
        dataset = _dataset(task.dataset_name)
        if dataset.files:
            dataset_folder(dataset)
    except _Unusable as error:
        raise TaskError(f"task {task.name}: {error}") from None
    except MissingData as error:
        return str(error)
    return ""


def dataset_identity(name: str) -> str:
    """Of the files of a dataset of the catalogue; nothing if some are missing.

    >>> dataset_identity("digits")
    ''
    """
    return _identity(_of_dataset(name))


class _Unusable(ValueError):
    """A file that cannot be had; the message says which and why."""


def _of_dataset(name: str) -> list[tuple[str, Path]]:
    """The files of a dataset, by their names in the data folder."""
    dataset = _dataset(name)
    if shortages(dataset):  # the task will say how to get it
        return []
    found = (name for files in required_files(dataset) for name in files.found(root()))
    return [(name, root() / name) for name in found]


def _dataset(name: str) -> Dataset:
    try:
        return find(name)
    except ValueError as error:
        raise _Unusable(f"dataset_name is not in the catalogue: {error}") from None


def _identity(files: Sequence[tuple[str, Path]]) -> str:
    return _digest(tuple(sorted(_row(name, path) for name, path in files))) if files else ""


def _stated(stated: Sequence[str | Path], task: Task) -> Iterator[tuple[str, Path]]:
    """The files themselves and those in folders, by names without the way to them."""
    if isinstance(stated, (str, bytes)) or not isinstance(stated, Sequence):
        raise _Unusable(
            f"data_files must be a tuple or list of paths, got {stated!r}; one path is (path,)"
        )
    for entry in stated:
        if not isinstance(entry, (str, Path)) or not str(entry):
            raise _Unusable(f"data_files must be paths, got {entry!r}")
        path = _asked_from.setdefault(task, Path.cwd()) / entry
        if not os.path.isdir(path):  # false for whatever cannot be asked
            yield path.name, path
            continue
        inside = _inside(path)
        if not inside:
            raise _Unusable(f"data_files names {path}, a folder without files")
        yield from inside


def _inside(folder: Path) -> list[tuple[str, Path]]:
    """All files in a folder, links followed, by names that begin with that of the folder."""
    found: list[tuple[str, Path]] = []
    todo: list[tuple[str, Path, list[str]]] = [(folder.absolute().name, folder, [])]
    while todo:
        name, place, around = todo.pop()
        real = os.path.realpath(place)
        if real in around:  # a link to a folder around it
            continue
        try:
            entries = sorted(place.iterdir())
        except OSError as error:
            raise _unusable(place, error) from None
        for entry in entries:
            called = f"{name}/{entry.name}"
            if os.path.isdir(entry):
                todo.append((called, entry, [*around, real]))
            else:
                found.append((called, entry))
    return found


def _row(name: str, path: Path) -> Row:
    try:
        about = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from None
    if not stat.S_ISREG(about.st_mode):
        raise _Unusable(f"{path} is to be a data file, and is neither a file nor a folder")
    where = os.path.abspath(path)
    return name, where, about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns


def _unusable(path: Path, error: OSError | ValueError) -> _Unusable:
    why = os_error_reason(error) if isinstance(error, OSError) else error
    return _Unusable(f"its data file {path} cannot be read: {why}")


def _digest(rows: tuple[Row, ...]) -> str:
    newest = max(max(row[4:]) for row in rows) / 1e9
    return _kept(rows) if newest < time.time() - SETTLED_SECONDS else _read(rows)


@lru_cache(maxsize=64)
def _kept(rows: tuple[Row, ...]) -> str:
    """From the cache, or read and put there."""
    key = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]
    file = cache_folder() / f"data-{key}.txt"
    try:
        found = file.read_text()
    except (OSError, ValueError):
        found = ""
    if re.fullmatch(r"[0-9a-f]{16}", found):
        return found
    digest = _read(rows)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, digest.encode())
    except OSError:
        pass  # to be read again is all that comes of it
    return digest


def _read(rows: tuple[Row, ...]) -> str:
    parts = []
    for row in rows:
        name, path = row[0], Path(row[1])
        try:
            parts.append((name, sha256(path)))
        except OSError as error:
            raise _unusable(path, error) from None
        if _row(name, path) != row:
            raise _Unusable(f"{path} was changed while it was read")
    return hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()[:16]

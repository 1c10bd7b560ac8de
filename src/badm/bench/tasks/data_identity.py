"""The digest of a task's data files, from their names and contents: part of the key of its runs.

Equal data have equal digests in any folder. Files are read once: the digest is cached
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
from badm.bench.tasks.error_context import task_errors
from badm.bench.training_function import Runnable

# File dates are coarse: a file changed just now may change again without getting a new date.
SETTLED_SECONDS = 2.0

Row = tuple[str, str, int, int, int, int]  # name, path, size, inode, mtime, ctime


# Working directory when a task was first asked: its code may call ``os.chdir``.
_asked_from: WeakKeyDictionary[Runnable, Path] = WeakKeyDictionary()


def identity(task: Runnable) -> str:
    """Compute the digest of the files a task states that it reads; ``""`` if there are none.

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


def missing_data(task: Runnable) -> str:
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
    """Compute the digest of the files of a dataset; ``""`` if some are missing.

    >>> dataset_identity("digits")
    ''
    """
    return _identity(_of_dataset(name))


class _Unusable(ValueError):
    """A data file cannot be used; the message says which and why."""


def _of_dataset(name: str) -> list[tuple[str, Path]]:
    """List the files of a dataset with their names in the data folder."""
    dataset = _dataset(name)
    if shortages(dataset):  # ``missing_data`` reports it
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


def _stated(stated: Sequence[str | Path], task: Runnable) -> Iterator[tuple[str, Path]]:
    """Yield files, and those in folders, with names that do not depend on where they are."""
    if isinstance(stated, (str, bytes)) or not isinstance(stated, Sequence):
        raise _Unusable(
            f"data_files must be a tuple or list of paths, got {stated!r}; one path is (path,)"
        )
    for entry in stated:
        if not isinstance(entry, (str, Path)) or not str(entry):
            raise _Unusable(f"data_files must be paths, got {entry!r}")
        path = _asked_from.setdefault(task, Path.cwd()) / entry
        if not os.path.isdir(path):  # false also if it cannot be read
            yield path.name, path
            continue
        inside = _inside(path)
        if not inside:
            raise _Unusable(f"data_files names {path}, a folder without files")
        yield from inside


def _inside(folder: Path) -> list[tuple[str, Path]]:
    """List all files in a folder, following links, with names that begin with the folder's."""
    found: list[tuple[str, Path]] = []
    todo: list[tuple[str, Path, list[str]]] = [(folder.absolute().name, folder, [])]
    while todo:
        name, place, around = todo.pop()
        real = os.path.realpath(place)
        if real in around:  # a link to one of its parents
            continue
        try:
            entries = sorted(place.iterdir())
        except OSError as error:
            raise _unusable(place, error) from None
        for entry in entries:
            child = f"{name}/{entry.name}"
            if os.path.isdir(entry):
                todo.append((child, entry, [*around, real]))
            else:
                found.append((child, entry))
    return found


def _row(name: str, path: Path) -> Row:
    try:
        about = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from None
    if not stat.S_ISREG(about.st_mode):
        raise _Unusable(f"data_files names {path}, which is neither a file nor a folder")
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
    """Return the digest from the cache, or compute it and cache it."""
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
        pass  # it will be computed again
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

"""The description of a dataset and its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

ProgressCallback = Callable[[str, int, int], None]
"""Called during long work as ``report(what, done, total)``."""


class MissingData(FileNotFoundError):
    """A dataset is not in the data folder; the message names the command that fetches it."""


class FetchFailed(RuntimeError):
    """A dataset could not be fetched, and nothing was changed; the message says why."""


@dataclass(frozen=True)
class FileProblem:
    """Something wrong with a file, whose path is relative to the data folder.

    >>> str(FileProblem("mnist/a.gz", "corrupt", "does not have the checksum in SHA256SUMS"))
    'mnist/a.gz: does not have the checksum in SHA256SUMS'
    """

    path: str
    kind: Literal["missing", "size", "corrupt", "extra"]
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True)
class Files:
    """One file of a dataset, or all files that match a pattern.

    Attributes:
        pattern: Path relative to the data folder; ``*`` matches within a folder.
        count: Least number of files that match.
        sha256: Checksum of the file, if everyone has the same one.

    >>> Files("flowers/roses/*.jpg", 641).match("flowers/roses/1.jpg")
    True
    >>> Files("flowers/roses/*.jpg", 641).match("flowers/roses/old/1.jpg")
    False
    """

    pattern: str
    count: int = 1
    sha256: str | None = None

    def match(self, path: str) -> bool:
        """Whether a path relative to the data folder is one of these files."""
        parts, patterns = path.split("/"), self.pattern.split("/")
        return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))

    def found(self, root: Path) -> list[str]:
        """List those that exist, sorted, relative to the data folder."""
        paths = (path for path in root.glob(self.pattern) if path.is_file())
        return sorted(path.relative_to(root).as_posix() for path in paths)


@dataclass(frozen=True)
class Dataset:
    """A dataset of the catalogue.

    Attributes:
        name: What people type, as in ``badm data fetch mnist``.
        title: Its usual name.
        what: One line about its samples.
        size: Bytes on disk.
        licence: As its publisher states it.
        layout: Which files go where, for those who add them by hand.
        files: Its files; empty if the data are inside scikit-learn.
        official: The files as published, which may be there instead of ``files``.
    """

    name: str
    title: str
    what: str
    size: int
    licence: str
    layout: str
    files: tuple[Files, ...] = ()
    official: tuple[Files, ...] = ()

    @property
    def folder(self) -> str | None:
        """The folder of all its files inside the data folder."""
        return self.files[0].pattern.partition("/")[0] if self.files else None

    def match(self, path: str) -> bool:
        """Whether a path relative to the data folder belongs to this dataset."""
        return any(files.match(path) for files in (*self.files, *self.official))

    def found(self, root: Path) -> list[str]:
        """List its files that exist, relative to the data folder."""
        return [path for files in (*self.files, *self.official) for path in files.found(root)]

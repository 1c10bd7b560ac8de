"""What is known of a dataset, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

ProgressCallback = Callable[[str, int, int], None]
"""Called in the course of long work: what is being done, how much is done, of how much."""


class MissingData(FileNotFoundError):
    """Data are not where they were looked for; the message names what gets them."""


class FetchFailed(RuntimeError):
    """Data could not be had, and nothing was changed; the message says why."""


@dataclass(frozen=True)
class FileProblem:
    """One thing that is wrong with one file, whose path is relative to the data folder.

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
    """One file, or the files of a pattern and how many there are at least.

    ``sha256`` is stated where the contents are the same for everyone.

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
        """Those that are there, in order, relative to the data folder."""
        paths = (path for path in root.glob(self.pattern) if path.is_file())
        return sorted(path.relative_to(root).as_posix() for path in paths)


@dataclass(frozen=True)
class Dataset:
    """A dataset of the catalogue.

    ``size`` is in bytes. ``layout`` says which files go where, for those who get them by hand.
    ``fetch(folder, report)`` gets the files into an empty folder; ``check(folder)`` reads them and
    compares with what is known of them.
    """

    name: str
    title: str
    what: str
    size: int
    licence: str
    layout: str
    files: tuple[Files, ...] = ()  # none: the data are inside scikit-learn
    official: tuple[Files, ...] = ()  # as the publisher has them, in the place of the others
    fetch: Callable[[Path, ProgressCallback | None], None] | None = None
    check: Callable[[Path], list[FileProblem]] | None = None

    @property
    def folder(self) -> str | None:
        """The folder of all its files inside the data folder."""
        return self.files[0].pattern.partition("/")[0] if self.files else None

    def match(self, path: str) -> bool:
        """Whether a path relative to the data folder belongs to this dataset."""
        return any(files.match(path) for files in (*self.files, *self.official))

    def found(self, root: Path) -> list[str]:
        """Its files that are there, relative to the data folder."""
        return [path for files in (*self.files, *self.official) for path in files.found(root)]

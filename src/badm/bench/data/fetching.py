"""Fetching a dataset: into a temporary folder, verified, then moved to its place in one piece."""

from __future__ import annotations

import gzip
import os
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from badm.bench.data.availability import status
from badm.bench.data.checksums import record, verify
from badm.bench.data.dataset import Dataset, FetchFailed, ProgressCallback
from badm.bench.data.folder import root


def fetch(dataset: Dataset, report: ProgressCallback | None = None) -> Literal["fetched", "there"]:
    """Get a dataset unless it is there and sound; sound files are never replaced.

    Its checksums are put into ``SHA256SUMS`` in the data folder, for later verification.

    >>> from badm.bench.data import find
    >>> fetch(find("digits"))
    'there'
    """
    state = status(dataset)
    if state == "inside scikit-learn":
        return "there"
    bad = {problem.path for problem in verify(dataset)} if state != "missing" else set()
    if state == "present" and not bad:
        return "there"
    assert dataset.folder is not None  # as it has files
    assert dataset.fetch is not None
    assert dataset.check is not None
    try:
        root().mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{dataset.folder}-", dir=root()) as temporary:
            new = Path(temporary) / dataset.folder
            new.mkdir()
            dataset.fetch(new, report)
            problems = dataset.check(new)
            if problems:
                raise FetchFailed(
                    f"what came for {dataset.name} is not what it should be: "
                    + "; ".join(map(str, problems))
                )
            _move(new, root() / dataset.folder, bad)
        record(dataset)
    except OSError as error:
        raise FetchFailed(f"{dataset.name} could not be written to {root()}: {error}") from error
    return "fetched"


def _move(new: Path, place: Path, bad: set[str]) -> None:
    try:
        os.rename(new, place)  # all at once, if nothing is there
        return
    except OSError:
        if not place.is_dir():
            raise
    moving = []
    for file in sorted(file for file in new.rglob("*") if file.is_file()):
        name = file.relative_to(new).as_posix()
        old = place / name
        if old.exists() and f"{place.name}/{name}" not in bad:
            if _same(file, old):
                continue
            raise FetchFailed(
                f"{old} is there and differs from what was fetched (a subset, perhaps): "
                f"move {place} away to have the whole set, or restore the files that it lacks"
            )
        moving.append((file, old))
    for file, old in moving:
        old.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, old)


def _same(a: Path, b: Path) -> bool:
    """Whether two files are equal, before compression."""
    opened = gzip.open if a.suffix == ".gz" else open
    with opened(a, "rb") as first, opened(b, "rb") as second:
        pieces = [iter(partial(file.read, 1 << 20), b"") for file in (first, second)]
        return all(x == y for x, y in zip_longest(*pieces))

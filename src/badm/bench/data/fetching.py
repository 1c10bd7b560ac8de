"""Fetching a dataset: download it into a temporary folder, verify it, move it into place."""

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
    """Download a dataset unless it is there and intact; intact files are never replaced.

    Its checksums are added to ``SHA256SUMS`` in the data folder, for later verification.

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
    assert dataset.folder is not None  # because it has files
    from badm.bench.data.handlers import CHECK, FETCH  # with all readers, and so with torch

    try:
        root().mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{dataset.folder}-", dir=root()) as temporary:
            new = Path(temporary) / dataset.folder
            new.mkdir()
            FETCH[dataset.name](new, report)
            problems = CHECK[dataset.name](new)
            if problems:
                raise FetchFailed(
                    f"the files downloaded for {dataset.name} are not as expected: "
                    + "; ".join(map(str, problems))
                )
            _move(new, root() / dataset.folder, bad)
        record(dataset)
    except OSError as error:
        raise FetchFailed(f"{dataset.name} could not be written to {root()}: {error}") from error
    return "fetched"


def _move(new: Path, place: Path, bad: set[str]) -> None:
    try:
        os.rename(new, place)  # atomic, if nothing is there
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
                f"{old} differs from the downloaded file (it may be a subset): "
                f"move {place} elsewhere to get the whole set, or restore its missing files"
            )
        moving.append((file, old))
    for file, old in moving:
        old.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, old)


def _same(a: Path, b: Path) -> bool:
    """Whether two files have the same contents, once decompressed."""
    opened = gzip.open if a.suffix == ".gz" else open
    with opened(a, "rb") as first, opened(b, "rb") as second:
        pieces = [iter(partial(file.read, 1 << 20), b"") for file in (first, second)]
        return all(x == y for x, y in zip_longest(*pieces))

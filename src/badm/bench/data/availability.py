"""Whether the files of a dataset exist, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from badm.bench.data.catalogue import find
from badm.bench.data.dataset import Dataset, Files, MissingData
from badm.bench.data.folder import root, root_in_words

Status = Literal["present", "partly", "missing", "inside scikit-learn"]


def status(dataset: Dataset) -> Status:
    """Say whether all, some or none of the files of a dataset exist; they are not read.

    >>> status(find("digits"))
    'inside scikit-learn'
    """
    if not dataset.files:
        return "inside scikit-learn"
    if not shortages(dataset):
        return "present"
    return "partly" if dataset.found(root()) else "missing"


def shortages(dataset: Dataset) -> list[tuple[Files, int]]:
    """List the files of which there are too few, and how many there are."""
    counted = [(files, len(files.found(root()))) for files in required_files(dataset)]
    return [(files, found) for files, found in counted if found < files.count]


def required_files(dataset: Dataset) -> tuple[Files, ...]:
    """Return the files that must exist: the official ones as soon as one of them does."""
    official = any(files.found(root()) for files in dataset.official)
    return dataset.official if official else dataset.files


def path(dataset: Dataset | str) -> Path:
    """Return the folder of a dataset; :class:`MissingData` names the command that fetches it.

    >>> path("mnist")  # doctest: +SKIP
    PosixPath('/home/ada/.cache/badm/mnist')
    """
    dataset = find(dataset) if isinstance(dataset, str) else dataset
    if dataset.folder is None:
        raise ValueError(f"{dataset.name} is inside scikit-learn and has no folder")
    folder = root() / dataset.folder
    lacking = shortages(dataset)
    if lacking:
        files, found = lacking[0]
        amount = "" if files.count == 1 else f" ({found} of {files.count})"
        raise MissingData(
            f"{dataset.name} is not complete in {folder}: {files.pattern} is missing{amount}. "
            f"`badm data fetch {dataset.name}` downloads it ({root_in_words()})"
        )
    return folder

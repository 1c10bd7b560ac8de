"""Oxford Flowers 102: photographs of flowers, as published.

The files are ``jpg/image_NNNNN.jpg``, ``imagelabels.mat`` (the classes) and ``setid.mat`` (the
official split).
A folder may have only the first photographs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from badm.bench.data import image_files, matlab
from badm.bench.data.catalogue import FLOWERS102_SUBSET
from badm.bench.data.dataset import FileProblem
from badm.bench.data.images import ImageError
from badm.bench.data.photographs import Photographs

COUNT, COMPACT = 8_189, FLOWERS102_SUBSET  # photographs: all, and the first
CLASSES = 102
LABELS, SETS = "imagelabels.mat", "setid.mat"
PARTS = ("trnid", "valid", "tstid")  # the official split
TRAIN = 0.8  # fraction of each part

Numbers = npt.NDArray[np.int64]


def read(folder: Path) -> Photographs:
    """List all photographs of a folder by number; images are not decoded.

    Classes without a photograph are left out, and the others numbered from 0.

    >>> from badm.bench.data import path
    >>> len(read(path("flowers102")).files)  # doctest: +SKIP
    8189
    """
    labels, files = _labels(folder), _files(folder)
    there = sorted({int(labels[number - 1]) for number in files})
    return Photographs(
        tuple(f"flower {label}" for label in there),
        tuple(files.values()),
        tuple(there.index(labels[number - 1]) for number in files),
    )


def split_parts(folder: Path) -> tuple[Photographs, Photographs, Photographs]:
    """Split into training, validation and test: of each official part 80, 10 and 10 %.

    The published order is by class, so photographs are shuffled first, always in the same way. A
    photograph is in the same split whether or not the whole dataset is there.
    """
    found = read(folder)
    place = {number: place for place, number in enumerate(_files(folder))}
    shuffled = 1 + torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).numpy()
    role = np.empty(COUNT + 1, np.int64)  # by number of the photograph
    for numbers in _parts(folder):
        members = shuffled[np.isin(shuffled, numbers)]
        first = int(TRAIN * len(members))
        half = (first + len(members)) // 2
        for which, those in enumerate(np.split(members, (first, half))):
            role[those] = which
    train, validation, test = (
        found.select([place[n] for n in shuffled[role[shuffled] == which].tolist() if n in place])
        for which in range(3)
    )
    return train, validation, test


def check(folder: Path) -> list[FileProblem]:
    """List what is wrong with the files of a folder, all of which are read."""
    try:
        files = read(folder).files
        list(_parts(folder))
    except ImageError as error:
        return [FileProblem(folder.name, "corrupt", str(error))]
    problems = []
    for file in files:
        try:
            image_files.read(file, 1, 1)
        except image_files.ImageFileError as error:
            problems.append(FileProblem(f"{folder.name}/jpg/{file.name}", "corrupt", str(error)))
    if len(files) not in (COUNT, COMPACT):
        amount = f"{len(files):,} photographs are not the {COUNT:,} or first {COMPACT:,} known"
        problems.append(FileProblem(f"{folder.name}/jpg", "size", amount))
    return problems


def _files(folder: Path) -> dict[int, Path]:
    """Map the number of each photograph to its file."""
    files = {}
    for file in sorted((folder / "jpg").glob("image_*.jpg")):
        digits = file.stem.partition("_")[2]
        if not (digits.isdecimal() and 1 <= int(digits) <= COUNT):
            raise ImageError(f"{file} must have a number from 1 to {COUNT} in its name")
        files[int(digits)] = file
    if not files:
        raise ImageError(f"{folder / 'jpg'} has no photographs image_*.jpg")
    return files


def _labels(folder: Path) -> Numbers:
    """Read the class of every photograph of the whole dataset, numbered from 1."""
    file = folder / LABELS
    labels = _row(file, "labels")
    if len(labels) != COUNT or labels.min() < 1 or labels.max() > CLASSES:
        raise ImageError(
            f"{file}: labels must be {COUNT:,} numbers from 1 to {CLASSES}, got {len(labels):,} "
            f"from {labels.min()} to {labels.max()}"
        )
    return labels


def _parts(folder: Path) -> Iterator[Numbers]:
    """Read the numbers of the photographs of each part, in the order of the file."""
    file, seen = folder / SETS, np.zeros(COUNT + 1, bool)
    for name in PARTS:
        numbers = _row(file, name)
        if numbers.min() < 1 or numbers.max() > COUNT:
            raise ImageError(
                f"{file}: {name} must be from 1 to {COUNT}, got {numbers.min()} to {numbers.max()}"
            )
        twice = numbers[seen[numbers]]
        if len(twice) or len(set(numbers.tolist())) < len(numbers):
            raise ImageError(f"{file}: {name} has photographs that are in a part already")
        seen[numbers] = True
        yield numbers
    if not seen[1:].all():
        lost = int(seen[1:].argmin()) + 1
        raise ImageError(f"{file}: photograph {lost} is in none of {', '.join(PARTS)}")


def _row(file: Path, field: str) -> Numbers:
    """Read a field of a MATLAB file that is a row of whole numbers."""
    (row,) = matlab.fields(file, [field], ImageError)
    if row.dtype.kind not in "iu" or row.ndim != 2 or len(row) != 1 or not row.size:
        raise ImageError(
            f"{file}: {field} must be a row of whole numbers, got {row.dtype} of shape {row.shape}"
        )
    numbers: Numbers = row[0].astype(np.int64)
    return numbers

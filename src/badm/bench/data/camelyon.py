"""PatchCamelyon: patches of lymph nodes in HDF5 files, read as they are needed."""

from __future__ import annotations

import importlib
import math
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from badm.bench.data.images import ImageError, Images
from badm.bench.data.sizes import DEFLATED, listed, size_of

SIDE = 96
CLASSES = ("normal", "tumour")
FILE = "camelyonpatch_level_2_split_{part}_{field}.h5"

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")


class MissingH5py(ImportError):
    """h5py is not installed; the message says how to install it."""


class Patches:
    """The pixels of an official file, ``(N, 96, 96, 3)``; indexing reads rows from disk.

    All rows would take nine gigabytes of memory.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.opened: tuple[int, Any] | None = None
        found = self._dataset()
        if found.dtype != np.uint8 or found.shape[1:] != (SIDE, SIDE, 3) or not len(found):
            raise ImageError(
                f"{file}: x must be uint8 of shape (N, {SIDE}, {SIDE}, 3), "
                f"got {found.dtype} of shape {found.shape}"
            )
        self.shape = torch.Size(found.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read rows, in the given order."""
        # h5py needs ascending rows without duplicates.
        rising, places = torch.unique(rows, return_inverse=True)
        return torch.from_numpy(self._read(rising.numpy()))[places]

    def first(self, count: int, side: int) -> Tensor:
        """Read the first ``count``, shrunk by averaging to a ``side`` that divides 96."""
        factor = SIDE // side
        pixels = torch.from_numpy(self._read(slice(count)))
        if factor == 1:
            return pixels
        squares = pixels.view(-1, side, factor, side, factor, 3)
        return squares.float().mean((2, 4)).round().to(torch.uint8)

    def _read(self, rows: Any) -> Any:
        try:
            return self._dataset()[rows]
        except OSError as error:
            raise ImageError(f"{self.file}: x cannot be read: {error}") from error

    def _dataset(self) -> Any:
        # A handle must not be shared with a forked process.
        if self.opened is None or self.opened[0] != os.getpid():
            self.opened = os.getpid(), _open(self.file, "x")
        return self.opened[1]


def labels(file: Path) -> Tensor:
    """Read the classes of an official file, stored as ``(N, 1, 1, 1)``."""
    found = _open(file, "y")
    if found.dtype.kind not in "iu" or found.ndim != 4 or found.shape[1:] != (1, 1, 1):
        raise ImageError(
            f"{file}: y must be whole numbers of shape (N, 1, 1, 1), "
            f"got {found.dtype} of shape {found.shape}"
        )
    try:
        values = found[:].astype(np.int64).ravel()
    except OSError as error:
        raise ImageError(f"{file}: y cannot be read: {error}") from error
    found.file.close()
    if not np.isin(values, (0, 1)).all():
        raise ImageError(f"{file}: y must be 0 or 1, got {values.min()} to {values.max()}")
    return torch.from_numpy(values)


def read(folder: Path, part: Part) -> tuple[Patches, Tensor]:
    """Open the pixels and read the classes of one part of the dataset."""
    x, y = (folder / FILE.format(part=part, field=field) for field in "xy")
    patches, classes = Patches(x), labels(y)
    if len(patches) != len(classes):
        raise ImageError(f"{y}: y has {len(classes):,} labels for {len(patches):,} patches")
    return patches, classes


def first(folder: Path, part: Part, count: int, side: int) -> Images:
    """Read the first patches of a part into memory, shrunk."""
    patches, classes = read(folder, part)
    return Images(patches.first(count, side), classes[:count])


def _open(file: Path, field: str) -> Any:
    try:
        h5py = importlib.import_module("h5py")
    except ModuleNotFoundError as error:
        raise MissingH5py('PatchCamelyon needs h5py: pip install "badm[data]"') from error
    size = size_of(file, ImageError)
    try:
        opened = h5py.File(file, "r")
    except OSError as error:
        raise ImageError(f"{file} is truncated or not an HDF5 file: {error}") from error
    if field not in opened:
        raise ImageError(f"{file}: has no field {field}, only {listed(opened)}")
    # A link into another file would be followed.
    if isinstance(opened.get(field, getlink=True), h5py.ExternalLink):
        raise ImageError(f"{file}: {field} must be in the file, and is in another")
    found = opened[field]
    if not isinstance(found, h5py.Dataset):
        raise ImageError(f"{file}: {field} must be an array, and is a group")
    _check_storage(file, field, found, size)
    return found


def _check_storage(file: Path, field: str, found: Any, size: int) -> None:
    """Refuse arrays that are not fully stored: h5py would make up zeros of any size."""
    if found.is_virtual or found.external:
        raise ImageError(f"{file}: {field} must be in the file, and is in another")
    if found.shape is None:
        raise ImageError(f"{file}: {field} has no shape")
    stated = math.prod(found.shape) * found.dtype.itemsize
    stored = min(found.id.get_storage_size(), size)
    if stated > (DEFLATED if found.compression else 1) * stored:
        raise ImageError(
            f"{file}: {field} states the shape {found.shape}, {stated:,} bytes, of which "
            f"{stored:,} are stored in a file of {size:,}"
        )

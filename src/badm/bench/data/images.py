"""Small labelled images in arrays, validated as they are read: CIFAR-10, SVHN, CMATERdb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from badm.bench.data import matlab, npz, sizes
from badm.bench.data.image_sources import CIFAR10_BATCHES

SIDE = 32
LARGEST = 4 << 30  # bytes of all fields; a file that states more is refused
CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
DIGITS = tuple("0123456789")
SCRIPTS = ("bangla", "devanagari", "telugu")

Array = npt.NDArray[Any]


class ImageError(ValueError):
    """Files are not a valid image dataset; the message names file and field."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images ``(N, height, width, 3)``, ``uint8``, and the class of each, ``int64``."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> Images:
        """Return the first ``count``, or all if there are fewer."""
        return Images(self.pixels[:count], self.labels[:count])


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in the publisher's split, and the names of their classes."""

    classes: tuple[str, ...]
    train: Images
    test: Images


def cifar10(folder: Path) -> ImageSet:
    """Read the official binary files if they are there, else ``cifar10.npz``.

    >>> from badm.bench.data import path
    >>> cifar10(path("cifar10")).train.pixels.shape  # doctest: +SKIP
    torch.Size([50000, 32, 32, 3])
    """
    official = folder / CIFAR10_BATCHES
    if not official.is_dir():
        return _npz(folder / "cifar10.npz", CIFAR10)
    train = [_batch(official / f"data_batch_{number}.bin") for number in range(1, 6)]
    return ImageSet(
        CIFAR10,
        Images(torch.cat([x.pixels for x in train]), torch.cat([x.labels for x in train])),
        _batch(official / "test_batch.bin"),
    )


def svhn(folder: Path) -> ImageSet:
    """Read ``train_32x32.mat`` and ``test_32x32.mat`` if they are there, else ``svhn.npz``."""
    train, test = (folder / f"{part}_32x32.mat" for part in ("train", "test"))
    if train.exists() or test.exists():
        return ImageSet(DIGITS, _mat(train), _mat(test))
    return _npz(folder / "svhn.npz", DIGITS)


def cmaterdb(script: str, folder: Path) -> ImageSet:
    """Read the numerals of one of the ``SCRIPTS``; they are sorted by class."""
    parts = []
    for part in ("training", "testing"):
        file = folder / f"{script}-{part}-images.npz"
        parts.append(_checked(file, ("images", "labels"), _fields(file, "images", "labels")))
    return ImageSet(DIGITS, *parts)


def _npz(file: Path, classes: tuple[str, ...]) -> ImageSet:
    names = ("x_train", "y_train", "x_test", "y_test")
    arrays = _fields(file, *names)
    train, test = (_checked(file, names[i : i + 2], arrays[i : i + 2]) for i in (0, 2))
    return ImageSet(classes, train, test)


def _batch(file: Path) -> Images:
    """Read a binary file: for every image a label and its red, green and blue pixels, in bytes."""
    content = np.frombuffer(sizes.content(file, LARGEST, ImageError), np.uint8)
    size = 1 + 3 * SIDE * SIDE
    if not len(content) or len(content) % size:
        raise ImageError(f"{file}: {len(content):,} bytes are not whole images of {size:,} each")
    rows = content.reshape(-1, size)
    pixels = rows[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return _checked(file, ("the pixels", "the label"), (pixels, rows[:, 0]))


def _mat(file: Path) -> Images:
    """Read fields ``X`` (32, 32, 3, N) and ``y`` (N, 1), where 10 is the digit 0."""
    x, y = matlab.fields(file, ("X", "y"), ImageError)
    if x.ndim != 4:
        raise ImageError(f"{file}: X must have four axes, got the shape {x.shape}")
    if y.ndim != 2 or y.shape[1] != 1 or y.dtype.kind not in "iu":
        raise ImageError(
            f"{file}: y must be a column of whole numbers, got {y.dtype} of shape {y.shape}"
        )
    labels = y[:, 0].astype(np.int64)
    if not ((labels >= 1) & (labels <= 10)).all():
        raise ImageError(f"{file}: y must be from 1 to 10, got {labels.min()} to {labels.max()}")
    return _checked(file, ("X", "y"), (x.transpose(3, 0, 1, 2), labels % 10))


def _fields(file: Path, *names: str) -> list[Array]:
    """Read arrays of an npz file."""
    arrays = npz.read(file, names, largest=LARGEST, error=ImageError)
    return [arrays[name] for name in names]


def _checked(file: Path, names: Sequence[str], arrays: Sequence[Array]) -> Images:
    """Check that these are images of 32×32 pixels and labels from 0 to 9."""
    x, y = arrays
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] != (SIDE, SIDE, 3):
        raise ImageError(
            f"{file}: {names[0]} must be uint8 of shape (N, {SIDE}, {SIDE}, 3), "
            f"got {x.dtype} of shape {x.shape}"
        )
    if not len(x):
        raise ImageError(f"{file}: {names[0]} has no images")
    if y.dtype.kind not in "iu" or y.shape != (len(x),):
        raise ImageError(
            f"{file}: {names[1]} must be {len(x):,} whole numbers, got {y.dtype} of shape {y.shape}"
        )
    outside = (y < 0) | (y > 9)
    if outside.any():
        at = int(outside.argmax())
        raise ImageError(f"{file}: {names[1]} of image {at} must be from 0 to 9, got {y[at]}")
    return Images(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))

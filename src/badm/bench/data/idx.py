"""MNIST and datasets in its format: four gzip-compressed idx files of images and labels."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from badm.bench import formatting
from badm.bench.data.catalogue import IDX_FILES
from badm.bench.data.dataset import FileProblem
from badm.bench.data.sizes import DEFLATED, beyond, size_of

SIDE = 28
CLASSES = 10
IMAGES, LABELS = 2051, 2049  # the magic numbers: bytes in three dimensions, and in one
FILES = IDX_FILES
LARGEST = 1 << 30  # bytes of one file; a header that states more is not believed


class IdxError(ValueError):
    """A file is not a valid idx file; the message names it."""


class Images(NamedTuple):
    """Images (N, 28, 28) and labels (N), all ``uint8``."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def read(path: Path, magic: int) -> Tensor:
    """Read one file as a ``uint8`` tensor of the shape in its header.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "labels.gz"
    ...     write(file, torch.tensor([3, 1, 4], dtype=torch.uint8))
    ...     read(file, LABELS)
    tensor([3, 1, 4], dtype=torch.uint8)
    """
    dimensions = magic & 0xFF
    there = size_of(path, IdxError)
    try:
        with gzip.open(path, "rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions:
                raise IdxError(f"{path} ends inside its header: {len(header)} bytes")
            found, *shape = struct.unpack(f">{1 + dimensions}I", header)
            if found != magic:
                raise IdxError(f"{path} must start with the magic number {magic}, got {found}")
            size = math.prod(shape)
            if size > min(LARGEST, DEFLATED * there):
                raise IdxError(
                    f"{path} states the shape {formatting.shape(shape)}, {size:,} bytes, "
                    + beyond(LARGEST, DEFLATED, there)
                )
            data = bytearray(file.read(size + 1))
    except EOFError as error:
        raise IdxError(f"{path} is truncated: the compressed data end too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise IdxError(f"{path} is not a valid gzip file: {error}") from error
    if len(data) != size:
        amount = "more" if len(data) > size else f"only {len(data)}"
        raise IdxError(f"{path} states {formatting.shape(shape)} = {size} bytes and holds {amount}")
    if size == 0:
        raise IdxError(f"{path} is empty: its header states {formatting.shape(shape)}")
    return torch.frombuffer(data, dtype=torch.uint8).reshape(shape)


def load(folder: Path) -> Images:
    """Read the four files of a folder, which must fit together.

    >>> from badm.bench.data import path
    >>> load(path("mnist")).train.shape  # doctest: +SKIP
    torch.Size([60000, 28, 28])
    """
    arrays = []
    for images_file, labels_file in (FILES[:2], FILES[2:]):
        images, labels = read(folder / images_file, IMAGES), read(folder / labels_file, LABELS)
        if images.shape[1:] != (SIDE, SIDE):
            raise IdxError(
                f"{folder / images_file} must hold images of {SIDE}×{SIDE} pixels, "
                f"got {formatting.shape(images.shape[1:])}"
            )
        if len(labels) != len(images):
            raise IdxError(
                f"{folder / labels_file} has {len(labels)} labels for {len(images)} images"
            )
        if labels.max() >= CLASSES:
            at = int((labels >= CLASSES).int().argmax())
            raise IdxError(
                f"{folder / labels_file} must have labels from 0 to {CLASSES - 1}, got "
                f"{int(labels[at])} for image {at}"
            )
        arrays += [images, labels]
    return Images(*arrays)


def write(path: Path, data: Tensor) -> None:
    """Write a ``uint8`` tensor as an idx file; equal tensors give equal files."""
    if data.dtype != torch.uint8:
        raise ValueError(f"data must be of type torch.uint8, got {data.dtype}")
    with (
        open(path, "wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as file,
    ):
        file.write(contents(data))


def contents(data: Tensor) -> bytes:
    """Return the bytes of an idx file before compression."""
    shape = tuple(data.shape)
    header = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)
    return header + data.contiguous().numpy().tobytes()


@dataclass(frozen=True)
class Facts:
    """Recorded facts of a dataset: samples per class and SHA-256 of the uncompressed files."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)


MNIST = (
    Facts(
        train=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        test=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        sha256={
            FILES[0]: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            FILES[1]: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            FILES[2]: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            FILES[3]: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
    Facts(  # the first 20,000 and 5,000
        train=(1994, 2281, 1929, 2076, 1945, 1775, 1971, 2093, 1922, 2014),
        test=(460, 571, 530, 500, 500, 456, 462, 512, 489, 520),
    ),
)
FASHION_MNIST = (
    Facts(train=(6000,) * 10, test=(1000,) * 10),
    Facts(  # the first 20,000 and 5,000
        train=(1935, 2025, 1982, 2011, 1967, 2010, 2068, 2003, 1971, 2028),
        test=(507, 481, 521, 500, 521, 485, 482, 500, 526, 477),
    ),
)


def check(known: tuple[Facts, ...], folder: Path) -> list[FileProblem]:
    """List what is wrong with the four files of a folder, given the datasets they may be."""
    problems = []
    for name, magic in zip(FILES, (IMAGES, LABELS) * 2, strict=True):
        try:
            read(folder / name, magic)
        except (IdxError, OSError) as error:
            problems.append(FileProblem(f"{folder.name}/{name}", "corrupt", str(error)))
    if problems:
        return problems
    try:
        images = load(folder)
    except IdxError as error:
        return [FileProblem(folder.name, "size", str(error))]
    for facts in known:
        if (_classes(images.train_labels), _classes(images.test_labels)) == (
            facts.train,
            facts.test,
        ):
            return [
                FileProblem(
                    f"{folder.name}/{name}", "corrupt", "its contents have another checksum"
                )
                for name, data in zip(FILES, images, strict=True)
                if name in facts.sha256
                and hashlib.sha256(contents(data)).hexdigest() != facts.sha256[name]
            ]
    sizes = " or ".join(f"{sum(facts.train):,} + {sum(facts.test):,}" for facts in known)
    return [
        FileProblem(
            folder.name,
            "size",
            f"{len(images.train):,} + {len(images.test):,} images are not the {sizes} known, "
            "or not in the known number of each class",
        )
    ]


def synthetic_images(count: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Generate images of the shape of MNIST: a blurred pattern per class, shifted, with noise.

    The patterns are the same for every seed, so a second seed gives a test set for the first.

    >>> images, labels = synthetic_images(count=6, classes=3, seed=0)
    >>> images.shape, images.dtype, labels.sort().values.tolist()
    (torch.Size([6, 28, 28]), torch.uint8, [0, 0, 1, 1, 2, 2])
    """
    if count < 1:
        raise ValueError(f"count must be a whole number of at least 1, got {count}")
    if not 1 <= classes <= 256:
        raise ValueError(f"classes must be from 1 to 256, got {classes}")
    # One generator for each class: more classes do not change the patterns of the first ones.
    coarse = torch.stack(
        [torch.rand(7, 7, generator=torch.Generator().manual_seed(c)) for c in range(classes)]
    )
    patterns = interpolate(coarse[:, None], size=(SIDE, SIDE), mode="bilinear")[:, 0]
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count).remainder(classes)[torch.randperm(count, generator=generator)]
    shifts = torch.randint(-2, 3, (count, 2), generator=generator)
    rows = (torch.arange(SIDE) + shifts[:, :1]).remainder(SIDE)
    columns = (torch.arange(SIDE) + shifts[:, 1:]).remainder(SIDE)
    shifted = patterns[labels[:, None, None], rows[:, :, None], columns[:, None, :]]
    noisy = shifted + 0.25 * torch.randn(count, SIDE, SIDE, generator=generator)
    return (255 * noisy).round().clamp(0, 255).to(torch.uint8), labels.to(torch.uint8)


def _classes(labels: Tensor) -> tuple[int, ...]:
    return tuple(torch.bincount(labels.long(), minlength=10).tolist())

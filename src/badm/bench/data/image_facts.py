"""Recorded facts about the image datasets, and checks of folders against them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from badm.bench.data.dataset import FileProblem

if TYPE_CHECKING:
    from torch import Tensor

Counts = tuple[int, ...]  # images per class

# Images per class in each part of a dataset: of the whole dataset and, if there is one, of the
# subset of its first images.
# fmt: off
KNOWN: dict[str, tuple[tuple[Counts, ...], ...]] = {
    "cifar10": (
        ((5_000,) * 10, (1_000,) * 10),
        (
            (610, 551, 619, 580, 611, 583, 616, 597, 620, 613),
            (149, 152, 146, 151, 137, 126, 168, 149, 165, 157),
        ),
    ),
    "svhn": (
        (
            (4_948, 13_861, 10_585, 8_497, 7_458, 6_882, 5_727, 5_595, 5_045, 4_659),
            (1_744, 5_099, 4_149, 2_882, 2_523, 2_384, 1_977, 2_019, 1_660, 1_595),
        ),
        (
            (428, 1_186, 839, 668, 632, 582, 451, 429, 419, 366),
            (105, 278, 236, 175, 148, 132, 123, 107, 101, 95),
        ),
    ),
    "cmaterdb": (
        (
            (500,) * 10, (100,) * 10,  # Bangla
            (250,) * 10, (50,) * 10,  # Devanagari
            (250,) * 10, (50,) * 10,  # Telugu
        ),
    ),
    "tf-flowers": (((633, 898, 641, 699, 799),),),
    "deepweeds": (
        ((1_125, 1_064, 1_031, 1_022, 1_062, 1_009, 1_074, 1_016, 9_106),),
        ((250,) * 9,),
    ),
}
# fmt: on
CAMELYON = {"train": 262_144, "valid": 32_768, "test": 32_768}


def check(name: str, folder: Path) -> list[FileProblem]:
    """List what is wrong with the files of a dataset; empty if they match the recorded facts."""
    from badm.bench.data.image_files import ImageFileError
    from badm.bench.data.images import ImageError

    try:
        parts = tuple(_counts(labels) for labels in _parts(name, folder))
    except (ImageError, ImageFileError, OSError) as error:
        return [FileProblem(folder.name, "corrupt", str(error))]
    if parts in KNOWN[name]:
        return []
    found, *known = (" + ".join(f"{sum(part):,}" for part in one) for one in (parts, *KNOWN[name]))
    return [
        FileProblem(
            folder.name,
            "size",
            f"{found} images are not the {' or '.join(known)} known, or not in the known number "
            "of each class",
        )
    ]


def check_camelyon(folder: Path) -> list[FileProblem]:
    """List what is wrong with the files of PatchCamelyon, from labels and sizes alone."""
    from badm.bench.data import camelyon
    from badm.bench.data.images import ImageError

    problems = []
    for part in camelyon.PARTS:
        try:
            patches, _ = camelyon.read(folder, part)
        except (ImageError, OSError) as error:
            problems.append(FileProblem(folder.name, "corrupt", str(error)))
            continue
        if len(patches) != CAMELYON[part]:
            amount = f"{len(patches):,} patches are not the {CAMELYON[part]:,} known"
            problems.append(FileProblem(f"{folder.name}/{patches.file.name}", "size", amount))
    return problems


def _parts(name: str, folder: Path) -> Iterator[Tensor]:
    """Yield the labels of each part of a dataset, after reading all its images."""
    import torch

    from badm.bench.data import image_files, images, photographs

    if name in ("tf-flowers", "deepweeds"):
        found = {"tf-flowers": photographs.flowers, "deepweeds": photographs.deepweeds}[name](
            folder
        )
        for file in found.files:
            image_files.read(file, 1, 1)
        yield torch.tensor(found.labels)
        return
    sets = {
        "cifar10": lambda: [images.cifar10(folder)],
        "svhn": lambda: [images.svhn(folder)],
        "cmaterdb": lambda: [images.cmaterdb(script, folder) for script in images.SCRIPTS],
    }
    for one in sets[name]():
        yield one.train.labels
        yield one.test.labels


def _counts(labels: Tensor) -> Counts:
    return tuple(labels.bincount().tolist())

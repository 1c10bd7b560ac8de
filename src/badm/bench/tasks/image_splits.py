"""Splits of image datasets into training, validation and test, the same for every seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from badm.bench.data import camelyon, images, path, photographs
from badm.bench.data.camelyon import Patches
from badm.bench.data.images import Images, ImageSet
from badm.bench.task import Scale

VALIDATION = 0.15  # fraction of the training images
TEST = 0.2  # fraction of all, if the publisher has no test split
# At cpu scale: the same whether the whole dataset is there or only its first images.
CPU_TRAIN, CPU_TEST = 6_000, 1_500
CPU_OF_EACH_WEED = 250


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of an image dataset; pixels stay ``uint8``, and on disk, until they are indexed."""

    pixels: Tensor | Patches
    rows: Tensor
    labels: Tensor  # one per row
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return images and labels of some rows."""
        return self.pixels[self.rows[indices]], self.labels[indices]


Three = tuple[Split, Split, Split]


def load(name: str, scale: Scale, side: int) -> Three:
    """Load training, validation and test split of a dataset, with images of ``side × side``."""
    return LOADERS[name](scale, side)


def hold_out(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Split the images of each class at random, always in the same way; return kept, held out.

    >>> kept, held = hold_out(torch.tensor([0] * 20 + [1] * 10), 0.2)
    >>> len(kept), (held < 20).sum().item(), (held >= 20).sum().item()
    (24, 4, 2)
    """
    generator = torch.Generator().manual_seed(0)
    out = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(int(labels.max()) + 1):
        (members,) = (labels == label).nonzero(as_tuple=True)
        order = torch.randperm(len(members), generator=generator)
        out[members[order[: round(share * len(members))]]] = True
    return (~out).nonzero()[:, 0], out.nonzero()[:, 0]


def duplicate_notes(train: Split, validation: Split, test: Split) -> Iterator[str]:
    """Describe images that occur more than once, pixel for pixel."""
    if isinstance(train.pixels, Patches):
        return
    digests = [_digests(split) for split in (train, validation, test)]
    seen = {*digests[0], *digests[1]}
    known = sum(digest in seen for digest in digests[2])
    if known:
        yield (
            f"{known:,} of {len(test):,} test images are also among those for training and "
            "validation, pixel for pixel."
        )
    classes: dict[bytes, set[int]] = {}
    for split, those in zip((train, validation, test), digests, strict=True):
        for digest, label in zip(those, split.labels.tolist(), strict=True):
            classes.setdefault(digest, set()).add(label)
    for several in classes.values():
        if len(several) > 1:
            yield f"One image is there as {' and as '.join(train.classes[c] for c in several)}."


def _digests(split: Split) -> list[bytes]:
    assert isinstance(split.pixels, Tensor)
    return [
        hashlib.blake2b(split.pixels[row].numpy().tobytes(), digest_size=16).digest()
        for row in split.rows.tolist()
    ]


def _parted(classes: tuple[str, ...], train: Images, test: Images) -> Three:
    """Use the publisher's test split, and hold out training images for validation."""
    kept, held = hold_out(train.labels, VALIDATION)
    return (
        Split(train.pixels, kept, train.labels[kept], classes),
        Split(train.pixels, held, train.labels[held], classes),
        Split(test.pixels, torch.arange(len(test)), test.labels, classes),
    )


def _of_one(classes: tuple[str, ...], found: Images) -> Three:
    """Hold out a test split first, because the publisher has none."""
    rest, test = hold_out(found.labels, TEST)
    kept, held = hold_out(found.labels[rest], VALIDATION)
    train, validation, tested = (
        Split(found.pixels, rows, found.labels[rows], classes)
        for rows in (rest[kept], rest[held], test)
    )
    return train, validation, tested


def _arrays(read: Callable[[], ImageSet]) -> Callable[[Scale, int], Three]:
    def load(scale: Scale, side: int) -> Three:
        found = read()
        if scale == "cpu":
            found = replace(
                found, train=found.train.first(CPU_TRAIN), test=found.test.first(CPU_TEST)
            )
        return _parted(found.classes, found.train, found.test)

    return load


def _flowers(scale: Scale, side: int) -> Three:
    found = photographs.flowers(path("tf-flowers"))
    return _of_one(found.classes, found.decoded(side))


def _deepweeds(scale: Scale, side: int) -> Three:
    found = photographs.deepweeds(path("deepweeds"))
    if scale == "cpu":
        found = found.first_of_each(CPU_OF_EACH_WEED)
    return _of_one(found.classes, found.decoded(side))


def _camelyon(scale: Scale, side: int) -> Three:
    folder = path("camelyon")
    splits = []
    for part in camelyon.PARTS:
        pixels: Tensor | Patches
        if scale == "cpu":
            count = CPU_TRAIN if part == "train" else CPU_TEST
            found = camelyon.first(folder, part, count, side)
            pixels, labels = found.pixels, found.labels
        else:
            pixels, labels = camelyon.read(folder, part)
        splits.append(Split(pixels, torch.arange(len(labels)), labels, camelyon.CLASSES))
    train, validation, test = splits
    return train, validation, test


# Dataset by the name that tasks have for it.
DATASETS = {
    "cifar10": "cifar10",
    "svhn": "svhn",
    "cmaterdb": "cmaterdb",
    "cmaterdb-devanagari": "cmaterdb",
    "cmaterdb-telugu": "cmaterdb",
    "deepweeds": "deepweeds",
    "camelyon": "camelyon",
    "flowers": "tf-flowers",
}

LOADERS: dict[str, Callable[[Scale, int], Three]] = {
    "cifar10": _arrays(lambda: images.cifar10(path("cifar10"))),
    "svhn": _arrays(lambda: images.svhn(path("svhn"))),
    "cmaterdb": _arrays(lambda: images.cmaterdb("bangla", path("cmaterdb"))),
    "cmaterdb-devanagari": _arrays(lambda: images.cmaterdb("devanagari", path("cmaterdb"))),
    "cmaterdb-telugu": _arrays(lambda: images.cmaterdb("telugu", path("cmaterdb"))),
    "deepweeds": _deepweeds,
    "camelyon": _camelyon,
    "flowers": _flowers,
}

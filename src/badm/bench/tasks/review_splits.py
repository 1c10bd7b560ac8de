"""Splits of the reviews into training, validation and test, the same for every seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from badm.bench.data import path, reviews
from badm.bench.data.reviews import Reviews
from badm.bench.task import Scale
from badm.bench.tasks.data_identity import dataset_identity

DATASET = "imdb"
VALIDATION = 0.2  # fraction of the training reviews
# Per class at cpu scale: the same whether the whole dataset is there or part of it.
CPU_TRAIN, CPU_TEST = 5_000, 2_500


@dataclass(frozen=True)
class ReviewSplits:
    """The reviews of each split, and notes for readers of the results."""

    train: Reviews
    validation: Reviews
    test: Reviews
    notes: tuple[str, ...] = ()
    synthetic: bool = False


def load(scale: Scale) -> ReviewSplits:
    """Load the splits at a scale; at ``smoke`` scale the reviews are synthetic.

    >>> splits = load("smoke")
    >>> len(splits.train), len(splits.validation), len(splits.test), splits.synthetic
    (480, 160, 160, True)
    """
    if scale == "smoke":
        train, validation, test = (
            reviews.synthetic_reviews(count, seed) for seed, count in enumerate((480, 160, 160))
        )
        return ReviewSplits(train, validation, test, synthetic=True)
    found = _read(path(DATASET), dataset_identity(DATASET))
    train, test = (found[part] for part in reviews.PARTS)
    if scale == "cpu":
        train, test = train.first_by_number(CPU_TRAIN), test.first_by_number(CPU_TEST)
    return split_reviews(train, test)


def split_reviews(train: Reviews, test: Reviews) -> ReviewSplits:
    """Hold out the last fifth of the reviews for training, in the example's order."""
    # The example shuffles its files with numpy's legacy generator, seeded with 1337.
    order = np.random.RandomState(1337).permutation(len(train)).tolist()
    first = len(train) - int(VALIDATION * len(train))
    kept, held = train.pick(order[:first]), train.pick(order[first:])
    return ReviewSplits(kept, held, test, tuple(_notes(kept, held, test)))


def _notes(train: Reviews, validation: Reviews, test: Reviews) -> list[str]:
    notes = [
        f"{len(train):,} reviews to train on, {len(validation):,} to validate and {len(test):,} to "
        "test."
    ]
    both = Reviews((*train.items, *validation.items))
    for name, split, others, which in (
        ("validation", validation, train, "those for training"),
        ("test", test, both, "those for training and validation"),
    ):
        known = split.count_shared(others)
        if known:
            notes.append(f"{known} of {len(split):,} {name} reviews are also among {which}.")
    return notes


@lru_cache(maxsize=1)
def _read(folder: Path, identity: str) -> dict[str, Reviews]:
    """Read the dataset, once per process for all tasks, while its files stay the same."""
    return reviews.read(folder)

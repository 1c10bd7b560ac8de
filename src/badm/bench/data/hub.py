"""Fetching from the Hugging Face Hub, with the ``datasets`` library (extra ``badm[data]``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from badm.bench.data import idx
from badm.bench.data.dataset import ProgressCallback
from badm.bench.data.optional_imports import fetch_error, library

SECONDS = 10  # timeout; the Hub answers in less than one second
LIBRARIES = ("datasets", "huggingface_hub", "PIL")


def fetch_idx(repository: str, folder: Path, report: ProgressCallback | None) -> None:
    """Write the columns ``image`` and ``label`` of a repository as the four idx files."""
    datasets, hub, _ = (library(name, "data") for name in LIBRARIES)
    with (
        TemporaryDirectory(prefix=".hub-", dir=folder.parent, ignore_cleanup_errors=True) as cache,
        _bars(hub, datasets, shown=report is not None),
    ):
        try:
            # One request first: without a network, datasets itself would retry for half a minute.
            revision = hub.HfApi().dataset_info(repository, timeout=SECONDS).sha
            splits = datasets.load_dataset(repository, revision=revision, cache_dir=cache)
            for split, (images, labels) in {"train": idx.FILES[:2], "test": idx.FILES[2:]}.items():
                _write(splits[split], split, folder / images, folder / labels, report)
        # The libraries raise errors of httpx, requests, fsspec and pyarrow and their own.
        except Exception as error:
            raise fetch_error(repository, "from the Hugging Face Hub", error) from error


def _write(
    rows: Any, split: str, images: Path, labels: Path, report: ProgressCallback | None
) -> None:
    pixels, classes = bytearray(), bytearray()
    for done, row in enumerate(rows, start=1):
        image = row["image"]
        if image.mode != "L" or image.size != (idx.SIDE, idx.SIDE):
            raise ValueError(f"image {done} of {split} is {image.mode} of {image.size} pixels")
        pixels += image.tobytes()
        classes.append(row["label"])
        if report and (done % 500 == 0 or done == len(rows)):
            report(f"{split} images", done, len(rows))
    flat = torch.frombuffer(pixels, dtype=torch.uint8)
    idx.write(images, flat.reshape(-1, idx.SIDE, idx.SIDE))
    idx.write(labels, torch.frombuffer(classes, dtype=torch.uint8))


@contextmanager
def _bars(*libraries: Any, shown: bool) -> Iterator[None]:
    """Disable the progress bars of the libraries, which they draw even into a pipe."""
    silenced = [
        library.utils
        for library in libraries
        if not shown and not library.utils.are_progress_bars_disabled()
    ]
    for utils in silenced:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        for utils in silenced:
            utils.enable_progress_bars()

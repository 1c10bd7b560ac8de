"""Datasets of one image file per photograph: TF Flowers and DeepWeeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from badm.bench.data import csv_files, image_files
from badm.bench.data.images import ImageError, Images
from badm.bench.data.sizes import listed, shown

FLOWERS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
WEEDS = 9  # eight species, and none of them
FILENAME, LABEL, SPECIES = "Filename", "Label", "Species"


@dataclass(frozen=True)
class Photographs:
    """Image files and the class of each; images are decoded on demand."""

    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: tuple[int, ...]

    def first_of_each(self, count: int) -> Photographs:
        """Select the first ``count`` of each class, or all if there are fewer."""
        seen = dict.fromkeys(self.labels, 0)
        kept = []
        for place, label in enumerate(self.labels):
            seen[label] += 1
            if seen[label] <= count:
                kept.append(place)
        return self.select(kept)

    def select(self, places: Sequence[int]) -> Photographs:
        """Select by index."""
        return Photographs(
            self.classes,
            tuple(self.files[place] for place in places),
            tuple(self.labels[place] for place in places),
        )

    def decoded(self, side: int, *, crop: bool = False) -> Images:
        """Decode all to ``side × side``: resized, or with ``crop`` the centred square of each."""
        pixels = image_files.read_all(self.files, side, side, crop=crop)
        return Images(torch.from_numpy(pixels), torch.tensor(self.labels))


def flowers(folder: Path) -> Photographs:
    """List the photographs of TF Flowers, which has a folder per class.

    >>> from badm.bench.data import path
    >>> len(flowers(path("tf-flowers")).files)  # doctest: +SKIP
    3670
    """
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(FLOWERS):
        if not (folder / name).is_dir():
            raise ImageError(f"{folder} has no folder {name}")
        found = sorted((folder / name).glob("*.jpg"))
        if not found:
            raise ImageError(f"{folder / name} has no images *.jpg")
        files += found
        labels += [label] * len(found)
    return Photographs(FLOWERS, tuple(files), tuple(labels))


def deepweeds(folder: Path) -> Photographs:
    """List the photographs of DeepWeeds, in the order of ``labels.csv``."""
    file = folder / "labels.csv"
    classes, rows = _rows(file)
    there = {image.name for image in (folder / "images").glob("*")}
    lost = [name for name in rows if name not in there]
    if lost:
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        raise ImageError(
            f"{file}: {listed(lost[:1])}{more} must be in {folder / 'images'}, and is not"
        )
    files = tuple(folder / "images" / name for name in rows)
    return Photographs(classes, files, tuple(rows.values()))


def _rows(file: Path) -> tuple[tuple[str, ...], dict[str, int]]:
    """Read the names of the classes and the class of each file."""
    text = csv_files.text(file, ImageError)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: dict[str, int] = {}
    classes: dict[int, str] = {}
    try:
        header = next(reader, [])
        name, label, species = (
            csv_files.column(file, header, n, ImageError) for n in (FILENAME, LABEL, SPECIES)
        )
        for fields in reader:
            where = f"{file}, line {reader.line_num}"
            if len(fields) != len(header):
                raise ImageError(f"{where}: {len(fields)} fields for {len(header)} columns")
            if fields[name] in rows:
                again = listed([fields[name]])
                raise ImageError(f"{where}, field {FILENAME}: {again} is there twice")
            number = rows[fields[name]] = _label(where, fields[label])
            called = classes.setdefault(number, fields[species])
            if called != fields[species]:
                raise ImageError(
                    f"{where}, field {SPECIES}: {LABEL} {number} is {shown(called)} before "
                    f"and {shown(fields[species])} here"
                )
    except csv.Error as error:
        raise ImageError(f"{file}, line {reader.line_num}: {error}") from error
    for number in range(WEEDS):
        if number not in classes:
            raise ImageError(f"{file}: no line has the {LABEL} {number}")
    return tuple(classes[number] for number in range(WEEDS)), rows


def _label(where: str, text: str) -> int:
    if text not in map(str, range(WEEDS)):
        raise ImageError(
            f"{where}, field {LABEL}: must be from 0 to {WEEDS - 1}, got {shown(text)}"
        )
    return int(text)

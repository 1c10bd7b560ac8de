"""The airplanes of Caltech-101: photographs with a box around the airplane."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from badm.bench.data import image_files, matlab
from badm.bench.data.archives import ArchiveError, unpack
from badm.bench.data.catalogue import AIRPLANE_FOLDERS, AIRPLANES
from badm.bench.data.dataset import FetchFailed, FileProblem, ProgressCallback
from badm.bench.data.download import Download

# Folders of images and annotations: as the published archive unpacks, and a plain layout.
OFFICIAL = AIRPLANE_FOLDERS
PLAIN = ("images", "Airplanes_Side_2")
INNER = ("101_ObjectCategories.tar.gz", "Annotations.tar")  # the archives in the archive
BOX = "box_coord"
COUNT = AIRPLANES
# SHA-256 of name, size and box of every image, as ``_facts`` writes them.
SHA256 = "e649919ac788b9589c57444ff4da69dc88cf36169881b150e45edd7e46800617"
ARCHIVE = Download(
    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
    137_414_764,
    "331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
)


class AirplaneError(ValueError):
    """A file is missing or invalid; the message names the file and the field."""


@dataclass(frozen=True)
class Airplane:
    """A photograph of ``height × width`` pixels and its box, in pixels too."""

    image: Path
    annotation: Path
    height: int
    width: int
    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def flaw(self) -> str | None:
        """What is wrong with an empty box, or ``None``."""
        if self.y1 == self.y2:
            return f"no height (y0 = y1 = {self.y1:g})"
        return f"no width (x0 = x1 = {self.x1:g})" if self.x1 == self.x2 else None

    @property
    def target(self) -> tuple[float, float, float, float]:
        """The box in fractions of width and height, which resizing does not change."""
        x, y = self.width, self.height
        return self.x1 / x, self.y1 / y, self.x2 / x, self.y2 / y


def read(folder: Path) -> list[Airplane]:
    """List all photographs of a folder, sorted by name; images are not decoded.

    >>> from badm.bench.data import path
    >>> read(path("caltech-airplanes"))[0].target  # doctest: +SKIP
    (0.1228070175438596, 0.1829268292682927, 0.8746867167919799, 0.8353658536585366)
    """
    return [read_one(image, annotation) for image, annotation in pairs(folder)]


def pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Pair every image with its annotation, sorted by name, in either of two layouts."""
    inside = OFFICIAL if (folder / OFFICIAL[0]).is_dir() else PLAIN
    images, annotations = (folder / part for part in inside)
    found = {_number(file): file for file in sorted(images.glob("image_*.jpg"))}
    boxes = {_number(file): file for file in sorted(annotations.glob("annotation_*.mat"))}
    if not found:
        raise AirplaneError(f"{images} has no images image_*.jpg")
    for number, file in found.items():
        if number not in boxes:
            lost = annotations / f"annotation_{number}.mat"
            raise AirplaneError(f"{lost} is missing, the annotation of {file.name}")
    for number, file in boxes.items():
        if number not in found:
            lost = images / f"image_{number}.jpg"
            raise AirplaneError(f"{lost} is missing, the image of {file.name}")
    return [(file, boxes[number]) for number, file in found.items()]


def read_one(image: Path, annotation: Path) -> Airplane:
    """Read one photograph's size and box, which must lie within it."""
    y1, y2, x1, x2 = read_box(annotation)
    height, width = image_files.original_size(image)
    for axis, low, high, size in (("y", y1, y2, height), ("x", x1, x2, width)):
        if not 0 <= low <= high <= size:
            raise AirplaneError(
                f"{annotation}: {BOX} must have 0 ≤ {axis}0 ≤ {axis}1 ≤ {size}, as {image.name} "
                f"has {width} × {height} pixels, got {low:g} and {high:g}"
            )
    return Airplane(image, annotation, height, width, x1, y1, x2, y2)


def read_box(file: Path) -> tuple[float, float, float, float]:
    """Read ``box_coord`` of a MATLAB file: y0, y1, x0, x1."""
    (array,) = matlab.fields(file, [BOX], AirplaneError)
    if array.dtype.kind not in "iuf" or array.size != 4:
        raise AirplaneError(
            f"{file}: {BOX} must be four numbers y0, y1, x0, x1, got {array.dtype} of shape "
            f"{array.shape}"
        )
    # Convert before subtracting: in uint8, as some files have them, 38 - 104 is 190.
    y0, y1, x0, x1 = map(float, array.ravel())
    if not all(map(math.isfinite, (y0, y1, x0, x1))):
        raise AirplaneError(f"{file}: {BOX} must be four numbers, got {array.ravel().tolist()}")
    return y0, y1, x0, x1


def decoded(airplanes: Sequence[Airplane], side: int) -> tuple[Tensor, Tensor]:
    """Decode to images (N, side, side, 3), ``uint8``, and targets (N, 4)."""
    images = image_files.read_all([airplane.image for airplane in airplanes], side, side)
    return torch.from_numpy(images), torch.tensor([airplane.target for airplane in airplanes])


def check(folder: Path) -> list[FileProblem]:
    """List what is wrong with the files of a folder, all of which are read."""
    try:
        both = pairs(folder)
    except AirplaneError as error:
        return [FileProblem(folder.name, "missing", str(error))]
    problems, airplanes = [], []
    for image, annotation in both:
        try:
            airplanes.append(read_one(image, annotation))
            image_files.read(image, 1, 1)
        except (AirplaneError, image_files.ImageFileError) as error:
            place = image if isinstance(error, image_files.ImageFileError) else annotation
            name = f"{folder.name}/{place.relative_to(folder).as_posix()}"
            problems.append(FileProblem(name, "corrupt", str(error)))
    if not problems and hashlib.sha256(_facts(airplanes)).hexdigest() != SHA256:
        problems.append(
            FileProblem(
                folder.name,
                "size",
                f"{len(airplanes)} images and their boxes are not the {COUNT} of Caltech-101",
            )
        )
    return problems


def fetch(folder: Path, report: ProgressCallback | None) -> None:
    """Download Caltech's archive and keep the airplanes, in the folders they unpack to."""
    with TemporaryDirectory(prefix=".caltech-", dir=folder.parent) as temporary:
        archive, outer = Path(temporary) / ARCHIVE.name, Path(temporary) / "outer"
        ARCHIVE.get(archive, report)
        try:
            unpack(archive, outer)
            for inner, wanted in zip(INNER, OFFICIAL, strict=True):
                unpacked = Path(temporary) / inner.partition(".")[0]
                for packed in outer.rglob(inner):
                    unpack(packed, unpacked)
                if not (unpacked / wanted).is_dir():
                    raise FetchFailed(f"{ARCHIVE.url} holds no {inner} with a folder {wanted}")
                (folder / wanted).parent.mkdir(parents=True)
                (unpacked / wanted).rename(folder / wanted)
        except ArchiveError as error:
            raise FetchFailed(f"{ARCHIVE.url}: {error}") from error


def synthetic_airplanes(count: int, side: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Generate ``uint8`` images of a bright rectangle on dark noise, and targets.

    The rectangles vary far more in position and size than airplanes do.

    >>> images, targets = synthetic_airplanes(3, 16, seed=0)
    >>> images.shape, images.dtype, targets.shape
    (torch.Size([3, 16, 16, 3]), torch.uint8, torch.Size([3, 4]))
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 100, (count, side, side, 3), generator=generator)
    quarter = side // 4
    starts = torch.randint(0, 2 * quarter, (count, 2), generator=generator)
    ends = starts + torch.randint(quarter, 2 * quarter + 1, (count, 2), generator=generator)
    places = torch.arange(side)
    within = (places >= starts[:, :, None]) & (places < ends[:, :, None])  # (count, x or y, place)
    inside = within[:, 1, :, None] & within[:, 0, None, :]
    images = images + 155 * inside[:, :, :, None]
    return images.to(torch.uint8), torch.cat([starts, ends], 1) / side


def _number(file: Path) -> str:
    return file.stem.partition("_")[2]


def _facts(airplanes: Sequence[Airplane]) -> bytes:
    lines = [
        f"{a.image.name} {a.width} {a.height} {a.x1:g} {a.y1:g} {a.x2:g} {a.y2:g}\n"
        for a in airplanes
    ]
    return "".join(lines).encode()

"""Image files, decoded with Pillow: one, or all of a set once and for all."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from badm.bench.data.sizes import DEFLATED, beyond, size_of
from badm.bench.files import cache_folder, write_atomically

FILTER = "bilinear, antialiased"
CHECKSUM = 4  # bytes at the end of a cache file
FORMATS = ("JPEG", "PNG")  # of all sets; Pillow has readers of dozens more, one of them a program
MOST_PIXELS = 1 << 26  # of one image, eight times those of a large photograph
PIXELS_PER_BYTE = 8 * DEFLATED  # of a PNG in black and white, which nothing exceeds

Pixels = npt.NDArray[np.uint8]


class ImageFileError(ValueError):
    """A file that is no sound image; the message names it."""


class MissingPillow(ImportError):
    """Pillow is not installed; the message says how it is."""


def read(file: Path, height: int, width: int, *, crop: bool = False) -> Pixels:
    """One image in RGB, shrunk or enlarged to ``(height, width, 3)``.

    With ``crop`` it is cut to the largest square in its middle first; else it is squeezed.

    What shrinks is antialiased. The public examples resize without (``tf.image.resize``), which at
    a quarter of the size looks at every fourth pixel only. With it, copies that somebody has shrunk
    before give nearly the pixels that the originals give, so results on them carry over. Like
    there, the orientation that a camera may have noted is not looked at.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "grey.png"
    ...     Image.new("L", (40, 20), 7).save(file)
    ...     read(file, 2, 1).tolist(), original_size(file)
    ([[[7, 7, 7]], [[7, 7, 7]]], (20, 40))
    """
    _check_size(height, width)
    with _opened(file) as image:
        # Cut first: resize has a parameter for it, and looks beyond the edges of what it is given.
        part = image.crop(_square(*image.size)) if crop else image
        resized = part.convert("RGB").resize((width, height), _pillow().Resampling.BILINEAR)
        return np.array(resized, np.uint8)


def original_size(file: Path) -> tuple[int, int]:
    """Height and width of an image as it is in its file; the pixels are not decoded."""
    with _opened(file) as image:
        width, height = image.size
        return height, width


def read_all(files: Sequence[Path], height: int, width: int, *, crop: bool = False) -> Pixels:
    """All images as ``(N, height, width, 3)``, decoded once and then kept in :func:`cache`.

    What has been decoded before is mapped into memory, copy-on-write: processes share it, and to
    write to the array changes nothing but the array. A file that has changed, a cache that is
    damaged or cannot be written only mean that everything is decoded again.

    >>> read_all([], 2, 3).shape
    (0, 2, 3, 3)
    """
    _check_size(height, width)
    shape = (len(files), height, width, 3)
    if not files:
        return np.empty(shape, np.uint8)
    kept = cache_folder() / f"{_key(files, height, width, crop)}.npy"
    found = _load(kept, shape)
    if found is not None:
        return found
    # Header, pixels and checksum in one piece: a set of gigabytes is not copied to be written.
    header = _header(shape)
    content = bytearray(len(header) + int(np.prod(shape)) + CHECKSUM)
    content[: len(header)] = header
    pixels = np.frombuffer(content, np.uint8, int(np.prod(shape)), len(header)).reshape(shape)
    for place, file in zip(pixels, files, strict=True):
        place[:] = read(file, height, width, crop=crop)
    content[-CHECKSUM:] = _checksum(pixels)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, cast(bytes, content))
    except OSError:
        return pixels
    mapped = _load(kept, shape)
    return pixels if mapped is None else mapped


def _square(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the largest square in the middle; half a pixel goes left."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _key(files: Sequence[Path], height: int, width: int, crop: bool) -> str:
    """Of all that the pixels depend on, as far as it can be told without reading the files."""
    about = [_pillow().__version__, FILTER, height, width, *["cropped"] * crop]
    try:
        stats = [(str(file.absolute()), file.stat()) for file in files]
    except FileNotFoundError as error:
        raise ImageFileError(f"{error.filename} is missing") from error
    except OSError as error:
        raise ImageFileError(f"{error.filename} cannot be read: {error.strerror}") from error
    rows = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps([about, rows]).encode()).hexdigest()[:32]


def _load(kept: Path, shape: tuple[int, ...]) -> Pixels | None:
    """What is in the cache, if it is there and whole."""
    header, size = _header(shape), int(np.prod(shape))
    try:
        content = np.memmap(kept, np.uint8, "c")
    except (OSError, ValueError):  # not there, not readable, or empty
        return None
    if len(content) != len(header) + size + CHECKSUM:
        return None
    pixels = content[len(header) : -CHECKSUM].reshape(shape)
    sound = bytes(content[: len(header)]) == header
    return pixels if sound and bytes(content[-CHECKSUM:]) == _checksum(pixels) else None


def _header(shape: tuple[int, ...]) -> bytes:
    """The beginning of a ``.npy`` file, so that anyone can look at what is kept."""
    file = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def _checksum(pixels: Pixels) -> bytes:
    return zlib.crc32(pixels.data).to_bytes(CHECKSUM, "little")


def _check_pixels(file: Path, sides: tuple[int, int], size: int) -> None:
    width, height = sides
    if width * height > min(MOST_PIXELS, PIXELS_PER_BYTE * size):
        raise ImageFileError(
            f"{file} states {width:,} × {height:,} pixels, "
            + beyond(MOST_PIXELS, PIXELS_PER_BYTE, size)
        )


def _check_size(height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise ValueError(f"height and width must be at least 1, got {height} and {width}")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """An image of Pillow; whatever it stumbles over becomes one sentence with the file's name."""
    pillow = _pillow()
    size = size_of(file, ImageFileError)
    try:
        # Pillow itself warns of large ones, on the way to where they are refused.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            opened = pillow.open(file, formats=FORMATS)
        with opened as image:
            _check_pixels(file, image.size, size)
            yield image
    except ImageFileError:
        raise
    except pillow.UnidentifiedImageError as error:
        raise ImageFileError(f"{file} is no image of the kinds {', '.join(FORMATS)}") from error
    # Decoders raise errors of many kinds: OSError, SyntaxError, ValueError, struct.error ...
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImageFileError(f"{file} cannot be decoded: {why}") from error


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingPillow(
            'image files need Pillow: pip install "badm[bench]" brings it'
        ) from error

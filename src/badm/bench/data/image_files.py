"""Image files, decoded with Pillow: one, or all of a dataset, which are then cached."""

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
FORMATS = ("JPEG", "PNG")  # of all datasets; Pillow has dozens more, one of which starts a program
MOST_PIXELS = 1 << 26  # per image, eight times a large photograph
PIXELS_PER_BYTE = 8 * DEFLATED  # of a black-and-white PNG, the densest format

Pixels = npt.NDArray[np.uint8]


class ImageFileError(ValueError):
    """A file is not a valid image; the message names it."""


class MissingPillow(ImportError):
    """Pillow is not installed; the message says how to install it."""


def read(file: Path, height: int, width: int, *, crop: bool = False) -> Pixels:
    """Read one image in RGB, resized to ``(height, width, 3)``.

    With ``crop`` the largest centred square is cut out first; otherwise the aspect ratio changes.

    Shrinking is antialiased. The public examples resize without antialiasing (``tf.image.resize``),
    which at a quarter of the size reads every fourth pixel only. With it, copies that were shrunk
    before give nearly the same pixels as the originals, so results on them carry over. As in the
    examples, the EXIF orientation is ignored.

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
        # Crop first: the parameter of resize for it also reads pixels beyond the edges of the box.
        part = image.crop(_square(*image.size)) if crop else image
        resized = part.convert("RGB").resize((width, height), _pillow().Resampling.BILINEAR)
        return np.array(resized, np.uint8)


def original_size(file: Path) -> tuple[int, int]:
    """Return height and width of an image file without decoding its pixels."""
    with _opened(file) as image:
        width, height = image.size
        return height, width


def read_all(files: Sequence[Path], height: int, width: int, *, crop: bool = False) -> Pixels:
    """Read all images as ``(N, height, width, 3)``, decoded once and then cached.

    The cache file is mapped into memory, copy-on-write: processes share it, and writing to the
    array does not change the file. If an image has changed, or the cache is damaged or cannot be
    written, everything is decoded again.

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
    # Header, pixels and checksum in one array, so that gigabytes are not copied to be written.
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
    """Left, top, right and bottom of the largest centred square, rounded to the left."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _key(files: Sequence[Path], height: int, width: int, crop: bool) -> str:
    """Hash everything the pixels depend on that is known without reading the files."""
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
    """Load from the cache, or return ``None`` if the file is missing or damaged."""
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
    """The header of a ``.npy`` file, so that numpy can open the cache."""
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
    """Open an image with Pillow; errors become one sentence that names the file."""
    pillow = _pillow()
    size = size_of(file, ImageFileError)
    try:
        # Pillow would warn of large images, which are refused here anyway.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            opened = pillow.open(file, formats=FORMATS)
        with opened as image:
            _check_pixels(file, image.size, size)
            yield image
    except ImageFileError:
        raise
    except pillow.UnidentifiedImageError as error:
        raise ImageFileError(f"{file} is not a {' or '.join(FORMATS)} image") from error
    # Decoders raise errors of many kinds: OSError, SyntaxError, ValueError, struct.error ...
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImageFileError(f"{file} cannot be decoded: {why}") from error


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingPillow('image files need Pillow: pip install "badm[bench]"') from error

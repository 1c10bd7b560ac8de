"""Files of artifacts, checked when a task makes them and again when a report reads them.

A run file names its artifacts, and may come from anywhere: a report shows only images and texts of
limited size that are in the folder of that run.
"""

from __future__ import annotations

import io
import reprlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from badm.bench import files, formatting
from badm.bench.files import os_error_reason
from badm.bench.records.schema import TEXT

PICTURE_BYTES = 20_000_000
PICTURE_SIDE = 20_000  # pixels
PICTURE_PIXELS = 50_000_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"
START = struct.Struct(">16xII")  # the start of a PNG file, up to width and height


class BadArtifact(ValueError):
    """An artifact cannot be shown; the message continues a sentence that begins with its title."""


def check(shown: Any) -> dict[str, bytes | str]:
    """Check the artifacts of a task; ``BadArtifact`` names the first that is no image or text."""
    if not isinstance(shown, Mapping):
        raise BadArtifact(
            f"must be a dict of images and texts by title, got {formatting.type_name(shown)}"
        )
    for title, content in shown.items():
        if not isinstance(title, str) or len(title) > TEXT:
            raise BadArtifact(
                f"must have a short string for every title, got {formatting.type_name(title)}"
            )
        try:
            _check_one(content)
        except BadArtifact as error:
            raise BadArtifact(f"{reprlib.repr(title)} {error}") from None
    return dict(shown)


def read(folder: Path, name: str) -> bytes | str:
    """Read a file directly in the folder: a PNG image, or else a text.

    Files outside of it are never read, whatever the name or a link says.
    """
    try:
        # The folder of the runs may be a link; the folder of artifacts and the file may not.
        own = folder.parent.resolve() / folder.name
        path = (folder / name).resolve(strict=True)
        inside = path.parent == own
        content = files.read_bounded(path, PICTURE_BYTES) if inside else b""
    except OSError as error:
        raise BadArtifact(f"cannot be read: {os_error_reason(error)}") from None
    except (ValueError, RuntimeError):  # a null character in the name, or a link to itself
        raise BadArtifact("cannot be read: its name is not that of a file") from None
    if not inside:
        raise BadArtifact(f"is outside of {folder}")
    shown = content if name.endswith(".png") else content.decode(errors="replace")
    _check_one(shown)
    return shown


def _check_one(content: Any) -> None:
    if isinstance(content, str):
        if len(content) > TEXT:
            raise BadArtifact(f"has {len(content):,} characters, and at most {TEXT:,} are shown")
    elif isinstance(content, bytes):
        _check_picture(content)
    else:
        raise BadArtifact(
            f"must be an image (PNG bytes) or a text, got {formatting.type_name(content)}"
        )


def _check_picture(content: bytes) -> None:
    from PIL import Image

    if len(content) > PICTURE_BYTES:
        raise BadArtifact(
            f"is larger than the {formatting.size(PICTURE_BYTES)} allowed for an image"
        )
    if not content.startswith(SIGNATURE) or len(content) < START.size:
        raise BadArtifact("is not a PNG image")
    wide, high = START.unpack_from(content)
    if max(wide, high) > PICTURE_SIDE or wide * high > PICTURE_PIXELS:
        raise BadArtifact(f"has {wide:,} × {high:,} pixels, more than allowed")
    try:
        Image.open(io.BytesIO(content), formats=["PNG"]).load()
    except Exception:  # Pillow raises errors of many types for damaged files
        raise BadArtifact("is a damaged PNG image") from None

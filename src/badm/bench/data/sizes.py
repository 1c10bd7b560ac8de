"""Limits on what is read: sizes in headers are checked before memory is allocated."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

DEFLATED = 1032  # most bytes that deflate can expand one byte to
SHOWN = 200  # characters of a file's contents in a message


def size_of(file: Path, error: type[ValueError]) -> int:
    """Return the size of a file in bytes; ``error`` if it is missing or not a regular file.

    >>> size_of(Path("/dev/null"), ValueError)
    Traceback (most recent call last):
    ValueError: /dev/null must be a file, and is a device, a pipe or a folder
    """
    try:
        about = file.stat()
    except FileNotFoundError as failure:
        raise error(f"{file} is missing") from failure
    except OSError as failure:
        raise error(f"{file} cannot be read: {failure.strerror}") from failure
    if not stat.S_ISREG(about.st_mode):
        raise error(f"{file} must be a file, and is a device, a pipe or a folder")
    return about.st_size


def content(file: Path, largest: int, error: type[ValueError]) -> bytes:
    """Read a file of at most ``largest`` bytes."""
    size = size_of(file, error)
    if size > largest:
        raise error(f"{file} has {size:,} bytes, more than the {largest:,} that are read")
    try:
        return file.read_bytes()
    except OSError as failure:
        raise error(f"{file} cannot be read: {failure.strerror}") from failure


def beyond(largest: int, rate: int, size: int) -> str:
    """Say for a message why a stated size is refused: above the limit, or more than fits the file.

    >>> beyond(1_000, 10, 7), beyond(1_000, 10, 7_000)
    ('which a file of 7 bytes cannot hold', 'more than the 1,000 that are read')
    """
    if rate * size < largest:
        return f"which a file of {size:,} bytes cannot hold"
    return f"more than the {largest:,} that are read"


def shown(foreign: object) -> str:
    """Quote a file's contents for a message: on one line, and shortened if long.

    >>> shown("a\\nb"), shown("x" * 2_000)[-24:]
    ("'a\\\\nb'", "xxxxx'... (2,000 in all)")
    """
    text = foreign if isinstance(foreign, str) else repr(foreign)
    if len(text) <= SHOWN:
        return repr(foreign)
    return f"{text[:SHOWN]!r}... ({len(text):,} in all)"


def listed(names: Iterable[str]) -> str:
    """List names from a file for a message.

    >>> listed(["a", "b"]), listed([]), listed(["a\\nb"])
    ('a, b', 'none', "'a\\\\nb'")
    """
    text = ", ".join(names) or "none"
    return text if len(text) <= SHOWN and text.isprintable() else shown(text)

"""What a file can hold: claims are compared with its size before memory is asked for."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

DEFLATED = 1032  # bytes that deflate makes of one, at most: whatever claims more, lies
SHOWN = 200  # letters of something foreign in a message


def size_of(file: Path, error: type[ValueError]) -> int:
    """The bytes of a file; an ``error`` if it is missing, or a pipe that would never end.

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
    """All of a file that has at most ``largest`` bytes."""
    size = size_of(file, error)
    if size > largest:
        raise error(f"{file} has {size:,} bytes, more than the {largest:,} that are read")
    try:
        return file.read_bytes()
    except OSError as failure:
        raise error(f"{file} cannot be read: {failure.strerror}") from failure


def beyond(largest: int, rate: int, size: int) -> str:
    """What is claimed too much, for a message: more than is read, or than a file of a size holds.

    >>> beyond(1_000, 10, 7), beyond(1_000, 10, 7_000)
    ('which a file of 7 bytes cannot hold', 'more than the 1,000 that are read')
    """
    if rate * size < largest:
        return f"which a file of {size:,} bytes cannot hold"
    return f"more than the {largest:,} that are read"


def shown(foreign: object) -> str:
    """What a file holds, for a message: on one line, and its beginning only if it is long.

    >>> shown("a\\nb"), shown("x" * 2_000)[-24:]
    ("'a\\\\nb'", "xxxxx'... (2,000 in all)")
    """
    text = foreign if isinstance(foreign, str) else repr(foreign)
    if len(text) <= SHOWN:
        return repr(foreign)
    return f"{text[:SHOWN]!r}... ({len(text):,} in all)"


def listed(names: Iterable[str]) -> str:
    """Names out of a file, for a message.

    >>> listed(["a", "b"]), listed([]), listed(["a\\nb"])
    ('a, b', 'none', "'a\\\\nb'")
    """
    text = ", ".join(names) or "none"
    return text if len(text) <= SHOWN and text.isprintable() else shown(text)

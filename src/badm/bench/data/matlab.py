"""Fields of MATLAB files, read without trusting their headers.

A file of version 5 is a header and then elements, each with a tag: its type and its number of
bytes. scipy trusts the tags and the dimensions in them, so they are checked first.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from badm.bench.data.sizes import DEFLATED, shown, size_of

LARGEST = 4 << 30  # bytes of one field
HEADER = 128  # bytes before the first element
ENDIAN = {b"IM": "<", b"MI": ">"}
COMPRESSED, MATRIX = 15, 14  # types of elements
PLAIN = (4, *range(6, 16))  # classes of arrays: letters, and numbers from double to uint64
COMPLEX = 0x0800
BEGINNING = 4096  # bytes of an element in which its name and dimensions are


class _FieldError(ValueError):
    """A requested field is invalid; the message begins with its name."""


def fields(file: Path, names: Sequence[str], error: type[ValueError]) -> list[Any]:
    """Read the arrays of those names; ``error`` names the file and what is wrong with it."""
    from scipy.io import loadmat

    size = size_of(file, error)
    try:
        with open(file, "rb") as source:
            _check(source, size, names)
        found = loadmat(str(file), appendmat=False, variable_names=list(names))
    except _FieldError as failure:
        raise error(f"{file}: {failure}") from failure
    # For broken files scipy raises errors of a dozen types.
    except Exception as failure:
        why = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        raise error(f"{file} cannot be read as a MATLAB file: {why[:300]}") from failure
    for name in names:
        if name not in found:
            raise error(f"{file}: has no field {name}")
    return [found[name] for name in names]


def _check(source: IO[bytes], size: int, names: Sequence[str]) -> None:
    """Raise ``ValueError`` unless all elements fit into the file and the requested are numbers."""
    header = source.read(HEADER)
    order = ENDIAN.get(header[126:128])
    if len(header) < HEADER or order is None or header[125 if order == "<" else 124] != 1:
        raise ValueError(f"its {size:,} bytes do not begin as those of version 5 do")
    for start, kind, length in _elements(source, size, order):
        if kind not in (COMPRESSED, MATRIX):
            raise ValueError(f"the element at byte {start:,} is of type {kind}, and no array")
        beginning = source.read(min(length, BEGINNING))
        if kind == COMPRESSED:
            beginning = zlib.decompressobj().decompress(beginning, BEGINNING)
            kind, stated = struct.unpack(f"{order}II", beginning[:8])
            if stated > min(DEFLATED * length, LARGEST):
                raise ValueError(
                    f"the element at byte {start:,} states {stated:,} bytes, which {length:,} "
                    "compressed ones cannot hold"
                )
            beginning, length = beginning[8:], stated
        if kind == MATRIX:
            _check_array(beginning, length, names, order)


def _elements(source: IO[bytes], size: int, order: str) -> Iterator[tuple[int, int, int]]:
    """Yield start, type and length of each element, with the source just behind its tag."""
    start = HEADER
    while start < size:
        source.seek(start)
        tag = source.read(8)
        if len(tag) < 8:
            raise ValueError(f"it ends inside the tag at byte {start:,}")
        kind, length = struct.unpack(f"{order}II", tag)
        if start + 8 + length > size:
            raise ValueError(
                f"the element at byte {start:,} states {length:,} bytes, in a file of {size:,}"
            )
        yield start, kind, length
        start += 8 + length


def _check_array(beginning: bytes, length: int, names: Sequence[str], order: str) -> None:
    """Check flags, dimensions and name of an array, the elements that come first."""
    flags, rest = _part(beginning, order)
    dimensions, rest = _part(rest, order)
    letters, rest = _part(rest, order)
    name = letters.decode("latin-1")
    if name not in names:
        return
    kind = struct.unpack(f"{order}I", flags[:4])[0]
    if kind & 0xFF not in PLAIN or kind & COMPLEX:
        raise _FieldError(
            f"{name} must be an array of real numbers, and is of class {kind & 0xFF}"
            + ", complex" * bool(kind & COMPLEX)
        )
    if len(dimensions) % 4 or len(dimensions) > 4 * 32:
        raise _FieldError(f"{name} states {len(dimensions) // 4:,} dimensions")
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    left = length - (len(beginning) - len(rest))
    if len(rest) < 8 or _stated(rest, order) > left:
        raise _FieldError(f"{name} states more bytes of numbers than the {left:,} that follow")
    # Every number takes at least a byte.
    if min(shape, default=0) < 0 or math.prod(shape) > length:
        raise _FieldError(
            f"{name} states the shape {shown(shape)}, in an element of {length:,} bytes"
        )


def _stated(data: bytes, order: str) -> int:
    """Return the length that the first element states."""
    kind, length = struct.unpack(f"{order}II", data[:8])
    return int(kind >> 16 or length)


def _part(data: bytes, order: str) -> tuple[bytes, bytes]:
    """Split off the first element; a short one has its data in its tag."""
    length = _stated(data, order)
    if struct.unpack(f"{order}I", data[:4])[0] >> 16:
        return data[4 : 4 + min(length, 4)], data[8:]
    if 8 + length > len(data):
        raise ValueError(f"a part of {length:,} bytes is stated where {len(data):,} are left")
    return data[8 : 8 + length], data[8 + -(-length // 8) * 8 :]

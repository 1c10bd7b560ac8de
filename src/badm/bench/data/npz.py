"""Arrays of npz files, read without trusting their headers; nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from badm.bench.data.sizes import DEFLATED, listed, shown, size_of

Array = npt.NDArray[Any]

ENDING = ".npy"
# zipfile reads as much as requested, and returns all that LZMA expands it to.
CHUNK = 1 << 12
# Most bytes that each compression expands one byte to; bzip2 has no useful bound.
MAX_EXPANSION = {
    zipfile.ZIP_STORED: 1,
    zipfile.ZIP_DEFLATED: DEFLATED,
    zipfile.ZIP_LZMA: 8 * DEFLATED,
}


def read(
    file: Path,
    names: Sequence[str],
    *,
    optional: Sequence[str] = (),
    largest: int,
    error: type[ValueError],
) -> dict[str, Array]:
    """Read arrays by name, and those optional ones that exist, in native byte order.

    ``largest`` limits the bytes of all of them. ``error`` names the file and what is wrong with it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder) / "two.npz", a=np.arange(3), b=1)
    ...     read(Path(folder) / "two.npz", ["a"], largest=1_000, error=ValueError)
    {'a': array([0, 1, 2])}
    """
    size = size_of(file, error)
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(file, size, archive, largest, error)
            for name in names:
                if name not in members:
                    raise error(f"{file}: has no field {name}, only {listed(members)}")
            wanted = [*names, *(name for name in optional if name in members)]
            return {name: _array(file, archive, members[name], name, error) for name in wanted}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as failure:
        raise error(f"{file} is truncated or not an npz file: {failure}") from failure


def _members(
    file: Path, size: int, archive: zipfile.ZipFile, largest: int, error: type[ValueError]
) -> dict[str, zipfile.ZipInfo]:
    """Map names of arrays to members, whose total size the file must be able to hold."""
    found = archive.infolist()
    total = sum(member.file_size for member in found)
    if total > largest:
        raise error(f"{file}: states {total:,} bytes, more than {largest:,}")
    names = [member.filename.removesuffix(ENDING) for member in found]
    for name, times in Counter(names).items():
        if times > 1:
            raise error(f"{file}: has {times} fields {shown(name)}")
    for name, member in zip(names, found, strict=True):
        if member.compress_type not in MAX_EXPANSION:
            raise error(f"{file}: {shown(name)} must be compressed with deflate or LZMA")
    # Of the whole file: overlapping members would each be within bounds.
    if total > max((MAX_EXPANSION[member.compress_type] for member in found), default=0) * size:
        raise error(f"{file}: states {total:,} bytes, which {size:,} in a file cannot hold")
    return dict(zip(names, found, strict=True))


def _array(
    file: Path,
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    name: str,
    error: type[ValueError],
) -> Array:
    try:
        with archive.open(member) as source:
            return _read(source, member.file_size)
    # numpy parses headers as Python, which raises errors of its own.
    except (
        ValueError,
        TypeError,
        SyntaxError,
        RecursionError,
        MemoryError,
        OverflowError,
        RuntimeError,  # zipfile: a password is needed
        zipfile.BadZipFile,
        EOFError,
        OSError,
        zlib.error,
        LZMAError,
        TokenError,
    ) as failure:
        why = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        raise error(f"{file}: {name} cannot be read: {why[:300]}") from failure


def _read(source: IO[bytes], size: int) -> Array:
    """Read the array of a member, whose header must agree with the member's size."""
    version = np.lib.format.read_magic(source)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its version is {version[0]}.{version[1]}, not 1.0 to 3.0")
    # Version 3 differs from 2 only in the encoding of names.
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_columns, dtype = read_header(source)
    if dtype.hasobject:
        raise ValueError("Object arrays are not unpickled (allow_pickle=False)")
    if any(length < 0 for length in shape):
        raise ValueError(f"it states the shape {shape}, with a length below 0")
    stated, there = math.prod(shape) * dtype.itemsize, size - source.tell()
    if stated != there:
        raise ValueError(
            f"it states {str(dtype)[:100]} of shape {shape}, {stated:,} bytes, and has {there:,}"
        )
    data = np.empty(there, np.uint8)
    done = 0
    while chunk := source.read(CHUNK):
        data[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    flat = data.view(dtype)
    array = flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)

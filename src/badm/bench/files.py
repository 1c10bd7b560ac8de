"""Files that may not be what their names say.

What is not a regular file is never opened: a named pipe would wait for ever for someone to write
into it, and to open some devices is to do something. What is too large is not read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EFBIG, EINVAL, EISDIR
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile

import torch

from badm.bench import formatting
from badm.bench.errors import StoreError

KINDS = {
    stat.S_IFIFO: "is a named pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}


def require_regular(path: Path) -> None:
    """Raise ``OSError`` where there is no file, or something that is none; links are followed."""
    _check(path.stat(), path)


def replaceable(path: Path) -> None:
    """Raise ``OSError`` where there is something that is neither a file nor a link to one."""
    try:
        require_regular(path)
    except FileNotFoundError:
        return


def read_bounded(path: Path, most: int) -> bytes:
    """All of a file of at most so many bytes; ``OSError`` says why it cannot be read."""
    require_regular(path)
    # It may have been replaced since: O_NONBLOCK does not wait, and what was opened is looked at.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        _check(status, path)
        # What the system makes as it is read, such as /proc, says that it is empty.
        content = b"" if status.st_size > most else file.read(most + 1)
    if max(status.st_size, len(content)) > most:
        raise OSError(EFBIG, f"is larger than the {formatting.size(most)} that are read", str(path))
    return content


def _check(status: os.stat_result, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(EINVAL, KINDS.get(kind, "is not a file"), str(path))


def os_error_reason(error: OSError) -> str:
    """What the system says, without number and path."""
    said = error.strerror or str(error)
    return said[:1].lower() + said[1:]


@contextmanager
def _atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there when all of it is, whenever the process or the machine stops."""
    replaceable(path)
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    with _atomic_file(path) as file:
        file.write(content)


def save_tensors(path: Path, content: Any) -> None:
    """Like :func:`write_atomically`, for what ``torch.load(weights_only=True)`` takes."""
    try:
        with _atomic_file(path) as file:
            torch.save(content, file)
    except RuntimeError as error:  # torch's way to say that the disk is full
        cause = error.__context__
        why = os_error_reason(cause) if isinstance(cause, OSError) else str(error).splitlines()[0]
        raise StoreError(f"cannot write {path}: {why}") from None


def load_tensors(path: Path) -> Any:
    """What :func:`save_tensors` has written, all of it as it was: torch checks no checksums."""
    require_regular(path)
    with ZipFile(path) as archive:
        # torch packs nothing: what is packed may be a thousand times as large in memory.
        packed = [one for one in archive.infolist() if one.compress_type != ZIP_STORED]
        damaged = packed[0].filename if packed else archive.testzip()
    if damaged is not None:
        raise StoreError(f"{path}: {damaged} is damaged")
    return torch.load(path, weights_only=True)


CACHE_VARIABLE = "BADM_CACHE"


DEFAULT_CACHE = Path("~/.cache/badm/decoded")


def cache_folder() -> Path:
    """Where decoded images are kept: ``BADM_CACHE``, or ``~/.cache/badm/decoded``.

    Whatever is in it can be deleted at any time.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, BADM_CACHE="/scratch"):
    ...     cache_folder().as_posix()
    '/scratch'
    """
    return Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE).expanduser()

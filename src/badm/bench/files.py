"""Safe reading and writing of files.

Only regular files are opened: reading a named pipe would block until someone writes to it, and
opening some devices has effects. Files that are too large are not read. Files are written
atomically.
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

from badm.bench import formatting
from badm.bench.errors import StoreError

KINDS = {
    stat.S_IFIFO: "is a named pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}


def require_regular(path: Path) -> None:
    """Raise ``OSError`` unless ``path`` is a regular file or a link to one."""
    _check(path.stat(), path)


def replaceable(path: Path) -> None:
    """Raise ``OSError`` if ``path`` exists and is neither a regular file nor a link to one."""
    try:
        require_regular(path)
    except FileNotFoundError:
        return


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes; ``OSError`` says why it cannot be read."""
    require_regular(path)
    # It may have been replaced since: O_NONBLOCK does not block, and the open file is checked too.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        _check(status, path)
        # Files of /proc have a size of 0 and contents all the same.
        content = b"" if status.st_size > limit else file.read(limit + 1)
    if max(status.st_size, len(content)) > limit:
        raise OSError(
            EFBIG, f"is larger than the {formatting.size(limit)} that are read", str(path)
        )
    return content


def _check(status: os.stat_result, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(EINVAL, KINDS.get(kind, "is not a file"), str(path))


def os_error_reason(error: OSError) -> str:
    """Return the system's message, without number and path."""
    message = error.strerror or str(error)
    return message[:1].lower() + message[1:]


@contextmanager
def _atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` once it is complete and on disk, and not before."""
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
    """Write a file completely or not at all, whenever the process or the machine stops."""
    with _atomic_file(path) as file:
        file.write(content)


def save_tensors(path: Path, content: Any) -> None:
    """Write what ``torch.load(weights_only=True)`` can read, completely or not at all."""
    import torch

    try:
        with _atomic_file(path) as file:
            torch.save(content, file)
    except RuntimeError as error:  # what torch raises when the disk is full
        cause = error.__context__
        why = os_error_reason(cause) if isinstance(cause, OSError) else str(error).splitlines()[0]
        raise StoreError(f"cannot write {path}: {why}") from None


def load_tensors(path: Path, device: str = "cpu") -> Any:
    """Read what :func:`save_tensors` has written; unlike torch, verify its checksums.

    Tensors that were on a device are loaded to ``device``. Those on the CPU stay there: optimizers
    keep their step counts on it.
    """
    import torch

    require_regular(path)
    with ZipFile(path) as archive:
        # torch compresses nothing: what is compressed may be a thousand times as large in memory.
        foreign = [one for one in archive.infolist() if one.compress_type != ZIP_STORED]
        damaged = foreign[0].filename if foreign else archive.testzip()
    if damaged is not None:
        raise StoreError(f"{path}: {damaged} is damaged")

    def restore(storage: Any, location: str) -> Any:
        target = "cpu" if location == "cpu" else device
        return torch.serialization.default_restore_location(storage, target)  # type: ignore[no-untyped-call]

    return torch.load(path, weights_only=True, map_location=restore)


CACHE_VARIABLE = "BADM_CACHE"
DEFAULT_CACHE = Path("~/.cache/badm/decoded")


def cache_folder() -> Path:
    """The folder of decoded images and digests: ``BADM_CACHE``, or ``~/.cache/badm/decoded``.

    It can be deleted at any time.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, BADM_CACHE="/scratch"):
    ...     cache_folder().as_posix()
    '/scratch'
    """
    return Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE).expanduser()

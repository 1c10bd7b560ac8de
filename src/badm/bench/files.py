"""Files that may not be what their names say.

What is not a regular file is never opened: a named pipe would wait for ever for someone to write
into it, and to open some devices is to do something. What is too large is not read.
"""

from __future__ import annotations

import os
import stat
from errno import EFBIG, EINVAL, EISDIR
from pathlib import Path

from badm.bench import numbers

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
        raise OSError(EFBIG, f"is larger than the {numbers.size(most)} that are read", str(path))
    return content


def _check(status: os.stat_result, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(EINVAL, KINDS.get(kind, "is not a file"), str(path))

"""What the readers of CSV files share: decoding, and finding columns by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from badm.bench.data import sizes

LARGEST = 64 << 20  # bytes of a file


def text(file: Path, error: type[ValueError]) -> str:
    """Read a UTF-8 file; ``error`` names the line that is not."""
    content = sizes.content(file, LARGEST, error)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = content.count(b"\n", 0, failure.start) + 1
        raise error(
            f"{file}, line {line}: must be UTF-8, got the byte 0x{content[failure.start]:02x}"
        ) from failure


def column(file: Path, header: Sequence[str], name: str, error: type[ValueError]) -> int:
    """Return the index of a column, of which there must be exactly one."""
    if header.count(name) != 1:
        amount = "more than one column" if name in header else "no column"
        raise error(f"{file}, line 1: {amount} {name!r} among {sizes.listed(header)}")
    return header.index(name)

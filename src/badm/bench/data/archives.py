"""Unpacking zip and tar archives that may have been made to do harm."""

from __future__ import annotations

import gzip
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any

from badm.bench.data.sizes import DEFLATED, shown, size_of

LARGEST = 32 << 30  # bytes an archive may unpack to
MOST = 500_000  # files and folders in it
LONGEST, LONGEST_PART = 1_000, 255  # bytes of a name, and of its parts, which no disk takes longer
HEADERS = 1 << 20  # bytes of what a tar archive says of a member before it
NEITHER = "which is neither a file nor a folder"


class ArchiveError(ValueError):
    """An archive that is broken, or that holds what a dataset does not; nothing was unpacked."""


def unpack(archive: Path, folder: Path, *, largest: int = LARGEST) -> None:
    """Unpack a zip or tar archive into a folder that is new or empty, all of it or nothing.

    Refused: absolute paths, ``..``, links, devices, one name twice, names that are too long or
    cannot be printed, more than ``largest`` bytes or than so small an archive can hold.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     with zipfile.ZipFile(Path(made) / "evil.zip", "w") as file:
    ...         file.writestr("../outside.txt", "")
    ...     unpack(Path(made) / "evil.zip", Path(made) / "inside")
    Traceback (most recent call last):
    badm.bench.data.archives.ArchiveError: evil.zip holds '../outside.txt', which leads outside
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} must be new or empty to unpack {archive.name} into it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        new = Path(temporary) / "unpacked"
        new.mkdir()
        try:
            _unpack(archive, new, largest)
        except (
            gzip.BadGzipFile,
            zipfile.BadZipFile,
            tarfile.TarError,
            zlib.error,
            LZMAError,
            EOFError,
            RuntimeError,  # zipfile's word for a password
            NotImplementedError,  # and for a compression that it does not know
            UnicodeError,
            OverflowError,
            struct.error,
        ) as error:
            why = " ".join(str(error).split())  # tarfile tells of every compression it tried
            raise ArchiveError(f"{archive.name} cannot be unpacked: {why[:500]}") from error
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise ArchiveError(f"{archive.name} holds one name twice: {error.filename}") from error
        if folder.exists():
            folder.rmdir()
        os.rename(new, folder)


def _unpack(archive: Path, folder: Path, largest: int) -> None:
    size = size_of(archive, ArchiveError)
    left = min(largest, DEFLATED * size)
    for number, (name, opened) in enumerate(_members(archive), start=1):
        if number > MOST:
            raise ArchiveError(f"{archive.name} holds more than {MOST:,} files and folders")
        target = folder / _safe(name, archive)
        if opened is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened as source, open(target, "xb") as copy:
            # Counted as they come: the sizes that an archive states may be wrong.
            while chunk := source.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    most = min(largest, DEFLATED * size)
                    raise ArchiveError(
                        f"{archive.name} unpacks to more than {most:,} bytes, and has {size:,}"
                    )
                copy.write(chunk)


def _members(archive: Path) -> Iterator[tuple[str, AbstractContextManager[IO[bytes]] | None]]:
    """Names with what opens them, or None for folders."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise ArchiveError(f"{archive.name} holds {shown(info.filename)}, {NEITHER}")
                yield info.filename, None if info.is_dir() else packed.open(info)
        return
    with tarfile.open(archive, "r:*", tarinfo=_Member) as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isreg() else None
            if source is None and not member.isdir():
                raise ArchiveError(f"{archive.name} holds {shown(member.name)}, {NEITHER}")
            yield member.name, source


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if len(name.encode(errors="replace")) > LONGEST or not all(map(_short, path.parts)):
        raise ArchiveError(f"{archive.name} holds {shown(name)}, which is too long for a name")
    if not name.isprintable():
        raise ArchiveError(f"{archive.name} holds {shown(name)}, which cannot be printed")
    # Backslashes and colons are harmless here and lead elsewhere on Windows.
    if path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"):
        raise ArchiveError(f"{archive.name} holds {shown(name)}, which leads outside")
    return path


def _short(part: str) -> bool:
    return len(part.encode(errors="replace")) <= LONGEST_PART


class _Member(tarfile.TarInfo):
    """A member whose long name or other headers, which tarfile reads at once, have some size."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        ahead = (
            *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
            *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        )
        if self.type in ahead and self.size > HEADERS:
            raise tarfile.ReadError(f"{self.size:,} bytes are stated before a member")
        return super()._proc_member(archive)  # type: ignore[misc]

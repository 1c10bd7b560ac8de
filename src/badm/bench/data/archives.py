"""Unpacking zip and tar archives that may be malicious."""

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
MAX_MEMBERS = 500_000  # files and folders
LONGEST, LONGEST_PART = 1_000, 255  # bytes of a path and of its parts, as far as file systems allow
HEADERS = 1 << 20  # bytes of the headers before a member of a tar archive
NEITHER = "which is neither a file nor a folder"


class ArchiveError(ValueError):
    """An archive is broken or holds what no dataset does; nothing was unpacked."""


def unpack(archive: Path, folder: Path, *, largest: int = LARGEST) -> None:
    """Unpack a zip or tar archive into a folder that is new or empty, all of it or nothing.

    Refused are absolute paths, ``..``, links, devices, duplicate names, names that are too long or
    not printable, and contents of more than ``largest`` bytes or than the archive can hold.

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
            RuntimeError,  # zipfile: a password is needed
            NotImplementedError,  # zipfile: unknown compression
            UnicodeError,
            OverflowError,
            struct.error,
        ) as error:
            why = " ".join(str(error).split())  # tarfile lists every compression it tried
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
        if number > MAX_MEMBERS:
            raise ArchiveError(f"{archive.name} holds more than {MAX_MEMBERS:,} files and folders")
        target = folder / _safe(name, archive)
        if opened is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened as source, open(target, "xb") as copy:
            # Counted while reading: the sizes that an archive states may be wrong.
            while chunk := source.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    most = min(largest, DEFLATED * size)
                    raise ArchiveError(
                        f"{archive.name} unpacks to more than {most:,} bytes, and has {size:,}"
                    )
                copy.write(chunk)


def _members(archive: Path) -> Iterator[tuple[str, AbstractContextManager[IO[bytes]] | None]]:
    """Yield names with a context that opens the member, or ``None`` for folders."""
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
    # Backslashes and colons are path separators on Windows.
    if path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"):
        raise ArchiveError(f"{archive.name} holds {shown(name)}, which leads outside")
    return path


def _short(part: str) -> bool:
    return len(part.encode(errors="replace")) <= LONGEST_PART


class _Member(tarfile.TarInfo):
    """Limits the size of long names and other headers, which tarfile reads into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        ahead = (
            *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
            *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        )
        if self.type in ahead and self.size > HEADERS:
            raise tarfile.ReadError(f"{self.size:,} bytes are stated before a member")
        return super()._proc_member(archive)  # type: ignore[misc]

"""Verify datasets against ``SHA256SUMS`` if it lists them, otherwise against recorded facts."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from badm.bench.data.availability import required_files, shortages
from badm.bench.data.dataset import Dataset, FileProblem, ProgressCallback
from badm.bench.data.folder import root
from badm.bench.data.sizes import content

SUMS = "SHA256SUMS"
CHUNK = 1 << 20
LARGEST = 256 << 20  # bytes of ``SHA256SUMS``


def verify(dataset: Dataset, report: ProgressCallback | None = None) -> list[FileProblem]:
    """List everything that is wrong with the files of a dataset; empty if they are intact.

    >>> from badm.bench.data import find
    >>> verify(find("digits"))
    []
    """
    listed = _listed(dataset)
    if listed:
        return [*_compare(listed, report), *_unlisted(dataset, listed)]
    problems = []
    for files, found in shortages(dataset):
        amount = "is missing" if files.count == 1 else f"{found} of {files.count} files are there"
        problems.append(FileProblem(files.pattern, "missing", amount))
    absent = {problem.path for problem in problems}
    fixed = {files.pattern: files.sha256 for files in required_files(dataset) if files.sha256}
    problems += _compare({k: v for k, v in fixed.items() if k not in absent}, report)
    if not problems and dataset.folder:
        from badm.bench.data.handlers import CHECK  # with all readers, and so with torch

        problems += CHECK[dataset.name](root() / dataset.folder)
    return problems


def verified_against(dataset: Dataset) -> str:
    """Say what :func:`verify` compares a dataset with.

    >>> from badm.bench.data import find
    >>> verified_against(find("digits"))
    'nothing to verify'
    """
    if not dataset.files:
        return "nothing to verify"
    if _listed(dataset):
        return SUMS
    if all(files.sha256 is not None for files in required_files(dataset)):
        return "recorded checksums"
    return "recorded facts"


def record(dataset: Dataset) -> None:
    """Write the checksums of a dataset to ``SHA256SUMS``, replacing its old ones."""
    sums = {path: sha for path, sha in read_sums().items() if not dataset.match(path)}
    sums |= {path: sha256(root() / path) for path in dataset.found(root())}
    lines = "".join(f"{sums[path]}  {path}\n" for path in sorted(sums))
    with NamedTemporaryFile("w", dir=root(), prefix=f".{SUMS}-", delete=False) as file:
        file.write(lines)
    os.chmod(file.name, 0o644)  # temporary files are private by default
    os.replace(file.name, root() / SUMS)


def read_sums() -> dict[str, str]:
    """Read ``SHA256SUMS`` as checksums by path; empty if there is no such file."""
    file = root() / SUMS
    if not file.exists():
        return {}
    sums = {}
    text = content(file, LARGEST, ValueError).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        parsed = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?!/)([^\0]+)", line)
        if line.strip() and (parsed is None or ".." in parsed[2].split("/")):
            raise ValueError(
                f"line {number} of {file} must be a SHA-256, two spaces and a path inside "
                f"the folder, got {line[:100]!r}"
            )
        if parsed:
            sums[parsed[2].removeprefix("./")] = parsed[1].lower()
    return sums


def sha256(path: Path, seen: Callable[[int], None] | None = None) -> str:
    """Compute the checksum of a file, read in chunks; ``seen`` is called with each one's size.

    >>> sha256(Path(os.devnull))[:12]
    'e3b0c44298fc'
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if seen:
                seen(len(chunk))
    return digest.hexdigest()


def _listed(dataset: Dataset) -> dict[str, str]:
    return {path: sha for path, sha in read_sums().items() if dataset.match(path)}


def _compare(expected: dict[str, str], report: ProgressCallback | None) -> list[FileProblem]:
    there = [root() / path for path in expected if (root() / path).is_file()]
    total, done = sum(path.stat().st_size for path in there), 0

    def seen(size: int) -> None:
        nonlocal done
        done += size
        if report:
            report("bytes", done, total)

    problems = []
    for path, sha in expected.items():
        try:
            if not _regular(root() / path):
                problems.append(FileProblem(path, "corrupt", "is a device, a pipe or a folder"))
            elif sha256(root() / path, seen) != sha:
                problems.append(FileProblem(path, "corrupt", "does not have the expected checksum"))
        except FileNotFoundError:
            problems.append(FileProblem(path, "missing", "is missing"))
        except OSError as error:
            problems.append(FileProblem(path, "corrupt", f"cannot be read: {error.strerror}"))
    return problems


def _regular(path: Path) -> bool:
    """Whether it is a regular file; ``FileNotFoundError`` if it is missing."""
    return stat.S_ISREG(path.stat().st_mode)


def _unlisted(dataset: Dataset, listed: dict[str, str]) -> list[FileProblem]:
    """List files that are not in ``SHA256SUMS``, and patterns without any file in it."""
    problems = [
        FileProblem(path, "extra", f"is not listed in {SUMS}")
        for path in dataset.found(root())
        if path not in listed
    ]
    for files, found in shortages(dataset):
        if not any(map(files.match, listed)):
            amount = f"{found} of {files.count} files are there, and none is listed in {SUMS}"
            problems.append(FileProblem(files.pattern, "missing", amount))
    return problems

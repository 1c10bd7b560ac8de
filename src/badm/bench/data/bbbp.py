"""BBBP of MoleculeNet: molecules, labelled by whether they pass the blood-brain barrier."""

from __future__ import annotations

import csv
import hashlib
import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import torch
from torch import Tensor

from badm.bench.data import csv_files
from badm.bench.data.catalogue import BBBP_FILE, BBBP_SHA256
from badm.bench.data.dataset import FetchFailed, FileProblem, ProgressCallback
from badm.bench.data.molecules import Molecules, merge
from badm.bench.data.optional_imports import library
from badm.bench.data.sizes import shown
from badm.bench.data.smiles import NotAMolecule, read_smiles

FILE, SHA256 = BBBP_FILE, BBBP_SHA256
SECONDS = 30  # timeout
SMILES, LABEL, NAME = "smiles", "p_np", "name"


class CsvError(ValueError):
    """A file is invalid; the message names the file, the line and the field."""


@dataclass(frozen=True)
class Row:
    """One molecule of the file. ``name`` is for messages."""

    line: int
    name: str
    smiles: str
    label: float

    def __str__(self) -> str:
        return f"{self.name} (line {self.line})" if self.name else f"line {self.line}"


@dataclass(frozen=True)
class Bbbp:
    """The molecules of a file that could be parsed, with the row of each."""

    molecules: Molecules
    canonical: tuple[str, ...]  # SMILES that are equal for equal molecules
    rows: Tensor
    count: int  # number of all rows
    notes: tuple[str, ...]

    def of_rows(self, rows: Tensor) -> Molecules:
        """Select the molecules of those rows, in that order; unparsed ones are skipped."""
        return self.molecules.pick(self._places(rows))

    def repeats(self, rows: Tensor, others: Tensor) -> int:
        """Count the molecules of the first rows that are among those of the others too."""
        there = {self.canonical[i] for i in self._places(others)}
        return sum(self.canonical[i] in there for i in self._places(rows))

    def _places(self, rows: Tensor) -> Tensor:
        place = torch.full((self.count,), -1)
        place[self.rows] = torch.arange(len(self.rows))
        return place[rows][place[rows] >= 0]


def read_rows(path: Path) -> list[Row]:
    """Read a CSV file with the columns ``smiles`` and ``p_np``, and optionally ``name``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "two.csv"
    ...     _ = file.write_text("name,p_np,smiles\\nethanol,1,CCO\\n")
    ...     read_rows(file)
    [Row(line=2, name='ethanol', smiles='CCO', label=1.0)]
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    rows = []
    try:
        header = next(reader)
        smiles, label = (csv_files.column(path, header, n, CsvError) for n in (SMILES, LABEL))
        name = header.index(NAME) if NAME in header else None
        line = reader.line_num + 1  # a quoted field may span several lines
        for fields in reader:
            if fields:
                where = f"{path}, line {line}"
                if len(fields) != len(header):
                    raise CsvError(f"{where}: {len(fields)} fields for {len(header)} columns")
                if not fields[smiles].strip():
                    raise CsvError(f"{where}, field {SMILES}: is empty")
                if fields[label].strip() not in ("0", "1"):
                    raise CsvError(
                        f"{where}, field {LABEL}: must be 0 or 1, got {shown(fields[label])}"
                    )
                called = "" if name is None else fields[name].strip()
                rows.append(Row(line, called, fields[smiles].strip(), float(fields[label])))
            line = reader.line_num + 1
    except csv.Error as error:
        raise CsvError(f"{path}, line {reader.line_num}: {error}") from error
    if not rows:
        raise CsvError(f"{path} has a header and no molecules")
    return rows


def read(path: Path) -> Bbbp:
    """Read the molecules of a file; notes name those that RDKit could not parse as they are."""
    rows = read_rows(path)
    molecules, canonical, kept, altered, unread = [], [], [], [], []
    for number, row in enumerate(rows):
        try:
            one = read_smiles(row.smiles, row.label)
        except NotAMolecule:
            unread.append(row)
            continue
        molecules.append(one.molecule)
        canonical.append(one.canonical)
        kept.append(number)
        if one.left_out:
            altered.append((row, one.left_out))
    if not molecules:
        raise CsvError(f"{path}, field {SMILES}: RDKit can parse none of {len(rows)}")
    notes = []
    if unread:
        notes.append(
            f"RDKit cannot read {len(unread)} of {len(rows):,} SMILES, which are left out: "
            f"{_listed(unread)}"
        )
    for step in sorted({step for _, step in altered}):
        those = [row for row, failed in altered if failed == step]
        notes.append(
            f"{len(those)} of {len(rows):,} SMILES fail RDKit's check of {step} and are read "
            f"without it, as in the public example: {_listed(those)}"
        )
    return Bbbp(merge(molecules), tuple(canonical), torch.tensor(kept), len(rows), tuple(notes))


def check(folder: Path) -> list[FileProblem]:
    """List what is wrong with the file in a folder."""
    place = f"{folder.name}/{FILE}"
    try:
        read_rows(folder / FILE)
        found = hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
    except (CsvError, OSError) as error:
        return [FileProblem(place, "corrupt", str(error))]
    if found != SHA256:
        return [FileProblem(place, "corrupt", "does not have the checksum of MoleculeNet's file")]
    return []


def fetch(folder: Path, report: ProgressCallback | None) -> None:
    """Download the file from the address that PyTorch Geometric has (extra ``badm[graph]``)."""
    data = library("torch_geometric.data", "graph")
    datasets = library("torch_geometric.datasets", "graph")
    # A MoleculeNet object would also compute features that are not needed here.
    address = datasets.MoleculeNet.url.format(FILE)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SECONDS)  # the library itself has no timeout
    try:
        data.download_url(address, str(folder), log=False)
    except (OSError, ValueError, HTTPException) as error:
        raise FetchFailed(f"{address} could not be downloaded ({error})") from error
    finally:
        socket.setdefaulttimeout(before)
    if report:
        report("files", 1, 1)


def _text(path: Path) -> str:
    text = csv_files.text(path, CsvError)
    if not text.strip():
        raise CsvError(f"{path} is empty")
    return text


def _listed(rows: Sequence[Row], limit: int = 20) -> str:
    names = ", ".join(map(str, rows[:limit]))
    return names if len(rows) <= limit else f"{names} and {len(rows) - limit} more"

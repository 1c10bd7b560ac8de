"""What ``badm.bench.reproduce`` returns: parts of the paper to print and save."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.text import Text

from badm.bench.errors import StoreError
from badm.bench.files import os_error_reason, write_atomically
from badm.bench.records.comparisons import Comparison, to_json
from badm.bench.report.figures import draw_figures
from badm.bench.report.saving import check_output, save
from badm.bench.report.terminal import plain_text
from badm.bench.report.text import WIDTH
from badm.bench.reproduce.part import NotMeasured, PaperPart
from badm.bench.reproduce.tables import (
    console_paper_table,
    merged,
    paper_markdown,
    paper_tables,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass(frozen=True)
class PartReport:
    """One part of the paper, to print, save and show in a notebook.

    Attributes:
        part: Which tables it has.
        comparisons: What was measured, one comparison for all tasks that the same methods train.
        not_measured: Tasks whose data were missing.
        command: The command that makes the same numbers.
    """

    part: PaperPart = field(repr=False)
    comparisons: list[Comparison] = field(repr=False)
    not_measured: tuple[NotMeasured, ...]
    command: str

    @cached_property
    def comparison(self) -> Comparison:
        """The comparisons as one."""
        return merged(self.part, self.comparisons)

    def save(self, folder: Path | str, *, page: bool = False) -> list[Path]:
        """Write tables (``.md``), all numbers (``.json``) and a folder of figures.

        Args:
            folder: Where to write; made if it does not exist.
            page: Whether to write a page (``.html``) as well, of about 5 MB.

        Returns:
            The paths that were written.
        """
        folder = Path(folder)
        table, numbers, figures, *pages = part_paths(self.part, folder, page=page)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            markdown = paper_markdown(self.part, self.comparison, self.command, self.not_measured)
            write_atomically(table, markdown.encode())
            text = json.dumps(
                self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":")
            )
            write_atomically(numbers, f"{text}\n".encode())
            draw(self.comparison, figures)
        except OSError as error:
            raise StoreError(f"cannot write to {folder}: {os_error_reason(error)}") from None
        for path in pages:
            save(self.comparison, path)
        return [table, numbers, figures, *pages]

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data, for JSON."""
        numbers = {
            "part": self.part.name,
            "comparisons": [json.loads(to_json(one)) for one in self.comparisons],
        }
        if self.not_measured:
            numbers["not_measured"] = [asdict(one) for one in self.not_measured]
        return numbers

    def __str__(self) -> str:
        return plain_text(self, WIDTH)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """The tables with their footnotes: ours and the paper's."""
        for one in paper_tables(self.part, self.comparison, self.not_measured):
            yield console_paper_table(one)
            for note in one.footnotes:
                yield Text(note)
        synthetic = sum(task.synthetic for task in self.comparison.tasks)
        if synthetic:
            yield Text(f"Synthetic data on {synthetic} of {len(self.comparison.tasks)} tasks.")

    def _repr_html_(self) -> str:
        return f"<h3>{escape(self.part.title)}</h3><pre>{escape(str(self))}</pre>"


@dataclass(frozen=True)
class Reproduction:
    """Parts of the paper, to print, save and show in a notebook."""

    parts: tuple[PartReport, ...]

    def save(self, folder: Path | str, *, page: bool = False) -> list[Path]:
        """Write the files of each part; the arguments are those of :meth:`PartReport.save`."""
        return [path for part in self.parts for path in part.save(folder, page=page)]

    def to_list(self) -> list[dict[str, Any]]:
        """All numbers as plain data, for JSON."""
        return [part.to_dict() for part in self.parts]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts))

    def _repr_html_(self) -> str:
        return "".join(part._repr_html_() for part in self.parts)


def part_paths(part: PaperPart, folder: Path, *, page: bool) -> list[Path]:
    """Where the report of a part is saved."""
    endings = (".md", ".json", "-figures", *[".html"] * page)
    return [folder / f"{part.name}{ending}" for ending in endings]


def check_folder(folder: Path, parts: list[PaperPart], *, page: bool) -> None:
    """Raise an error for a folder that could not be written, before any work is done for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {os_error_reason(error)}") from None
    for part in parts:
        for path in part_paths(part, folder, page=page):
            check_output(path)


def draw(comparison: Comparison, folder: Path) -> None:
    """Loss, score and artifacts of each task, as PNG files: SVG files would outweigh the rest."""
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory() as drawn:
        kinds = ("score", "loss", "artifacts")
        for path in draw_figures(comparison, Path(drawn), kinds=kinds, forms=("png",)):
            write_atomically(folder / path.name, path.read_bytes())

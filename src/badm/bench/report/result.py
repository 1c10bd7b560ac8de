"""What ``badm.bench.compare`` and ``badm.bench.report`` return: a comparison to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from badm.bench.records.comparisons import Comparison, to_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass(frozen=True)
class Report:
    """A comparison that can be printed, saved and shown in a notebook.

    Attributes:
        comparison: Everything that was measured, as plain data: ``comparison.rows`` has a row for
            each task and method, ``comparison.curves`` one for each run.
    """

    comparison: Comparison = field(repr=False)

    def save(self, *paths: Path | str) -> list[Path]:
        """Write one or more files.

        Args:
            *paths: Where to write. The suffix names the form: ``.html`` is a page that opens
                offline, ``.md`` tables, ``.json`` all numbers; a path without one is a folder for
                figures as PNG and SVG.

        Returns:
            The paths that were written.

        Raises:
            ValueError: for another suffix.
            badm.bench.errors.StoreError: if a file cannot be written.
        """
        from badm.bench.report.saving import save

        written = [Path(path) for path in paths]
        for path in written:
            save(self.comparison, path)
        return written

    def to_json(self) -> str:
        """All numbers as JSON text; infinities and NaN become null."""
        return to_json(self.comparison)

    def __str__(self) -> str:
        from badm.bench.report.terminal import plain_text
        from badm.bench.report.text import WIDTH

        return plain_text(self, WIDTH)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """The table of each task, then the summary and the notes."""
        from rich.text import Text

        from badm.bench.report.text import console_speed_table, console_table, table_note

        for task in self.comparison.tasks:
            yield console_table(self.comparison, task.name, options.max_width)
            note = table_note(self.comparison, task.name)
            if note:
                yield Text(note, style="dim")
        over_tasks = console_speed_table(self.comparison, options.max_width)
        if over_tasks is not None:
            yield over_tasks
        for sentence in [*self.comparison.summary, *self.comparison.notes]:
            yield Text(sentence)

    def _repr_html_(self) -> str:
        """Show summary, tables and curves in a notebook."""
        from badm.bench.report.notebook import notebook_html

        return notebook_html(self.comparison)

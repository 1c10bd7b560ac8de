"""Lists of names: those that match a word, in a table that suits the terminal or the pipe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from badm.bench.names import suggestion
from badm.bench.report.terminal import console
from badm.commands.exit_codes import USAGE, exit_with

WIDE = 120  # columns of a terminal that has room for more than names and what they are
UNBROKEN = 1_000  # columns in a pipe: all about a name is on its line, for grep to find

Word = Annotated[
    str,
    typer.Argument(
        help="Show those with this word in the name or the description; `badm*` works too.",
        metavar="WORD",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Column:
    """A column of a table of names.

    Attributes:
        heading: Its first line.
        wrap: Whether to continue on the next line where there is no room, or never to.
        extra: Whether to leave it out on a narrow terminal; ``--json`` has it then.
        justify: The side that its cells are aligned at.
    """

    heading: str
    wrap: bool = False
    extra: bool = False
    justify: Literal["left", "right"] = "left"


def matching(
    rows: Sequence[dict[str, Any]], word: str, *, what: str, description: str = "description"
) -> list[dict[str, Any]]:
    """Return the rows that match a word; exit with a message that suggests others if none does.

    Args:
        rows: Plain data with a ``name`` each.
        word: Part of a name or description, or a pattern of names; ``""`` matches all.
        what: The kind of thing that ``badm list`` lists, in the singular.
        description: Key of the description.
    """
    lower = word.lower()
    found = [
        row
        for row in rows
        if lower in f"{row['name']} {row[description]}".lower() or fnmatchcase(row["name"], lower)
    ]
    if not found:
        names = [row["name"] for row in rows]
        parts = [part for name in names for part in name.split("-")]
        near = suggestion(word, dict.fromkeys(names + parts))
        exit_with(f"no {what} matches {word!r}; {near}`badm list {what}s` shows all", USAGE)
    return found


def print_names(
    columns: Sequence[Column], rows: Iterable[Sequence[str | Text]], title: str | None = None
) -> None:
    """Print a table with as many columns as there is room for."""
    out = console()
    if not (out.is_terminal or "COLUMNS" in os.environ):
        out.width = UNBROKEN
    shown = [column for column in columns if out.width >= WIDE or not column.extra]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in shown:
        table.add_column(column.heading, no_wrap=not column.wrap, justify=column.justify)
    for row in rows:
        table.add_row(*(cell for cell, one in zip(row, columns, strict=True) if one in shown))
    out.print(table)

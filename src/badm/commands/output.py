"""What a comparison is written as: a page, tables, numbers, figures."""

from pathlib import Path

import typer

from badm.bench.comparison import Comparison, to_json
from badm.bench.report import figures, markdown, write_page
from badm.bench.store import reason, write_atomically
from badm.commands.faults import STORE, stop

FORMS = ".html (a page), .md (tables), .json (numbers) or a folder (figures as PNG and SVG)"


def check_outputs(paths: list[Path]) -> list[Path]:
    """Refuse early what could not be written at the end."""
    for path in paths:
        if path.suffix not in (".html", ".md", ".json", ""):
            raise typer.BadParameter(f"must be {FORMS}, got {path}")
        parent = path.absolute().parent
        if not parent.is_dir():
            raise typer.BadParameter(f"must be in a folder that exists, got {path}")
    return paths


def write_outputs(comparison: Comparison, paths: list[Path]) -> None:
    """Write each file in the form its suffix says."""
    for path in paths:
        try:
            if path.suffix == ".html":
                write_page(comparison, path)
            elif path.suffix == ".md":
                write_atomically(path, markdown(comparison).encode())
            elif path.suffix == ".json":
                write_atomically(path, to_json(comparison).encode())
            else:
                path.mkdir(exist_ok=True)
                figures(comparison, path)
        except OSError as error:
            stop(f"cannot write {path}: {reason(error)}", STORE)

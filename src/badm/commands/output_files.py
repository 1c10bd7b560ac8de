"""What a comparison is written as: a page, tables, numbers, figures."""

from errno import ENOTDIR
from os import strerror
from pathlib import Path
from tempfile import TemporaryFile

import typer

from badm.bench import files
from badm.bench.files import os_error_reason, write_atomically
from badm.bench.records.comparisons import Comparison, to_json
from badm.commands.exit_codes import STORE_FAILED, exit_with

OUTPUT_FORMS = ".html (a page), .md (tables), .json (numbers) or a folder (figures as PNG and SVG)"


def check_outputs(paths: list[Path]) -> list[Path]:
    """Refuse early what could not be written at the end."""
    for path in paths:
        if path.suffix not in (".html", ".md", ".json", ""):
            raise typer.BadParameter(f"must be {OUTPUT_FORMS}, got {path}")
        parent = path.absolute().parent
        if not parent.is_dir():
            raise typer.BadParameter(f"must be in a folder that exists, got {path}")
        try:
            _probe(path)
        except OSError as error:
            exit_with(f"cannot write {path}: {os_error_reason(error)}", STORE_FAILED)
    return paths


def _probe(path: Path) -> None:
    """Raise ``OSError`` where a file, or without a suffix a folder, could not be written."""
    if path.suffix:
        files.replaceable(path)
        path = path.absolute().parent
    elif path.exists() and not path.is_dir():
        raise NotADirectoryError(ENOTDIR, strerror(ENOTDIR))
    else:
        path.mkdir(exist_ok=True)
    with TemporaryFile(dir=path):
        pass


def write_outputs(comparison: Comparison, paths: list[Path]) -> None:
    """Write each file in the form its suffix says."""
    from badm.bench.report import draw_figures, markdown, write_page  # not for --help to wait for

    for path in paths:
        try:
            if path.suffix == ".html":
                write_page(comparison, path)
            elif path.suffix == ".md":
                write_atomically(path, markdown(comparison).encode(errors="replace"))
            elif path.suffix == ".json":
                write_atomically(path, to_json(comparison).encode(errors="replace"))
            else:
                path.mkdir(exist_ok=True)
                draw_figures(comparison, path)
        except OSError as error:
            exit_with(f"cannot write {path}: {os_error_reason(error)}", STORE_FAILED)

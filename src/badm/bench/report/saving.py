"""The files a comparison is saved as: a page, tables, numbers, figures."""

from __future__ import annotations

from errno import ENOTDIR
from os import strerror
from pathlib import Path
from tempfile import TemporaryFile

from badm.bench import files
from badm.bench.errors import StoreError
from badm.bench.files import os_error_reason, write_atomically
from badm.bench.records.comparisons import Comparison, to_json
from badm.bench.records.studies import ENDING, study_text

OUTPUT_FORMS = ".html (a page), .md (tables), .json (numbers) or a folder (figures as PNG and SVG)"


def check_output(path: Path) -> None:
    """Raise an error for a path that could not be written, before any work is done for it."""
    _check_form(path)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"an output must be in a folder that exists, got {path}")
    try:
        _probe(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {os_error_reason(error)}") from None


def save(comparison: Comparison, path: Path) -> None:
    """Write a comparison in the form that ``path`` names, and beside it what repeats it."""
    _check_form(path)
    try:
        if path.suffix == ".html":
            from badm.bench.report.page import write_page

            write_page(comparison, path)
        elif path.suffix == ".md":
            from badm.bench.report.text import markdown

            write_atomically(path, markdown(comparison).encode(errors="replace"))
        elif path.suffix == ".json":
            write_atomically(path, to_json(comparison).encode(errors="replace"))
        else:
            from badm.bench.report.figures import draw_figures  # matplotlib, for figures alone

            path.mkdir(exist_ok=True)
            draw_figures(comparison, path)
        if comparison.study:
            text = study_text(comparison.study)
            write_atomically(_beside(path), text.encode(errors="replace"))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {os_error_reason(error)}") from None


def _beside(path: Path) -> Path:
    """Where the options of a comparison are kept, to repeat it."""
    return path.with_suffix(ENDING) if path.suffix else path / f"study{ENDING}"


def _check_form(path: Path) -> None:
    if path.suffix not in (".html", ".md", ".json", ""):
        raise ValueError(f"an output must be {OUTPUT_FORMS}, got {path}")


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

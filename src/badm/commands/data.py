"""``badm data``: which datasets there are, whether they are sound, and how to get them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn
from rich.text import Text

from badm.bench.data import (
    DATASETS,
    Dataset,
    FetchFailed,
    MissingLibrary,
    ProgressCallback,
    fetch,
    find,
    root,
    status,
    verified_against,
    verify,
)
from badm.bench.report.terminal import console, text_column, visible
from badm.commands import listing
from badm.commands.help_pages import Command, Group
from badm.commands.names import Column, Word, matching, print_names

GOOD, WRONG, UNUSABLE, MISSING = 0, 1, 2, 3
SHOWN = 10  # problems of one dataset that are printed; --json has them all
COLOURS = {"present": "green", "partly": "yellow", "missing": "red"}
COLUMNS = (
    Column("name"),
    Column("what", wrap=True),
    Column("size", justify="right"),
    Column("status"),
    Column("tasks", wrap=True, extra=True),
    Column("where", extra=True),
)

HELP = """Datasets: list them, verify them, fetch them.

**Examples**

- `badm data list`
- `badm data fetch mnist`
- `badm data verify`
"""

app = typer.Typer(help=HELP, cls=Group, no_args_is_help=True, rich_markup_mode="markdown")

Names = Annotated[
    list[str], typer.Argument(help="Names as `badm data list` shows them.", metavar="NAME")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, and problems only.")]


@app.command("list", cls=Command)
def list_datasets(word: Word = "", as_json: AsJson = False) -> None:
    """Show every dataset: what it is, which tasks use it, and whether it is there.

    The data folder is `BADM_DATA`, or `~/.cache/badm` if that is not set. To check the files
    themselves, use `badm data verify`.

    **Exit codes**

    - 0: done
    - 2: no dataset matches the word

    **Examples**

    - `badm data list`, which is also `badm list datasets`
    - `badm data list digits`
    - `badm data list --json`
    - `BADM_DATA=/data badm data list`
    """
    rows = matching(
        [_row(dataset) for dataset in DATASETS], word, what="dataset", description="what"
    )
    if as_json:
        _print_json(rows)
        return
    cells = [
        (
            row["name"],
            row["what"],
            _megabytes(row["bytes"]),
            Text(row["status"], style=COLOURS.get(row["status"], "")),
            ", ".join(row["tasks"]),
            row["folder"] or "",
        )
        for row in rows
    ]
    print_names(COLUMNS, cells, title=f"Datasets in {root()}")


@app.command("verify", cls=Command)
def verify_datasets(
    names: Names = [],  # noqa: B006  # typer copies it
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check the files of datasets: those named, or else all that are there.

    Files are compared with `SHA256SUMS` in the data folder if it lists them, and otherwise with
    what badm knows about them. Every missing, corrupt or unexpected file is named.

    **Exit codes**

    - 0: no problem found
    - 1: a dataset has a problem
    - 2: there is no dataset of that name
    - 3: a dataset that was named is missing, or all are

    **Examples**

    - `badm data verify`
    - `badm data verify mnist fashion-mnist`
    - `badm data verify --json`
    """
    chosen = _find(names)
    if not names:
        chosen = [dataset for dataset in DATASETS if status(dataset) in ("present", "partly")]
    out = console()
    rows = []
    for dataset in chosen:
        row: dict[str, Any] = {"name": dataset.name, "status": status(dataset), "problems": []}
        rows.append(row)
        try:
            row["against"] = verified_against(dataset)
            if row["status"] != "missing":
                with _progress(out, dataset.name, quiet or as_json) as report:
                    found = verify(dataset, report)
                row["problems"] = [
                    {"path": problem.path, "kind": problem.kind, "message": problem.message}
                    for problem in found
                ]
        except (ValueError, OSError) as error:  # SHA256SUMS itself
            _print_error(str(error))
            raise typer.Exit(WRONG) from None
        if not as_json:
            _print_verdict(out, row, quiet)
    if as_json:
        _print_json(rows)
    elif not rows:
        _print_error(f"there are no datasets in {root()}; `badm data fetch mnist` downloads one")
    if any(row["problems"] for row in rows):
        raise typer.Exit(WRONG)
    if not rows or any(row["status"] == "missing" for row in rows):
        raise typer.Exit(MISSING)
    raise typer.Exit(GOOD)


@app.command("fetch", cls=Command)
def fetch_datasets(names: Names, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Download datasets into the data folder, unless they are already there and intact.

    Files are verified before they are moved into place, and their checksums are added to
    `SHA256SUMS`. Intact files are never replaced. If a dataset cannot be downloaded, the message
    says which files to put where. Needs the extra `badm[data]`.

    **Exit codes**

    - 0: all are there
    - 1: a dataset could not be downloaded; none of its files were changed
    - 2: there is no dataset of that name, or a library is not installed

    **Examples**

    - `badm data fetch mnist`
    - `badm data fetch mnist fashion-mnist --quiet`
    - `BADM_DATA=/data badm data fetch mnist`
    """
    out = console()
    rows = []
    codes = set()
    for dataset in _find(names):
        row = {"name": dataset.name, "outcome": "there", "message": ""}
        rows.append(row)
        try:
            with _progress(out, dataset.name, quiet or as_json) as report:
                row["outcome"] = fetch(dataset, report)
            row["message"] = f"{dataset.name}: {_where(dataset, row['outcome'])}"
            if not as_json and not quiet:
                out.print(row["message"], soft_wrap=True)
        except (FetchFailed, ValueError) as error:  # ValueError: SHA256SUMS cannot be read
            unusable = isinstance(error, MissingLibrary)
            codes.add(UNUSABLE if unusable else WRONG)
            row["outcome"] = "failed"
            row["message"] = str(error) if unusable else f"{error}. {_manual_instructions(dataset)}"
            if not as_json:
                _print_error(row["message"])
    if as_json:
        _print_json(rows)
    raise typer.Exit(min(codes, default=GOOD))


def _manual_instructions(dataset: Dataset) -> str:
    return (
        f"Nothing was changed. To add it by hand, put into {root()}: {dataset.layout}; "
        f"then run `badm data verify {dataset.name}`"
    )


def _find(names: list[str]) -> list[Dataset]:
    try:
        return [find(name) for name in dict.fromkeys(names)]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAMES") from None


def _row(dataset: Dataset) -> dict[str, Any]:
    found = [root() / path for path in dataset.found(root())]
    return {
        "name": dataset.name,
        "title": dataset.title,
        "what": dataset.what,
        "tasks": listing.tasks_by_dataset().get(dataset.name, []),
        "status": status(dataset),
        "bytes": sum(path.stat().st_size for path in found) if found else dataset.size,
        "folder": dataset.folder,
        "files": [files.pattern for files in dataset.files],
        "layout": dataset.layout,
        "licence": dataset.licence,
    }


def _print_verdict(out: Console, row: dict[str, Any], quiet: bool) -> None:
    name, problems = row["name"], row["problems"]
    if row["status"] == "missing":
        _print_error(f"{name}: missing from {root()}; `badm data fetch {name}`")
    elif problems:
        _print_error(f"{name}: {len(problems)} problem{'s' if len(problems) > 1 else ''}")
        for problem in problems[:SHOWN]:
            _print_error(f"  {problem['path']}: {problem['message']}")
        if len(problems) > SHOWN:
            _print_error(f"  and {len(problems) - SHOWN} more: --json has them all")
    elif not quiet:
        out.print(f"{name}: good ({row['against']})")


def _where(dataset: Dataset, outcome: str) -> str:
    if dataset.folder is None:
        return "comes with scikit-learn, nothing to download"
    done = "downloaded into" if outcome == "fetched" else "already in"
    return f"{done} {root() / dataset.folder}"


def _megabytes(size: int) -> str:
    """In the unit that suits.

    >>> _megabytes(4_006_705), _megabytes(96_895), _megabytes(9_060_024_320), _megabytes(0)
    ('4.0 MB', '97 kB', '9.1 GB', '')
    """
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB" if size else ""


def _print_json(rows: list[dict[str, Any]]) -> None:
    print(json.dumps({"root": str(root()), "datasets": rows}, indent=2))


def _print_error(message: str) -> None:
    print(visible(message), file=sys.stderr)


@contextmanager
def _progress(out: Console, name: str, hidden: bool) -> Iterator[ProgressCallback | None]:
    """A bar that appears with the first report; none into a pipe."""
    if hidden or not out.is_interactive:
        yield None
        return
    columns = (text_column("{task.description}"), BarColumn(), TaskProgressColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=out, transient=True)
    tasks: dict[str, Any] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            bar.start()
            tasks[what] = bar.add_task(f"{name}: {what}", total=total)
        bar.update(tasks[what], completed=done)

    try:
        yield report
    finally:
        bar.stop()

"""Options that several commands have, and what they turn into."""

import json
import math
from fnmatch import fnmatchcase
from pathlib import Path
from reprlib import repr as short
from typing import Annotated, Any

import typer

from badm.bench.engine.environment import available_cores
from badm.bench.engine.training import SCHEDULES
from badm.bench.method import Method, Setting
from badm.bench.methods import METHODS
from badm.bench.methods import find as find_method
from badm.bench.task import MOST, SCALES
from badm.commands.output_files import OUTPUT_FORMS


def one_of(*choices: str) -> Any:
    """A callback that takes these values and no others."""

    def check(value: str) -> str:
        if value not in choices:
            raise typer.BadParameter(f"must be one of {', '.join(choices)}, got {value!r}")
        return value

    return check


def between(low: float = -math.inf, high: float = math.inf) -> Any:
    """A callback that takes finite numbers from ``low`` to ``high`` and no others."""
    wanted = f"a finite number of at least {low}" if low > -math.inf else "a finite number"
    if high < math.inf:
        wanted = f"a number from {low} to {high:,}"

    def check(value: float | None) -> float | None:
        if value is not None and not (low <= value <= high and abs(value) < math.inf):
            raise typer.BadParameter(f"must be {wanted}, got {short(value)}")
        return value

    return check


Runs = Annotated[Path, typer.Option("--runs", help="Folder to keep runs in.", metavar="DIR")]
Scale = Annotated[
    str,
    typer.Option(
        help="Size of the task: smoke (seconds), cpu, or paper (as in the paper).",
        callback=one_of(*SCALES),
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        help=f"Learning-rate schedule: {', '.join(SCHEDULES)}.", callback=one_of(*SCHEDULES)
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        callback=between(1, MOST), help="Training steps, instead of the task's own number."
    ),
]
Trials = Annotated[
    int,
    typer.Option(
        callback=between(1, 10_000), help="Settings to try, the same number for every method."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        callback=between(1, 1024), help="Runs at a time.", show_default="one for each core"
    ),
]
Threads = Annotated[
    int, typer.Option(callback=between(1, 1024), help="Threads per run, part of its key.")
]
Study = Annotated[
    str,
    typer.Option(
        help="URL of a database through which several machines share the search, such as "
        "postgresql://user@host/name (pip install badm[postgresql]).",
        metavar="URL",
        show_default="a file in the folder of the runs",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]


Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help=f"A file to write; may be repeated: {OUTPUT_FORMS}.",
        show_default="report.html in the folder of the runs",
    ),
]


def default_jobs(jobs: int | None, threads: int) -> int:
    """As many runs as the machine has cores for, at most eight, unless told otherwise."""
    return jobs or max(1, min(8, available_cores() // threads))


def parse_methods(text: str, option: str = "--methods") -> tuple[str, ...]:
    """Comma-separated names; ``all`` and patterns such as ``badm*`` stand for several.

    >>> parse_methods("adam,badm-d*")
    ('adam', 'badm-diagonal')
    """
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part == "all":
            found = list(METHODS)
        elif "*" in part:
            found = [name for name in METHODS if fnmatchcase(name, part)]
        else:
            found = []
        names += found or [find_method(part).name]
    if not names:
        raise typer.BadParameter(f"must name at least one method, got {text!r}", param_hint=option)
    return tuple(dict.fromkeys(names))


def parse_settings(pairs: list[str], method: Method) -> Setting:
    """``["lr=0.01", "nesterov=true"]`` as a full setting of the method."""
    given: Setting = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise typer.BadParameter(f"must be name=value, got {pair!r}", param_hint="--set")
        if name in given:
            raise typer.BadParameter(
                f"must have every name once, got {name} more than once", param_hint="--set"
            )
        try:
            given[name] = json.loads(text)
        except (ValueError, RecursionError):  # a word, or brackets without end
            given[name] = text
    return method.setting(given)

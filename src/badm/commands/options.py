"""Options that several commands have, and what they turn into."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from badm.bench.environment import cores
from badm.bench.method import Method, Setting
from badm.bench.methods import METHODS
from badm.bench.methods import find as find_method
from badm.bench.task import SCALES
from badm.bench.training import SCHEDULES
from badm.commands.output import FORMS


def one_of(*choices: str) -> Any:
    """A callback that takes these values and no others."""

    def check(value: str) -> str:
        if value not in choices:
            raise typer.BadParameter(f"must be one of {', '.join(choices)}, got {value!r}")
        return value

    return check


Runs = Annotated[Path, typer.Option("--runs", help="Folder of the runs.", metavar="DIR")]
Scale = Annotated[
    str,
    typer.Option(help="smoke (seconds), cpu or paper (its sizes).", callback=one_of(*SCALES)),
]
Schedule = Annotated[
    str,
    typer.Option(
        help=f"Of the learning rate: {', '.join(SCHEDULES)}.", callback=one_of(*SCHEDULES)
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, help="Instead of the task's own number.")]
Trials = Annotated[int, typer.Option(min=1, help="Settings tried, for every method as many.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side.", show_default="one for each core")
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of each run; they are part of its key.")]
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
        help=f"A file to write, may be repeated: {FORMS}.",
        show_default="report.html in the folder of the runs",
    ),
]


def jobs_or_cores(jobs: int | None, threads: int) -> int:
    """As many runs as the machine has cores for, at most eight, unless told otherwise."""
    return jobs or max(1, min(8, cores() // threads))


def chosen_methods(text: str) -> tuple[str, ...]:
    """Names with commas between them; ``all`` and patterns such as ``badm*`` stand for several.

    >>> chosen_methods("adam,badm-d*")
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
        raise typer.BadParameter("must name at least one method", param_hint="--methods")
    return tuple(dict.fromkeys(names))


def settings_given(pairs: list[str], method: Method) -> Setting:
    """``["lr=0.01", "nesterov=true"]`` as a full setting of the method."""
    given = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise typer.BadParameter(f"must be name=value, got {pair!r}", param_hint="--set")
        try:
            given[name] = json.loads(text)
        except ValueError:
            given[name] = text
    full = method.setting(given)
    for name, value in given.items():
        if _is_number(method.defaults[name]) and not _is_number(value):
            raise ValueError(f"{name} of {method.name} must be a number, got {value!r}")
    return full


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Options that several commands have, and what they turn into."""

import inspect
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from reprlib import repr as short
from typing import Annotated, Any

import typer

from badm.bench.engine.options import AUTO, DEVICES
from badm.bench.engine.schedules import MOST_WARMUP, SCHEDULES
from badm.bench.method import Method
from badm.bench.method import Setting as MethodSetting
from badm.bench.report.saving import OUTPUT_FORMS, check_output
from badm.bench.report.terminal import console
from badm.bench.task import MOST, SCALES
from badm.processes import signals


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the function that a command calls, which are the command's own."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


@contextmanager
def importing(announcement: str, *, shown: bool) -> Iterator[None]:
    """Say on a terminal what is about to be done, around imports that take seconds.

    They are not for ``--help`` to wait for, and Ctrl-C is to work meanwhile.
    """
    out = console(stderr=True)
    if shown and out.is_terminal:
        out.print(announcement)
    with signals.exit_on_signal():
        yield


def import_comparisons(announcement: str, *, shown: bool) -> None:
    """Say what is about to be done, and import what comparing and searching needs."""
    with importing(announcement, shown=shown):
        from badm.bench.compare import choices, progress, protocol  # noqa: F401


def one_of(*choices: str) -> Any:
    """A callback that takes these values and no others."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in choices:
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


SCHEDULE_HELP = (
    f"Learning-rate schedule: {', '.join(SCHEDULES)}, or a function in a file (`mine.py:falls`)."
)
ClipNorm = Annotated[
    float,
    typer.Option(
        callback=between(0),
        help="Norm that gradients are clipped to.",
        metavar="X",
        show_default="they are not",
    ),
]
Search = Annotated[
    str,
    typer.Option(
        help="What the trials search: lr, for most methods the learning rate; wide, also the "
        "memory, beta2 and weight decay that a method has; or names, `lr,weight_decay,beta`, "
        "tried at the same points for all methods.",
        metavar="NAMES",
    ),
]
Space = Annotated[
    list[str] | None,
    typer.Option(
        help="A range to search instead of the methods' own, `lr=1e-4..1e-1`; may be repeated.",
        metavar="NAME=LOW..HIGH",
        show_default="that of each method",
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="A setting of all methods that have it, which is not searched; may be repeated.",
        metavar="NAME=VALUE",
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        callback=between(0),
        help="Passes through the training data, instead of steps.",
        metavar="N",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        callback=between(0),
        help="Seconds of training, instead of steps: as many steps as fit, method by method.",
        metavar="N",
    ),
]

Runs = Annotated[Path, typer.Option("--runs", help="Folder to keep runs in.", metavar="DIR")]
Scale = Annotated[
    str,
    typer.Option(
        help="Size of the task: smoke (seconds), cpu, or paper (as in the paper).",
        callback=one_of(*SCALES),
        metavar="NAME",
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        help=SCHEDULE_HELP,
        metavar="NAME",
    ),
]
Warmup = Annotated[
    float,
    typer.Option(
        callback=between(0, MOST_WARMUP),
        help="Fraction of the steps over which the learning rate first rises from 0.",
        metavar="FRACTION",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        callback=between(1, MOST),
        help="Training steps, instead of the task's own number.",
        metavar="N",
    ),
]
Trials = Annotated[
    int,
    typer.Option(
        callback=between(1, 10_000),
        help="Settings to try, the same number for every method.",
        metavar="N",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        callback=between(1, 1024),
        help="Runs at a time.",
        metavar="N",
        show_default="one for each core",
    ),
]
Threads = Annotated[
    int,
    typer.Option(callback=between(1, 1024), help="Threads per run, part of its key.", metavar="N"),
]
Device = Annotated[
    str,
    typer.Option(
        callback=one_of(*DEVICES, AUTO),
        help=f"Device of each run, part of its key: {', '.join(DEVICES)}, or {AUTO}.",
        metavar="NAME",
    ),
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
        metavar="FILE",
        show_default="report.html in the folder of the runs",
    ),
]


def check_outputs(paths: list[Path]) -> list[Path]:
    """Refuse early what could not be written at the end."""
    for path in paths:
        check_output(path)
    return paths


def read_settings(assignments: list[str] | None) -> MethodSetting:
    """``["weight_decay=0.1"]`` as values by name."""
    from badm.bench.compare.search_space import read_stated  # imports scipy

    return read_stated(assignments or ())


def parse_settings(assignments: list[str], method: Method) -> MethodSetting:
    """``["lr=0.01", "nesterov=true"]`` as a full setting of the method."""
    given: MethodSetting = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name and equals and text):
            raise typer.BadParameter(f"must be name=value, got {assignment!r}", param_hint="--set")
        if name in given:
            raise typer.BadParameter(
                f"must have every name once, got {name} more than once", param_hint="--set"
            )
        try:
            given[name] = json.loads(text)
        except (ValueError, RecursionError):  # a word, or brackets without end
            given[name] = text
    return method.setting(given)

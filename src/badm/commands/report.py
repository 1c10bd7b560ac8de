"""``badm report``: a report of runs that have been done."""

from pathlib import Path
from typing import Annotated

import typer

from badm import bench
from badm.commands import options
from badm.commands.compare import show
from badm.commands.exit_codes import exit_on_error

DEFAULT = options.defaults(bench.report)


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of the runs.", metavar="DIR")] = DEFAULT[
        "runs"
    ],
    output: options.Outputs = None,
    comparison: Annotated[
        Path | None,
        typer.Option(
            help="Which of them: a file in its folder comparisons/.",
            metavar="FILE",
            show_default="the one written last",
        ),
    ] = DEFAULT["comparison"],
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make the report of a comparison from its runs alone.

    Works while the comparison is still running, too: runs that are missing are listed as missing.
    Damaged files are named and left as they are.

    **Exit codes**

    - 0: done
    - 2: there is no such folder, or no comparison in it that can be read
    - 4: a file cannot be read or written

    **Examples**

    - `badm report`
    - `badm report runs -o report.html`
    - `badm report runs -o table.md -o figures -o numbers.json`
    - `badm report runs --comparison runs/comparisons/3f2a9c01d4e5.json`
    """
    with exit_on_error():
        result = bench.report(runs, comparison=comparison)
        outputs = options.check_outputs(output or [runs / "report.html"])
        show(result, result.save(*outputs), as_json=as_json, quiet=quiet)

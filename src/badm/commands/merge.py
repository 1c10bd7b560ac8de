"""``badm merge``: one table from several comparisons, without running anything again."""

from pathlib import Path
from typing import Annotated

import typer

from badm import bench
from badm.commands import options
from badm.commands.compare import show
from badm.commands.exit_codes import exit_on_error


def merge(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Results that `badm compare -o FILE.json` wrote, or folders of runs.",
            metavar="FILE",
        ),
    ],
    output: options.Outputs = None,
    reference: Annotated[
        str,
        typer.Option(
            help="The method the others are tested against.",
            metavar="METHOD",
            show_default="that of the first",
        ),
    ] = "",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make one table of several comparisons, and run nothing.

    They must ask the same: the same tasks, data, budgets, trials and seeds; what differs is named.
    A method that two of them have with other results, because its code is another, stands there
    twice, with its commit or version. Intervals and tests are computed anew.

    **Exit codes**

    - 0: done
    - 2: a source does not exist, or they cannot be compared
    - 4: a file cannot be read or written

    **Examples**

    - `badm merge results/digits.json lion.json -o digits.html`
    - `badm merge before.json after.json --reference badm -o table.md`
    - `badm merge runs other-machine/runs -o all.json`
    """
    with exit_on_error():
        outputs = options.check_outputs(output or [])
        result = bench.merge(sources, reference=reference)
        show(result, result.save(*outputs), as_json=as_json, quiet=quiet)

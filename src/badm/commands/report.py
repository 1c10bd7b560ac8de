"""``badm report``: a report of runs that have been done."""

from pathlib import Path
from typing import Annotated

import typer

from badm.bench.records.plans import latest_record, read_record
from badm.bench.records.runs import RunStore
from badm.commands import options
from badm.commands.compare import show
from badm.commands.exit_codes import USAGE, exit_on_error, exit_with, say
from badm.commands.output_files import check_outputs, write_outputs


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of the runs.")] = Path("runs"),
    output: options.Outputs = None,
    comparison: Annotated[
        Path | None,
        typer.Option(
            help="Which of them: a file in its folder comparisons/.",
            show_default="the one written last",
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make the report of a comparison anew, from its runs alone.

    Works while the comparison is still going on, too: what is missing is said to be missing. Files
    that are damaged, or not ours, are named and left alone.

    **Exit codes**

    - 0: done
    - 2: there is no comparison in the folder
    - 4: a file cannot be read or written

    **Examples**

    - `badm report`
    - `badm report runs -o report.html`
    - `badm report runs -o table.md -o figures -o numbers.json`
    - `badm report runs --comparison runs/comparisons/3f2a9c01d4e5.json`
    """
    from badm.bench.analysis.summaries import summarise  # not for --help to wait for

    with exit_on_error():
        if not runs.is_dir():
            exit_with(f"there is no folder {runs}", USAGE)
        store = RunStore(runs)
        problems: list[str] = []
        if comparison is not None:
            record = read_record(comparison)
        else:
            latest, problems = latest_record(store)
            if latest is None:
                for problem in problems:
                    say(problem)
                exit_with(f"{runs} has no comparison yet: `badm compare digits` makes one", USAGE)
            assert latest is not None
            record = latest
        outputs = check_outputs(output or [runs / "report.html"])
        made = summarise(record, store)
        skipped = [f"Skipped: {problem}." for problem in [*problems, *store.read_all()[1]]]
        made.notes.extend(note for note in skipped if note not in made.notes)
        write_outputs(made, outputs)
        show(made, outputs, as_json=as_json, quiet=quiet)

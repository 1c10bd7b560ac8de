"""``badm reproduce``: the tables and figures of the paper, ours beside the paper's."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from badm import bench
from badm.bench.records.plans import TUNING_SEED
from badm.bench.report.terminal import console
from badm.bench.reproduce import ReproductionInterrupted
from badm.bench.reproduce.parts import PARTS, find
from badm.commands import options
from badm.commands.exit_codes import FAILED, exit_on_error, exit_with, say
from badm.processes import signals

if TYPE_CHECKING:
    from badm.bench.reproduce.result import PartReport

DEFAULT = options.defaults(bench.reproduce)


def reproduce(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Parts of the paper: {', '.join(PARTS)}.",
            metavar="PART",
            show_default="all parts",
        ),
    ] = None,
    scale: options.Scale = DEFAULT["scale"],
    seeds: Annotated[
        int,
        typer.Option(
            callback=options.between(1, TUNING_SEED), help="Runs of every cell.", metavar="N"
        ),
    ] = DEFAULT["seeds"],
    steps: options.Steps = DEFAULT["steps"],
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Comma-separated names; `all` and `badm*` work too.",
            metavar="NAMES",
            show_default="the paper's and BADM in three metrics",
        ),
    ] = DEFAULT["methods"],
    runs: options.Runs = DEFAULT["runs"],
    jobs: options.Jobs = DEFAULT["jobs"],
    threads: options.Threads = DEFAULT["threads"],
    device: options.Device = DEFAULT["device"],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write to.", metavar="DIR")
    ] = Path("results"),
    page: Annotated[
        bool, typer.Option("--page", help="Also write a page to look at, of about 5 MB.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make the tables and figures of the paper again, in its settings, beside its own numbers.

    Each part becomes a Markdown file with tables and notes, a JSON file with all numbers, and a
    folder of figures. Finished runs are kept and not repeated; after Ctrl-C or a kill, run the same
    command to resume. Tasks whose data are missing are called "not measured", and the others go on.

    **Exit codes**

    - 0: done
    - 1: all data of a part are missing, a task raised an error, or a method failed (one that
      diverged is a result)
    - 2: invalid name or value
    - 4: a folder or file cannot be written
    - 130, 143: interrupted by Ctrl-C, by SIGTERM; a report of the runs so far has been written

    **Examples**

    - `badm reproduce`
    - `badm reproduce node-classification --scale cpu`
    - `badm reproduce molecule --seeds 5 --methods 'badm*,adam' --page`
    - `badm reproduce --scale smoke --steps 5 -o /tmp/results`, on synthetic data
    """
    shown = not (as_json or quiet)
    begun = f"Reproducing {', '.join(parts or PARTS)}; runs are kept in {runs}"
    with options.importing(begun, shown=shown):
        from badm.bench.compare import progress, protocol  # noqa: F401
        from badm.bench.reproduce import planning  # noqa: F401
        from badm.bench.reproduce.result import check_folder
    interrupted = False
    with exit_on_error():
        chosen = list(dict.fromkeys(parts or PARTS))
        check_folder(output, [find(name) for name in chosen], page=page)

        def write(report: "PartReport") -> None:
            show(report, report.save(output, page=page), as_json=as_json, quiet=quiet)

        try:
            made = bench.reproduce(
                chosen,
                scale=scale,  # type: ignore[arg-type]  # checked by typer's callback
                seeds=seeds,
                steps=steps,
                methods=methods,
                runs=runs,
                jobs=jobs,
                threads=threads,
                device=device,  # type: ignore[arg-type]
                progress=shown,
                on_part=write,
                say=say,
            )
        except ReproductionInterrupted as interrupt:
            made, interrupted = interrupt.report, True
        if as_json:
            print(json.dumps(made.to_list(), allow_nan=False))
    if interrupted:
        exit_with("interrupted; run the same command to resume", signals.exit_code())
    rows = [row for part in made.parts for one in part.comparisons for row in one.rows]
    if any(row.status in ("failed", "missing") for row in rows):
        raise typer.Exit(FAILED)


def show(report: "PartReport", written: list[Path], *, as_json: bool, quiet: bool) -> None:
    """Print the tables and the paths written; or the paths alone; or, for JSON, nothing yet."""
    if as_json:
        return
    out = console()
    if not quiet:
        out.print(report)
    for path in written:
        out.print(f"written: {path}", soft_wrap=True)

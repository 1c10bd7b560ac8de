"""``badm reproduce``: the tables and figures of the paper, ours beside the paper's."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from badm.bench import tasks
from badm.bench.engine.options import Machine
from badm.bench.engine.streams import stdout_to_stderr
from badm.bench.engine.workers import Workers
from badm.bench.files import os_error_reason, write_atomically
from badm.bench.records.comparisons import Comparison, to_json
from badm.bench.records.plans import TUNING_SEED
from badm.bench.records.runs import RunStore
from badm.bench.reproduce import parts as paper
from badm.bench.reproduce.part import PaperPart
from badm.commands import options
from badm.commands.exit_codes import FAILED, STORE_FAILED, exit_on_error, exit_with, say
from badm.commands.output_files import check_outputs, write_outputs
from badm.commands.progress import ProgressDisplay
from badm.commands.terminal import console
from badm.processes import signals

if TYPE_CHECKING:
    from badm.bench.compare.protocol import ComparisonRunner


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Parts of the paper: {', '.join(paper.PARTS)}.", show_default="all parts"
        ),
    ] = None,
    scale: options.Scale = "cpu",
    seeds: Annotated[
        int, typer.Option(callback=options.between(1, TUNING_SEED), help="Runs of every cell.")
    ] = 3,
    steps: options.Steps = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Comma-separated names; `all` and `badm*` work too.",
            show_default="the paper's and BADM in three metrics",
        ),
    ] = "",
    runs: options.Runs = Path("runs"),
    jobs: options.Jobs = None,
    threads: options.Threads = 1,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write to.", metavar="DIR")
    ] = Path("results"),
    page: Annotated[
        bool, typer.Option("--page", help="Write a page to look at, too, of about 5 MB.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make the tables and figures of the paper anew, in its settings, beside its own figures.

    Each part becomes a Markdown file with tables and notes, a JSON file with all numbers, and a
    folder of figures. Runs are kept in a folder: whatever has been done is not done again, and
    after Ctrl-C or a kill the same command goes on. A task whose data are not there is called "not
    measured", and the others go on.

    **Exit codes**

    - 0: done
    - 1: all data of a part are missing, a task raised an error, or a method failed (one that
      diverged is a result)
    - 2: a name or value cannot be used
    - 4: a folder or file cannot be written
    - 130, 143: interrupted by Ctrl-C, by SIGTERM; what there is of the part has been written

    **Examples**

    - `badm reproduce`
    - `badm reproduce node-classification --scale cpu`
    - `badm reproduce molecule --seeds 5 --methods 'badm*,adam' --page`
    - `badm reproduce --scale smoke --steps 5 -o /tmp/results    # a trial, on synthetic data`
    """
    with signals.exit_on_signal():
        from badm.bench.compare.protocol import ComparisonRunner  # not for --help to wait for

    with exit_on_error():
        parts = [paper.find(name) for name in dict.fromkeys(names or paper.PARTS)]
        chosen = options.parse_methods(methods) if methods else ()
        store = RunStore(runs)
        _check_folder(output, parts, page)
        with stdout_to_stderr():
            work = {
                part.name: [
                    ComparisonRunner(replace(plan, threads=threads), store)
                    for plan in part.plans(
                        chosen,
                        scale=scale,  # type: ignore[arg-type]  # checked by typer's callback
                        seeds=seeds,
                        steps=steps,
                        absent=_missing_tasks(part, scale),
                    )
                ]
                for part in parts
            }
        pairs = [c for those in work.values() for one in those for c in one.pairs]
        shown = not (as_json or quiet)
        count = options.default_jobs(jobs, threads)
        done: list[dict[str, Any]] = []
        interrupted = failed = False
        for part in parts:
            runner = work[part.name]
            with ProgressDisplay(pairs, console(stderr=True), shown=shown) as board:
                interrupted = _interrupted(runner, store, count, Machine(threads=threads), board)
            if interrupted and not any(e.finals for c in runner for e in c.record.entries):
                raise KeyboardInterrupt
            command = _command(part.name, scale, seeds, steps, methods)
            made, files = _write(part, runner, store, output, command, page=page)
            if not as_json:
                _show(part, made, files, tables=not quiet)
            done.append(_to_dict(part, made))
            failed |= any(row.status in ("failed", "missing") for one in made for row in one.rows)
            if interrupted:
                break
        if as_json:
            print(json.dumps(done, allow_nan=False))
    if interrupted:
        exit_with("interrupted; the same command goes on from here", signals.exit_code())
    if failed:
        raise typer.Exit(FAILED)


def _missing_tasks(part: PaperPart, scale: str) -> list[str]:
    """The tasks of a part whose datasets are missing; an error if that is all of them."""
    found = {task: tasks.find(task, scale) for task in part.tasks}  # type: ignore[arg-type]
    lacking = {task: why for task, one in found.items() if (why := one.missing_data)}
    if len(lacking) == len(part.tasks):
        exit_with(next(iter(lacking.values())), FAILED)
    for why in dict.fromkeys(lacking.values()):
        say(f"{part.name} goes on without it: {why}")
    return list(lacking)


def _check_folder(folder: Path, parts: list[PaperPart], page: bool) -> None:
    """Refuse early what could not be written at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        exit_with(f"cannot write {folder}: {os_error_reason(error)}", STORE_FAILED)
    endings = (".md", ".json", "-figures", *[".html"] * page)
    check_outputs([folder / f"{part.name}{ending}" for part in parts for ending in endings])


def _interrupted(
    runner: "list[ComparisonRunner]",
    store: RunStore,
    count: int,
    machine: Machine,
    board: ProgressDisplay,
) -> bool:
    """Do the runs of a part that are left; whether Ctrl-C came before the end."""
    for one in runner:
        try:
            with Workers(count, store, machine=machine) as workers:
                one.run(workers, board.update)
        except KeyboardInterrupt:
            for other in runner:
                other.record.interrupted |= not other.done
            return True
    return False


def _write(
    part: PaperPart,
    runner: "list[ComparisonRunner]",
    store: RunStore,
    folder: Path,
    command: str,
    *,
    page: bool,
) -> tuple[list[Comparison], list[Path]]:
    """What a part found, and the files it has been written to."""
    from badm.bench.analysis.summaries import summarise
    from badm.bench.reproduce.tables import merged, paper_markdown  # not for --help to wait for

    made = [summarise(one.record, store) for one in runner]
    whole = merged(part, made)
    files = [folder / f"{part.name}{ending}" for ending in (".md", ".json", "-figures")]
    table, content, pictures = files
    try:
        write_atomically(table, paper_markdown(part, whole, command).encode())
        text = json.dumps(_to_dict(part, made), ensure_ascii=False, allow_nan=False)
        write_atomically(content, f"{text}\n".encode())
        draw(whole, pictures)
    except OSError as error:
        exit_with(f"cannot write to {folder}: {os_error_reason(error)}", STORE_FAILED)
    if page:
        files.append(folder / f"{part.name}.html")
        write_outputs(whole, files[-1:])
    return made, files


def _show(part: PaperPart, made: list[Comparison], files: list[Path], *, tables: bool) -> None:
    """Where the files are, after the tables if they are wanted."""
    from badm.bench.reproduce.tables import console_paper_table, merged, paper_tables

    out = console()
    whole = merged(part, made)
    for one in paper_tables(part, whole) if tables else []:
        out.print(console_paper_table(one))
        for note in one.footnotes:
            out.print(note)
    synthetic = sum(task.synthetic for task in whole.tasks)
    if tables and synthetic:
        out.print(f"Synthetic data on {synthetic} of {len(whole.tasks)} tasks.")
    for path in files:
        out.print(f"written: {path}", soft_wrap=True)


def draw(comparison: Comparison, folder: Path) -> None:
    """Loss, score and pictures of each task, as PNG files: SVG files would outweigh the rest."""
    from badm.bench.report import draw_figures  # not for --help to wait for

    folder.mkdir(exist_ok=True)
    with TemporaryDirectory() as drawn:
        kinds = ("score", "loss", "artifacts")
        for path in draw_figures(comparison, Path(drawn), kinds=kinds, forms=("png",)):
            write_atomically(folder / path.name, path.read_bytes())


def _to_dict(part: PaperPart, comparisons: list[Comparison]) -> dict[str, Any]:
    return {
        "part": part.name,
        "comparisons": [json.loads(to_json(one)) for one in comparisons],
    }


def _command(part: str, scale: str, seeds: int, steps: int | None, methods: str) -> str:
    """What makes the same numbers anew."""
    words = ["badm", "reproduce", part, "--scale", scale, "--seeds", str(seeds)]
    words += [] if steps is None else ["--steps", str(steps)]
    words += ["--methods", methods] if methods else []
    return shlex.join(words)

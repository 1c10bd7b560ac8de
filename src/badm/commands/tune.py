"""``badm tune``: the best setting of a method for a task."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from badm.bench import tasks as all_tasks
from badm.bench.engine.options import Machine
from badm.bench.engine.streams import stdout_to_stderr
from badm.bench.engine.workers import Workers
from badm.bench.records.plans import MethodRecord, Plan
from badm.bench.records.runs import RunStore
from badm.bench.task import Score
from badm.commands import options
from badm.commands.exit_codes import FAILED, exit_on_error, say
from badm.commands.progress import ProgressDisplay
from badm.commands.terminal import console
from badm.processes import signals


def tune(
    task: Annotated[str, typer.Argument(help="A name (`badm list tasks`) or a file.")],
    method: Annotated[
        str, typer.Option("--method", "-m", help="A method, or comma-separated names.")
    ],
    trials: options.Trials = 8,
    scale: options.Scale = "cpu",
    schedule: options.Schedule = "constant",
    steps: options.Steps = None,
    runs: options.Runs = Path("runs"),
    jobs: options.Jobs = None,
    threads: options.Threads = 1,
    study: options.Study = "",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Search for the best setting of a method, judged on the validation split.

    The trials are those of `badm compare`: a later comparison with the same number of trials reuses
    them. The test split is not read.

    **Exit codes**

    - 0: done
    - 1: the task raised an error, or every trial failed or diverged
    - 2: invalid name or value
    - 4: a folder or file cannot be written, or the database of `--study` stays away
    - 130, 143: interrupted by Ctrl-C, by SIGTERM; run the same command to resume

    **Examples**

    - `badm tune digits --method badm`
    - `badm tune my_task.py --method badm,adam --trials 12 --json`
    """
    with signals.exit_on_signal():
        from badm.bench.compare.protocol import ComparisonRunner  # not for --help to wait for

    with exit_on_error():
        names = options.parse_methods(method, "--method")
        store = RunStore(runs)
        plan = Plan(
            (task,),
            names,
            "tuned",
            trials,
            0,
            scale,  # type: ignore[arg-type]  # checked by typer's callback
            schedule,
            "score",
            None,
            steps,
            names[0],
            threads,
        )
        with stdout_to_stderr():
            runner = ComparisonRunner(plan, store, study, say)
        workers = Workers(
            options.default_jobs(jobs, threads), store, machine=Machine(threads=threads)
        )
        shown = not (as_json or quiet)
        with workers, ProgressDisplay(runner.pairs, console(stderr=True), shown=shown) as board:
            runner.run(workers, board.update)
        entries = runner.record.entries
        score = all_tasks.find(task, scale).task.score  # type: ignore[arg-type]
        if as_json:
            print(json.dumps([_to_dict(entry) for entry in entries], indent=2))
        else:
            out = console()
            for entry in entries:
                if not quiet:
                    out.print(trial_table(entry, score))
                out.print(_best(entry))
    if not all(_finished(entry) for entry in entries):
        raise typer.Exit(FAILED)


def _finished(entry: MethodRecord) -> bool:
    return any(trial.status == "finished" for trial in entry.tried)


def _best(entry: MethodRecord) -> str:
    if not _finished(entry):
        return f"{entry.method}: no trial finished"
    chosen = entry.setting or {}
    text = ", ".join(f"{name} = {_shown(chosen[name])}" for name in entry.searched)
    edge = "".join(f"; {name} is at the edge of the values tried" for name in entry.at_edge)
    return f"{entry.method}: {text}{edge}"


def _shown(value: object) -> str:
    """A value of a setting: a number, or one of a few words."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def trial_table(entry: MethodRecord, score: Score) -> Table:
    """The settings tried, with their scores."""
    table = Table(title=f"{entry.task}: {entry.method}", title_justify="left", box=None)
    for heading in (*entry.searched, score.name, ""):
        table.add_column(heading, justify="right")
    for trial in entry.tried:
        best = trial.setting == entry.setting and trial.status == "finished"
        value = "" if trial.score is None else score.format(trial.score)
        table.add_row(
            *(_shown(trial.setting[name]) for name in entry.searched),
            value if trial.status == "finished" else trial.status,
            "best" if best else "",
            style="bold" if best else "",
        )
    return table


def _to_dict(entry: MethodRecord) -> dict[str, object]:
    return {
        "task": entry.task,
        "method": entry.method,
        "setting": entry.setting,
        "at_edge": entry.at_edge,
        "trials": [
            {"setting": trial.setting, "status": trial.status, "score": trial.score}
            for trial in entry.tried
        ],
    }

"""``badm compare``: which method trains a task best."""

from pathlib import Path
from typing import Annotated

import typer

from badm.bench.engine.options import Machine
from badm.bench.engine.streams import stdout_to_stderr
from badm.bench.engine.workers import Workers
from badm.bench.records.comparisons import Comparison, to_json
from badm.bench.records.plans import TUNING_SEED, Plan
from badm.bench.records.runs import RunStore
from badm.commands import options
from badm.commands.exit_codes import FAILED, exit_on_error, say
from badm.commands.output_files import check_outputs, write_outputs
from badm.commands.progress import ProgressDisplay
from badm.commands.terminal import console
from badm.processes import signals

# Every metric of BADM, the paper's baselines, and the strongest there are.
METHODS = (
    "badm,badm-printed,badm-diagonal,badm-kronecker,"
    "sgd,sgd-momentum,adagrad,rmsprop,adam,nadam,adamw,muon,soap,schedule-free"
)


def compare(
    tasks: Annotated[
        list[str], typer.Argument(help="Names (`badm list tasks`) or files: `my_task.py`.")
    ],
    methods: Annotated[
        str,
        typer.Option("--methods", "-m", help="Comma-separated names; `all` and `badm*` work too."),
    ] = METHODS,
    protocol: Annotated[
        str,
        typer.Option(
            help="tuned: as many trials for every method, then fresh seeds; paper: its settings.",
            callback=options.one_of("tuned", "paper"),
        ),
    ] = "tuned",
    trials: options.Trials = 6,
    seeds: Annotated[
        int,
        typer.Option(callback=options.between(1, TUNING_SEED), help="Final runs per method."),
    ] = 3,
    scale: options.Scale = "cpu",
    schedule: options.Schedule = "constant",
    objective: Annotated[
        str,
        typer.Option(
            help="What the search optimizes: the best score, or the fewest steps to the target.",
            callback=options.one_of("score", "steps"),
        ),
    ] = "score",
    target: Annotated[
        float | None,
        typer.Option(
            help="Validation score to count steps to, instead of the task's own.",
            callback=options.between(),
        ),
    ] = None,
    steps: options.Steps = None,
    reference: Annotated[
        str,
        typer.Option(
            help="The method the others are tested against.",
            show_default="badm if it takes part, else the first",
        ),
    ] = "",
    runs: options.Runs = Path("runs"),
    jobs: options.Jobs = None,
    threads: options.Threads = 1,
    study: options.Study = "",
    output: options.Outputs = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on one or more tasks on equal terms, and say which is best.

    In the tuned protocol every method searches its own space with the same number of trials on the
    validation split; its best setting then runs on fresh seeds, and the test split is read once.
    Finished runs are kept and not repeated; after Ctrl-C or a kill, run the same command to resume.

    **Exit codes**

    - 0: done
    - 1: the task raised an error, or a method failed (one that diverged is a result)
    - 2: invalid name or value
    - 4: a folder or file cannot be written, or the database of `--study` stays away
    - 130, 143: interrupted by Ctrl-C, by SIGTERM; a report of the runs so far has been written

    **Examples**

    - `badm compare digits`
    - `badm compare digits --methods badm,adam,nadam,muon --seeds 5 --trials 8`
    - `badm compare my_task.py --methods 'badm*,adam' --target 0.9 --objective steps`
    - `badm compare digits my_task.py -o report.html -o table.md -o figures`
    - `badm compare my_task.py --study postgresql://host/name    # on several machines`
    """
    with signals.exit_on_signal():
        from badm.bench.analysis.summaries import summarise
        from badm.bench.compare.protocol import ComparisonRunner  # not for --help to wait for

    with exit_on_error():
        names = options.parse_methods(methods)
        against = reference or ("badm" if "badm" in names else names[0])
        if against not in names:
            raise ValueError(f"--reference must be one of {', '.join(names)}, got {against!r}")
        store = RunStore(runs)
        outputs = check_outputs(output or [runs / "report.html"])
        plan = Plan(
            tuple(tasks),
            names,
            protocol,  # type: ignore[arg-type]  # checked by typer's callback
            trials,
            seeds,
            scale,  # type: ignore[arg-type]
            schedule,
            objective,  # type: ignore[arg-type]
            target,
            steps,
            against,
            threads,
        )
        with stdout_to_stderr():
            runner = ComparisonRunner(plan, store, study, say)
        shown = not (as_json or quiet)
        workers = Workers(
            options.default_jobs(jobs, threads), store, machine=Machine(threads=threads)
        )
        try:
            with workers, ProgressDisplay(runner.pairs, console(stderr=True), shown=shown) as board:
                runner.run(workers, board.update)
        except KeyboardInterrupt:
            if not any(entry.finals for entry in runner.record.entries):
                raise
        comparison = summarise(runner.record, store)
        write_outputs(comparison, outputs)
        show(comparison, outputs, as_json=as_json, quiet=quiet)
    if runner.record.interrupted:
        raise typer.Exit(signals.exit_code())
    ends = {row.status for row in comparison.rows} | {trial.status for trial in comparison.tried}
    if ends & {"failed", "missing"}:
        raise typer.Exit(FAILED)


def show(comparison: Comparison, outputs: list[Path], *, as_json: bool, quiet: bool) -> None:
    """Print tables, the summary and the paths written; or JSON; or the paths alone."""
    if as_json:
        print(to_json(comparison))
        return
    from badm.bench.report import console_table  # not for --help to wait for

    out = console()
    if not quiet:
        for task in comparison.tasks:
            out.print(console_table(comparison, task.name, out.width))
        for sentence in [*comparison.summary, *comparison.notes]:
            out.print(sentence)
    for path in outputs:
        out.print(f"written: {path}", soft_wrap=True)

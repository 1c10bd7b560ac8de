"""``badm compare``: which method trains a task best."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from badm import bench
from badm.bench.compare import ComparisonInterrupted
from badm.bench.engine.schedules import MOST_WARMUP
from badm.bench.engine.streams import stdout_to_stderr
from badm.bench.records.plans import TUNING_SEED
from badm.bench.records.runs import RunStore
from badm.bench.records.studies import is_study, read_study
from badm.bench.report.terminal import console
from badm.commands import options
from badm.commands.exit_codes import FAILED, exit_on_error, say
from badm.processes import signals

if TYPE_CHECKING:
    from badm.bench.report.result import Report

DEFAULT = options.defaults(bench.compare)


def compare(
    context: typer.Context,
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="Names (`badm list tasks`), files with a task or a training function "
            "(`train.py`), or `suite`: every kind of task. "
            "Or `study.toml`, which has all options, as it is written beside every result.",
            metavar="TASK",
        ),
    ],
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Comma-separated names (`badm list methods`), `all`, `badm*`, an optimizer of "
            "your own (`mine.py:Mine`); settings in brackets (`badm[beta=0.95]`).",
            metavar="NAMES",
        ),
    ] = DEFAULT["methods"],
    protocol: Annotated[
        str,
        typer.Option(
            help="tuned: as many trials for every method, then fresh seeds; speed: the smallest "
            "part of the baseline's budget that reaches its score; paper: its settings.",
            callback=options.one_of("tuned", "speed", "paper"),
            metavar="NAME",
        ),
    ] = DEFAULT["protocol"],
    trials: options.Trials = DEFAULT["trials"],
    seeds: Annotated[
        int,
        typer.Option(
            callback=options.between(1, TUNING_SEED), help="Final runs per method.", metavar="N"
        ),
    ] = DEFAULT["seeds"],
    scale: options.Scale = DEFAULT["scale"],
    schedule: Annotated[
        str | None,
        typer.Option(
            help=options.SCHEDULE_HELP,
            metavar="NAME",
            show_default="constant; linear in the speed protocol",
        ),
    ] = DEFAULT["schedule"],
    warmup: Annotated[
        float | None,
        typer.Option(
            callback=options.between(0, MOST_WARMUP),
            help="Fraction of the steps over which the learning rate first rises from 0.",
            metavar="FRACTION",
            show_default="0; 0.05 in the speed protocol",
        ),
    ] = DEFAULT["warmup"],
    clip_norm: options.ClipNorm = DEFAULT["clip_norm"],
    search: options.Search = DEFAULT["search"],
    space: options.Space = None,
    setting: options.Setting = None,
    objective: Annotated[
        str,
        typer.Option(
            help="What the search optimizes: the best score, or the fewest steps to the target.",
            callback=options.one_of("score", "steps"),
            metavar="NAME",
        ),
    ] = DEFAULT["objective"],
    target: Annotated[
        float | None,
        typer.Option(
            help="Validation score to count steps to, instead of the task's own.",
            callback=options.between(),
            metavar="SCORE",
        ),
    ] = DEFAULT["target"],
    steps: options.Steps = DEFAULT["steps"],
    epochs: options.Epochs = DEFAULT["epochs"],
    seconds: options.Seconds = DEFAULT["seconds"],
    reference: Annotated[
        str,
        typer.Option(
            help="The method the others are tested against.",
            metavar="METHOD",
            show_default="badm if it takes part, else the first",
        ),
    ] = DEFAULT["reference"],
    baseline: Annotated[
        str,
        typer.Option(
            help="Of the speed protocol: the method whose score at the whole budget is the target.",
            metavar="METHOD",
        ),
    ] = DEFAULT["baseline"],
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="Results to show in the same table without running them again: a file that "
            "`-o FILE.json` wrote, or a folder of runs; may be repeated.",
            metavar="FILE",
        ),
    ] = None,
    runs: options.Runs = DEFAULT["runs"],
    jobs: options.Jobs = DEFAULT["jobs"],
    threads: options.Threads = DEFAULT["threads"],
    device: options.Device = DEFAULT["device"],
    study: options.Study = DEFAULT["study"],
    output: options.Outputs = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on one or more tasks on equal terms, and say which is best.

    In the tuned protocol every method searches its own space with the same number of trials on the
    validation split; its best setting then runs on fresh seeds, and the test split is read once.
    The speed protocol asks how much of a budget is enough: a baseline is tuned so at all steps, and
    every other method at eighths of them, its schedule fitted to each, until the smallest is found
    that ends with a validation score as good as the baseline's. A name such as `adam-untouched`
    stands for the method at its defaults, with nothing searched.
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
    - `badm compare my_task.py -m 'badm*,adam' --target 0.9 --objective steps`
    - `badm compare train.py -m badm,adamw`, a training function
    - `badm compare digits -m 'mine.py:Mine,badm[beta=0.95],soap'`
    - `badm compare suite --protocol speed -m adamw,badm,badm-untouched,muon`
    - `badm compare train.py --search lr,beta --space lr=1e-4..1e-1`
    - `badm compare digits --schedule wsd --clip-norm 1 --set beta=0.9`
    - `badm compare digits --seconds 5 --schedule mine.py:falls`
    - `badm compare digits my_task.py -o report.html -o table.md -o figures`
    - `badm compare report.toml --seeds 5`
    - `badm compare digits -m lion --with results/digits.json`
    - `badm compare my_task.py --study postgresql://host/name`, on several machines
    """
    shown = not (as_json or quiet)
    chosen: dict[str, Any] = {
        "tasks": tasks,
        "methods": methods,
        "protocol": protocol,
        "trials": trials,
        "seeds": seeds,
        "scale": scale,
        "schedule": schedule,
        "warmup": warmup,
        "clip_norm": clip_norm,
        "search": search,
        "space": space or (),
        "objective": objective,
        "target": target,
        "steps": steps,
        "epochs": epochs,
        "seconds": seconds,
        "reference": reference,
        "baseline": baseline,
        "others": others or [],
        "threads": threads,
        "device": device,
    }
    with exit_on_error():
        chosen["setting"] = options.read_settings(setting)
        chosen = _with_study(chosen, context)
    names = chosen["methods"]
    if isinstance(names, str) and "[" not in names:
        names = names.replace(",", ", ")
    listed = names if isinstance(names, str) else ", ".join(names)
    begun = f"Comparing {listed} on {', '.join(chosen['tasks'])}; runs are kept in {runs}"
    options.import_comparisons(begun, shown=shown)
    interrupted = False
    with exit_on_error():
        RunStore(runs)  # the report may go into it
        outputs = options.check_outputs(output or [runs / "report.html"])
        try:
            with stdout_to_stderr():
                result = bench.compare(
                    **chosen, runs=runs, jobs=jobs, study=study, progress=shown, say=say
                )
        except ComparisonInterrupted as interrupt:
            result, interrupted = interrupt.report, True
        show(result, result.save(*outputs), as_json=as_json, quiet=quiet)
    if interrupted:
        raise typer.Exit(signals.exit_code())
    found = result.comparison
    ends = {row.status for row in found.rows} | {trial.status for trial in found.tried}
    if ends & {"failed", "missing"}:
        raise typer.Exit(FAILED)


def _with_study(chosen: dict[str, Any], context: typer.Context) -> dict[str, Any]:
    """The options of a file of a study, and over them those of the command line."""
    sources = [source for source in chosen["tasks"] if is_study(source)]
    if not sources:
        return chosen
    if len(chosen["tasks"]) > 1:
        raise ValueError(f"{sources[0]} names its tasks itself: no other task may stand beside it")
    given = {
        name: value
        for name, value in chosen.items()
        if name != "tasks" and _is_given(context, name)
    }
    return {**chosen, **read_study(sources[0]), **given}


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, and does not have its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def show(result: "Report", written: list[Path], *, as_json: bool, quiet: bool) -> None:
    """Print tables, the summary and the paths written; or JSON; or the paths alone."""
    if as_json:
        print(result.to_json())
        return
    out = console()
    if not quiet:
        out.print(result)
    for path in written:
        out.print(f"written: {path}", soft_wrap=True)

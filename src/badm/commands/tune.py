"""``badm tune``: the best setting of a method for a task."""

import json
from typing import Annotated

import typer

from badm import bench
from badm.bench.engine.streams import stdout_to_stderr
from badm.bench.report.terminal import console
from badm.commands import options
from badm.commands.exit_codes import FAILED, exit_on_error, say

DEFAULT = options.defaults(bench.tune)


def tune(
    task: Annotated[
        str, typer.Argument(help="A name (`badm list tasks`) or a file.", metavar="TASK")
    ],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="A method, or several separated by commas, as `badm compare` takes them.",
            metavar="NAMES",
        ),
    ],
    trials: options.Trials = DEFAULT["trials"],
    scale: options.Scale = DEFAULT["scale"],
    schedule: options.Schedule = DEFAULT["schedule"],
    warmup: options.Warmup = DEFAULT["warmup"],
    clip_norm: options.ClipNorm = DEFAULT["clip_norm"],
    search: options.Search = DEFAULT["search"],
    space: options.Space = None,
    setting: options.Setting = None,
    steps: options.Steps = DEFAULT["steps"],
    epochs: options.Epochs = DEFAULT["epochs"],
    seconds: options.Seconds = DEFAULT["seconds"],
    runs: options.Runs = DEFAULT["runs"],
    jobs: options.Jobs = DEFAULT["jobs"],
    threads: options.Threads = DEFAULT["threads"],
    device: options.Device = DEFAULT["device"],
    study: options.Study = DEFAULT["study"],
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
    - `badm tune my_task.py --method 'mine.py:Mine[nesterov=True]'`
    """
    shown = not (as_json or quiet)
    begun = f"Searching for the best setting of {method} on {task}; runs are kept in {runs}"
    options.import_comparisons(begun, shown=shown)
    with exit_on_error():
        with stdout_to_stderr():
            result = bench.tune(
                task,
                method,
                trials=trials,
                scale=scale,  # type: ignore[arg-type]  # checked by typer's callback
                schedule=schedule,
                warmup=warmup,
                clip_norm=clip_norm,
                search=search,
                space=space or (),
                setting=options.read_settings(setting),
                steps=steps,
                epochs=epochs,
                seconds=seconds,
                runs=runs,
                jobs=jobs,
                threads=threads,
                device=device,  # type: ignore[arg-type]
                study=study,
                progress=shown,
                say=say,
            )
        out = console()
        if as_json:
            print(json.dumps(result.to_list(), indent=2))
        elif quiet:
            for sentence in result.best():
                out.print(sentence)
        else:
            out.print(result)
    if not result.finished:
        raise typer.Exit(FAILED)

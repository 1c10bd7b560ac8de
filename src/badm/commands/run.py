"""``badm run``: one run of a method on a task."""

from typing import Annotated

import typer

from badm import bench
from badm.bench.compare import RunInterrupted
from badm.bench.engine.streams import stdout_to_stderr
from badm.commands import listing, options
from badm.commands.exit_codes import FAILED, exit_on_error, exit_with
from badm.processes import signals
from badm.processes.parent_death import started_by_torchrun

DEFAULT = options.defaults(bench.run)


def run(
    task: Annotated[
        str, typer.Argument(help="A name (`badm list tasks`) or a file.", metavar="TASK")
    ],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="A name (`badm list methods`) or an optimizer of your own (`mine.py:Mine`).",
            metavar="METHOD",
        ),
    ],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A setting, may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            callback=options.between(0, 2**32 - 1),
            help="Seed of initialisation, batches and noise.",
            metavar="N",
        ),
    ] = DEFAULT["seed"],
    replicas: Annotated[
        str,
        typer.Option(
            help=f"Train on several ranks, and how these meet: {', '.join(listing.read().modes)}.",
            metavar="MODE",
            show_default="one process",
        ),
    ] = DEFAULT["replicas"],
    scale: options.Scale = DEFAULT["scale"],
    schedule: options.Schedule = DEFAULT["schedule"],
    warmup: options.Warmup = DEFAULT["warmup"],
    clip_norm: options.ClipNorm = DEFAULT["clip_norm"],
    steps: options.Steps = DEFAULT["steps"],
    runs: options.Runs = DEFAULT["runs"],
    threads: options.Threads = DEFAULT["threads"],
    device: options.Device = DEFAULT["device"],
    checkpoint: Annotated[
        float,
        typer.Option(
            callback=options.between(0),
            help="Seconds between checkpoints.",
            metavar="SECONDS",
        ),
    ] = DEFAULT["checkpoint"],
    weights: Annotated[
        bool, typer.Option("--weights", help="Keep the weights in a file.")
    ] = DEFAULT["weights"],
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a task with a method once, with the method's defaults or settings of your own.

    The trajectory is written while it is measured. After Ctrl-C or a kill, run the same command to
    resume: the run ends bit for bit as if it had not been interrupted. A run that has ended is not
    repeated. The first Ctrl-C finishes the step and saves a checkpoint, the second stops at once.

    **Exit codes**

    - 0: the run finished, or diverged, which is a result
    - 1: the task raised an error, or the method failed or cannot train it
    - 2: invalid name or value
    - 4: a folder or file cannot be written
    - 130, 143: interrupted by Ctrl-C, by SIGTERM; run the same command to resume

    **Examples**

    - `badm run digits --method badm`
    - `badm run digits --method adam --set lr=0.003 --seed 1 --json`
    - `badm run digits --method mine.py:Mine --set nesterov=true`
    - `badm run my_task.py --method badm-kronecker --steps 500 --weights`
    - `badm run digits --method adam --replicas outer --set ranks=2 --set every=20`
    - `torchrun --nproc-per-node 4 -m badm run digits -m badm --replicas outer`
    """
    shown = not (as_json or quiet)
    begun = f"Training {task} with {method}, seed {seed}; runs are kept in {runs}"
    with options.importing(begun, shown=shown and not started_by_torchrun()):
        from badm.bench.compare.single_run import find_method
    with exit_on_error():
        given = options.parse_settings(setting or [], find_method(method, replicas))
        try:
            with stdout_to_stderr():
                done = bench.run(
                    task,
                    method,
                    setting=given,
                    seed=seed,
                    replicas=replicas,
                    scale=scale,  # type: ignore[arg-type]  # checked by typer's callback
                    schedule=schedule,
                    warmup=warmup,
                    clip_norm=clip_norm,
                    steps=steps,
                    runs=runs,
                    threads=threads,
                    device=device,  # type: ignore[arg-type]
                    checkpoint=checkpoint,
                    weights=weights,
                    progress=shown,
                )
        except RunInterrupted as interrupt:
            exit_with(f"interrupted; {interrupt}", signals.exit_code())
        if done is None:  # another rank reports
            return
        if as_json:
            print(done.to_json())
        else:
            if not (quiet or done.failure):
                print(done)
            print(f"written: {done.run.path}")
        if done.failure:
            exit_with(done.failure, FAILED)

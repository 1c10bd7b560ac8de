"""``badm run``: one run of a method on a task."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from badm.bench import methods, tasks
from badm.bench.engine.launcher import run_or_launch
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.ranks import join_ranks
from badm.bench.engine.run import run_on_ranks
from badm.bench.engine.streams import stdout_to_stderr
from badm.bench.engine.training import Interrupted
from badm.bench.methods.replicas import MODE_SEPARATOR, MODES
from badm.bench.records.runs import Run, RunConfig, RunStore
from badm.bench.report.terminal import console, text_column, visible
from badm.bench.task import Score
from badm.commands import options
from badm.commands.exit_codes import FAILED, exit_on_error, exit_with
from badm.processes import signals
from badm.processes.parent_death import started_by_torchrun


def run(
    task: Annotated[str, typer.Argument(help="A name (`badm list tasks`) or a file.")],
    method: Annotated[str, typer.Option("--method", "-m", help="See `badm list methods`.")],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A setting, may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            callback=options.between(0, 2**32 - 1), help="Of initialisation, batches and noise."
        ),
    ] = 0,
    replicas: Annotated[
        str,
        typer.Option(
            help=f"Train on several ranks, and how these meet: {', '.join(MODES)}.",
            metavar="MODE",
            show_default="one process",
        ),
    ] = "",
    scale: options.Scale = "cpu",
    schedule: options.Schedule = "constant",
    steps: options.Steps = None,
    runs: options.Runs = Path("runs"),
    threads: options.Threads = 1,
    device: options.Device = "cpu",
    checkpoint: Annotated[
        float,
        typer.Option(
            callback=options.between(0),
            help="Seconds between checkpoints.",
            metavar="SECONDS",
        ),
    ] = 20.0,
    weights: Annotated[bool, typer.Option("--weights", help="Keep the weights as a file.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a task with a method once, with the method's defaults unless told otherwise.

    The trajectory is written while it is measured. After Ctrl-C or a kill the same command goes on
    and ends exactly as if nothing had happened; a run that has been done is not done again. The
    first Ctrl-C finishes the step and writes a checkpoint, the second stops at once.

    **Exit codes**

    - 0: the run finished, or diverged, which is a result
    - 1: the task raised an error, or the method failed or cannot train it
    - 2: a name or value cannot be used
    - 4: a folder or file cannot be written
    - 130, 143: interrupted by Ctrl-C, by SIGTERM; run the same command to resume

    **Examples**

    - `badm run digits --method badm`
    - `badm run digits --method adam --set lr=0.003 --seed 1 --json`
    - `badm run my_task.py --method badm-kronecker --steps 500 --weights`
    - `badm run digits --method adam --replicas outer --set ranks=2 --set every=20`
    - `torchrun --nproc-per-node 4 -m badm run digits --method badm --replicas outer`
    """
    with exit_on_error():
        machine = Machine(threads=threads, device=device)
        machine.prepare()
        chosen = methods.find(f"{method}{MODE_SEPARATOR}{replicas}" if replicas else method)
        full = options.parse_settings(setting or [], chosen)
        ranks = None
        if started_by_torchrun():
            if chosen.family != "replicas":
                raise ValueError(
                    "torchrun has started several processes: say with --replicas how they meet"
                )
            ranks = join_ranks()
            full["ranks"] = ranks.size
        leads = ranks is None or ranks.is_first
        store = RunStore(runs)
        folder, here = store.anchored(), Path.cwd()  # the code of a task may go elsewhere
        progress = Progress(
            text_column("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            text_column("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console(stderr=True),
            transient=True,
            disable=as_json or quiet or not leads or not console(stderr=True).is_terminal,
        )
        try:
            with stdout_to_stderr(), progress:
                bar = progress.add_task(f"{task} {chosen.name}", total=None, note="")

                def on_step(step: int, loss: float) -> None:
                    progress.update(bar, completed=step, note=f"loss {loss:.4g}")

                how = RunOptions(
                    checkpoint_seconds=checkpoint,
                    keep_weights=weights,
                    on_step=on_step,
                    should_stop=signals.stop_requested,
                    hold=signals.defer_stop,
                )
                found = tasks.find(task, scale, here)  # type: ignore[arg-type]
                found.require_data()
                progress.update(bar, total=steps or found.task.steps)
                last = found.config(
                    chosen,
                    full,
                    seed,
                    steps=steps,
                    schedule=schedule,
                    threads=machine.threads,
                    device=machine.device,
                )
                for stage, config in _stages(found, last):
                    if signals.stop_requested():  # in the last moments of the stage before
                        raise Interrupted
                    part = how if stage is found else replace(how, keep_weights=True)
                    if ranks is None:
                        run_or_launch(stage, config, chosen, folder, part, machine)
                    else:
                        run_on_ranks(ranks, config, stage.task, chosen, folder, part, machine)
        except Interrupted:
            saved = store.checkpoint(config).exists()
            where = "its checkpoint" if saved else "the beginning"
            message = f"interrupted; run the same command to resume from {where}"
            exit_with(message, signals.exit_code())
        if not leads:
            return
        done = store.read(config)
        assert done is not None
        assert done.result is not None
        show(done, found.task.score, as_json=as_json, quiet=quiet)
        if done.result.status in ("failed", "cannot"):
            word = "cannot train" if done.result.status == "cannot" else "failed on"
            exit_with(f"{chosen.name} {word} {found.task.name}: {done.result.message}", FAILED)


def _stages(found: tasks.FoundTask, config: RunConfig) -> list[tuple[tasks.FoundTask, RunConfig]]:
    """The run, after those of the stages before with the same method, setting and seed."""
    if found.previous_stage is None:
        return [(found, config)]
    earlier = tasks.find(found.previous_stage, found.task.scale, found.folder)
    task = earlier.task
    like = replace(
        config,
        task=task.name,
        task_version=earlier.version,
        steps=task.steps,
        data=earlier.data,
    )
    before = _stages(earlier, like)
    return [*before, (found, replace(config, after=before[-1][1]))]


def show(done: Run, score: Score, *, as_json: bool, quiet: bool) -> None:
    """The result in a few lines, or as JSON, or its path alone."""
    result = done.result
    assert result is not None
    if as_json:
        plain = {"config": done.config.to_dict(), "result": asdict(result), "path": str(done.path)}
        print(json.dumps(plain, indent=2))
        return
    if not quiet:
        if result.status in ("finished", "diverged"):  # of the others the last line says why
            print(f"{result.status} after {result.step} steps")
        for name, value in (
            ("validation", result.score),
            ("test", (result.test or {}).get(score.name)),
        ):
            if value is not None:
                print(f"{name} {score.name}: {score.format(value)}")
        if result.message and result.status in ("finished", "diverged"):
            print(visible(result.message))
    print(f"written: {done.path}")

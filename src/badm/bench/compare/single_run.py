"""One run alone, in this process or on ranks of its own, as ``badm.bench.run`` does it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from badm.bench import methods, tasks
from badm.bench.compare import RunInterrupted
from badm.bench.engine import schedules
from badm.bench.engine.launcher import run_or_launch
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.ranks import Ranks, join_ranks
from badm.bench.engine.run import run_on_ranks
from badm.bench.engine.schedules import check_warmup
from badm.bench.engine.streams import same_directory
from badm.bench.engine.training import Interrupted
from badm.bench.method import Method
from badm.bench.methods.own_methods import source_of
from badm.bench.methods.replicas import MODE_SEPARATOR
from badm.bench.records.runs import Run, RunConfig, RunResult, RunStore
from badm.bench.report.terminal import console, text_column, visible
from badm.bench.task import Score
from badm.processes import signals
from badm.processes.parent_death import started_by_torchrun

if TYPE_CHECKING:
    from badm.bench.compare import MethodLike

OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class SingleRun:
    """A run that has ended, to print or to show in a notebook.

    Attributes:
        run: What the run file holds: configuration, environment, trajectory, result.
        score: What the task is judged by.
    """

    run: Run = field(repr=False)
    score: Score

    @property
    def result(self) -> RunResult:
        """How the run ended."""
        assert self.run.result is not None
        return self.run.result

    @property
    def failure(self) -> str:
        """Why there is no trained model, or nothing if there is one."""
        if self.result.status not in ("failed", "cannot"):
            return ""
        word = "cannot train" if self.result.status == "cannot" else "failed on"
        config = self.run.config
        return f"{config.method} {word} {config.task}: {self.result.message}"

    def to_json(self) -> str:
        """Configuration, result and the path of the run file, as JSON text."""
        run = self.run
        plain = {"config": run.config.to_dict(), "result": asdict(self.result)}
        return json.dumps({**plain, "path": str(run.path)}, indent=2)

    def __str__(self) -> str:
        result, test = self.result, (self.result.test or {}).get(self.score.name)
        ended = result.status in ("finished", "diverged")
        lines = [f"{result.status} after {result.step} steps"] if ended else []
        for name, value in (("validation", result.score), ("test", test)):
            if value is not None:
                lines.append(f"{name} {self.score.name}: {self.score.format(value)}")
        lines += [visible(result.message)] if ended and result.message else []
        return "\n".join(lines) or visible(self.failure)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def find_method(method: MethodLike, replicas: str) -> Method:
    """The method, on several ranks if ``replicas`` names how these meet."""
    source = method if isinstance(method, str) else source_of(method)
    with same_directory():
        return methods.find(f"{source}{MODE_SEPARATOR}{replicas}" if replicas else source)


def run_once(
    source: str,
    method: Method,
    setting: Mapping[str, Any],
    runs: Path | str,
    machine: Machine,
    options: RunOptions,
    *,
    seed: int,
    scale: Any,
    schedule: str,
    warmup: float,
    clip_norm: float,
    steps: int | None,
    progress: bool | OnStep,
) -> SingleRun | None:
    """Do a run and those of the stages before it; the arguments are those of ``badm.bench.run``."""
    check_warmup(warmup)
    if not 0 <= clip_norm < math.inf or (clip_norm and method.family == "replicas"):
        raise ValueError(
            "clip_norm must be a finite number of at least 0, and 0 on several ranks, "
            f"got {clip_norm!r}"
        )
    full = method.setting(dict(setting))
    ranks = None
    if started_by_torchrun():
        if method.family != "replicas":
            raise ValueError(
                "torchrun has started several processes: "
                "say with replicas (--replicas) how they meet"
            )
        ranks = join_ranks()
        full["ranks"] = ranks.size
    first = ranks is None or ranks.is_first
    store = RunStore(runs)
    folder, here = store.anchored(), Path.cwd()  # the code of a task may change it
    shown = progress if callable(progress) else progress and first
    bar = _bar(f"{source} {method.name}", shown)
    with same_directory(), _threads_restored(), bar as (on_step, set_total):
        machine.prepare()
        found = tasks.find(source, scale, here)
        found.require_single_process(method)
        found_schedule = schedules.find(schedule, here)
        found.require_data()
        set_total(steps or found.task.steps)
        last = found.config(
            method,
            full,
            seed,
            steps=steps,
            schedule=found_schedule.stored,
            threads=machine.threads,
            device=machine.device,
            warmup=warmup,
            clip_norm=clip_norm,
        )
        for stage, config in _stages(found, last):
            own = replace(
                options,
                keep_weights=options.keep_weights or stage is not found,
                on_step=on_step,
                should_stop=signals.stop_requested,
                hold=signals.defer_stop,
            )
            try:
                if signals.stop_requested():  # in the last moments of the stage before
                    raise Interrupted
                _run_stage(
                    stage, config, method, folder, own, machine, ranks, found_schedule.source
                )
            except Interrupted:
                raise RunInterrupted(has_checkpoint=folder.checkpoint(config).exists()) from None
    if not first:
        return None
    done = store.read(config)
    assert done is not None
    return SingleRun(done, found.task.score)


def _run_stage(
    found: tasks.FoundTask,
    config: RunConfig,
    method: Method,
    store: RunStore,
    options: RunOptions,
    machine: Machine,
    ranks: Ranks | None,
    schedule: str,
) -> None:
    if ranks is None:
        run_or_launch(found, config, method, store, options, machine, schedule)
    else:
        run_on_ranks(ranks, config, found.task, method, store, options, machine)


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


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Give a notebook back the number of threads it had."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _bar(title: str, progress: bool | OnStep) -> Iterator[tuple[OnStep, Callable[[int], None]]]:
    """What to call after every step, and what to call with the number of steps."""
    if callable(progress):
        yield progress, lambda total: None
        return
    out = console(stderr=True)
    out.file = sys.stderr  # also while a training function prints to its own file
    bars = Progress(
        text_column("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        text_column("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=not (progress and (out.is_terminal or out.is_jupyter)),
    )
    with bars:
        bar = bars.add_task(title, total=None, note="")

        def on_step(step: int, loss: float) -> None:
            bars.update(bar, completed=step, note=f"loss {loss:.4g}")

        yield on_step, lambda total: bars.update(bar, total=total)

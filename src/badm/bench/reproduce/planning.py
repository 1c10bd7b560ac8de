"""The comparisons that make the parts of the paper: planned before any of them runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from badm.bench import tasks
from badm.bench.compare.choices import method_names
from badm.bench.compare.protocol import ComparisonRunner
from badm.bench.engine.options import Machine
from badm.bench.errors import TaskError
from badm.bench.records.runs import RunStore
from badm.bench.reproduce.part import NotMeasured, PaperPart
from badm.bench.reproduce.parts import PARTS, find
from badm.bench.reproduce.result import PartReport
from badm.bench.task import Scale


@dataclass(frozen=True)
class PlannedPart:
    """A part with the comparisons it is made of, and the tasks whose data are missing."""

    part: PaperPart
    runners: list[ComparisonRunner]
    not_measured: tuple[NotMeasured, ...]
    command: str

    def report(self) -> PartReport:
        """The report of the runs that are done."""
        comparisons = [runner.comparison() for runner in self.runners]
        return PartReport(self.part, comparisons, self.not_measured, self.command)


def plan_parts(
    parts: str | Iterable[str],
    methods: str | Iterable[str],
    runs: Path | str,
    machine: Machine,
    *,
    scale: Scale,
    seeds: int,
    steps: int | None,
    say: Callable[[str], None],
) -> list[PlannedPart]:
    """Find the tasks and methods of each part; the arguments are those of ``reproduce``."""
    names = [parts] if isinstance(parts, str) else parts
    found = [find(name) for name in dict.fromkeys(names or PARTS)]
    typed = methods if isinstance(methods, str) else ",".join(methods)
    chosen = method_names(typed) if typed else ()
    store = RunStore(runs)
    planned = []
    for part in found:
        missing = _missing_data(part, scale, say)
        plans = part.plans(chosen, scale=scale, seeds=seeds, steps=steps, absent=missing)
        own = [replace(p, threads=machine.threads, device=machine.device) for p in plans]
        runners = [ComparisonRunner(plan, store, say=say) for plan in own]
        command = _command(part.name, scale, seeds, steps, typed)
        planned.append(PlannedPart(part, runners, tuple(map(_not_measured, missing)), command))
    return planned


def _missing_data(part: PaperPart, scale: Scale, say: Callable[[str], None]) -> list[str]:
    """The tasks of a part whose datasets are missing; an error if that is all of them."""
    found = {name: tasks.find(name, scale) for name in part.tasks}
    missing = {name: why for name, one in found.items() if (why := one.missing_data)}
    if len(missing) == len(part.tasks):
        raise TaskError(next(iter(missing.values())))
    for why in dict.fromkeys(missing.values()):
        say(f"{part.name} goes on without it: {why}")
    return list(missing)


def _not_measured(name: str) -> NotMeasured:
    task = tasks.find(name).task
    stated = {} if task.paper is None else task.paper.scores
    return NotMeasured(name, {method: task.score.format(x) for method, x in stated.items()})


def _command(part: str, scale: str, seeds: int, steps: int | None, methods: str) -> str:
    """The command that makes the same numbers."""
    words = ["badm", "reproduce", part, "--scale", scale, "--seeds", str(seeds)]
    words += [] if steps is None else ["--steps", str(steps)]
    words += ["--methods", methods] if methods else []
    return shlex.join(words)

"""The smallest part of a baseline's budget at which a method reaches the baseline's score.

What counts is the validation score at the end of a run, where the learning rate has decayed, and
not the best on the way. The target is the mean over seeds of what the baseline's runs end with, and
a method reaches it with the mean over the same seeds. A run that diverged reaches nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from badm.bench.analysis.differences import ROUNDING
from badm.bench.analysis.speed_over_tasks import over_tasks
from badm.bench.records.comparisons import TaskInfo, score_from_info
from badm.bench.records.plans import ComparisonRecord, MethodRecord
from badm.bench.records.runs import NAN, Run
from badm.bench.records.speeds import PARTS, MeasuredPart, Speeds, SpeedTarget, TaskSpeed
from badm.bench.task import Score

Measured = tuple[MethodRecord, Mapping[int, Run]]  # an entry, and its final runs by seed


def last_value(run: Run, metric: str) -> float | None:
    """A validation metric at the end of a run; ``None`` if it was not measured or is not finite."""
    _, values = run.validation_curve(metric)
    return values[-1] if values and math.isfinite(values[-1]) else None


def target_score(last_scores: Mapping[int, float], seeds: int) -> float | None:
    """The mean over all seeds; ``None`` if one of them has no score.

    >>> target_score({0: 0.5, 1: 1.0}, 2), target_score({0: 0.5}, 2)
    (0.75, None)
    """
    return _mean([last_scores.get(seed) for seed in range(seeds)])


def reaches(scores: Sequence[float | None], target: float | None, score: Score) -> bool:
    """Whether the mean of the scores is at least as good as the target, up to rounding.

    >>> reaches([0.9, 0.7], 0.8, Score("accuracy")), reaches([0.9, None], 0.8, Score("accuracy"))
    (True, False)
    """
    mean = _mean(scores)
    if mean is None or target is None:
        return False
    rounding = ROUNDING * max(abs(mean), abs(target))
    return score.reaches(mean, target) or abs(mean - target) <= rounding


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [one for one in scores if one is not None and math.isfinite(one)]
    return math.fsum(known) / len(known) if known and len(known) == len(scores) else None


def measure_speed(record: ComparisonRecord, measured: Sequence[Measured]) -> Speeds:
    """Find the smallest part of every method on every task, and what they come to over tasks."""
    infos = {info.name: info for info in record.tasks}
    ended = [_EndedPart.of(one, infos[one[0].task], record) for one in measured]
    baselines = {
        one.entry.task: one
        for one in ended
        if one is not None and one.entry.method == record.plan.baseline
    }
    targets = [
        SpeedTarget(name, info.steps, _number(_mean(baselines[name].scores)))
        if name in baselines
        else SpeedTarget(name, info.steps, NAN)
        for name, info in infos.items()
    ]
    rows = [
        _task_speed(
            info,
            method.name,
            baselines.get(info.name),
            [one for one in ended if one is not None and one.is_of(info.name, method.name)],
        )
        for info in record.tasks
        for method in record.methods
    ]
    methods = over_tasks(rows, record.plan.baseline, record.plan.reference)
    return Speeds(record.plan.baseline, record.plan.search, targets, rows, methods)


def shown_part(speeds: Speeds, task: str, method: str) -> float | None:
    """The part whose runs stand for a method on a task: the smallest reached, else the largest."""
    (row,) = (one for one in speeds.rows if (one.task, one.method) == (task, method))
    enough = [one.part for one in row.parts if one.reached]
    return min(enough) if enough else max((one.part for one in row.parts), default=None)


@dataclass(frozen=True)
class _EndedPart:
    """An entry whose final runs have all ended, in whatever way."""

    entry: MethodRecord
    steps: int
    scores: list[float | None]  # by seed
    seconds: float
    seconds_per_step: float
    state_bytes: float

    @classmethod
    def of(cls, measured: Measured, info: TaskInfo, record: ComparisonRecord) -> _EndedPart | None:
        entry, runs = measured
        seeds = range(record.plan.seeds)
        if not all(seed in runs or seed in entry.faults for seed in seeds):
            return None
        results = {seed: run.result for seed, run in runs.items() if run.result is not None}
        finished = {seed for seed, result in results.items() if result.status == "finished"}
        timed = [result for result in results.values() if result.step]
        name = score_from_info(info).name
        return cls(
            entry,
            max((run.config.steps for run in runs.values()), default=0),
            [last_value(runs[seed], name) if seed in finished else None for seed in seeds],
            _median([result.seconds for result in timed]),
            _median([result.seconds / result.step for result in timed]),
            max((float(result.state_bytes or 0) for result in timed), default=NAN),
        )

    def is_of(self, task: str, method: str) -> bool:
        return (self.entry.task, self.entry.method) == (task, method)

    @property
    def cannot_train(self) -> bool:
        return any(trial.status == "cannot" for trial in self.entry.tried)

    def measured(self, target: float | None, score: Score) -> MeasuredPart:
        return MeasuredPart(
            self.entry.part,
            self.steps,
            self.entry.setting or {},
            self.entry.at_edge,
            [_number(one) for one in self.scores],
            _number(_mean(self.scores)),
            reaches(self.scores, target, score),
            self.seconds,
        )


def _task_speed(
    info: TaskInfo, method: str, baseline: _EndedPart | None, ended: Sequence[_EndedPart]
) -> TaskSpeed:
    target = None if baseline is None else _mean(baseline.scores)
    score = score_from_info(info)
    by_part = {one.entry.part: one for one in sorted(ended, key=lambda one: one.entry.part)}
    parts = [one.measured(target, score) for one in by_part.values()]
    part = _smallest(parts, is_baseline=bool(baseline and baseline.entry.method == method))
    if any(one.cannot_train for one in ended):
        part = math.inf
    missing = TaskSpeed(info.name, method, "missing", math.inf, math.inf, math.inf, NAN, NAN, parts)
    if part is None or baseline is None or target is None or not by_part:
        return missing
    own = by_part[part] if part in by_part else by_part[max(by_part)]
    is_reached = math.isfinite(part)
    return TaskSpeed(
        info.name,
        method,
        "reached" if is_reached else "never",
        part,
        float(own.steps) if is_reached else math.inf,
        _ratio(own.seconds, baseline.seconds) if is_reached else math.inf,
        _ratio(own.seconds_per_step, baseline.seconds_per_step),
        _ratio(own.state_bytes, baseline.state_bytes),
        parts,
    )


def _smallest(parts: Sequence[MeasuredPart], *, is_baseline: bool) -> float | None:
    """The smallest part that reaches the target, ``inf`` if none does; ``None`` if not known."""
    enough = {round(one.part * PARTS) for one in parts if one.reached}
    too_few = {round(one.part * PARTS) for one in parts if not one.reached}
    if is_baseline:  # at the whole budget, by definition
        return 1.0 if enough else None
    if enough:
        known = min(enough) == 1 or min(enough) - 1 in too_few
        return min(enough) / PARTS if known else None
    return math.inf if PARTS in too_few else None


def _ratio(value: float, base: float) -> float:
    return value / base if base else NAN


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else NAN


def _number(value: float | None) -> float:
    return NAN if value is None else value

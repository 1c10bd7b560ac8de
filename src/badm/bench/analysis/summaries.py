"""Summarise the runs of a comparison."""

from __future__ import annotations

import base64
import math
import reprlib
import statistics as plain_statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from badm.bench import formatting
from badm.bench.analysis.intervals import mean_interval, median_interval, score_interval
from badm.bench.analysis.row_tests import profile_over_tasks, with_tests
from badm.bench.analysis.search_notes import budget_notes, edge_notes
from badm.bench.analysis.sentences import summary
from badm.bench.analysis.speed import measure_speed, shown_part
from badm.bench.analysis.speed_sentences import speed_summary
from badm.bench.analysis.statistics import sensitivity, time_to_target
from badm.bench.errors import StoreError
from badm.bench.records import artifact_files
from badm.bench.records.comparisons import (
    Artifact,
    Comparison,
    Curve,
    Interval,
    ResultRow,
    ScoreNoise,
    Status,
    TaskInfo,
    score_from_info,
)
from badm.bench.records.plans import ComparisonRecord, MethodRecord
from badm.bench.records.runs import NAN, Run, RunResult, RunStore
from badm.bench.records.speeds import Speeds
from badm.bench.records.studies import study_of

# What may differ between the runs of a comparison without a difference in their keys.
ALIKE = {
    "packages": "with the same versions of the packages",
    "commit": "at the same commit of badm",
    "processor": "on the same kind of processor",
}
SHOWN_BYTES = 200_000_000  # of all artifacts in a report


@dataclass(frozen=True)
class _FinalRuns:
    """An entry of the record with its final runs by seed."""

    entry: MethodRecord
    info: TaskInfo
    runs: dict[int, Run]
    missing: list[int]

    @property
    def status(self) -> Status:
        found = [run.result.status for run in self.runs.values() if run.result is not None]
        for worst in ("cannot", "failed", "diverged"):
            if worst in found:
                return worst
        if any(seed in self.entry.faults for seed in self.missing):
            return "failed"
        return "missing" if self.missing or not found else "finished"


def summarise(record: ComparisonRecord, store: RunStore) -> Comparison:
    """Read the runs of a comparison and collect what a report shows."""
    notes = ["The comparison was interrupted: some runs are missing."] * record.interrupted
    tasks = {info.name: info for info in record.tasks}
    finals = [_read(entry, tasks[entry.task], record, store, notes) for entry in record.entries]
    notes += [note for entry in record.entries for note in _search_notes(entry)]
    notes += budget_notes(record.plan, record.entries)
    speed = None
    if record.plan.protocol == "speed":
        speed = measure_speed(record, [(one.entry, one.runs) for one in finals])
        finals = _shown(finals, speed)
    notes += [note for one in finals for note in _warnings(one)]
    infos = [_with_target(_with_data(task, finals), speed) for task in record.tasks]
    samples = {info.name: info.test_samples for info in infos}
    resolutions = {
        info.name: _resolution(
            [run for one in finals if one.info is info for run in one.runs.values()], "step"
        )
        for info in record.tasks
    }
    rows = with_tests(
        [_row(one, samples[one.info.name]) for one in finals],
        infos,
        record.plan.reference,
        resolutions,
    )
    runs = [run for one in finals for run in one.runs.values() if run.config.seed in _seeds(record)]
    notes += edge_notes([one.entry for one in finals])
    environments = [run.environment for run in runs]
    notes += [
        f"Not all runs were made {alike}."
        for fact, alike in ALIKE.items()
        if any(one.get(fact) != environments[0].get(fact) for one in environments)
    ]
    reference = record.plan.reference
    return Comparison(
        title=_title([task.name for task in record.tasks]),
        created=record.created,
        protocol=record.plan.protocol,
        objective=record.plan.objective,
        schedule=record.plan.schedule,
        reference=reference,
        trials=record.plan.trials if record.plan.protocol != "paper" else 0,
        summary=summary(infos, rows, record.methods, reference)
        if speed is None
        else speed_summary(speed, infos, reference),
        tasks=infos,
        methods=record.methods,
        rows=rows,
        curves=[_curve(run) for run in runs],
        tried=[trial for one in finals for trial in one.entry.tried],
        # For one task it shows no more than the steps to its target.
        profile=profile_over_tasks(record.methods, rows, infos)
        if len(infos) > 1 and speed is None
        else None,
        artifacts=_artifacts(runs, notes),
        environment=environments[0] if environments else {},
        notes=notes,
        speed=speed,
        study=study_of(record.plan),
    )


def _shown(finals: Sequence[_FinalRuns], speed: Speeds) -> list[_FinalRuns]:
    """Of each method on each task the part of the budget that a report shows runs of."""
    shown: dict[tuple[str, str], _FinalRuns] = {}
    for one in finals:
        where = one.entry.task, one.entry.method
        part = shown_part(speed, *where)
        if part in (None, one.entry.part):
            shown[where] = one
    return list(shown.values())


def _seeds(record: ComparisonRecord) -> list[int]:
    return list(range(record.plan.seeds))


def _read(
    entry: MethodRecord,
    info: TaskInfo,
    record: ComparisonRecord,
    store: RunStore,
    notes: list[str],
) -> _FinalRuns:
    """The final runs of an entry that have ended; what cannot be read is noted."""
    runs, missing = {}, []
    for seed in _seeds(record):
        run = None
        if seed in entry.finals:
            try:
                run = store.read(entry.finals[seed])
            except StoreError as error:
                notes.append(f"Skipped: {error}.")
        if run is None or run.result is None:
            missing.append(seed)
        else:
            runs[seed] = run
    return _FinalRuns(entry, info, runs, missing)


def _search_notes(entry: MethodRecord) -> list[str]:
    """What makes the choice of a search less reliable."""
    failed = sum(trial.status == "failed" for trial in entry.tried)
    part = f" at {formatting.part(entry.part)} of the budget" if entry.part < 1 else ""
    where = f"{entry.method} on {entry.task}{part}: "
    if entry.setting and entry.tried and all(t.status != "finished" for t in entry.tried):
        return [f"{where}no trial finished, so its final runs use the setting of the first."]
    return [f"{where}{failed} of {len(entry.tried)} trials failed."] if failed else []


def _title(tasks: Sequence[str]) -> str:
    """
    >>> _title(["digits", "bbbp"]), _title(["a", "b", "c", "d", "e"])
    ('digits · bbbp', '5 tasks')
    """
    return " · ".join(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks"


def _warnings(one: _FinalRuns) -> list[str]:
    """Warnings of tasks about runs that finished."""
    where = f"{one.entry.method} on {one.entry.task}"
    return [
        f"{where}, seed {seed}: {run.result.message}."
        for seed, run in one.runs.items()
        if run.result is not None and run.result.status == "finished" and run.result.message
    ]


def _with_data(task: TaskInfo, finals: Sequence[_FinalRuns]) -> TaskInfo:
    """Add what is known once the data are loaded, which the runs have recorded."""
    for one in finals:
        for run in one.runs.values():
            if run.config.task == task.name:
                facts = run.facts
                return replace(
                    task,
                    synthetic=facts["synthetic"],
                    notes=facts["notes"],
                    test_samples=facts.get("test_samples"),
                )
    return task


def _with_target(task: TaskInfo, speed: Speeds | None) -> TaskInfo:
    """In the speed protocol the target is what the baseline reached, once that is known."""
    scores = {one.task: one.score for one in speed.targets} if speed is not None else {}
    known = math.isfinite(scores.get(task.name, NAN))
    return replace(task, target=scores[task.name]) if known else task


def _row(one: _FinalRuns, test_samples: int | None) -> ResultRow:
    entry, runs = one.entry, list(one.runs.values())
    results = [run.result for run in runs if run.result is not None]
    row = ResultRow(
        entry.task,
        entry.method,
        one.status,
        message=_message(one),
        setting=entry.setting or {},
        searched=entry.searched,
        at_edge=entry.at_edge,
        good_lr=_good_lr(one),
        trials=len(entry.tried),
        seeds=list(one.runs),
        diverged=sum(result.status == "diverged" for result in results),
        paper=entry.paper,
    )
    if one.status != "finished":
        return row

    def mean(values: Sequence[float | None]) -> Interval | None:
        known = [value for value in values if value is not None and math.isfinite(value)]
        return mean_interval(known) if len(known) == len(runs) else None

    def to_target(at: str) -> Interval | None:
        if one.info.target is None:
            return None
        times = [_time(run, at, one.info) for run in runs]
        return median_interval(times, resolution=_resolution(runs, at))

    test, noise = _test_score(one, results, test_samples)
    steps = [(result.seconds / result.step) for result in results if result.step]
    return replace(
        row,
        test=test,
        noise=noise,
        validation=mean([result.score for result in results]),
        train_loss=mean([_last_loss(run) for run in runs]),
        steps_to_target=to_target("step"),
        gradients_to_target=to_target("gradients"),
        seconds_to_target=to_target("seconds"),
        seconds_per_step=plain_statistics.median(steps) if steps else None,
        peak_bytes=max((result.peak_bytes or 0 for result in results), default=0) or None,
        state_bytes=max((result.state_bytes or 0 for result in results), default=0),
    )


def _good_lr(one: _FinalRuns) -> list[float] | None:
    """Which learning rates of the search were good, if it was for one."""
    points = [(t.setting["lr"], t.score) for t in one.entry.tried if "lr" in one.entry.searched]
    found = sensitivity(points, score_from_info(one.info)) if points else None
    return None if found is None else [found.low, found.high]


def _message(one: _FinalRuns) -> str:
    """Why the entry did not finish: the message of the first seed that did not."""
    texts = [
        f"seed {seed}: {run.result.message}"
        for seed, run in one.runs.items()
        if run.result is not None and run.result.status not in ("finished", "cannot")
    ]
    texts += [
        run.result.message
        for run in one.runs.values()
        if run.result is not None and run.result.status == "cannot"
    ]
    texts += [
        f"seed {seed}: {text}" for seed, text in one.entry.faults.items() if seed not in one.runs
    ]
    return texts[0] if texts else ""


def _time(run: Run, at: str, info: TaskInfo) -> float:
    score = score_from_info(info)
    assert info.target is not None
    return time_to_target(*run.validation_curve(score.name, at), info.target, score)


def _last_loss(run: Run) -> float | None:
    """The training loss of the first player at the end."""
    for point in reversed(run.points):
        if point.losses is not None:
            return next(iter(point.losses.values()))
    return None


def _test_score(
    one: _FinalRuns, results: Sequence[RunResult], samples: int | None
) -> tuple[Interval | None, ScoreNoise | None]:
    """The test score over seeds and, where it is a fraction of samples, over those too."""
    name = score_from_info(one.info).name
    read = [(result.test or {}).get(name) for result in results]
    values = [value for value in read if value is not None and math.isfinite(value)]
    if len(values) < len(one.runs):
        return None, None
    are_fractions = one.info.percent and all(0 <= value <= 1 for value in values)
    if samples and are_fractions:
        return score_interval(values, samples)
    return mean_interval(values, fractions=are_fractions), None


def _resolution(runs: Sequence[Run], at: str) -> float:
    """How far apart the readings of the validation split are; 0 if that is not known."""
    gaps = []
    for run in runs:
        when = [getattr(point, at) for point in run.points if point.validation is not None]
        gaps += [later - earlier for earlier, later in pairwise(when)]
    return plain_statistics.median(gaps) if gaps else 0.0


def _curve(run: Run) -> Curve:
    logged = [point for point in run.points if point.losses is not None]
    read = [point for point in run.points if point.validation is not None]
    players = list((logged[0].losses or {}) if logged else {})
    metrics = list((read[0].validation or {}) if read else {})
    return Curve(
        run.config.task,
        run.config.method,
        run.config.seed,
        [point.step for point in logged],
        [point.seconds for point in logged],
        {name: [_number((point.losses or {}).get(name)) for point in logged] for name in players},
        [point.step for point in read],
        [point.seconds for point in read],
        {name: run.validation_curve(name)[1] for name in metrics},
    )


def _number(value: Any) -> float:
    """A null stands for a number that JSON cannot hold: NaN again."""
    return NAN if value is None else float(value)


def _artifacts(runs: Sequence[Run], notes: list[str]) -> list[Artifact]:
    """The artifacts of tasks that can be shown; the others are listed in the notes."""
    shown: list[Artifact] = []
    left = SHOWN_BYTES
    for run in runs:
        where = run.config.task, run.config.method, run.config.seed
        for point in run.points:
            for title, name in (point.exhibits or {}).items():
                try:
                    content = artifact_files.read(run.path.with_suffix(".exhibits"), name)
                except artifact_files.BadArtifact as error:
                    notes.append(f"Skipped: {run.path}: artifact {reprlib.repr(title)} {error}.")
                    continue
                left -= len(content)
                if left < 0:
                    most = formatting.size(SHOWN_BYTES)
                    notes.append(f"Skipped: {run.path}: artifacts beyond {most} in all.")
                    return shown
                picture, text = "", ""
                if isinstance(content, bytes):
                    picture = f"data:image/png;base64,{base64.b64encode(content).decode()}"
                else:
                    text = content
                shown.append(Artifact(*where, point.step, title, picture, text))
    return shown

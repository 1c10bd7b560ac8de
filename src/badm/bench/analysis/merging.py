"""One comparison from several: a method more, or two versions of one, without running others again.

Comparisons can be merged where they ask the same: the same tasks with the same data and budgets, as
many trials, the same seeds. What differs is named. Intervals and tests are computed anew from the
values of all seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TypeVar

from badm.bench.analysis.intervals import mean_interval, median_interval, score_interval
from badm.bench.analysis.row_tests import profile_over_tasks, with_tests
from badm.bench.analysis.sentences import summary
from badm.bench.records.comparisons import (
    Artifact,
    Comparison,
    Curve,
    MethodInfo,
    ResultRow,
    TaskInfo,
    Trial,
)

Part = TypeVar("Part", ResultRow, Curve, Trial, Artifact)
SEPARATOR = "@"  # between a method and the commit or version that tells it from another
WHOLE = {
    "protocol": "the protocol",
    "objective": "what the search optimizes",
    "schedule": "the schedule",
    "trials": "the number of trials",
}
OF_TASK = {
    "version": "the version of the task",
    "data": "the digest of its data",
    "scale": "the scale",
    "steps": "the budget in steps",
    "batch_size": "the batch size",
    "score": "the score",
    "target": "the target",
}


class MergeError(ValueError):
    """Comparisons cannot be merged; the message says what differs."""


def merge(comparisons: Mapping[str, Comparison], reference: str = "") -> Comparison:
    """Merge comparisons into one table; what cannot be compared is refused.

    Args:
        comparisons: By name, such as that of their file, for messages and notes.
        reference: The method the others are tested against. Default: that of the first.

    Returns:
        The rows of all of them. A method that is in several, made by other code or with other
        results, has its commit or version after its name, but for the first.

    Raises:
        MergeError: if they do not ask the same.
    """
    (first_name, first), *others = comparisons.items()
    for name, other in others:
        check_mergeable(first_name, first, name, other)
    merged = first
    for name, other in others:
        merged = _joined(merged, name, other)
    against = reference or first.reference
    names = [method.name for method in merged.methods]
    if against not in names:
        raise MergeError(f"reference must be one of {', '.join(names)}, got {against!r}")
    return _restated(replace(merged, reference=against))


def check_mergeable(
    first_name: str, first: Comparison, name: str, other: Comparison, *, seeds: int | None = None
) -> None:
    """Raise an error that names the first thing in which two comparisons differ.

    ``seeds`` is how many the other will have, where it has not been run yet.
    """
    planned = "" if seeds is None else ", ".join(map(str, range(seeds)))
    for what, text in _differences(first, other, planned):
        raise MergeError(
            f"{name} cannot be merged with {first_name}: {what} must be the same, and is {text}"
        )


def _differences(
    first: Comparison, other: Comparison, planned_seeds: str
) -> Iterator[tuple[str, str]]:
    for one in (first, other):
        if one.speed is not None:
            yield "the target", "that of a baseline's own runs in the speed protocol"
    for name, what in WHOLE.items():
        mine, theirs = getattr(first, name), getattr(other, name)
        if mine != theirs:
            yield what, f"{mine} in the first and {theirs} in the second"
    known = {task.name: task for task in first.tasks}
    shared = [task for task in other.tasks if task.name in known]
    if not shared:
        mine = ", ".join(known) or "none"
        theirs = ", ".join(task.name for task in other.tasks) or "none"
        yield "at least one task", f"{mine} in the first and {theirs} in the second"
    for task in shared:
        for name, what in OF_TASK.items():
            mine, theirs = getattr(known[task.name], name), getattr(task, name)
            # Older files do not state versions and data.
            if mine != theirs and not (name in ("version", "data") and "" in (mine, theirs)):
                yield (
                    f"{what} {task.name}" if name == "version" else f"{what} on {task.name}",
                    (f"{mine} in the first and {theirs} in the second"),
                )
    mine, theirs = _seeds(first), planned_seeds or _seeds(other)
    if mine and theirs and mine != theirs:
        yield "the seeds", f"{mine} in the first and {theirs} in the second"


def _seeds(comparison: Comparison) -> str:
    found = {tuple(row.seeds) for row in comparison.rows if row.status == "finished"}
    return " or ".join(sorted(", ".join(map(str, seeds)) for seeds in found))


def _joined(first: Comparison, name: str, other: Comparison) -> Comparison:
    """The first with what the other has more, methods that are in both told apart."""
    names = _new_names(first, other)
    known = {(row.task, row.method) for row in first.rows}

    def more(row: ResultRow) -> bool:
        return (row.task, names[row.method]) not in known

    added = {(row.task, row.method) for row in other.rows if more(row)}
    methods = {method.name: method for method in first.methods}
    for method in other.methods:
        methods.setdefault(names[method.name], replace(method, name=names[method.name]))
    tasks = {task.name: task for task in [*first.tasks, *other.tasks]}
    samples = {task.name: task.test_samples for task in other.tasks}  # older files lack them
    tasks |= {
        task.name: replace(task, test_samples=task.test_samples or samples.get(task.name))
        for task in first.tasks
    }
    came = list(dict.fromkeys(names[method] for _, method in added))
    notes = [f"From {name}: {', '.join(came)}."] if came else []
    if came and first.environment != other.environment:
        notes.append(
            f"The runs of {name} were made in another environment{_commits(first, other)}."
        )

    def renamed(parts: Sequence[Part]) -> list[Part]:
        return [
            replace(one, method=names[one.method])
            for one in parts
            if (one.task, one.method) in added
        ]

    return replace(
        first,
        title=" · ".join(tasks) if len(tasks) <= 4 else f"{len(tasks)} tasks",
        tasks=list(tasks.values()),
        methods=list(methods.values()),
        rows=[*first.rows, *renamed(other.rows)],
        curves=[*first.curves, *renamed(other.curves)],
        tried=[*first.tried, *renamed(other.tried)],
        artifacts=[*first.artifacts, *renamed(other.artifacts)],
        notes=list(dict.fromkeys([*first.notes, *notes, *other.notes])),
    )


def _commits(first: Comparison, other: Comparison) -> str:
    mine, theirs = (str(one.environment.get("commit") or "") for one in (first, other))
    if mine == theirs or not theirs:
        return ""
    return f", at commit {theirs[:12]}" + (f" and not {mine[:12]}" if mine else "")


def _new_names(first: Comparison, other: Comparison) -> dict[str, str]:
    """What each method of the other is called beside those of the first."""
    rows = {(row.task, row.method): row for row in first.rows}
    taken = {method.name for method in first.methods}
    made = {}
    for method in other.methods:
        pairs = [
            (rows[row.task, row.method], row)
            for row in other.rows
            if row.method == method.name and (row.task, row.method) in rows
        ]
        is_same = all(_values(mine) == _values(theirs) for mine, theirs in pairs)
        name = method.name if is_same else _with_tag(method, first, other, taken)
        made[method.name] = name
        taken.add(name)
    return made


def _values(row: ResultRow) -> tuple[object, ...]:
    steps = None if row.steps_to_target is None else row.steps_to_target.values
    return row.status, row.setting, None if row.test is None else row.test.values, steps


def _with_tag(method: MethodInfo, first: Comparison, other: Comparison, taken: set[str]) -> str:
    """The name with the commit or the version of its code, or else a number."""
    before = {one.name: one.version for one in first.methods}.get(method.name, "")
    commits = [str(one.environment.get("commit") or "")[:7] for one in (first, other)]
    tags = [commits[1]] if commits[0] != commits[1] else []
    tags += [f"v{method.version.partition(',')[0]}"] if method.version != before else []
    tags += [str(number) for number in range(2, len(taken) + 3)]
    names = (f"{method.name}{SEPARATOR}{tag}" for tag in tags if tag)
    return next(name for name in names if name not in taken)


def _restated(merged: Comparison) -> Comparison:
    """With intervals, tests, summary and profile of all rows together."""
    tasks = {task.name: task for task in merged.tasks}
    resolutions = {name: _resolution(merged.curves, name) for name in tasks}
    rows = with_tests(
        [_with_intervals(row, tasks[row.task], resolutions[row.task]) for row in merged.rows],
        merged.tasks,
        merged.reference,
        resolutions,
    )
    return replace(
        merged,
        study={},  # no one call makes it
        rows=rows,
        summary=summary(merged.tasks, rows, merged.methods, merged.reference),
        profile=profile_over_tasks(merged.methods, rows, merged.tasks) if len(tasks) > 1 else None,
    )


def _with_intervals(row: ResultRow, task: TaskInfo, resolution: float) -> ResultRow:
    test, noise, steps = row.test, row.noise, row.steps_to_target
    if test is not None:
        are_fractions = task.percent and all(0 <= value <= 1 for value in test.values)
        if task.test_samples and are_fractions:
            test, noise = score_interval(test.values, task.test_samples)
        else:
            test, noise = mean_interval(test.values, fractions=are_fractions), None
    if steps is not None:
        steps = median_interval(steps.values, resolution=resolution)
    seconds, gradients = (
        None if one is None else median_interval(one.values)
        for one in (row.seconds_to_target, row.gradients_to_target)
    )
    return replace(
        row,
        test=test,
        noise=noise,
        steps_to_target=steps,
        seconds_to_target=seconds,
        gradients_to_target=gradients,
    )


def _resolution(curves: Sequence[Curve], task: str) -> float:
    """The steps between two readings of the validation split; 0 if that is not known."""
    gaps = [
        later - earlier
        for curve in curves
        if curve.task == task
        for earlier, later in pairwise(curve.evaluated)
    ]
    return float(median(gaps)) if gaps else 0.0

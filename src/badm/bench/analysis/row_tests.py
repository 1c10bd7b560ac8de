"""What is known of a row only beside the others: its tests, and its profile over tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from badm.bench.analysis.differences import (
    paired_tests,
    rival_tests,
    step_rival_tests,
    step_tests,
)
from badm.bench.analysis.statistics import performance_profile, ranked
from badm.bench.records.comparisons import (
    MethodInfo,
    PerformanceProfile,
    ResultRow,
    TaskInfo,
    score_from_info,
)


def with_tests(
    rows: Sequence[ResultRow],
    tasks: Sequence[TaskInfo],
    reference: str,
    resolutions: Mapping[str, float],
) -> list[ResultRow]:
    """Test each row against the reference and the best of the others on its task.

    ``resolutions`` are the steps between two readings of the validation split, by task.
    """
    return [
        row
        for task in tasks
        for row in _of_task(
            [row for row in rows if row.task == task.name], task, reference, resolutions[task.name]
        )
    ]


def _of_task(
    rows: Sequence[ResultRow], task: TaskInfo, reference: str, resolution: float
) -> list[ResultRow]:
    scores = {row.method: row.test.values for row in rows if row.test is not None}
    best = [row.method for row in ranked(rows, score_from_info(task))]
    times = {row.method: row.steps_to_target for row in rows if row.steps_to_target is not None}
    steps = {method: time.values for method, time in times.items()}
    fastest = sorted(times, key=lambda method: (times[method].value, method))
    compared, rivals = paired_tests(scores, reference), rival_tests(scores, best)
    steps_compared = step_tests(steps, reference, resolution)
    steps_rivals = step_rival_tests(steps, fastest, resolution)
    return [
        replace(
            row,
            compared=compared.get(row.method),
            rival=rivals.get(row.method),
            steps_compared=steps_compared.get(row.method),
            steps_rival=steps_rivals.get(row.method),
        )
        for row in rows
    ]


def profile_over_tasks(
    methods: Sequence[MethodInfo], rows: Sequence[ResultRow], tasks: Sequence[TaskInfo]
) -> PerformanceProfile | None:
    """The profile of steps to the target on all tasks that have one."""
    return performance_profile(
        {method.name: _steps_by_task(method.name, rows, tasks) for method in methods}
    )


def _steps_by_task(
    method: str, rows: Sequence[ResultRow], tasks: Sequence[TaskInfo]
) -> dict[str, float]:
    """Steps to the target on every task that has one; a run that has not ended misses it."""
    times = {task.name: math.inf for task in tasks if task.target is not None}
    for row in rows:
        if row.method == method and row.steps_to_target is not None:
            times[row.task] = row.steps_to_target.value
    return times

"""What the speed protocol found, in words: who is fastest, by how much, and who never arrives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from badm.bench import formatting
from badm.bench.analysis.differences import SIGNIFICANT
from badm.bench.analysis.intervals import LEVEL_TEXT
from badm.bench.records.comparisons import TaskInfo, score_from_info
from badm.bench.records.speeds import NEVER_COUNTS, MethodSpeed, Speeds


def speed_summary(speeds: Speeds, tasks: Sequence[TaskInfo], reference: str) -> list[str]:
    """A sentence on the fastest methods, one on tests, one on what never reaches the target.

    >>> from badm.bench.records.speeds import Bounded, SpeedTarget
    >>> digits = TaskInfo("digits", "", "cpu", "accuracy", "high", True, 300, 32, None, False)
    >>> def row(name, part):
    ...     bounded = Bounded(part, part, part)
    ...     return MethodSpeed(
    ...         name, 1, 0, bounded, bounded, part, part, 1.0, 1.0, 0, 1, 0, math.nan
    ...     )
    >>> speeds = Speeds(
    ...     "adamw",
    ...     "lr",
    ...     [SpeedTarget("digits", 300, 0.97)],
    ...     [],
    ...     [row("adamw", 1.0), row("badm", 0.375)],
    ... )
    >>> for sentence in speed_summary(speeds, [digits], "badm"):
    ...     print(sentence)  # doctest: +NORMALIZE_WHITESPACE
    On digits, badm is the fastest to the validation accuracy of adamw after 300 steps, 97.0 %:
    it takes 3/8 of the steps and 0.38 times the seconds.
    """
    ranked = sorted(
        (one for one in speeds.methods if one.tasks),
        key=lambda one: (one.counted.value, one.seconds_counted, one.method),
    )
    if not ranked:
        unknown = "the target of no task is known: " if tasks else ""
        return [f"Nothing was compared: {unknown}{speeds.baseline} has not finished."]
    sentences = [_fastest(ranked, speeds, tasks)]
    if any(not math.isnan(one.p_value) for one in ranked):
        sentences.append(_tests(ranked, reference))
    never = [one for one in ranked if one.never]
    if never:
        on = "" if len(tasks) == 1 else "on {} of {} tasks"
        names = _listed(f"{one.method} {on.format(one.never, one.tasks)}".strip() for one in never)
        sentences.append(
            f"The target is never reached by {names}; means count this as {NEVER_COUNTS:g} budgets."
        )
    return sentences


def _fastest(ranked: Sequence[MethodSpeed], speeds: Speeds, tasks: Sequence[TaskInfo]) -> str:
    first = [one for one in ranked if one.counted.value == ranked[0].counted.value]
    names = _listed(one.method for one in first)
    some = [task.name for task in tasks if task.synthetic]
    synthetic = f" (synthetic data: {_listed(some)})" if some else ""
    if len(tasks) == 1:
        (target,) = speeds.targets
        where = f"On {tasks[0].name}{' (synthetic data)' * bool(some)}"
        steps = formatting.count(target.steps)
        value = score_from_info(tasks[0]).format(target.score)
        goal = f"the validation {tasks[0].score} of {speeds.baseline} after {steps} steps, {value}"
    else:
        where = f"On {len(tasks)} tasks{synthetic}"
        goal = f"the validation score of {speeds.baseline} at its whole budget"
    is_it = "is" if len(first) == 1 else "are"
    takes = _takes(first[0], len(tasks), alone=len(first) == 1)
    it = "it takes" if len(first) == 1 else "they take"
    text = f"{where}, {names} {is_it} the fastest to {goal}: {it} {takes}"
    others = [one for one in ranked if one not in first]
    if others and others[0].method != speeds.baseline:
        text += f"; {others[0].method}, the next, takes {_takes(others[0], len(tasks), alone=True)}"
    return f"{text}."


def _takes(one: MethodSpeed, tasks: int, *, alone: bool) -> str:
    show = formatting.part if tasks == 1 else formatting.ratio
    text = f"{show(one.counted.value)} of the steps"
    if tasks > 1:
        ends = formatting.interval(one.counted.low, one.counted.high, formatting.ratio)
        text += f" (geometric mean, {LEVEL_TEXT} interval {ends})"
    if alone:
        text += f" and {formatting.ratio(one.seconds_counted)} times the seconds"
    return text


def _tests(ranked: Sequence[MethodSpeed], reference: str) -> str:
    tested = [one for one in ranked if not math.isnan(one.p_value)]
    different = [one for one in tested if one.p_value < SIGNIFICANT]
    base = next(one for one in ranked if one.method == reference).counted.value
    groups = {
        "faster": [one for one in different if one.counted.value < base],
        "slower": [one for one in different if one.counted.value >= base],
        "not different": [one for one in tested if one not in different],
    }
    parts = [
        f"{word}: {_listed(f'{one.method} ({formatting.p_value(one.p_value)})' for one in group)}"
        for word, group in groups.items()
        if group
    ]
    return (
        f"Against {reference}, by a signed-rank test over tasks with Holm's correction, at the "
        f"level of {SIGNIFICANT:g}: {'; '.join(parts)}."
    )


def _listed(parts: Iterable[str]) -> str:
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last

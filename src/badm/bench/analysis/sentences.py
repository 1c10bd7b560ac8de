"""What a comparison found, in the words a reader wants first: who is best, who is fastest.

The sentences claim no more than was measured. They say whether a difference is significant and by
which test; they name the best method, BADM or not; and they name misses, runs that did not finish
and data that are synthetic. An interval states its level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from badm.bench import formatting
from badm.bench.analysis.differences import SIGNIFICANT
from badm.bench.analysis.intervals import LEVEL_TEXT, geometric_interval
from badm.bench.analysis.statistics import ranked
from badm.bench.records.comparisons import (
    Interval,
    MethodInfo,
    PairedTest,
    ResultRow,
    TaskInfo,
    score_from_info,
)
from badm.bench.task import Score

UNFINISHED = {
    "diverged": "diverged",
    "failed": "failed",
    "cannot": "cannot train it",
    "missing": "has not run",
}


def summary(
    tasks: Sequence[TaskInfo],
    rows: Sequence[ResultRow],
    methods: Sequence[MethodInfo],
    reference: str,
) -> list[str]:
    """A sentence on scores, one on steps to the target where there is one, one on what is missing.

    >>> from badm.bench.analysis.differences import paired_tests
    >>> from badm.bench.analysis.intervals import mean_interval
    >>> digits = TaskInfo("digits", "", "cpu", "accuracy", "high", True, 300, 32, None, False)
    >>> scores = {"badm": [0.98, 0.97, 0.99], "adam": [0.97, 0.97, 0.96]}
    >>> tests = paired_tests(scores, "adam")
    >>> rows = [
    ...     ResultRow("digits", m, "finished", test=mean_interval(v), compared=tests.get(m))
    ...     for m, v in scores.items()
    ... ]
    >>> methods = [MethodInfo("badm", "", "badm"), MethodInfo("adam", "", "keras")]
    >>> for sentence in summary([digits], rows, methods, "adam"):
    ...     print(sentence)  # doctest: +NORMALIZE_WHITESPACE
    On digits, badm has the highest test accuracy, 98.0 % (95 % interval 95.5–100.5), against
    96.7 % (95.2–98.1) for adam; the difference is not significant (paired t, Holm: p = 0.27,
    3 seeds).
    """
    ours = {method.name for method in methods if method.family == "badm"}
    rows = [row for row in rows if row.task in {task.name for task in tasks}]
    if not tasks or not rows:
        return ["Nothing was compared."]
    if len(tasks) > 1:
        return _several_tasks(tasks, rows, ours, reference)
    return _one_task(tasks[0], rows, ours, reference)


def _one_task(
    task: TaskInfo, rows: Sequence[ResultRow], ours: set[str], reference: str
) -> list[str]:
    score = score_from_info(task)
    where = f"On {task.name} (synthetic data)" if task.synthetic else f"On {task.name}"
    best = _finished(rows, score)
    unfinished = [row for row in rows if row.status != "finished"]
    what = _listed(f"{row.method} {UNFINISHED[row.status]}" for row in unfinished)
    if not best:
        return [f"{where}, no method finished: {what or 'no test score was read'}."]
    tied = [row for row in best if _value(row) == _value(best[0])]
    sentences = [f"{where}, {_scores(best, tied, score, ours, reference)}."]
    if task.target is not None:
        sentences.append(_steps(task, rows, ours, best[0].method if len(tied) == 1 else ""))
    if unfinished:
        sentences.append(f"Not finished: {what}.")
    return sentences


def _scores(
    best: Sequence[ResultRow],
    tied: Sequence[ResultRow],
    score: Score,
    ours: set[str],
    reference: str,
) -> str:
    first, others = best[0], [row for row in best if row not in tied]
    top = f"the {score.best}est test {score.name}, "
    if len(best) == 1:
        only = f"a test {score.name} of {_shown(first, score, named=True)}"
        return f"{first.method} is the only method that finished, with {only}"
    if len(tied) > 1:
        text = f"{_listed(row.method for row in tied)} share {top}{score.format(_value(first))}"
    else:
        text = f"{first.method} has {top}{_shown(first, score, named=True)}"
    for place, (row, role) in enumerate(_opponents(tied, others, ours, reference)):
        called = f"{row.method}, {role}" if role else row.method
        if place == 0:
            text += f", against {_shown(row, score)} for {called}"
        else:
            text += f"; {called}, has {_shown(row, score)}"
        if len(tied) == 1:
            text += f"{', and' if place else ';'} {_verdict(first, row)}"
    return text


def _opponents(
    tied: Sequence[ResultRow], others: Sequence[ResultRow], ours: set[str], reference: str
) -> list[tuple[ResultRow, str]]:
    """Whom the first is compared with: the reference, the next, the best of the other side."""
    rival, role = _rival({row.method for row in tied}, others, ours, "best")
    wanted = [(row, "") for row in others if row.method == reference]
    if rival is not None and (wanted or rival is not others[0]):
        wanted.append((rival, role))
    wanted += [(row, "the next best") for row in others[:1]]
    order = {row.method: (row, role) for row, role in reversed(wanted)}
    # In the order in which they were named first.
    return [order[name] for name in dict.fromkeys(row.method for row, _ in wanted)]


def _verdict(first: ResultRow, second: ResultRow) -> str:
    seeds = min(len(_test(first).values), len(_test(second).values))
    for row, other in ((first, second), (second, first)):
        if row.compared is not None and row.compared.against == other.method:
            return _significance(row.compared, seeds)
    for row, other in ((first, second), (second, first)):
        if row.rival is not None and row.rival.against == other.method:
            return _significance(row.rival, seeds)
    if seeds < 2:
        return "with one seed the difference may be chance"
    return "the difference was not tested"


def _significance(test: PairedTest, seeds: int) -> str:
    is_it = "is" if test.p_value < SIGNIFICANT else "is not"
    name = f"{test.test}: " if test.test else ""
    p = formatting.p_value(test.p_value)
    return f"the difference {is_it} significant ({name}{p}, {seeds} seeds)"


def _steps(task: TaskInfo, rows: Sequence[ResultRow], ours: set[str], winner: str) -> str:
    timed = [(row, row.steps_to_target) for row in rows if row.steps_to_target is not None]
    times = {row.method: time for row, time in timed}
    goal = f"{score_from_info(task).format(task.target or 0.0)} on the validation split"
    missed = _listed(
        f"{method} ({misses} of {len(time.values)} seeds)"
        for method, time in sorted(times.items())
        if (misses := sum(map(math.isinf, time.values)))
    )
    solved = sorted(
        (row for row, time in timed if math.isfinite(time.value)),
        key=lambda row: (times[row.method].value, row.method),
    )
    if not solved:
        text = f"No method reaches {goal} within {task.steps} steps in most of its seeds"
        return f"{text}; missed by {missed}." if missed else f"{text}."
    time = times[solved[0].method]
    tied = [row for row in solved if times[row.method].value == time.value]
    others = [row for row in solved if row not in tied]
    names = {row.method for row in tied}
    if len(tied) > 1:
        text = f"{_listed(sorted(names))} need the fewest steps"
    else:
        text = f"{'It also' if names == {winner} else tied[0].method} needs the fewest steps"
    text += f" to {goal}, {_shown_time(time, alone=len(tied) == 1)}"
    rival, role = _rival(names, others, ours, "fastest")
    if rival is not None:
        slower = times[rival.method]
        ratio = max(slower.value, 1) / max(time.value, 1)
        text += f"; {rival.method}, {role}, needs {formatting.count(slower.value)}"
        text += f" ({ratio:.2g} times as many)"
        if len(tied) == 1:
            text += _ratio(solved[0], rival)
    return f"{text}; missed by {missed}." if missed else f"{text}."


def _ratio(first: ResultRow, second: ResultRow) -> str:
    """The test of the steps of two methods, in words; nothing if there is none."""
    seeds = len(first.steps_to_target.values) if first.steps_to_target is not None else 0
    for test, other, is_turned in (
        (first.steps_compared, second, False),
        (second.steps_compared, first, True),
        (first.steps_rival, second, False),
        (second.steps_rival, first, True),
    ):
        if test is None or test.against != other.method:
            continue
        text = f"; {_significance(test, seeds)}"
        if math.isfinite(test.difference):
            ends = (1 / test.high, 1 / test.low) if is_turned else (test.low, test.high)
            value = 1 / test.difference if is_turned else test.difference
            text += f", seed by seed {formatting.ratio(value)} times the steps ({LEVEL_TEXT} "
            text += f"interval {formatting.interval(*ends, formatting.ratio)})"
        return text
    return ""


def _shown_time(time: Interval, *, alone: bool) -> str:
    seeds = len(time.values)
    if seeds == 1:
        return f"{formatting.count(time.value)} (one seed)"
    ends = ""
    if alone and time.has_ends and time.low < time.high:
        ends = formatting.interval(time.low, time.high, formatting.count)
        ends = f", {LEVEL_TEXT} interval {ends}"
    return f"{formatting.count(time.value)} (median of {seeds} seeds{ends})"


def _rival(
    leaders: set[str], others: Sequence[ResultRow], ours: set[str], best: str
) -> tuple[ResultRow | None, str]:
    """The first of the other side, BADM or not, if it does not lead as well."""
    ours_lead, theirs_lead = bool(leaders & ours), bool(leaders - ours)
    if ours_lead and theirs_lead:
        return None, ""
    for row in others:
        if (row.method in ours) != ours_lead:
            return row, f"the {best} without BADM" if ours_lead else f"the {best} BADM method"
    return (others[0], f"the next {best}") if others else (None, "")


def _several_tasks(
    tasks: Sequence[TaskInfo], rows: Sequence[ResultRow], ours: set[str], reference: str
) -> list[str]:
    by_task = {task.name: [row for row in rows if row.task == task.name] for task in tasks}
    best = {task.name: _finished(by_task[task.name], score_from_info(task)) for task in tasks}
    leaders = {
        name: [row.method for row in found if _value(row) == _value(found[0])]
        for name, found in best.items()
    }
    synthetic = _listed(task.name for task in tasks if task.synthetic)
    where = f"On {len(tasks)} tasks" + (f" (synthetic data: {synthetic})" if synthetic else "")
    champion, wins = _wins(leaders, "has the best test score", rows, ours)
    text = f"{where}, {wins or 'no method finished any'}"
    if champion:
        text += f"; {_record(tasks, best, champion, reference)}"
    empty = _listed(name for name, found in leaders.items() if not found)
    if champion and empty:
        text += f"; no method finished on {empty}"
    sentences = [f"{text}."]
    if any(task.target is not None for task in tasks):
        sentences.append(_steps_of_several(tasks, by_task, rows, ours))
    unfinished = Counter((row.method, row.status) for row in rows if row.status != "finished")
    if unfinished:
        what = (f"{method} on {n} ({status})" for (method, status), n in unfinished.items())
        sentences.append(f"Not finished: {_listed(what)}.")
    return sentences


def _wins(
    leaders: Mapping[str, Sequence[str]], does: str, rows: Sequence[ResultRow], ours: set[str]
) -> tuple[str, str]:
    """Who leads on most tasks, and in words on how many each; empty if no one leads."""
    wins = Counter(method for found in leaders.values() for method in found)
    order = sorted(wins, key=lambda method: (-wins[method], method))
    if not order:
        return "", ""
    text = f"{order[0]} {does} on "
    text += _listed([f"{wins[order[0]]}", *(f"{m} on {wins[m]}" for m in order[1:])])
    if any(len(found) > 1 for found in leaders.values()):
        text += " (ties count for each)"
    if not ours & wins.keys() and any(row.method in ours for row in rows):
        text += ", and no BADM method on any"
    return order[0], text


def _record(
    tasks: Sequence[TaskInfo],
    best: Mapping[str, Sequence[ResultRow]],
    champion: str,
    reference: str,
) -> str:
    """How its tests came out: against the reference, or of the best others against it."""
    results = dict.fromkeys(
        ("significantly better", "significantly worse", "not significantly different", "untested"),
        0,
    )
    for task in tasks:
        own = [row.compared for row in best[task.name] if row.method == champion]
        others = [row.compared for row in best[task.name] if row.method != champion]
        tests = own[:1] if champion != reference else others[:1] if own else []
        test = tests[0] if tests else None
        if test is None or test.against != reference:
            results["untested"] += 1
        elif test.p_value >= SIGNIFICANT:
            results["not significantly different"] += 1
        else:
            higher = (test.difference > 0) == (champion != reference)
            better = higher == (task.best == "high")
            results[f"significantly {'better' if better else 'worse'}"] += 1
    against = reference if champion != reference else "the best of the others on each task"
    if results["untested"] < len(tasks):
        against += " (paired t, Holm)"
    parts = [f"{result} on {count}" for result, count in results.items() if count]
    return f"against {against}, {champion} is {_listed(parts)}"


def _steps_of_several(
    tasks: Sequence[TaskInfo],
    by_task: Mapping[str, Sequence[ResultRow]],
    rows: Sequence[ResultRow],
    ours: set[str],
) -> str:
    times = {
        task.name: {
            row.method: row.steps_to_target.value
            for row in by_task[task.name]
            if row.steps_to_target is not None
        }
        for task in tasks
        if task.target is not None
    }
    leaders = {
        name: sorted(m for m, t in found.items() if t == min(found.values()) < math.inf)
        for name, found in times.items()
    }
    champion, wins = _wins(leaders, "reaches it in the fewest steps (median)", rows, ours)
    text = f"Of {len(times)} with a target, {wins or 'no method reaches it on any'}"
    ratios = []  # to the fastest of the other side, BADM or not
    for found in times.values():
        others = [t for m, t in found.items() if (m in ours) != (champion in ours)]
        mine, theirs = found.get(champion, math.inf), min(others, default=math.inf)
        if mine < math.inf and theirs < math.inf:
            ratios.append(max(mine, 1) / max(theirs, 1))
    if ratios:
        whose = "method without BADM" if champion in ours else "BADM method"
        mean = geometric_interval(ratios)
        text += f"; {champion} takes {mean.value:.2g} times the steps of the fastest"
        text += f" {whose} on each (geometric mean of the {len(ratios)} that both reach"
        if len(ratios) > 1:
            ends = formatting.interval(mean.low, mean.high, formatting.ratio)
            text += f", {LEVEL_TEXT} interval {ends}"
        text += ")"
    missed = Counter(m for found in times.values() for m, t in found.items() if t == math.inf)
    if missed:
        text += f"; missed by {_listed(f'{m} on {n}' for m, n in sorted(missed.items()))}"
    return f"{text}."


def _finished(rows: Sequence[ResultRow], score: Score) -> list[ResultRow]:
    return [row for row in ranked(rows, score) if row.status == "finished" and row.test]


def _test(row: ResultRow) -> Interval:
    assert row.test is not None, "only finished rows get here"
    return row.test


def _value(row: ResultRow) -> float:
    return _test(row).value


def _shown(row: ResultRow, score: Score, *, named: bool = False) -> str:
    test = _test(row)
    if len(test.values) == 1:
        return score.format(test.value)
    low, high = (score.format(end).removesuffix(" %") for end in (test.low, test.high))
    what = f"{LEVEL_TEXT} interval " if named else ""
    return f"{score.format(test.value)} ({what}{low}–{high})"


def _listed(parts: Iterable[str]) -> str:
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last

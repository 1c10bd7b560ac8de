"""How far the tool itself can be trusted: coverage of intervals, errors of tests, power."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from sources.files import results

FEWER = {"10 %": 0.9, "20 %": 0.8, "50 %": 0.5}


def holding(kind: str, seeds: int) -> str:
    """Return the lowest and the highest share of intervals that hold, over promised shapes."""
    shares = [
        100 * row["held"][str(seeds)]
        for row in results("coverage")["intervals"]
        if row["kind"] == kind and row["promised"]
    ]
    return f"{min(shares):.1f}–{max(shares):.1f} %"


def held_beyond(start: str, seeds: int) -> float:
    """Return the share in percent of a shape for which nothing is promised, by its first words."""
    (row,) = (row for row in results("coverage")["intervals"] if row["name"].startswith(start))
    return float(100 * row["held"][str(seeds)])


def pool(task: str, what: str) -> Any:
    (one,) = (one for one in results("calibration")["pools"] if one["task"] == task)
    return one[what]


def called(what: str, seeds: int) -> str:
    """Return how often a difference is called that is none, over tasks: ``score, own seeds``."""
    column, arm = what.split(", ")
    rows = results("calibration")["null"]
    shares = [
        row["steps" if column.startswith("steps") else column]
        for row in rows
        if (row["arm"], row["seeds"]) == (arm, seeds)
    ]
    return f"{100 * fmean(shares):.1f} %"


def seen(fewer: str, seeds: int) -> str:
    """Return how often a true difference in steps is seen, over tasks."""
    return f"{100 * _seen(FEWER[fewer], seeds):.0f} %"


def _seen(factor: float, seeds: int) -> float:
    rows = results("calibration")["power"]
    return fmean(row["seen"] for row in rows if (row["factor"], row["seeds"]) == (factor, seeds))


def seen_on(task: str, fewer: str, seeds: int) -> float:
    """Return how often a true difference in steps is seen on one task, in percent."""
    rows = results("calibration")["power"]
    key = (task, FEWER[fewer], seeds)
    (row,) = (row for row in rows if (row["task"], row["factor"], row["seeds"]) == key)
    return float(100 * row["seen"])


def other_processors(task: str, end: Literal["lowest", "highest", "as it is"]) -> float:
    """Return the lowest and highest test score in percent on stand-ins for other processors."""
    rows = [row for row in results("processors")["rows"] if row["task"] == task]
    if end == "as it is":
        return float(100 * rows[0]["test_score_as_it_is"])
    scores = [100 * row["test_score"] for row in rows if not row["bitwise"]]
    return float(min(scores) if end == "lowest" else max(scores))


def repeats() -> bool:
    """Return whether a run that is done again is the same bit for bit, on all tasks."""
    again = [row for row in results("processors")["rows"] if row["variant"] == "again"]
    return all(row["bitwise"] for row in again)

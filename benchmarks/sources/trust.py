"""How far the tool itself can be trusted: coverage of intervals, errors of tests, power."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from sources.files import results

FEWER = {"10 %": 0.9, "20 %": 0.8, "50 %": 0.5}


def held(kind: str, seeds: int) -> str:
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


def differs(task: str, variant: str, what: str) -> float:
    """Return how a run on another kind of processor differs."""
    (row,) = (
        row
        for row in results("processors")["rows"]
        if (row["task"], row["variant"]) == (task, variant)
    )
    return float(row[what])


def largest_difference(task: str) -> float:
    """Return the largest difference of a loss in percent, over all kinds of processors."""
    rows = [row for row in results("processors")["rows"] if row["task"] == task]
    return 100 * max(float(row["largest_relative_difference_of_loss"]) for row in rows)


def seen_on(task: str, fewer: str, seeds: int) -> float:
    """Return how often a true difference in steps is seen on one task, in percent."""
    rows = results("calibration")["power"]
    key = (task, FEWER[fewer], seeds)
    (row,) = (row for row in rows if (row["task"], row["factor"], row["seeds"]) == key)
    return float(100 * row["seen"])

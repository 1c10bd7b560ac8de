"""Results on the suite of tasks: speed at equal quality, ablations."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from sources.files import results


def untouched(what: str) -> float:
    """Return the geometric mean of the parts at the defaults, or an end of its interval."""
    return float(results("speed/defaults")["over_tasks"]["counted"][what])


def untouched_without(task: str) -> float:
    """Return the geometric mean of the parts over all tasks but one; never counts as 2."""
    tasks = results("speed/defaults")["tasks"]
    return float(geometric_mean(one["part"] or 2.0 for one in tasks if one["task"] != task))


def untouched_part(task: str) -> str:
    """Return the smallest part that is enough, in eighths."""
    (part,) = (one["part"] for one in results("speed/defaults")["tasks"] if one["task"] == task)
    return "never" if part is None else f"{round(8 * part)}/8"


def ahead_of_adam() -> int:
    """Return on how many tasks BADM is ahead of Adam, both at their defaults, at half a budget."""
    return sum(one["ahead_of_adam"] for one in results("speed/defaults")["tasks"])


def rival(method: str, what: str = "steps") -> float:
    """Return what a method is worth in BADM's steps, or another column of its row."""
    rows = results("rivals")["rows"]
    return float(next(row[what] for row in rows if row["method"] == method))


def rival_interval(method: str) -> str:
    if method == "badm":
        return "–"
    return f"{rival(method, 'low'):.2f}–{rival(method, 'high'):.2f}"


def _idea(name: str, of: str) -> dict[str, Any]:
    return dict(next(row for row in results(of)["rows"] if row["idea"] == name))


def idea(name: str, what: str = "gain", of: str = "ablation") -> float:
    """Return the gain of an idea, or an end of its interval."""
    return float(_idea(name, of)[what])


def idea_by_task(name: str, task: str, of: str = "ablation") -> float:
    return float(_idea(name, of)["by_task"][task])

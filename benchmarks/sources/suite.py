"""Results on the suite of tasks: speed at equal quality, ablations."""

from __future__ import annotations

from typing import Any

from sources.files import results

UNTOUCHED = "badm-untouched"


def _over_tasks() -> dict[str, Any]:
    methods = results("speed/untouched")["speed"]["methods"]
    return dict(next(one for one in methods if one["method"] == UNTOUCHED))


def untouched(what: str) -> float:
    """Return the geometric mean of the parts, or an end of its interval."""
    return float(_over_tasks()["counted"][what])


def untouched_seconds() -> float:
    return float(_over_tasks()["seconds_counted"])


def untouched_part(task: str) -> str:
    """Return the smallest part that is enough, in eighths."""
    rows = results("speed/untouched")["speed"]["rows"]
    (part,) = (r["part"] for r in rows if (r["task"], r["method"]) == (task, UNTOUCHED))
    return "never" if part is None else f"{round(8 * part)}/8"


def _idea(name: str) -> dict[str, Any]:
    return dict(next(row for row in results("ablation")["rows"] if row["idea"] == name))


def idea(name: str, what: str = "gain") -> float:
    """Return the gain of an idea, or an end of its interval."""
    return float(_idea(name)[what])


def idea_by_task(name: str, task: str) -> float:
    return float(_idea(name)["by_task"][task])

"""The page of a comparison: one HTML file with everything in it, which opens offline."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from badm.bench.files import write_atomically
from badm.bench.records.comparisons import Comparison, TaskInfo, score_from_info
from badm.bench.records.json_values import finite_or_none, rounded
from badm.bench.records.studies import study_text
from badm.bench.report.speed_table import speed_lead, speed_table
from badm.bench.report.styles import styles
from badm.bench.report.tables import (
    STATUS_TEXT,
    comparison_facts,
    flatten,
    setting_text,
    table,
    task_facts,
)

# In this order: each may use what those before it define.
SCRIPTS = (
    "dom",
    "data",
    "theme",
    "table",
    "series",
    "chart",
    "curves",
    "profile",
    "speed",
    "sensitivity",
    "artifacts",
    "settings",
    "download",
    "main",
)
DIGITS = 6  # of every number in the page


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison; an existing page is replaced in one step."""
    parts = {
        "title": html.escape(comparison.title),
        "style": _asset("page.css"),
        "plotly": get_plotlyjs(),
        "data": _embedded({"comparison": comparison, "view": _view(comparison)}),
        "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    }
    # In one pass, so that a text which looks like one of the marks is left alone.
    page = re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode("utf-8", "replace"))


def _view(comparison: Comparison) -> dict[str, Any]:
    """What the page shows besides the numbers: texts and styles that Markdown and figures share."""
    return {
        "facts": comparison_facts(comparison),
        "tables": {task.name: table(comparison, task) for task in comparison.tasks},
        "tasks": {task.name: _task_view(comparison, task) for task in comparison.tasks},
        "styles": styles(comparison.methods),
        "environment": flatten(comparison.environment),
        "words": STATUS_TEXT,
        "study": study_text(comparison.study) if comparison.study else "",
        "speed": None
        if comparison.speed is None
        else {"lead": speed_lead(comparison), "table": speed_table(comparison)},
    }


def _task_view(comparison: Comparison, task: TaskInfo) -> dict[str, Any]:
    show = score_from_info(task).format
    rows = [row for row in comparison.rows if row.task == task.name]
    tried = [trial for trial in comparison.tried if trial.task == task.name]
    return {
        "facts": task_facts(task),
        "target": None if task.target is None else show(task.target),
        "settings": {row.method: setting_text(row.setting) for row in rows},
        "trials": [
            {
                "setting": setting_text(trial.setting),
                "score": None if trial.score is None else show(trial.score),
            }
            for trial in tried
        ],
    }


def _embedded(data: Any) -> str:
    """JSON that a script element can hold: no character of it can end the element."""
    plain = finite_or_none(rounded(data, DIGITS))
    text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")

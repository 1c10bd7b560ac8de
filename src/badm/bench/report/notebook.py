"""A comparison in a notebook: summary, tables and curves, without scripts."""

from __future__ import annotations

import base64
from dataclasses import replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from badm.bench.records.comparisons import Comparison, TaskInfo
from badm.bench.report.figures import draw_figures
from badm.bench.report.speed_table import speed_table
from badm.bench.report.tables import Cell, Line, Table, table, task_facts


def notebook_html(comparison: Comparison) -> str:
    """One ``div``: the summary, then for each task its table and its validation curves."""
    parts = [f"<p>{escape(' '.join(comparison.summary))}</p>"]
    over_tasks = speed_table(comparison)
    if over_tasks is not None:
        parts += [f"<h4>{escape(over_tasks.task)}</h4>", _table(over_tasks)]
    with TemporaryDirectory() as folder:
        for task in comparison.tasks:
            facts = ", ".join(f"{name} {value}" for name, value in task_facts(task))
            parts += [f"<h4>{escape(task.name)}</h4>", f"<p>{escape(facts)}</p>"]
            made = table(comparison, task)
            parts += [_table(made), f"<p>{escape(made.note)}</p>"]
            parts += _curves(comparison, task, Path(folder))
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    parts += [f"<ul>{notes}</ul>"] if notes else []
    return f"<div>{''.join(parts)}</div>"


def _table(made: Table) -> str:
    heads = "".join(f"<th>{escape(column.title)}</th>" for column in made.columns)
    rows = []
    for line in made.lines:
        cells = {column.key: _cell(line.cells[column.key]) for column in made.columns}
        if line.status != "finished":
            cells["test" if "test" in cells else "part"] = f"<em>{escape(_reason(line))}</em>"
        row = "".join(f"<td>{cell}</td>" for cell in cells.values())
        rows.append(f"<tr><th>{escape(line.method)}</th>{row}</tr>")
    return (
        f"<table><thead><tr><th>method</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _cell(cell: Cell) -> str:
    text = escape(cell.text) or "–"
    text = f"<b>{text}</b>" if cell.best else text
    return f"{text} <small>({escape(cell.note)})</small>" if cell.note else text


def _reason(line: Line) -> str:
    return ": ".join(part for part in (line.instead, line.message) if part)


def _curves(comparison: Comparison, task: TaskInfo, folder: Path) -> list[str]:
    alone = replace(comparison, tasks=[task])
    drawn = draw_figures(alone, folder, kinds=("score",), forms=("png",))
    return [
        f'<img style="max-width: 45em; width: 100%" alt="validation score against steps" '
        f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        for path in drawn
    ]

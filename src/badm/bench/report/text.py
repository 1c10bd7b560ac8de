"""Tables for the terminal, and for papers and READMEs."""

from __future__ import annotations

import math
import re

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from badm.bench import formatting
from badm.bench.records.comparisons import Comparison, TaskInfo, score_from_info
from badm.bench.report.speed_table import TITLE, speed_lead, speed_table
from badm.bench.report.tables import (
    Cell,
    Line,
    Table,
    comparison_facts,
    flatten,
    setting_text,
    table,
    task_facts,
)

WIDTH = 100
SPEED_COLUMNS = ("part", "never", "counted", "seconds", "against")  # that a terminal has room for


def console_table(comparison: Comparison, task: str, width: int = WIDTH) -> RichTable:
    """The table of a task for a terminal of that width, of at most 100 columns."""
    found = _task(comparison, task)
    made = table(comparison, found)
    target = (
        "" if found.target is None else f", target {score_from_info(found).format(found.target)}"
    )
    shown = RichTable(
        title=Text(f"{found.name}: {found.score}{target}{', synthetic data' * found.synthetic}"),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        width=min(width, WIDTH),
        pad_edge=False,
    )
    wanted = ["lr", "part", "part_seconds", "test", "steps"] + ["seconds"] * (width >= WIDTH)
    kept = [column for column in made.columns if column.key in wanted]
    if "seconds" not in [column.key for column in made.columns]:
        kept += [column for column in made.columns if column.key == "step_time"]
    kept.sort(key=lambda column: column.key != "lr")
    shown.add_column("method", overflow="fold", max_width=18)
    for column in kept:
        shown.add_column(Text(column.title), justify="right", overflow="fold")
    shown.add_column("note", ratio=1, min_width=min(20, width // 6), overflow="fold")
    for line in made.lines:
        cells = [_console_cell(line.cells[column.key], column.key) for column in kept]
        shown.add_row(Text(line.method), *cells, Text(_note(line)))
    return shown


def table_note(comparison: Comparison, task: str) -> str:
    """What is said below the table of a task; empty if there is nothing to say."""
    return table(comparison, _task(comparison, task)).note


def console_speed_table(comparison: Comparison, width: int = WIDTH) -> RichTable | None:
    """The table over tasks of the speed protocol; ``None`` in another."""
    made = speed_table(comparison)
    if made is None:
        return None
    shown = RichTable(
        title=Text(made.task),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        width=min(width, WIDTH),
        pad_edge=False,
    )
    kept = [column for column in made.columns if column.key in SPEED_COLUMNS]
    shown.add_column("method", overflow="fold", max_width=18)
    for column in kept:
        shown.add_column(Text(column.title), justify="right", overflow="fold")
    for line in made.lines:
        cells = [_console_cell(line.cells[column.key], "test") for column in kept]
        shown.add_row(Text(line.method), *cells)
    return shown


def markdown(comparison: Comparison) -> str:
    """Everything but the curves, one table for each task, the best of a column in bold."""
    parts = [f"# {escape(comparison.title)}", " ".join(map(escape, comparison.summary))]
    parts.append(_listed(comparison_facts(comparison)))
    over_tasks = speed_table(comparison)
    if over_tasks is not None:
        parts += [f"## {TITLE}", escape(speed_lead(comparison)), _markdown_table(over_tasks)]
        parts += ["### Parts of the budget", _parts(comparison)]
    for task in comparison.tasks:
        parts += [f"## {escape(task.name)}", escape(task.description)]
        parts.append(_listed(task_facts(task)))
        made = table(comparison, task)
        parts += [_markdown_table(made), escape(made.note)]
        parts.append("\n".join(f"- {escape(note)}" for note in task.notes))
    parts += ["## Settings", _settings(comparison)]
    if comparison.environment:
        lines = [f"- {escape(name)}: {escape(v)}" for name, v in flatten(comparison.environment)]
        parts += ["## Environment", "\n".join(lines)]
    if comparison.notes:
        parts += ["## Notes", "\n".join(f"- {escape(note)}" for note in comparison.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _task(comparison: Comparison, name: str) -> TaskInfo:
    for task in comparison.tasks:
        if task.name == name:
            return task
    names = ", ".join(task.name for task in comparison.tasks)
    raise ValueError(f"task must be one of {names}, got {name!r}")


def _console_cell(cell: Cell, key: str) -> Text:
    text = Text(cell.text or "–", style="bold" if cell.best else "")
    # There is no room for more intervals, and the last column has notes on the edge of a range.
    noted = cell.note and key in ("test", "steps")
    return text.append(f" ({cell.note})", style="dim") if noted else text


def _note(line: Line) -> str:
    reason = ": ".join(part for part in (line.instead, line.message) if part)
    edge = line.cells["lr"].note
    at_edge = f"lr {edge}" if edge.startswith("at ") else edge
    return "; ".join(part for part in (reason, at_edge) if part)


def _markdown_table(made: Table) -> str:
    names = ["method", *(column.title for column in made.columns)]
    rows = [_markdown_row(names), _markdown_row(["---"] + ["---:"] * len(made.columns), raw=True)]
    for line in made.lines:
        cells = {column.key: _markdown_cell(line.cells[column.key]) for column in made.columns}
        if line.status != "finished":
            reason = ": ".join(part for part in (line.instead, line.message) if part)
            cells["test" if "test" in cells else "part"] = f"*{escape(reason)}*"
        rows.append(_markdown_row([escape(line.method), *cells.values()], raw=True))
    return "\n".join(rows)


def _markdown_cell(cell: Cell) -> str:
    text = escape(cell.text) or "–"
    text = f"**{text}**" if cell.best else text
    return f"{text} ({escape(cell.note)})" if cell.note else text


def _markdown_row(cells: list[str], raw: bool = False) -> str:
    return f"| {' | '.join(cells if raw else map(escape, cells))} |"


def _parts(comparison: Comparison) -> str:
    """Every part that was measured: what was chosen there, and what it reached."""
    speed = comparison.speed
    assert speed is not None
    show = {task.name: score_from_info(task).format for task in comparison.tasks}
    heads = ["task", "method", "part", "steps", "last validation score", "target", "reached"]
    heads += ["setting", "at the edge"]
    rows = [_markdown_row(heads), _markdown_row(["---"] * len(heads), raw=True)]
    targets = {target.task: target.score for target in speed.targets}
    for row in speed.rows:
        for one in row.parts:
            has_score = not math.isnan(one.mean)
            cells = [row.task, row.method, formatting.part(one.part), formatting.count(one.steps)]
            cells += [show[row.task](one.mean) if has_score else "did not finish"]
            cells += [show[row.task](targets[row.task]), "yes" if one.reached else "no"]
            cells += [setting_text(one.setting) or "–", ", ".join(one.at_edge) or "–"]
            rows.append(_markdown_row(cells))
    return "\n".join(rows)


def _settings(comparison: Comparison) -> str:
    rows = [
        _markdown_row(["task", "method", "setting", "searched", "seeds"]),
        _markdown_row(["---"] * 5, raw=True),
    ]
    for row in comparison.rows:
        seeds = ", ".join(map(str, row.seeds))
        searched = ", ".join(row.searched) or "–"
        rows.append(
            _markdown_row(
                [row.task, row.method, setting_text(row.setting) or "–", searched, seeds or "–"]
            )
        )
    return "\n".join(rows)


def _listed(pairs: list[tuple[str, str]]) -> str:
    return " · ".join(f"{escape(name)}: {escape(value)}" for name, value in pairs)


def escape(value: object) -> str:
    """As Markdown shows it: nothing in a text can end a cell, make a tag or set a style."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_|\[\]])", r"\\\1", text)
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", text.replace("&", "&amp;"))

"""A table of the paper with ours beside it, cell by cell, and what a reader has to know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from badm.bench import formatting
from badm.bench.records.comparisons import Comparison, ResultRow, TaskInfo, score_from_info
from badm.bench.report.tables import Line, setting_text, table
from badm.bench.report.text import escape
from badm.bench.reproduce.part import NotMeasured, PaperPart, TableSpec
from badm.bench.reproduce.steps_to_levels import levels_markdown
from badm.bench.reproduce.steps_to_match import match_markdown

MARKS = "¹²³⁴⁵⁶⁷⁸⁹"
SPEED = (
    "Steps until the validation score reached the target, median over seeds (95 % interval); a "
    "seed that misses it counts as never. The targets were fixed beforehand, for all methods alike."
)
NOTHING = "–"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class PaperCell:
    """Ours, its interval, the paper's and ours minus it; empty where there is none.

    ``ours`` is a word where there is no score. ``order`` is higher for what is better.
    """

    ours: str
    interval: str = ""
    paper: str = ""
    difference: str = ""
    mark: str = ""  # of a footnote to the paper's score
    order: float | None = None
    best: bool = False


@dataclass(frozen=True)
class PaperLine:
    label: str
    cells: list[PaperCell]


@dataclass(frozen=True)
class PaperTable:
    title: str
    headings: list[str]
    lines: list[PaperLine]
    footnotes: list[str]  # each begins with its mark


def merged(part: PaperPart, comparisons: Sequence[Comparison]) -> Comparison:
    """The comparisons of a part as one; the profile is that of the first.

    A task that two of them have, such as one that is an early stage of another, is taken from the
    one that has more methods for it.
    """
    first = comparisons[0]
    methods = {method.name: method for one in comparisons for method in one.methods}
    most: dict[str, Comparison] = {}
    for one in comparisons:
        for task in one.tasks:
            if task.name not in most or len(one.methods) > len(most[task.name].methods):
                most[task.name] = one

    def own(kind: str) -> list[Any]:
        """Of each comparison what belongs to its tasks."""
        every = ((one, item) for one in comparisons for item in getattr(one, kind))
        return [item for one, item in every if most[item.task] is one]

    return replace(
        first,
        title=part.title,
        summary=[sentence for one in comparisons for sentence in one.summary],
        tasks=[task for one in comparisons for task in one.tasks if most[task.name] is one],
        methods=list(methods.values()),
        rows=own("rows"),
        curves=own("curves"),
        tried=own("tried"),
        artifacts=own("artifacts"),
        notes=list(dict.fromkeys(note for one in comparisons for note in one.notes)),
    )


def paper_tables(
    part: PaperPart, comparison: Comparison, not_measured: Sequence[NotMeasured] = ()
) -> list[PaperTable]:
    """A table for each block of the part that has rows."""
    found = _Index(comparison, not_measured)
    made = [_paper_table(part, block, found) for block in part.tables]
    return [one for one in made if one.lines]


def paper_markdown(
    part: PaperPart,
    comparison: Comparison,
    command: str,
    not_measured: Sequence[NotMeasured] = (),
) -> str:
    """The tables with all notes; ``command`` makes the same numbers."""
    parts = [f"# {escape(part.title)}", f"Made with `{command}`."]
    synthetic = [task.name for task in comparison.tasks if task.synthetic]
    if synthetic:
        which = "The" if len(synthetic) == len(comparison.tasks) else f"{', '.join(synthetic)}: the"
        parts.append(f"**{which} data are synthetic: differences from the paper mean nothing.**")
    parts.append(_legend(comparison))
    for made in paper_tables(part, comparison, not_measured):
        parts += [f"## {escape(made.title)}", _markdown_table(made)]
        parts.append("\n".join(f"{escape(note)}  " for note in made.footnotes))
    speeds = [_speeds(part, block, _Index(comparison)) for block in part.tables]
    if any(speeds):
        parts += ["## Steps to the target", SPEED, *speeds]
    for match in part.steps_to_match:
        parts += match_markdown(match, comparison)
    for levels in part.steps_to_levels:
        parts += levels_markdown(levels, comparison)
    parts += ["## Notes", _listed(_notes(part, comparison))]
    parts += ["## Settings", _listed(_settings(part, comparison))]
    parts += ["## Steps", _steps(comparison)]
    return "\n\n".join(one for one in parts if one) + "\n"


def console_paper_table(made: PaperTable) -> RichTable:
    """The table for a terminal: ours and the paper's, without intervals and differences."""
    shown = RichTable(
        title=Text(f"{made.title}: ours / paper"),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    shown.add_column("method", overflow="fold")
    for heading in made.headings:
        shown.add_column(Text(heading), justify="right")
    for line in made.lines:
        cells = [
            Text(cell.ours, style="bold" if cell.best else "").append(
                f" / {cell.paper or NOTHING}{cell.mark}", style="dim"
            )
            for cell in line.cells
        ]
        shown.add_row(Text(line.label), *cells)
    return shown


class _Index:
    """The rows of a comparison and how its own tables write them, by task and method."""

    def __init__(self, comparison: Comparison, not_measured: Sequence[NotMeasured] = ()) -> None:
        self.not_measured = {one.task: one.paper for one in not_measured}
        self.tasks = {task.name: task for task in comparison.tasks}
        self.rows = {(row.task, row.method): row for row in comparison.rows}
        self.lines = {
            (task.name, line.method): line
            for task in comparison.tasks
            for line in table(comparison, task).lines
        }


def _shown(part: PaperPart, block: TableSpec, found: _Index) -> list[str]:
    """The methods of a block that ran."""
    methods = dict.fromkeys(method for _, method in found.rows)
    return [
        name
        for name in part.rows(block, tuple(methods))
        if any((task, name) in found.rows for task in block.tasks(name))
    ]


def _label(part: PaperPart, method: str) -> str:
    called = part.names.get(method)
    return method if called in (None, method) else f"{called} ({method})"


def _paper_table(part: PaperPart, block: TableSpec, found: _Index) -> PaperTable:
    footnotes: dict[str, str] = {}  # mark by text

    def mark(text: str) -> str:
        return footnotes.setdefault(text, MARKS[len(footnotes)])

    lines = []
    for method in _shown(part, block, found):
        stand_in = block.substitutes.get(method)
        label = _label(part, method) + ("" if stand_in is None else mark(stand_in.why))
        cells = []
        for task in block.tasks(method):
            where = task, method
            doubts = [doubt.why for doubt in part.suspects if where in doubt.cells]
            if where in found.rows:
                cell = _cell(found.tasks[task], found.rows[where], found.lines[where])
            else:
                paper = found.not_measured.get(task, {}).get(method, "")
                cell = PaperCell(NOT_MEASURED, paper=paper)
            cells.append(replace(cell, mark="".join(map(mark, doubts))))
        lines.append(PaperLine(label, cells))
    return PaperTable(
        block.title,
        list(block.columns),
        _with_best(lines),
        [f"{sign} {text}" for text, sign in footnotes.items()],
    )


def _cell(task: TaskInfo, row: ResultRow, line: Line) -> PaperCell:
    score = score_from_info(task)
    ours, paper = line.cells["test"], line.cells["paper"].text
    if row.test is None or not ours.text:
        return PaperCell(line.instead or NOTHING, paper=paper)
    value = row.test.value
    # In points: a difference with a percent sign would read like a relative one.
    points = "" if row.paper is None else formatting.signed(value - row.paper, score.format)
    difference = points.removesuffix(" %")
    order = value if score.best == "high" else -value
    return PaperCell(ours.text, ours.note, paper, difference, order=order)


def _with_best(lines: list[PaperLine]) -> list[PaperLine]:
    """Mark the best of ours in each column; what reads the same is as good."""
    best = []
    for column in zip(*(line.cells for line in lines), strict=True):
        ranked = [(cell.order, cell.ours) for cell in column if cell.order is not None]
        best.append(max(ranked)[1] if ranked else None)
    return [
        replace(
            line,
            cells=[
                replace(cell, best=cell.ours == top)
                for cell, top in zip(line.cells, best, strict=True)
            ],
        )
        for line in lines
    ]


def _speeds(part: PaperPart, block: TableSpec, found: _Index) -> str:
    """How soon each method reaches the targets of a block, where it has any."""
    measured = {h: found.tasks[task] for h, task in block.columns.items() if task in found.tasks}
    infos = measured.values()
    if all(task.target is None for task in infos):
        return ""
    targets = [NOTHING if x.target is None else score_from_info(x).format(x.target) for x in infos]
    rows = [[block.title, *measured], ["---"] + ["---:"] * len(infos), ["target", *targets]]
    for method in _shown(part, block, found):
        if method not in block.substitutes:  # on other tasks, with other targets
            lines = [found.lines[task.name, method] for task in infos]
            rows.append([_label(part, method), *map(_speed, lines)])
    return _rows(rows)


def _speed(line: Line) -> str:
    cell = line.cells["steps"]
    if not cell.text:
        return f"*{escape(line.instead or NOTHING)}*"
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} ({cell.note})" if cell.note else text


def _legend(comparison: Comparison) -> str:
    seeds = max((len(row.seeds) for row in comparison.rows), default=0)
    scores = {task.score: task.best for task in comparison.tasks}
    better = ", ".join(
        f"{name} ({'higher' if best == 'high' else 'lower'} is better)"
        for name, best in scores.items()
    )
    several = f"mean over {seeds} seeds (95 % interval)" if seeds > 1 else "one seed"
    scale = ", ".join(dict.fromkeys(task.scale for task in comparison.tasks))
    points = " in points" if any(task.percent for task in comparison.tasks) else ""
    return escape(
        f"Scale {scale}. Each cell: our test {better}, {several} / the paper's score / ours minus "
        f"the paper's{points}. Bold: the best of ours in a column."
    )


def _markdown_table(made: PaperTable) -> str:
    rows = [["method", *map(escape, made.headings)], ["---"] + ["---:"] * len(made.headings)]
    for line in made.lines:
        rows.append([escape(line.label), *map(_markdown_cell, line.cells)])
    return _rows(rows)


def _rows(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _markdown_cell(cell: PaperCell) -> str:
    if cell.order is None:
        ours = f"*{escape(cell.ours)}*"
    else:
        ours = f"**{escape(cell.ours)}**" if cell.best else escape(cell.ours)
    ours += f" ({escape(cell.interval)})" if cell.interval else ""
    if not cell.paper:
        return f"{ours} / {NOTHING}"
    paper = f"{ours} / {escape(cell.paper)}{cell.mark}"
    return f"{paper} / {escape(cell.difference)}" if cell.difference else paper


def _notes(part: PaperPart, comparison: Comparison) -> Iterator[str]:
    """What differs from the paper: notes of the part, of its tasks, of these runs."""
    yield from part.notes
    measured = {task.name for task in comparison.tasks}
    for block in part.tables:
        for heading, name in block.columns.items():
            if name not in measured:
                yield f"{heading} ({name}) is not measured: its data were missing"
    tasks_by_text: dict[str, list[str]] = {}
    for task in comparison.tasks:
        for text in filter(None, (task.paper_note, *task.notes)):
            tasks_by_text.setdefault(text, []).append(task.name)
    for row in comparison.rows:
        if row.message:
            tasks_by_text.setdefault(f"{row.method}: {row.message}", []).append(row.task)
    every = [task.name for task in comparison.tasks]
    for text, names in tasks_by_text.items():
        whose = "All tasks" if len(every) > 1 and names == every else _task_names(part, names)
        yield f"{whose}: {text}"
    yield from comparison.notes


def _settings(part: PaperPart, comparison: Comparison) -> Iterator[str]:
    """A sentence for each method, its tasks with equal settings together."""
    for method in comparison.methods:
        tasks_by_text: dict[str, list[str]] = {}
        for row in comparison.rows:
            if row.method == method.name and row.setting:
                tasks_by_text.setdefault(setting_text(row.setting), []).append(row.task)
        texts = [
            text if len(tasks_by_text) == 1 else f"{text} ({_task_names(part, names)})"
            for text, names in tasks_by_text.items()
        ]
        if texts:
            yield f"{method.name}: {'; '.join(texts)}"


def _task_names(part: PaperPart, names: Sequence[str]) -> str:
    """The names of tasks, those of a whole row as one.

    >>> from badm.bench.reproduce.parts import PARTS
    >>> node = PARTS["node-classification"]
    >>> _task_names(node, ["node-cora-gnn", *node.tables[0].columns.values()])
    'DNN, node-cora-gnn'
    """
    left = list(names)
    titles = []
    for block in part.tables:
        rows = {block.title: tuple(block.columns.values())}
        rows |= {f"{block.title} of {name}": one.tasks for name, one in block.substitutes.items()}
        for title, row in rows.items():
            if len(row) > 1 and all(task in left for task in row):
                titles.append(title)
                left = [task for task in left if task not in row]
    return ", ".join([*titles, *left])


def _steps(comparison: Comparison) -> str:
    """How long the runs are, against those of the paper's scale."""
    rows = [["task", "steps", "at the paper's scale", "batch", "data"]]
    rows.append(["---", "---:", "---:", "---:", "---"])
    for task in comparison.tasks:
        full = NOTHING if task.paper_steps is None else formatting.count(task.paper_steps)
        steps, batch = formatting.count(task.steps), formatting.count(task.batch_size)
        data = "synthetic" if task.synthetic else "real"
        rows.append([escape(task.name), steps, full, batch, data])
    return _rows(rows)


def _listed(notes: Iterator[str]) -> str:
    ended = (note if note.endswith((".", ":", "!")) else f"{note}." for note in notes)
    return "\n".join(f"- {escape(note)}" for note in dict.fromkeys(ended))

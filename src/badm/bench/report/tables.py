"""The table of a task: its columns and the text of each cell, wherever it is shown.

The page, Markdown and the terminal take their texts from here, and add only what is their own:
buttons, pipes, colours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from badm.bench import formatting
from badm.bench.analysis.differences import seeds_sentence
from badm.bench.analysis.intervals import LEVEL_TEXT
from badm.bench.records.comparisons import (
    Comparison,
    Interval,
    PairedTest,
    ResultRow,
    Status,
    TaskInfo,
    score_from_info,
)

End = Literal["high", "low"]
# Outcomes in which no cell is the best.
UNRANKED = ("noise", "difference", "rival", "steps_difference", "steps_rival")

# What a row that did not finish is called.
STATUS_TEXT: dict[Status, str] = {
    "finished": "",
    "diverged": "diverged",
    "failed": "failed",
    "cannot": "cannot train this task",
    "missing": "missing",
}


@dataclass(frozen=True)
class Column:
    """``first`` is the end that a sorted table begins with.

    Only rows that finished have an ``outcome``; the others show a reason in its place.
    """

    key: str
    title: str
    hint: str
    first: End
    outcome: bool = True


@dataclass(frozen=True)
class Cell:
    """``note`` is shown smaller beside the text. Cells whose ``order`` is None are sorted last."""

    text: str = ""
    note: str = ""
    order: float | str | None = None
    best: bool = False
    warning: bool = False


@dataclass(frozen=True)
class Line:
    """A row of the table. ``instead`` is shown by a row that did not finish."""

    method: str
    status: Status
    instead: str
    message: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """Lines in the order of rank: by score or by steps, as the comparison was made for."""

    task: str
    columns: list[Column]
    lines: list[Line]
    note: str = ""  # shown under it: what its intervals and tests are


def table(comparison: Comparison, task: TaskInfo) -> Table:
    """The table of a task, without columns that are empty."""
    columns = _columns(comparison, task)
    lines = [_line(comparison, task, row) for row in comparison.rows if row.task == task.name]
    filled = [c for c in columns if c.key == "test" or _says_something(c, lines)]
    lines = mark_best(filled, lines)
    ranks = ("steps", "test") if comparison.objective == "steps" else ("test", "steps")
    if comparison.speed is not None:
        ranks = ("part", "test")
    ends = {column.key: column.first for column in columns}

    def place(line: Line) -> tuple[bool, list[float]]:
        # In the speed protocol a run that diverged reaches nothing, which its part says already.
        unfinished = line.status != "finished" and comparison.speed is None
        return unfinished, [_rank(line.cells[key], ends[key]) for key in ranks]

    lines.sort(key=place)
    return Table(task.name, filled, lines, _note(comparison, task))


def _note(comparison: Comparison, task: TaskInfo) -> str:
    """Name intervals and tests, and say what so many seeds can and cannot say."""
    rows = [row for row in comparison.rows if row.task == task.name and row.test is not None]
    if not rows:
        return ""
    seeds = max(len(row.test.values) for row in rows if row.test is not None)
    tests = sum(row.compared is not None for row in rows)
    if seeds < 2:
        return seeds_sentence(seeds, tests)
    over = "over seeds"
    if any(row.noise is not None for row in rows):
        over += f" and the {formatting.count(task.test_samples or 0)} test samples together"
    named = f"Intervals are {LEVEL_TEXT}: of scores Student's t {over}"
    if any(row.steps_to_target is not None for row in rows):
        named += ", of steps that of the median"
    return f"{named}. {seeds_sentence(seeds, tests)}"


def comparison_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """The comparison as a whole, in names and values."""
    seeds = sorted({len(row.seeds) for row in comparison.rows if row.seeds})
    scales = list(dict.fromkeys(task.scale for task in comparison.tasks))
    synthetic = {task.synthetic for task in comparison.tasks}
    chosen_by = {"score": "the validation score", "steps": "steps to the target"}
    if comparison.speed is not None:
        chosen_by["score"] = "the last validation score"
    data = {(False,): "real", (True,): "synthetic", (False, True): "partly synthetic"}
    searched = (
        [
            (
                "trials",
                f"{comparison.trials} per method"
                + (" and part of the budget" if comparison.speed is not None else ""),
            ),
            ("chosen by", chosen_by[comparison.objective]),
        ]
        if comparison.trials
        else [("trials", "none, stated settings")]
    )
    return [
        ("protocol", comparison.protocol),
        *searched,
        ("seeds", "–".join(map(str, seeds[:1] + seeds[1:][-1:])) or "none"),
        ("schedule", comparison.schedule),
        ("scale", ", ".join(scales) or "none"),
        ("data", data.get(tuple(sorted(synthetic)), "none")),
        ("reference", comparison.reference),
        ("intervals", f"{LEVEL_TEXT}, Student's t"),
        ("tests", "paired t over seeds, Holm"),
        *([("baseline", comparison.speed.baseline)] if comparison.speed is not None else []),
        *([("search", comparison.speed.search)] if comparison.speed is not None else []),
    ]


def task_facts(task: TaskInfo) -> list[tuple[str, str]]:
    """What a reader of one table has to know about its task."""
    better = "higher" if task.best == "high" else "lower"
    target = "none" if task.target is None else score_from_info(task).format(task.target)
    return [
        ("score", f"{task.score}, {better} is better"),
        ("target", target),
        ("steps", formatting.count(task.steps)),
        *([("batch size", formatting.count(task.batch_size))] if task.batch_size else []),
        ("scale", task.scale),
        ("data", "synthetic" if task.synthetic else "real"),
    ]


def setting_text(setting: Mapping[str, Any]) -> str:
    """
    >>> setting_text({"lr": 0.00316227766, "nesterov": True})
    'lr 0.00316, nesterov True'
    """
    return ", ".join(f"{name} {value_text(value)}" for name, value in setting.items())


def value_text(value: object) -> str:
    return formatting.compact(value) if isinstance(value, float) else str(value)


def flatten(nest: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values of a nest, without those that are None.

    >>> flatten({"python": "3.11", "torch": {"threads": 1}, "commit": None})
    [('python', '3.11'), ('torch threads', '1')]
    """
    pairs: list[tuple[str, str]] = []
    for name, value in nest.items():
        if isinstance(value, Mapping):
            pairs += flatten(value, f"{prefix}{name} ")
        elif isinstance(value, (list, tuple)):
            pairs.append((f"{prefix}{name}", ", ".join(map(value_text, value))))
        elif value is not None:
            pairs.append((f"{prefix}{name}", value_text(value)))
    return pairs


def _columns(comparison: Comparison, task: TaskInfo) -> list[Column]:
    better = "higher" if task.best == "high" else "lower"
    paper = Column("paper", "paper", f"The {task.score} that the paper reports.", task.best, False)
    measured = [
        Column(
            "part",
            "part of the budget",
            "The smallest part of the baseline's budget, in eighths, at which the mean over seeds "
            "of the last validation score is as good as the baseline's at the whole budget.",
            "low",
            False,
        ),
        Column("part_steps", "steps", "The steps of that part.", "low", False),
        Column(
            "part_seconds",
            "seconds",
            "Seconds of training at that part, over those of the baseline's whole budget.",
            "low",
            False,
        ),
        Column(
            "test",
            f"test {task.score}",
            f"The {task.score} on the whole test split, mean over seeds, with its {LEVEL_TEXT} "
            f"interval; {better} is better.",
            task.best,
        ),
        Column(
            "noise",
            "± seeds, ± split",
            f"What the interval is made of, each alone at {LEVEL_TEXT}: other seeds on this test "
            "split, and another test split of as many samples for these models. Differences "
            "between methods on one split have no part in the second.",
            "low",
        ),
        Column(
            "difference",
            f"against {comparison.reference}",
            f"The test {task.score} minus that of {comparison.reference}, and the p-value of the "
            "paired t-test over seeds, corrected for the number of methods as Holm does.",
            task.best,
        ),
        Column(
            "rival",
            "against the best other",
            f"The test {task.score} minus that of the best other method, and the p-value of the "
            "paired t-test over seeds; but for that of the first method corrected for all pairs of "
            "methods as Holm does.",
            task.best,
        ),
        Column(
            "steps",
            "steps to target",
            "Steps until the validation score reached the target, median over seeds, with its "
            f"{LEVEL_TEXT} interval. A seed that misses the target counts as never.",
            "low",
        ),
        Column(
            "steps_difference",
            f"steps against {comparison.reference}",
            f"Steps over those of {comparison.reference}, geometric mean over seeds, and the "
            "p-value of the paired t-test of their logarithms, corrected as Holm does. Where a "
            "seed misses the target it is a test of ranks, in which a miss is last.",
            "low",
        ),
        Column(
            "steps_rival",
            "steps against the fastest other",
            "The same against the fastest of the other methods; but for that of the fastest "
            "corrected for all pairs of methods as Holm does.",
            "low",
        ),
        Column(
            "seconds",
            "time to target",
            "Seconds of training until the target, evaluation not counted.",
            "low",
        ),
        Column(
            "gradients",
            "gradients to target",
            "Gradients of a whole batch taken until the target.",
            "low",
        ),
        Column("step_time", "time per step", "Seconds of training per step.", "low", False),
        Column("memory", "state", "Memory that the method keeps between steps.", "low", False),
        Column("lr", "lr", "The learning rate, chosen by the search or stated.", "low", False),
        Column(
            "good_lr",
            "good lr",
            "The learning rates around the best whose validation score is almost as good: within "
            "one percentage point, or 1 %. A wide range forgives a bad guess.",
            "high",
            False,
        ),
        Column("trials", "trials", "Number of settings that the search tried.", "low", False),
    ]
    # With the paper's own settings, its scores are what one compares with.
    return [paper, *measured] if comparison.protocol == "paper" else [*measured, paper]


def _line(comparison: Comparison, task: TaskInfo, row: ResultRow) -> Line:
    show = score_from_info(task).format
    cells = {
        "test": _interval(row.test, show),
        "noise": _noise(row, show),
        "difference": _difference(comparison, row, show),
        "rival": _rival(row, show),
        "steps": _interval(row.steps_to_target, formatting.count),
        "steps_difference": _steps_difference(comparison, row),
        "steps_rival": _steps_rival(row),
        "seconds": _interval(row.seconds_to_target, formatting.seconds),
        "gradients": _interval(row.gradients_to_target, formatting.count),
    }
    if row.status != "finished":
        cells = dict.fromkeys(cells, Cell())
    cells |= _speed_cells(comparison, row)
    cells |= {
        "step_time": _value(row.seconds_per_step, formatting.seconds),
        "memory": _value(row.state_bytes, formatting.size),
        "lr": _lr(row),
        "good_lr": _good_lr(row),
        "trials": _value(row.trials or None, formatting.count),
        "paper": _value(row.paper, show),
    }
    return Line(row.method, row.status, _instead(row), row.message, cells)


def _speed_cells(comparison: Comparison, row: ResultRow) -> dict[str, Cell]:
    found = [
        one
        for one in (comparison.speed.rows if comparison.speed is not None else [])
        if (one.task, one.method) == (row.task, row.method) and one.status != "missing"
    ]
    if not found:
        return dict.fromkeys(("part", "part_steps", "part_seconds"), Cell())
    (one,) = found
    return {
        "part": _value(one.part, formatting.part),
        "part_steps": _value(one.steps, formatting.count),
        "part_seconds": _value(one.seconds, formatting.ratio),
    }


def _instead(row: ResultRow) -> str:
    word = STATUS_TEXT[row.status]
    if row.status == "diverged" and row.diverged and len(row.seeds) > 1:
        return f"{word} in {row.diverged} of {len(row.seeds)} seeds"
    return word


def _interval(interval: Interval | None, show: Callable[[float], str]) -> Cell:
    if interval is None or math.isnan(interval.value):
        return Cell()
    note = formatting.interval(interval.low, interval.high, show) if interval.has_ends else ""
    misses = sum(map(math.isinf, interval.values))
    if misses < len(interval.values) and misses and not note:
        note = f"{misses} of {len(interval.values)} missed"
    return Cell(show(interval.value), note, finite(interval.value))


def _noise(row: ResultRow, show: Callable[[float], str]) -> Cell:
    if row.noise is None:
        return Cell()
    seeds, split = show(row.noise.seeds), show(row.noise.split)
    return Cell(f"±{seeds.removesuffix(' %')}, ±{split}", order=row.noise.seeds)


def _difference(comparison: Comparison, row: ResultRow, show: Callable[[float], str]) -> Cell:
    if row.method == comparison.reference:
        return Cell("reference", order=0.0)
    if row.compared is None or math.isnan(row.compared.difference):
        return Cell()
    return _tested(row.compared, formatting.signed(row.compared.difference, show))


def _rival(row: ResultRow, show: Callable[[float], str]) -> Cell:
    if row.rival is None:
        return Cell()
    return _tested(row.rival, formatting.signed(row.rival.difference, show), named=True)


def _steps_difference(comparison: Comparison, row: ResultRow) -> Cell:
    if row.method == comparison.reference and row.steps_to_target is not None:
        return Cell("reference", order=1.0)
    return Cell() if row.steps_compared is None else _steps_tested(row.steps_compared)


def _steps_rival(row: ResultRow) -> Cell:
    return Cell() if row.steps_rival is None else _steps_tested(row.steps_rival, named=True)


def _steps_tested(test: PairedTest, *, named: bool = False) -> Cell:
    has_ratio = not math.isnan(test.difference)
    text = f"{formatting.ratio(test.difference)}×" if has_ratio else "a miss"
    return _tested(test, text, named=named)


def _tested(test: PairedTest, text: str, *, named: bool = False) -> Cell:
    p = "" if math.isnan(test.p_value) else formatting.p_value(test.p_value)
    note = ", ".join(part for part in (test.against if named else "", p) if part)
    order = None if math.isnan(test.difference) else finite(test.difference)
    return Cell(text, note, order)


def _lr(row: ResultRow) -> Cell:
    lr = row.setting.get("lr")
    edges = [name for name in row.at_edge if name != "lr"]
    notes = ["at the edge of its range"] if "lr" in row.at_edge else []
    notes += [f"{name} at the edge of its range" for name in edges]
    if not isinstance(lr, (int, float)):
        return Cell("none" if notes else "", ", ".join(notes), None, warning=bool(notes))
    return Cell(formatting.compact(lr), ", ".join(notes), float(lr), warning=bool(notes))


def _good_lr(row: ResultRow) -> Cell:
    if row.good_lr is None:
        return Cell()
    low, high = row.good_lr
    text = (
        formatting.compact(low)
        if low == high
        else formatting.interval(low, high, formatting.compact)
    )
    return Cell(text, order=math.log10(high / low))


def _value(value: float | None, show: Callable[[float], str]) -> Cell:
    if value is None or math.isnan(value):
        return Cell()
    return Cell(show(value), order=finite(value))


def finite(value: float) -> float:
    """To sort by: JSON has no infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, value))


def _rank(cell: Cell, first: End) -> float:
    if not isinstance(cell.order, (int, float)):
        return math.inf
    return -cell.order if first == "high" else cell.order


def _says_something(column: Column, lines: list[Line]) -> bool:
    """Whether a column has texts, and others than those of a column that it would repeat."""
    own = [line.cells[column.key].text for line in lines]
    if column.key == "gradients":
        return any(own) and own != [line.cells["steps"].text for line in lines]
    if column.key == "steps_difference":
        return not {"", "reference"}.issuperset(own)
    if column.key in ("rival", "steps_rival"):  # of two methods one is the reference
        return any(own) and len(lines) > 2
    return any(own)


def mark_best(columns: list[Column], lines: list[Line]) -> list[Line]:
    """Mark the best of each outcome; what reads the same is as good."""
    for column in columns:
        if column.key in UNRANKED or not (column.outcome or column.key == "part"):
            continue
        reached = [
            line.cells[column.key]
            for line in lines
            if line.cells[column.key].order is not None
            and line.cells[column.key].text != formatting.NEVER
        ]
        if not reached:
            continue
        ranked = [(_rank(cell, column.first), cell.text) for cell in reached]
        best = min(ranked)[1]
        lines = [
            replace(line, cells={**line.cells, column.key: replace(cell, best=cell.text == best)})
            for line in lines
            for cell in (line.cells[column.key],)
        ]
    return lines

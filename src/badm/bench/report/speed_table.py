"""The table over tasks of the speed protocol: a row for each method, with its gain and its cost."""

from __future__ import annotations

import math

from badm.bench import formatting
from badm.bench.analysis.intervals import LEVEL_TEXT
from badm.bench.records.comparisons import Comparison
from badm.bench.records.speeds import NEVER_COUNTS, Bounded, MethodSpeed
from badm.bench.report.tables import Cell, Column, Line, Table, finite, mark_best

TITLE = "Speed at equal quality"


def speed_table(comparison: Comparison) -> Table | None:
    """The methods over all tasks, the fastest first; ``None`` in another protocol."""
    speed = comparison.speed
    if speed is None:
        return None
    columns = _columns(speed.baseline, comparison.reference)
    ranked = sorted(
        speed.methods,
        key=lambda one: (not one.tasks, one.counted.value, one.seconds_counted, one.method),
    )
    lines = [
        Line(
            one.method,
            "finished" if one.tasks else "missing",
            "" if one.tasks else "missing",
            "",
            _cells(one, comparison.reference, len(comparison.tasks)),
        )
        for one in ranked
    ]
    filled = [c for c in columns if c.key == "part" or any(x.cells[c.key].text for x in lines)]
    return Table(TITLE, filled, mark_best(filled, lines))


def speed_lead(comparison: Comparison) -> str:
    """What the table over tasks shows, in words."""
    assert comparison.speed is not None
    return (
        f"The smallest part of the budget of {comparison.speed.baseline}, in eighths, at which a "
        "method tuned for that part ends with a validation score as good as "
        f"{comparison.speed.baseline} has at the end of the whole budget: the geometric mean over "
        f"tasks, with its {LEVEL_TEXT} interval. Never is a target that the whole budget does not "
        "reach."
    )


def _columns(baseline: str, reference: str) -> list[Column]:
    never = f"{NEVER_COUNTS:g}"
    return [
        Column(
            "part",
            "part of the budget",
            f"Geometric mean over tasks, with its {LEVEL_TEXT} interval: Student's t over tasks, "
            "on logarithms. Never as soon as one task is.",
            "low",
        ),
        Column("never", "never", "Tasks whose target it never reaches.", "low", False),
        Column(
            "counted",
            f"never as {never}",
            f"The same mean with each never counted as {never} budgets.",
            "low",
        ),
        Column(
            "gain",
            "times as fast",
            f"One over that mean: how many times fewer steps than {baseline}.",
            "high",
        ),
        Column(
            "seconds",
            "seconds",
            f"Seconds of training over those of {baseline}, geometric mean over tasks; never "
            f"counts as {never} budgets of its own steps.",
            "low",
        ),
        Column(
            "against",
            f"against {reference}",
            f"Tasks won, tied and lost against {reference} by the part, and the p-value of a "
            "Wilcoxon signed-rank test over tasks with Holm's correction.",
            "high",
            False,
        ),
        Column("step_time", "time per step", f"Over that of {baseline}.", "low", False),
        Column("state", "state", f"Memory between steps, over that of {baseline}.", "low", False),
    ]


def _cells(one: MethodSpeed, reference: str, tasks: int) -> dict[str, Cell]:
    if not one.tasks:
        names = ("part", "never", "counted", "gain", "seconds", "against", "step_time", "state")
        return dict.fromkeys(names, Cell())
    counted = one.counted.value
    return {
        "part": _bounded(one.part, tasks),
        "never": Cell(f"{one.never} of {one.tasks}", order=float(one.never)),
        "counted": _bounded(one.counted, tasks),
        "gain": Cell(f"{formatting.ratio(1 / counted)}×", order=1 / counted),
        "seconds": _ratio(one.seconds_counted),
        "against": _against(one, reference),
        "step_time": _ratio(one.step_time),
        "state": _ratio(one.state),
    }


def _bounded(bounded: Bounded, tasks: int) -> Cell:
    show = formatting.part if tasks == 1 else formatting.ratio
    # never–never says no more than never does.
    has_width = math.isfinite(bounded.low) and bounded.low < bounded.high
    note = formatting.interval(bounded.low, bounded.high, show) if has_width else ""
    return Cell(show(bounded.value), note, finite(bounded.value))


def _against(one: MethodSpeed, reference: str) -> Cell:
    if one.method == reference:
        return Cell("reference", order=0.0)
    if not one.won + one.tied + one.lost:  # no task that both have a result on
        return Cell()
    note = "" if math.isnan(one.p_value) else formatting.p_value(one.p_value)
    text = f"{one.won} won, {one.tied} tied, {one.lost} lost"
    return Cell(text, note, float(one.won - one.lost))


def _ratio(value: float) -> Cell:
    return Cell() if math.isnan(value) else Cell(formatting.ratio(value), order=finite(value))

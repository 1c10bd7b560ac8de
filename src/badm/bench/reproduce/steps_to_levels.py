"""How many steps each method takes to levels of KID that several of them reach."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from badm.bench import formatting
from badm.bench.analysis.intervals import median_interval
from badm.bench.analysis.statistics import time_to_target
from badm.bench.formatting import decibels
from badm.bench.records.comparisons import Comparison, Curve, score_from_info
from badm.bench.report.text import escape
from badm.bench.reproduce.part import StepsToLevels

MAX_LEVELS = 4  # levels in a table, beside the paper's own
MIN_DB_BELOW_START = 1.0  # dB below the start, from which on a level is no accident


def levels_markdown(spec: StepsToLevels, comparison: Comparison) -> Iterator[str]:
    """A heading, what it means, and the table; nothing if the task was not measured."""
    levels, steps = steps_to_levels(spec, comparison)
    if not steps:
        return
    yield f"## Steps to levels of KID: {spec.task}"
    yield (
        "Steps until the validation KID first comes to a level, median over seeds, and in brackets "
        f"how many times fewer than {spec.reference} takes. Levels are whole numbers of dB that at "
        "least two methods come to, well below the start, and the paper's. "
        f"{escape(spec.claim)}"
    )
    heads = [f"{_db(level)} ({10 ** (level / 10):.3g})" for level in levels]
    rows = [["method", *heads], ["---"] + ["---:"] * len(levels)]
    others = steps.get(spec.reference)
    for method, own in steps.items():
        rows.append([method, *_cells(own, None if method == spec.reference else others)])
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def steps_to_levels(
    spec: StepsToLevels, comparison: Comparison
) -> tuple[list[float], dict[str, list[float]]]:
    """The levels in dB, from the worst to the best, and the steps to each by method.

    Infinite is what more than half of the seeds miss.
    """
    infos = [task for task in comparison.tasks if task.name == spec.task]
    if not infos:
        return [], {}
    score = score_from_info(infos[0])
    curves = {
        method.name: [c for c in comparison.curves if _is(c, spec.task, method.name)]
        for method in comparison.methods
    }
    values = {
        name: [curve.validation[score.name] for curve in those]
        for name, those in curves.items()
        if those
    }
    levels = _levels(values, spec.level)
    steps = {
        name: [
            median_interval(
                [
                    time_to_target(
                        curve.evaluated, curve.validation[score.name], 10 ** (level / 10), score
                    )
                    for curve in curves[name]
                ]
            ).value
            for level in levels
        ]
        for name in values
    }
    return levels, steps


def _is(curve: Curve, task: str, method: str) -> bool:
    return curve.task == task and curve.method == method and bool(curve.evaluated)


def _levels(values: Mapping[str, Sequence[Sequence[float]]], own: float | None) -> list[float]:
    """From the readings of each seed, by method; at most ``MOST``, and the paper's own."""
    start = (
        median(decibels(seed[0]) for seeds in values.values() for seed in seeds) if values else 0
    )
    # What each comes to at its best, from the worst of them to the best.
    ends = sorted((median(map(_best, seeds)) for seeds in values.values()), reverse=True)
    common = {math.ceil(end) for end in ends[:-1] if math.isfinite(end)}
    found: Sequence[float] = sorted(
        (c for c in common if c <= start - MIN_DB_BELOW_START), reverse=True
    )
    if len(found) > MAX_LEVELS:
        found = [found[i * (len(found) - 1) // (MAX_LEVELS - 1)] for i in range(MAX_LEVELS)]
    return sorted({*found, *([] if own is None else [own])}, reverse=True)


def _best(readings: Sequence[float]) -> float:
    """In dB; an estimate of zero or less is no level."""
    return min((decibels(value) for value in readings if value > 0), default=math.inf)


def _cells(own: Sequence[float], others: Sequence[float] | None) -> Iterator[str]:
    for place, steps in enumerate(own):
        text = formatting.count(steps)
        if others is not None and 0 < steps < math.inf and math.isfinite(others[place]):
            text += f" ({formatting.significant(others[place] / steps, 2)}×)"
        yield text


def _db(level: float) -> str:
    return f"{level:g} dB".replace("-", "−")

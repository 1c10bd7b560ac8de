"""How soon each method reaches what one of them has at its end, beside what the paper says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from badm.bench import formatting
from badm.bench.analysis.intervals import median_interval
from badm.bench.analysis.statistics import time_to_target
from badm.bench.records.comparisons import Comparison, Interval, score_from_info
from badm.bench.report.text import escape
from badm.bench.reproduce.part import StepsToMatch


@dataclass(frozen=True)
class MethodSteps:
    """A method of a race: its steps over the seeds, and how many times fewer these are.

    ``times_fewer`` than those of the method whose end is the goal; None where it never arrives.
    """

    method: str
    steps: Interval
    times_fewer: float | None


def steps_to_match(spec: StepsToMatch, comparison: Comparison) -> list[MethodSteps]:
    """The methods in the order of the comparison; none if the goal is not known.

    The goal is of each seed for itself: the validation score that the method raced against has
    after its last step.
    """
    for task in comparison.tasks:
        if task.name == spec.task:
            score, last = score_from_info(task), task.steps
            break
    else:
        return []
    curves = [curve for curve in comparison.curves if curve.task == spec.task]
    goals = {
        curve.seed: curve.validation[score.name][-1]
        for curve in curves
        if curve.method == spec.reference and curve.evaluated and curve.evaluated[-1] == last
    }
    found: dict[str, list[float]] = {}
    for curve in curves:
        if curve.seed in goals:
            scores = curve.validation[score.name] if curve.evaluated else []
            steps = time_to_target(curve.evaluated, scores, goals[curve.seed], score)
            found.setdefault(curve.method, []).append(steps)
    medians = {
        method.name: median_interval(found[method.name])
        for method in comparison.methods
        if method.name in found
    }
    runners = []
    for name, one in medians.items():
        arrived = 0 < one.value < math.inf
        ratio = medians[spec.reference].value / one.value if arrived else None
        runners.append(MethodSteps(name, one, ratio))
    return runners


def match_markdown(spec: StepsToMatch, comparison: Comparison) -> Iterator[str]:
    """A heading, what it means, and the table; nothing if there was no race."""
    runners = steps_to_match(spec, comparison)
    if not runners:
        return
    yield f"## Steps to what {spec.reference} has at its end: {spec.task}"
    yield (
        f"Steps until the validation score is as good as that of {spec.reference} after its last "
        f"step, of each seed for itself, median over seeds (95 % interval). {escape(spec.claim)}"
    )
    rows = ["| method | steps | times fewer |", "| --- | ---: | ---: |"]
    for one in runners:
        low, high = one.steps.low, one.steps.high
        wide = low < high and one.steps.has_ends
        span = f" ({formatting.interval(low, high, formatting.count)})" if wide else ""
        times = "–" if one.times_fewer is None else f"{formatting.significant(one.times_fewer, 2)}×"
        rows.append(f"| {one.method} | {formatting.count(one.steps.value)}{span} | {times} |")
    yield "\n".join(rows)

"""The figure of the speed protocol: for each task, the part of the budget each method needs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from badm.bench import formatting
from badm.bench.records.comparisons import Comparison
from badm.bench.records.speeds import NEVER_COUNTS, PARTS
from badm.bench.report.styles import Style

TICKS = (1 / PARTS, 1 / 4, 1 / 2, 1.0)
SPREAD = 0.6  # of the height of a row, over which its methods are spread


def speed_figure(
    comparison: Comparison, looks: Mapping[str, Style], markers: Mapping[str, str]
) -> Figure | None:
    """Tasks as rows, methods as colours, the part on a logarithmic axis; never at its right end."""
    speed = comparison.speed
    if speed is None or not any(row.status != "missing" for row in speed.rows):
        return None
    tasks = [task.name for task in comparison.tasks]
    methods = list(looks)
    height = max(2.4, 0.12 * len(tasks) * (len(methods) + 3) + 1.0)
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.subplots()
    for place, method in enumerate(methods):
        shift = SPREAD * ((place + 0.5) / len(methods) - 0.5)
        rows = [r for r in speed.rows if r.method == method and r.status != "missing"]
        axes.plot(
            [row.part if math.isfinite(row.part) else NEVER_COUNTS for row in rows],
            [tasks.index(row.task) + shift for row in rows],
            linestyle="none",
            marker=markers[looks[method].marker],
            color=looks[method].light,
            markersize=6,
            label=method,
        )
    axes.set_xscale("log")
    axes.set_xlim(0.9 / PARTS, 1.2 * NEVER_COUNTS)
    axes.xaxis.set_major_locator(FixedLocator([*TICKS, NEVER_COUNTS]))
    labels = [*map(formatting.part, TICKS), formatting.NEVER]
    axes.xaxis.set_major_formatter(FixedFormatter(labels))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(tasks)), tasks)
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.set_xlabel(f"part of the budget of {speed.baseline} that reaches its score")
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False)
    return figure

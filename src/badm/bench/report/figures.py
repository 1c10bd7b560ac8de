"""Figures for papers: PNG to look at, SVG to typeset, the same bytes for the same numbers."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from badm.bench.files import write_atomically
from badm.bench.records.comparisons import Comparison, Curve, TaskInfo, Trial, score_from_info
from badm.bench.report.speed_figure import speed_figure
from badm.bench.report.styles import Style, styles

MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
}
FEW_DECADES = 1e3
SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "badm",  # names inside the file do not change from one drawing to the next
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8b8f94",
    "axes.grid": True,
    "grid.color": "#e3dfd8",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "text.parse_math": False,  # a dollar in a name is a dollar
}
# Steps and values of one line, and the lowest and highest seed.
Line = tuple[list[float], list[float], list[float], list[float]]
Drawing = Callable[[Comparison, TaskInfo, dict[str, Style]], Figure | None]


LARGEST = 1e100  # number that is drawn: axes and ticks multiply, and infinity has no place
TALLEST = 4.0  # times as high as wide, of a picture
PICTURES_PER_ROW = 3  # methods, where their pictures are of one step only
KINDS = ("score", "time", "loss", "sensitivity", "profile", "speed", "artifacts")
FORMS = ("png", "svg")
X_LABELS = {"steps": "steps", "seconds": "seconds of training"}
DOTS = 130  # by inch, of a PNG picture
COLOURS = 128


def draw_figures(
    comparison: Comparison,
    folder: Path,
    *,
    kinds: Sequence[str] = KINDS,
    forms: Sequence[str] = FORMS,
) -> list[Path]:
    """Draw curves and sensitivity of each task and the profile; return the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    looks = styles(comparison.methods)
    written: list[Path] = []
    of_task: dict[str, Drawing] = {
        "score": _score,
        "time": partial(_score, across="seconds"),
        "loss": _losses,
        "sensitivity": _sensitivity,
        "artifacts": _artifacts,
    }
    with matplotlib.rc_context(SETTINGS):
        for task in comparison.tasks:
            for kind, draw in of_task.items():
                if kind in kinds:
                    figure = draw(comparison, task, looks)
                    written += _save(figure, folder, f"{_safe(task.name)}-{kind}", forms)
        if "profile" in kinds:
            written += _save(_profile(comparison, looks), folder, "profile", forms)
        if "speed" in kinds:
            written += _save(speed_figure(comparison, looks, MARKERS), folder, "speed", forms)
    return written


def _score(
    comparison: Comparison,
    task: TaskInfo,
    looks: dict[str, Style],
    across: Literal["steps", "seconds"] = "steps",
) -> Figure | None:
    lines = {}
    for method in looks:
        curves = _curves(comparison, task, method)
        line = _mean([(c.evaluated, c.validation.get(task.score, [])) for c in curves])
        if line is not None:
            lines[method] = line if across == "steps" else _over_time(line, curves)
    if not lines:
        return None
    figure, (axes,) = _empty(1)
    _draw_lines(axes, lines, looks)
    axes.set(title=task.name, xlabel=X_LABELS[across], ylabel=f"validation {task.score}")
    if _orders(lines, task):
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    else:
        axes.set_ylim(*_close_up([mean for _, mean, _, _ in lines.values()], task))
    if task.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if task.target is not None and _has_place(task.target):
        axes.axhline(task.target, color="#1d2126", lw=0.8, ls=":", zorder=1)
        label = f"target {score_from_info(task).format(task.target)}"
        # On the good side, where at the left no curve has come yet.
        above = task.best == "high"
        axes.annotate(
            label,
            (0, task.target),
            (3, 2 if above else -2),
            textcoords="offset points",
            va="bottom" if above else "top",
            fontsize=8,
        )
    _legend(figure, axes)
    return figure


def _over_time(line: Line, curves: Sequence[Curve]) -> Line:
    """Put a line over the seconds of training that its steps took, the mean over seeds."""
    taken = _mean([(c.evaluated, c.evaluated_seconds) for c in curves])
    assert taken is not None  # the line has its steps
    seconds = dict(zip(taken[0], taken[1], strict=True))
    return [seconds[step] for step in line[0]], *line[1:]


def _orders(lines: dict[str, Line], task: TaskInfo) -> bool:
    """Whether a score that is to be low falls by orders of magnitude, as KID does."""
    values = [value for _, mean, low, _ in lines.values() for value in (*mean, *low)]
    return task.best == "low" and min(values) > 0 and max(values) > 30 * min(values)


def _close_up(means: Sequence[Sequence[float]], task: TaskInfo) -> tuple[float, float]:
    """Where the curves end: the last three quarters of each, but for the worst tenth of it all."""
    values = sorted(value for mean in means for value in mean[len(mean) // 4 :])
    cut = len(values) // 10
    kept = values[cut:] if task.best == "high" else values[: len(values) - cut]
    kept += [task.target] if task.target is not None and _has_place(task.target) else []
    margin = 0.06 * (max(kept) - min(kept) or abs(kept[0]) or 1.0)
    return min(kept) - margin, max(kept) + margin


def _losses(comparison: Comparison, task: TaskInfo, looks: dict[str, Style]) -> Figure | None:
    curves = [curve for curve in comparison.curves if curve.task == task.name]
    players = list(dict.fromkeys(name for curve in curves for name in curve.losses))
    if not players:
        return None
    figure, every = _empty(len(players))
    for axes, player in zip(every, players, strict=True):
        lines = {}
        for method in looks:
            own = _curves(comparison, task, method)
            line = _mean([(c.steps, c.losses.get(player, [])) for c in own])
            if line is not None:
                lines[method] = line
        _draw_lines(axes, lines, looks)
        if lines and all(value > 0 for _, _, low, _ in lines.values() for value in low):
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            if high / low < FEW_DECADES:  # of powers of ten a loss may then pass one or none
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            _plain_ticks(axes.yaxis)
        of_player = f" of the {player}" if len(players) > 1 else ""
        axes.set(xlabel="steps", ylabel=f"training loss{of_player}")
    every[0].set_title(task.name)
    _legend(figure, every[0])
    return figure


def _sensitivity(comparison: Comparison, task: TaskInfo, looks: dict[str, Style]) -> Figure | None:
    tried = [trial for trial in comparison.tried if trial.task == task.name]
    chosen = {row.method: row.setting.get("lr") for row in comparison.rows if row.task == task.name}
    figure, (axes,) = _empty(1)
    for method, look in looks.items():
        best = _best_by_rate([trial for trial in tried if trial.method == method], task)
        if len(best) < 2:
            continue
        axes.plot(list(best), list(best.values()), label=method, **_line(look))
        lr = chosen.get(method)
        if isinstance(lr, (int, float)) and lr in best:
            axes.plot([lr], [best[lr]], "o", ms=9, mfc="none", mec=look.light, mew=1.4)
    if not axes.lines:
        return None
    axes.set(title=task.name, xlabel="learning rate", ylabel=f"validation {task.score}")
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis)
    if task.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    _legend(figure, axes)
    return figure


def _artifacts(comparison: Comparison, task: TaskInfo, looks: dict[str, Style]) -> Figure | None:
    """The first images of the first seed, large enough to see.

    A column for each method and a row for each step; of one step, methods in rows of three.
    """
    own = [one for one in comparison.artifacts if one.task == task.name and one.picture]
    if not own:
        return None
    seed, title = min(one.seed for one in own), own[0].title
    pictures = {
        (one.step, one.method): _decoded(one.picture)
        for one in own
        if one.seed == seed and one.title == title
    }
    steps = sorted({step for step, _ in pictures})
    methods = [name for name in looks if any(name == method for _, method in pictures)]
    columns, width = len(methods), 1.8
    if len(steps) == 1:
        columns, width = min(columns, PICTURES_PER_ROW), 4.5
    cells = [(step, method) for step in steps for method in methods]
    rows = -(-len(cells) // columns)
    high, wide = next(iter(pictures.values())).shape[:2]
    height = width * min(high / wide, TALLEST)
    figure = Figure(figsize=(width * columns, (height + 0.2) * rows + 0.6), layout="constrained")
    figure.suptitle(f"{task.name}, seed {seed}: {title}", fontsize=9)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for place, (axes, cell) in enumerate(zip(grid.flat, cells, strict=False)):
        step, method = cell
        if cell in pictures:
            # A grey image has one number for each pixel, which must not become a colour.
            axes.imshow(pictures[cell], "gray", vmin=0, vmax=1)
        if step == steps[0]:
            axes.set_title(method, loc="center", fontsize=9)
        if place % columns == 0:
            axes.set_ylabel(f"step {step:,}")
    return figure


def _decoded(picture: str) -> Any:
    content = base64.b64decode(picture.partition(",")[2])
    return imread(io.BytesIO(content), format="png")


def _best_by_rate(trials: Sequence[Trial], task: TaskInfo) -> dict[float, float]:
    """The best score by learning rate, where other settings were searched with it."""
    score = score_from_info(task)
    best: dict[float, float] = {}
    for trial in trials:
        lr = trial.setting.get("lr")
        if trial.score is None or not _has_place(trial.score) or not isinstance(lr, (int, float)):
            continue
        if 1 / LARGEST < lr < LARGEST and (
            lr not in best or score.is_better(trial.score, best[lr])
        ):
            best[lr] = trial.score
    return dict(sorted(best.items()))


def _has_place(value: float) -> bool:
    """Whether a number can be drawn; NaN cannot."""
    return abs(value) < LARGEST


def _profile(comparison: Comparison, looks: dict[str, Style]) -> Figure | None:
    profile = comparison.profile
    if profile is None or not profile.taus:
        return None
    figure, (axes,) = _empty(1)
    for method, look in looks.items():
        parts = profile.solved.get(method)
        if parts is None:
            continue
        rises = [i for i, part in enumerate(parts) if i == 0 or part != parts[i - 1]]
        style = _line(look) | {"markevery": rises}
        axes.step(profile.taus, parts, where="post", label=method, **style)
    axes.set(xlabel="τ, times the steps of the fastest method", ylabel="tasks solved")
    axes.set(xscale="log", ylim=(-0.03, 1.03))
    axes.xaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000]))
    axes.xaxis.set_minor_locator(NullLocator())
    _plain_ticks(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    _legend(figure, axes)
    return figure


def _curves(comparison: Comparison, task: TaskInfo, method: str) -> list[Curve]:
    return [c for c in comparison.curves if c.task == task.name and c.method == method]


def _mean(seeds: Sequence[tuple[Sequence[int], Sequence[float]]]) -> Line | None:
    """Over the steps that every seed has, as in the page: a line ends where a seed diverged."""
    found = [
        {step: value for step, value in zip(steps, values, strict=False) if _has_place(value)}
        for steps, values in seeds
    ]
    shared = [step for step in found[0] if all(step in seed for seed in found)] if found else []
    if not shared:
        return None
    values = [[seed[step] for seed in found] for step in shared]
    return (
        [float(step) for step in shared],
        [math.fsum(one) / len(one) for one in values],
        [min(one) for one in values],
        [max(one) for one in values],
    )


def _draw_lines(axes: Axes, lines: dict[str, Line], looks: dict[str, Style]) -> None:
    for method, (steps, mean, low, high) in lines.items():
        style = _line(looks[method]) | {"markevery": max(1, len(steps) // 8)}
        axes.plot(steps, mean, label=method, **style)
        if low != high:
            axes.fill_between(steps, low, high, color=looks[method].light, alpha=0.12, lw=0)


def _line(look: Style) -> dict[str, Any]:
    width = look.width * 0.62
    # Matplotlib multiplies dashes by the width of the line.
    dash = (0, [part * 0.62 / width for part in look.dash]) if look.dash else "-"
    return {
        "color": look.light,
        "linestyle": dash,
        "linewidth": width,
        "marker": MARKERS[look.marker],
        "markersize": 4.5 if look.dash else 5,
        "markeredgewidth": 0,
        "zorder": 2 if look.dash else 3,
    }


def _plain_ticks(axis: Axis) -> None:
    """0.001 and not a power of ten, which would be mathematics and not text in an SVG file."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _empty(panels: int) -> tuple[Figure, list[Axes]]:
    # A Figure of its own, not pyplot: its canvas is Agg, no display is looked for.
    figure = Figure(figsize=(4.6 * panels + 1.8, 3.7), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    # 25 names are higher than the figure in one column.
    columns = 1 if len(labels) <= 16 else 2
    if columns == 2:
        figure.set_figwidth(figure.get_figwidth() + 1.6)
    figure.legend(
        handles, labels, loc="outside right upper", frameon=False, ncols=columns, handlelength=3.2
    )


def _save(figure: Figure | None, folder: Path, name: str, forms: Sequence[str]) -> list[Path]:
    if figure is None:
        return []
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    paths = [folder / f"{name}.{form}" for form in forms]
    for form, path in zip(forms, paths, strict=True):
        drawn = io.BytesIO()
        figure.savefig(drawn, format=form, dpi=DOTS, metadata=metadata[form])
        content = drawn.getvalue()
        write_atomically(path, with_few_colours(content) if form == "png" else content)
    return paths


def with_few_colours(picture: bytes) -> bytes:
    """Store a palette instead of three bytes for each pixel: a quarter of the size, as clear."""
    from PIL import Image

    small = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(small, "PNG", optimize=True)
    return small.getvalue()


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)

"""Reports of a comparison: what the tables say, and that the files hold what they should."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image
from rich.console import Console

from badm.bench.formatting import interval, significant
from badm.bench.records.comparisons import Artifact, Interval, MethodInfo, ResultRow, to_json
from badm.bench.records.comparisons import PairedTest as Paired
from badm.bench.records.json_values import finite_or_none
from badm.bench.report.figures import draw_figures
from badm.bench.report.page import write_page
from badm.bench.report.styles import COLOURS, styles
from badm.bench.report.tables import Table, comparison_facts, table
from badm.bench.report.text import console_table, markdown
from tests.helpers.comparisons import HOSTILE, METHODS, TASKS, comparison

DIGITS, CGAN, MLM = TASKS


def made(task: Any = DIGITS, *rows: ResultRow, **changes: Any) -> Table:
    base = comparison()
    return table(replace(base, rows=list(rows) or base.rows, **changes), task)


def row(method: str, value: float, **more: Any) -> ResultRow:
    interval = Interval(value, value - 0.01, value + 0.01, [value, value])
    return ResultRow("digits", method, "finished", test=interval, seeds=[0, 1], **more)


def steps(*values: float) -> Interval:
    ordered = sorted(values)
    return Interval(ordered[len(ordered) // 2], ordered[0], ordered[-1], list(values))


def test_scores_are_shown_by_the_one_formatter_with_their_interval() -> None:
    cell = made(DIGITS, row("adam", 0.97345)).lines[0].cells["test"]
    assert (cell.text, cell.note) == ("97.3 %", "96.3–98.3 %")


def test_rows_are_ranked_by_score_and_those_that_did_not_finish_come_last() -> None:
    low = ResultRow("digits", "sisa", "diverged", "at step 3", diverged=1, seeds=[0, 1])
    lines = made(DIGITS, low, row("adam", 0.9), row("badm", 0.95)).lines
    assert [line.method for line in lines] == ["badm", "adam", "sisa"]
    assert (lines[2].instead, lines[2].message) == ("diverged in 1 of 2 seeds", "at step 3")
    assert not lines[2].cells["test"].text


def test_where_steps_were_searched_for_steps_rank() -> None:
    slow = row("adam", 0.97, steps_to_target=steps(200, 300, 400))
    fast = row("badm", 0.96, steps_to_target=steps(100, 100, 100))
    never = row("sgd", 0.98, steps_to_target=steps(math.inf, math.inf, 500))
    order = [line.method for line in made(DIGITS, slow, fast, never, objective="steps").lines]
    assert order == ["badm", "adam", "sgd"]


def test_a_miss_is_never_and_never_the_best() -> None:
    missed = row("adam", 0.9, steps_to_target=steps(math.inf, math.inf, math.inf))
    partly = row("badm", 0.9, steps_to_target=steps(100, 200, math.inf))
    cells = {line.method: line.cells["steps"] for line in made(DIGITS, missed, partly).lines}
    assert (cells["adam"].text, cells["adam"].note, cells["adam"].best) == ("never", "", False)
    assert (cells["badm"].text, cells["badm"].note, cells["badm"].best) == (
        "200",
        "100–never",
        True,
    )
    only_misses = made(DIGITS, missed).lines[0].cells["steps"]
    assert not only_misses.best


def test_the_best_is_marked_at_the_end_that_is_good() -> None:
    for task in (DIGITS, CGAN, MLM):
        lines = made(task).lines
        assert [line.cells["test"].best for line in lines[:1]] == [True]
        values = {
            r.method: r.test.value for r in comparison().rows if r.task == task.name and r.test
        }
        best = max if task.best == "high" else min
        assert lines[0].method == best(values, key=lambda name: values[name])


def test_what_reads_the_same_is_equally_good() -> None:
    lines = made(DIGITS, row("adam", 0.95001), row("badm", 0.95002), row("sgd", 0.9)).lines
    assert [line.cells["test"].best for line in lines] == [True, True, False]


def test_the_difference_has_its_sign_and_p_value() -> None:
    better = row("badm", 0.97, compared=Paired("adam", 0.0123, 0.0004))
    worse = row("sgd", 0.9, compared=Paired("adam", -0.05, 0.2))
    untested = row("qhm", 0.9, compared=Paired("adam", 0.0, math.nan))
    lines = made(DIGITS, better, worse, untested, row("adam", 0.95)).lines
    cells = {line.method: line.cells["difference"] for line in lines}
    assert (cells["badm"].text, cells["badm"].note) == ("+1.2 %", "p < 0.001")
    assert (cells["sgd"].text, cells["sgd"].note) == ("−5.0 %", "p = 0.2")
    assert (cells["qhm"].text, cells["qhm"].note) == ("0.0 %", "")
    assert cells["adam"].text == "reference"


def test_a_setting_at_the_edge_of_its_range_is_flagged() -> None:
    lr = row("adam", 0.9, setting={"lr": 0.01}, at_edge=["lr"])
    other = row("badm", 0.95, setting={"rho": 1.0}, at_edge=["rho"])
    cells = [line.cells["lr"] for line in made(DIGITS, lr, other).lines]
    assert [(cell.text, cell.note) for cell in cells] == [
        ("none", "rho at the edge of its range"),
        ("0.01", "at the edge of its range"),
    ]


def test_columns_nobody_fills_are_left_out_and_the_paper_stands_first_in_its_protocol() -> None:
    keys = "test difference rival step_time memory lr trials"
    assert " ".join(c.key for c in made(MLM).columns) == keys
    assert made(DIGITS).columns[-1].key == "paper"
    assert made(DIGITS, protocol="paper").columns[0].key == "paper"


def test_one_seed_has_no_interval() -> None:
    one = replace(row("adam", 0.9), test=Interval(0.9, 0.9, 0.9, [0.9]))
    unknown = replace(row("badm", 0.9), test=Interval(0.9, math.nan, math.nan, [0.9, 0.9]))
    notes = [line.cells["test"].note for line in made(DIGITS, one, unknown).lines]
    assert notes == ["", ""]


def test_facts_say_that_data_are_synthetic() -> None:
    base = comparison()
    assert dict(comparison_facts(base))["data"] == "partly synthetic"
    assert dict(comparison_facts(replace(base, tasks=[DIGITS])))["data"] == "real"
    assert dict(comparison_facts(replace(base, tasks=[MLM])))["data"] == "synthetic"
    assert dict(comparison_facts(replace(base, trials=0)))["trials"] == "none, stated settings"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.00999, "0.00999"), (9.996, "10.00"), (123456.0, "123,456")]
)
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert significant(value) == text


def test_a_span_of_negative_numbers_has_no_dash() -> None:
    assert interval(-0.5, 0.25, str) == "-0.5 to 0.25"


def test_up_to_25_methods_are_drawn_apart_and_badm_solid_and_thick() -> None:
    methods = [MethodInfo(name, "", family) for name, family, *_ in METHODS]
    assert len(methods) == 25
    looks = styles(methods)
    assert len({(look.light, look.dash) for look in looks.values()}) == 25
    for method in methods:
        look = looks[method.name]
        ours = method.family == "badm"
        assert (look.dash == ()) == ours
        assert (look.width > 2) == ours


def luminance(colour: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("light", "dark"), COLOURS)
def test_every_colour_stands_out_from_its_page(light: str, dark: str) -> None:
    assert (luminance("#fdfcfa") + 0.05) / (luminance(light) + 0.05) >= 3
    assert (luminance(dark) + 0.05) / (luminance("#15181c") + 0.05) >= 3


def test_markdown_has_a_table_for_each_task_and_the_best_in_bold() -> None:
    text = markdown(comparison())
    assert text.count("\n| method |") == 3
    first = text.split("## digits")[1].split("##")[0]
    lines = [line for line in first.splitlines() if line.startswith("|")]
    assert lines[2].split(" | ")[1].startswith("**")
    assert len({line.count("|") for line in lines}) == 1
    assert first.count("| never |") > 4
    assert "*diverged in 1 of 3 seeds: seed 1: the loss left the numbers at step 240*" in first
    assert lines[-1].startswith("| dladmm | *cannot train this task: it trains dense layers")
    assert comparison().summary[0] in text
    assert "lr 0.000316, beta 0.9, nesterov True" in text
    assert "packages numpy: 2.4.6" in text


def test_markdown_takes_texts_for_texts() -> None:
    base = comparison()
    hostile = replace(base, rows=[ResultRow("digits", "a|b\nc", "failed", HOSTILE)])
    lines = [line for line in markdown(hostile).splitlines() if line.startswith("| a")]
    assert "&lt;/script>" in lines[0]
    assert "<script" not in markdown(hostile)
    unescaped = re.findall(r"(?<!\\)\|", lines[0])
    header = next(x for x in markdown(hostile).splitlines() if x.startswith("| method"))
    assert len(unescaped) == header.count("|")


@pytest.mark.parametrize("task", ["digits", "cgan-mnist", "mlm-pretrain"])
def test_the_terminal_table_fits_in_100_columns(task: str) -> None:
    console = Console(file=StringIO(), width=200, color_system=None)
    console.print(console_table(comparison(methods=25), task))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, written.splitlines())) <= 100
    assert "lr at the edge of its range" in " ".join(written.split())
    for name, *_ in METHODS:
        assert name in written
    if task == "digits":
        assert "never" in written
        assert "97.6 % (97" in written


def test_the_terminal_table_takes_texts_for_texts_and_knows_its_tasks() -> None:
    base = comparison()
    hostile = replace(
        base, rows=[ResultRow("digits", "[bold]x[/]", "failed", "[link=x]why[/link]")]
    )
    console = Console(file=StringIO(), width=100, color_system=None)
    console.print(console_table(hostile, "digits"))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]x[/]" in written
    assert "[link=x]why[/link]" in written
    with pytest.raises(ValueError, match=r"task must be one of digits, .*, got 'moons'"):
        console_table(base, "moons")


class Elements(HTMLParser):
    """Which elements a page has, and the text of the one that holds the data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.data = ""
        self._in_data = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self._in_data = ("id", "data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


def significant_digits(value: Any, digits: int = 6) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: significant_digits(part, digits) for key, part in value.items()}
    if isinstance(value, list):
        return [significant_digits(part, digits) for part in value]
    return value


def test_the_page_is_one_file_with_the_whole_comparison_in_it(tmp_path: Path) -> None:
    base = comparison(title=HOSTILE)
    write_page(base, tmp_path / "report.html")
    elements = Elements((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert elements.links == ["data:,"]
    assert elements.tags.count("script") == 3
    assert "img" not in elements.tags
    embedded = json.loads(elements.data)["comparison"]
    pictures = embedded.pop("artifacts")
    numbers = significant_digits(json.loads(to_json(base)))
    curves = [finite_or_none(asdict(curve)) for curve in base.curves]  # to_json has fewer digits
    numbers["curves"] = significant_digits(curves)
    assert numbers.pop("exhibits") == []  # of the page only
    assert embedded == {**numbers, "speed": None}
    assert pictures == [asdict(one) for one in base.artifacts]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_page(comparison(tasks=1), page)
    assert page.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_broken_unicode_and_an_empty_comparison_still_make_a_page(tmp_path: Path) -> None:
    base = comparison(tasks=1, methods=2)
    empty = replace(
        base,
        title="\ud800",
        tasks=[],
        methods=[],
        rows=[],
        curves=[],
        tried=[],
        profile=None,
        artifacts=[],
    )
    write_page(empty, tmp_path / "report.html")
    assert "badm comparison" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert markdown(replace(empty, title="nothing")).startswith("# nothing")


def test_a_large_comparison_makes_a_page_that_can_be_sent(tmp_path: Path) -> None:
    few, more = tmp_path / "few.html", tmp_path / "more.html"
    write_page(comparison(tasks=1, methods=13, seeds=1, points=200), few)
    write_page(comparison(tasks=1, methods=13, seeds=5, points=200), more)
    curves = 4 * 11  # of 200 readings of the loss and 100 of two figures, with their seconds
    assert (more.stat().st_size - few.stat().st_size) / curves < 11_000


@pytest.mark.slow
def test_figures_are_text_and_the_same_every_time(tmp_path: Path) -> None:
    base = comparison(tasks=1, methods=6)
    first = draw_figures(base, tmp_path / "first")
    second = draw_figures(base, tmp_path / "second")
    assert [path.name for path in first] == [
        f"{name}.{ending}"
        for name in (
            "digits-score",
            "digits-time",
            "digits-loss",
            "digits-sensitivity",
            "profile",
        )
        for ending in ("png", "svg")
    ]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    svg = first[1].read_text(encoding="utf-8")
    assert ">badm-kronecker</text>" in svg
    assert ">validation accuracy</text>" in svg
    assert ">target 95.0 %</text>" in svg
    assert first[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("last", "shown"), [(0.3, {"0.5", "1"}), (1e-9, {"1", "0.01", "0.0001", "1e-06", "1e-08"})]
)
def test_the_axis_of_a_loss_has_numbers_and_room_for_them(
    tmp_path: Path, last: float, shown: set[str]
) -> None:
    """Within a decade those between powers of ten; over many of them only those."""
    base = comparison(tasks=1, methods=1, seeds=1)
    (curve,) = (c for c in base.curves[:1])
    count = len(curve.steps)
    losses = {name: np.geomspace(1.8, last, count).tolist() for name in curve.losses}
    changed = replace(base, curves=[replace(curve, losses=losses)])
    (path,) = draw_figures(changed, tmp_path, kinds=("loss",), forms=("svg",))
    svg = path.read_text(encoding="utf-8")
    ticks = set(re.findall(r">([\d.e-]+)</text>", svg.partition("matplotlib.axis_2")[2]))
    assert ticks == shown


def test_over_time_a_score_stands_at_the_mean_of_the_seconds_of_its_seeds(tmp_path: Path) -> None:
    base = comparison(tasks=1, methods=1, seeds=2)
    of_seeds = zip(base.curves, ([0.0, 1.0, 2.0, 9.0], [0.0, 3.0, 4.0, 9.0]), strict=True)
    curves = [
        replace(
            curve,
            evaluated=[0, 10, 20, 30],
            evaluated_seconds=seconds,
            validation={"accuracy": [0.90, 0.92, 0.94, math.nan]},
        )
        for curve, seconds in of_seeds
    ]
    changed = replace(base, curves=curves)
    (path,) = draw_figures(changed, tmp_path, kinds=("time",), forms=("svg",))
    svg = path.read_text(encoding="utf-8")
    assert ">seconds of training</text>" in svg
    (line,) = re.findall(r'd="(M [^"]*)" clip-path="[^"]*" style="fill: none; stroke: #0a66b0', svg)
    x = [float(point.split()[0]) for point in re.split("[ML]", line) if point.strip()]
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx(2 / 3, abs=1e-4)
    assert len(x) == 3  # the line ends where a seed diverged


@pytest.mark.slow
def test_names_with_dollars_and_tags_are_drawn_as_they_are(tmp_path: Path) -> None:
    base = comparison(tasks=1, methods=2)
    name = "a$\\frac$<b>"
    renamed = replace(
        base,
        methods=[replace(base.methods[0], name=name), base.methods[1]],
        curves=[replace(c, method=name) if c.method == "badm" else c for c in base.curves],
        tried=[],
        profile=None,
    )
    score = next(
        path for path in draw_figures(renamed, tmp_path) if path.name == "digits-score.svg"
    )
    assert "a$\\frac$&lt;b&gt;" in score.read_text(encoding="utf-8")


def test_a_comparison_without_curves_has_no_figures(tmp_path: Path) -> None:
    assert (
        draw_figures(replace(comparison(tasks=1), curves=[], tried=[], profile=None), tmp_path)
        == []
    )


def test_pictures_stand_in_a_figure_methods_side_by_side_over_training(tmp_path: Path) -> None:
    """A column for each method, a row for each step, each picture in its place."""

    def picture(grey: int) -> str:
        file = io.BytesIO()
        Image.new("L", (20, 10), grey).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"

    base = comparison(tasks=1, methods=2)
    names = [method.name for method in base.methods]
    greys = {(step, name): 90 + 40 * i for i, (step, name) in enumerate(product((10, 500), names))}
    greys.pop((500, names[1]))  # it has diverged before
    shown = [
        Artifact("digits", name, 0, step, "Samples", picture(grey))
        for (step, name), grey in greys.items()
    ]
    others = [
        Artifact("digits", names[0], 1, 10, "Samples", picture(250)),  # of another seed
        Artifact("digits", names[0], 0, 10, "A text", text="words"),
    ]
    paths = draw_figures(
        replace(base, artifacts=[*shown, *others]), tmp_path, kinds=("artifacts",), forms=("png",)
    )
    assert [path.name for path in paths] == ["digits-artifacts.png"]
    pixels = np.asarray(Image.open(paths[0]).convert("L")).astype(int)
    places = {}
    for where, grey in greys.items():
        rows, columns = np.nonzero(abs(pixels - grey) <= 1)
        inside = np.median(rows), np.median(columns)
        places[where] = inside
    assert places[10, names[0]][0] < places[500, names[0]][0]
    assert places[10, names[0]][1] < places[10, names[1]][1]
    assert abs(places[10, names[0]][0] - places[10, names[1]][0]) < 5
    assert not (pixels == 250).sum() > 1000
    again = draw_figures(
        replace(base, artifacts=shown), tmp_path / "again", kinds=("artifacts",), forms=("png",)
    )
    assert again[0].read_bytes() == paths[0].read_bytes()


@pytest.mark.slow
def test_pictures_of_one_step_are_in_rows_of_three_methods(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (20, 10), 90).save(file, "PNG")
    picture = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    base = comparison(tasks=1, methods=4)
    shown = [Artifact("digits", method.name, 0, 10, "Samples", picture) for method in base.methods]
    (path,) = draw_figures(
        replace(base, artifacts=shown), tmp_path, kinds=("artifacts",), forms=("png",)
    )
    grey = abs(np.asarray(Image.open(path).convert("L")).astype(int) - 90) <= 1
    rows, columns = grey.sum(1), grey.sum(0)
    first, second = rows[: len(rows) // 2].max(), rows[len(rows) // 2 :].max()
    assert 2.9 * second < first < 3.1 * second
    assert columns[: len(columns) // 3].max() > 1.9 * columns[2 * len(columns) // 3 :].max()


@pytest.mark.parametrize(("lowest", "logarithmic"), [(0.01, True), (0.5, False), (-0.1, False)])
def test_a_score_that_falls_by_orders_of_magnitude_has_a_logarithmic_axis(
    lowest: float, logarithmic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = comparison(tasks=1, methods=1, seeds=1)
    (task,), curve = base.tasks, base.curves[0]
    task = replace(task, best="low", percent=False, target=None)
    falling = np.linspace(3.0, lowest, len(curve.evaluated)).tolist()
    changed = replace(curve, validation={task.score: falling})
    scales = []
    monkeypatch.setattr(Axes, "set_yscale", lambda self, scale: scales.append(scale))
    draw_figures(
        replace(base, tasks=[task], curves=[changed]), tmp_path, kinds=("score",), forms=("png",)
    )
    assert scales == (["log"] if logarithmic else [])

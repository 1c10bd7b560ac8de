"""The page in a browser, without a network: what a reader sees, hovers, presses and takes away."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from badm.bench.records.comparisons import Comparison
from badm.bench.report.page import write_page
from badm.bench.report.speed_table import speed_lead, speed_table
from badm.bench.report.tables import table
from tests.helpers.browser import REQUIRED, browser
from tests.helpers.comparisons import HOSTILE, comparison, speed_comparison

if not REQUIRED:
    pytest.importorskip("selenium")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def shown() -> Comparison:
    return comparison()


@pytest.fixture(scope="module")
def path(shown: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("page") / "report.html"
    write_page(shown, written)
    return written


class Page:
    """A page that is open, and what one does with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        self.driver.get(path.as_uri())
        self.wait(lambda: self.js("return document.querySelector('#table table') !== null"))

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def wait(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda _: condition())

    def cdp(self, command: str, **parameters: object) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def turn_into_a_phone(self) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=390,
            height=844,
            deviceScaleFactor=2,
            mobile=True,
        )

    def wait_until_it_fits(self) -> None:
        """Wait until a phone shows it without scrolling sideways; charts do a moment later."""
        self.wait(lambda: self.js("return document.documentElement.scrollWidth") == 390)

    def click(self, selector: str) -> None:
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.one(selector))
        self.one(selector).click()

    def press(self, selector: str, *keys: str) -> None:
        self.js("arguments[0].focus()", self.one(selector))
        ActionChains(self.driver).send_keys(*keys).perform()

    def choose(self, selector: str, value: str) -> None:
        Select(self.one(selector)).select_by_value(value)

    def methods(self) -> list[str]:
        names: list[str] = self.js(
            "return [...document.querySelectorAll('#table tbody tr')]"
            ".map((row) => row.dataset.method)"
        )
        return names

    def traces(self, chart: str = "curves") -> list[str]:
        """The methods whose lines are drawn, in the figure itself and not only in its data."""
        names: list[str] = self.js(
            "const plot = document.querySelector(arguments[0]);"
            "return plot.calcdata.map((points) => points[0].trace)"
            ".filter((trace) => trace.hovertemplate && trace.yaxis === 'y')"
            ".map((trace) => trace.name)",
            f"#{chart}-chart .chart",
        )
        drawn = self.all(f"#{chart}-chart .scatterlayer .trace")
        assert len(drawn) >= len(names)
        return names


@pytest.fixture
def page(driver: Any, path: Path) -> Iterator[Page]:
    """The page just opened; whatever a test does, nothing may be asked of a network or go wrong."""
    opened = Page(driver)
    opened.cdp("Network.enable")
    opened.cdp(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=0,
        uploadThroughput=0,
    )
    opened.cdp("Emulation.setEmulatedMedia", features=[])
    opened.cdp("Emulation.clearDeviceMetricsOverride")
    opened.cdp("Emulation.setTouchEmulationEnabled", enabled=False)
    driver.get_log("browser")
    driver.get_log("performance")
    opened.open(path)
    yield opened
    asked = [
        message["params"]["request"]["url"]
        for entry in driver.get_log("performance")
        for message in (json.loads(entry["message"])["message"],)
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked, "the page itself is among what was asked for"
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    said = [entry["message"] for entry in driver.get_log("browser")]
    assert said == [], "nothing on the console"


def test_the_page_says_what_was_compared(page: Page, shown: Comparison) -> None:
    assert page.driver.title == shown.title
    assert page.one("h1").text == shown.title
    assert [p.text for p in page.all("#summary p")] == shown.summary
    text = page.one("#facts").text
    for fact in ("tuned", "8 per method", "partly synthetic", "cosine"):
        assert fact in text
    assert page.one("#results-heading").text == "Results on digits"
    assert "2.4.6" in page.one("#environment").text


def test_hovering_over_a_curve_tells_its_value(page: Page, shown: Comparison) -> None:
    curves = [c for c in shown.curves if (c.task, c.method) == ("digits", "badm-printed")]
    index = len(curves[0].evaluated) // 2
    values = [float(f"{c.validation['accuracy'][index]:.6g}") for c in curves]
    page.click("#y-axis label:has([value='linear'])")  # the close-up leaves this one out
    plot = page.one("#curves-chart .chart")
    page.js("arguments[0].scrollIntoView({block: 'center'})", plot)
    x, y = page.js(
        "const plot = arguments[0];"
        "const trace = plot.data.findIndex((one) => one.name === 'badm-printed');"
        "const {x, y} = plot.data[trace];"
        "const {xaxis, yaxis} = plot._fullLayout;"
        "const box = plot.getBoundingClientRect();"
        "return [box.left + xaxis._offset + xaxis.d2p(x[arguments[1]]),"
        "        box.top + yaxis._offset + yaxis.d2p(y[arguments[1]])]",
        plot,
        index,
    )
    mouse = ActionChains(page.driver)
    mouse.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    mouse.perform()
    page.wait(lambda: page.all("#curves-chart .hoverlayer .hovertext"))
    lines = page.js(
        "return [...document.querySelectorAll('#curves-chart .hovertext .line')]"
        ".map((line) => line.textContent)"
    )
    assert lines[0] == "badm-printed"
    assert lines[1].startswith(f"step {curves[0].evaluated[index]}, ")
    name, value, unit = lines[2].split()
    assert (name, unit) == ("accuracy", "%")
    assert float(value) == pytest.approx(100 * sum(values) / len(values), rel=1e-5)
    low, high = (100 * end for end in (min(values), max(values)))
    assert lines[3].split()[1::3] == [f"{low:.6g}", f"{high:.6g}"]


def test_the_arrow_keys_read_a_figure(page: Page) -> None:
    page.press("#curves-chart .chart", Keys.ARROW_RIGHT)
    first = page.wait(lambda: page.one("#curves-chart .reading").text)
    page.press("#curves-chart .chart", Keys.ARROW_RIGHT)
    second = page.one("#curves-chart .reading").text
    page.press("#curves-chart .chart", Keys.ARROW_DOWN)
    third = page.one("#curves-chart .reading").text
    methods = page.traces()
    assert first.startswith(f"{methods[0]}, step 1, ")
    assert second.startswith(f"{methods[0]}, step ")
    assert second != first
    assert third.startswith(f"{methods[1]}, step ")
    assert page.all("#curves-chart .hoverlayer .hovertext")
    label = page.one("#curves-chart .chart").get_attribute("aria-label")
    assert label.startswith("validation accuracy of 12 methods on digits, over steps")


def test_a_method_goes_and_comes_back_by_mouse_and_by_keyboard(page: Page) -> None:
    before = page.traces()
    box = "#curves-chart input[name='adam']"
    page.click(f"#curves-chart label:has({box[14:]})")
    without = [name for name in before if name != "adam"]
    assert page.traces() == without
    assert page.traces("sensitivity").count("adam") == 0, "in every figure"
    assert not page.one("#profile-chart input[name='adam']").is_selected()
    page.press(box, Keys.SPACE)
    assert page.traces() == before
    assert page.driver.switch_to.active_element.get_attribute("name") == "adam", "focus stays"
    page.press("#curves-chart button[name='Only BADM']", Keys.ENTER)
    assert all(name.startswith("badm") for name in page.traces())
    page.click("#curves-chart button[name='Hide all']")
    assert page.traces() == []
    page.click("#curves-chart button[name='Show all']")
    assert page.traces() == before


def test_a_line_stands_out_while_its_name_is_pointed_at_or_focused(page: Page) -> None:
    opacities = (
        "return Object.fromEntries(document.querySelector('#curves-chart .chart').data"
        ".filter((trace) => trace.text).map((trace) => [trace.name, trace.opacity ?? 1]))"
    )
    label = page.one("#curves-chart label:has([name='soap'])")
    page.js("arguments[0].scrollIntoView({block: 'center'})", label)
    ActionChains(page.driver).move_to_element(label).perform()
    assert page.js(opacities)["soap"] == 1
    assert page.js(opacities)["badm"] < 0.5
    ActionChains(page.driver).move_to_element(page.one("#curves-heading")).perform()
    assert set(page.js(opacities).values()) == {1}
    page.press("#curves-chart input[name='soap']", Keys.TAB)
    assert page.js(opacities)["soap"] < 0.5
    assert page.js(opacities)["schedule-free"] == 1


def test_a_zoom_lasts_while_methods_come_and_go(page: Page) -> None:
    zoom = "return document.querySelector('#curves-chart .chart')._fullLayout.xaxis.range"
    page.js(
        "Plotly.relayout(document.querySelector('#curves-chart .chart'), {'xaxis.range': [50, 90]})"
    )
    page.click("#curves-chart label:has([name='adam'])")
    assert page.js(zoom) == [50, 90]
    page.click("#x-axis label:has([value='seconds'])")
    assert page.js(zoom) != [50, 90]


def expected_order(shown: Comparison, key: str, ascending: bool) -> list[str]:
    lines = table(shown, shown.tasks[0]).lines
    finished = [line for line in lines if line.status == "finished"]
    order = {
        line.method: line.cells[key].order if key != "method" else line.method for line in lines
    }
    known = [line.method for line in finished if order[line.method] is not None]
    # Python's reverse keeps equal rows in their order, as the page does.
    known.sort(key=lambda name: order[name], reverse=not ascending)  # type: ignore[arg-type, return-value]
    unknown = [line.method for line in finished if order[line.method] is None]
    return known + unknown + [line.method for line in lines if line.status != "finished"]


def test_every_column_sorts_both_ways_and_unfinished_rows_stay_last(
    page: Page, shown: Comparison
) -> None:
    ranked = table(shown, shown.tasks[0])
    assert page.methods() == [line.method for line in ranked.lines]
    firsts = {"method": "low"} | {column.key: column.first for column in ranked.columns}
    assert len(firsts) == 14
    for key, first in firsts.items():
        button = f"#table button[data-key='{key}']"
        for ascending in (first == "low", first != "low"):
            page.press(button, Keys.ENTER) if ascending else page.click(button)
            assert page.methods() == expected_order(shown, key, ascending), (key, ascending)
            sort = page.one(f"#table th:has({button[7:]})").get_attribute("aria-sort")
            assert sort == ("ascending" if ascending else "descending")
            assert page.methods()[-2:] == ["rmsprop", "dladmm"]
    page.press("#table button[data-key='steps']", Keys.SPACE)
    assert page.driver.switch_to.active_element.get_attribute("data-key") == "steps"
    assert page.methods() == expected_order(shown, "steps", True)


def test_rows_that_did_not_finish_say_why_and_misses_say_never(page: Page) -> None:
    assert "diverged in 1 of 3 seeds: seed 1: the loss left the numbers at step 240" in (
        page.one("tr[data-method='rmsprop']").text
    )
    assert "cannot train this task: it trains dense layers" in (
        page.one("tr[data-method='dladmm']").text
    )
    assert page.one("tr[data-method='badm-printed']").text.count("never") == 2
    assert "at the edge of its range" in page.one("tr[data-method='adagrad']").text


def test_axes_switch_between_steps_and_seconds_linear_and_logarithmic(
    page: Page, shown: Comparison
) -> None:
    def layout(path: str) -> Any:
        return page.js(f"return document.querySelector('#curves-chart .chart').layout.{path}")

    def last_x() -> float:
        return float(
            page.js("return document.querySelector('#curves-chart .chart').data.at(-1).x.at(-1)")
        )

    assert (layout("xaxis.title.text"), layout("yaxis.type")) == ("steps", "linear")
    assert last_x() == shown.curves[0].evaluated[-1]
    page.click("#x-axis label:has([value='seconds'])")
    page.click("#y-axis label:has([value='log'])")
    assert (layout("xaxis.title.text"), layout("yaxis.type")) == ("seconds of training", "log")
    assert last_x() < 10
    page.press("#x-axis [value='seconds']", Keys.ARROW_LEFT)
    assert layout("xaxis.title.text") == "steps"
    target = page.js("return document.querySelector('#curves-chart .chart').layout.shapes[0].y0")
    assert target == 95
    page.choose("#metric", "losses:model")
    assert (layout("yaxis.title.text"), layout("yaxis.type")) == ("training loss", "log")
    assert page.js("return document.querySelector('#curves-chart .chart').layout.shapes") is None


def test_the_close_up_shows_where_the_curves_end(page: Page, shown: Comparison) -> None:
    low, high = page.js("return document.querySelector('#curves-chart .chart').layout.yaxis.range")
    ends = [c.validation["accuracy"][-1] for c in shown.curves if c.task == "digits"]
    assert low > 0
    assert low < 95 < high  # the target
    assert low < 100 * max(ends) < high
    page.click("#y-axis label:has([value='linear'])")
    wide = page.js("return document.querySelector('#curves-chart .chart')._fullLayout.yaxis.range")
    assert wide[0] < low


def test_the_band_over_seeds_can_be_had_and_left_out(page: Page) -> None:
    bands = "return document.querySelectorAll('#curves-chart .fills path').length"
    assert page.js(bands) == 0  # thirteen methods: a fog
    page.click("#band")
    assert page.js(bands) == 12


def test_another_task_changes_everything_that_belongs_to_a_task(page: Page) -> None:
    page.choose("#task", "cgan-mnist")
    assert page.one("#results-heading").text == "Results on cgan-mnist"
    assert page.one("#table button[data-key='test']").text.startswith("test kid")
    metrics = [option.text for option in page.all("#metric option")]
    assert metrics == [
        "validation kid",
        "validation entropy",
        "training loss of the generator",
        "training loss of the discriminator",
    ]
    page.choose("#metric", "losses:generator")
    assert not page.one("#y-axis [value='log']").is_enabled(), "it has negative values"
    pictures = page.all("#artifacts img")
    assert len(pictures) == 22  # of eleven methods at two moments
    page.wait(lambda: page.js("return arguments[0].naturalWidth", pictures[0]) == 56)
    page.choose("#artifacts-controls select", "600")
    (last, *others) = page.all("#artifacts figure img")
    assert len(others) == 10
    before = last.get_attribute("src")
    page.choose("#artifacts-controls select", "300")
    assert page.one("#artifacts figure img").get_attribute("src") != before
    page.choose("#task", "mlm-pretrain")
    assert page.one("#sensitivity").get_attribute("hidden") is not None
    assert "I have watched this [mask]" in page.one("#artifacts pre").text


def test_samples_stand_side_by_side_over_training(page: Page, shown: Comparison) -> None:
    """A column for each method, a row for each step: each picture in its place."""
    page.choose("#task", "cgan-mnist")
    own = [one for one in shown.artifacts if one.task == "cgan-mnist"]
    steps = sorted({one.step for one in own})
    assert len(steps) == 2
    assert page.all("#artifacts figure") == []
    heads = [head.text for head in page.all("#artifacts thead th")]
    methods = [m.name for m in shown.methods if any(one.method == m.name for one in own)]
    assert heads == ["step", *methods]
    pictures = {(one.step, one.method): one.picture for one in own}
    rows = page.all("#artifacts tbody tr")
    assert [row.find_element("css selector", "th").text for row in rows] == list(map(str, steps))
    for step, row in zip(steps, rows, strict=True):
        for method, cell in zip(methods, row.find_elements("css selector", "td"), strict=True):
            image = cell.find_element("css selector", "img")
            assert image.get_attribute("src") == pictures[step, method]
            assert f"{method}, step {step}" in image.get_attribute("alt")
    page.choose("#task", "mlm-pretrain")  # of one moment
    assert page.all("#artifacts table") == []


def test_hostile_texts_are_texts(page: Page) -> None:
    page.choose("#task", "mlm-pretrain")
    assert page.one("#description").get_property("textContent") == HOSTILE
    assert page.one("#notes-list li:last-child").get_property("textContent") == HOSTILE
    for details in page.all("details"):
        page.js("arguments[0].open = true", details)
    assert page.js("return window.hacked") is None
    assert page.all("main script, main b b, main img[src=x]") == []


def test_hostile_names_of_methods_are_drawn_as_names(page: Page, tmp_path: Path) -> None:
    base = comparison(tasks=1, methods=3, title=HOSTILE)
    name = "</text><a href='https://example.org'>%{x} $y$</a>"

    def change(parts: list[Any]) -> list[Any]:
        return [replace(part, method=name) if part.method == "badm" else part for part in parts]

    hostile = replace(
        base,
        methods=[replace(base.methods[0], name=name), *base.methods[1:]],
        rows=change(base.rows),
        curves=change(base.curves),
        tried=change(base.tried),
        profile=None,
    )
    write_page(hostile, tmp_path / "hostile.html")
    page.open(tmp_path / "hostile.html")
    page.press("#curves-chart .chart", Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
    first_line = "return document.querySelector('#curves-chart .hovertext .line')?.textContent"
    page.wait(lambda: page.js(first_line) == name)
    assert page.all("#curves-chart svg a") == []
    assert page.js("return window.hacked") is None
    assert page.one("h1").get_property("textContent") == HOSTILE


def colours(page: Page) -> tuple[str, str, str]:
    """Of the page, of the axes, of a line."""
    return tuple(  # type: ignore[return-value]
        page.js(
            "const style = (s) => getComputedStyle(document.querySelector(s));"
            "return [style('body').backgroundColor, style('#curves-chart .xtick text').fill,"
            " style('#curves-chart .scatterlayer .trace:last-child .js-line').stroke]"
        )
    )


def test_the_theme_follows_the_system_and_the_button(page: Page) -> None:
    light = colours(page)
    page.cdp(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    # The charts are drawn anew after the rest.
    page.wait(lambda: all(one != other for one, other in zip(light, colours(page), strict=True)))
    dark = colours(page)
    assert page.one("#theme").text == "Light"
    page.click("#theme")
    page.wait(lambda: colours(page) == light)
    page.press("#theme", Keys.ENTER)
    page.wait(lambda: colours(page) == dark)
    assert (
        page.js("return localStorage.length + sessionStorage.length + document.cookie.length") == 0
    )


def test_a_phone_needs_no_sideways_scrolling_and_has_room_for_fingers(page: Page) -> None:
    page.turn_into_a_phone()
    for task in ("digits", "cgan-mnist", "mlm-pretrain"):
        page.choose("#task", task)
        page.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        page.wait(lambda: page.js("return document.querySelector('.scroller.tall table') !== null"))
        page.wait_until_it_fits()
        low = page.js(
            "return [...document.querySelectorAll('button, select, summary, .toggle, .switch,"
            " .segments label')].filter((one) => one.checkVisibility()"
            " && one.getBoundingClientRect().height < 40).map((one) => one.outerHTML)"
        )
        assert low == []
    width = page.js("return document.querySelector('#curves-chart .main-svg').clientWidth")
    assert 300 < width <= 390


def test_the_speed_protocol_has_a_table_and_a_figure_over_tasks(page: Page, tmp_path: Path) -> None:
    assert not page.one("#speed").is_displayed(), "in another protocol"
    made = speed_comparison()
    over_tasks = speed_table(made)
    assert over_tasks is not None
    write_page(made, tmp_path / "speed.html")
    page.open(tmp_path / "speed.html")
    assert page.one("#speed-heading").text == "Speed at equal quality"
    assert page.one("#speed-lead").text == speed_lead(made)
    rows = page.js(
        "return [...document.querySelectorAll('#speed-table tbody tr')]"
        ".map((row) => [row.dataset.method, row.cells[1].innerText.split('\\n')[0]])"
    )
    by_method = {line.method: line for line in over_tasks.lines}
    assert [name for name, _ in rows] == list(by_method)
    shown = dict(rows)
    for name in ("badm-kronecker", "adam", "badm-printed"):
        assert shown[name].startswith(by_method[name].cells["part"].text)
    assert (shown["badm-printed"], shown["dladmm"]) == ("never", "missing")
    methods = [name for name, line in by_method.items() if line.status == "finished"]
    assert sorted(page.traces("speed")) == sorted(methods)
    page.click("#speed-chart label:has([name='muon'])")
    assert "muon" not in page.traces("speed")
    assert "muon" not in page.traces(), "in every figure"
    page.turn_into_a_phone()
    page.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_until_it_fits()


def test_a_finger_on_a_figure_scrolls_the_page(page: Page, path: Path) -> None:
    page.cdp("Emulation.setTouchEmulationEnabled", enabled=True)
    page.open(path)
    assert page.one("#curves-chart .reading").text == "Tap a line to read its values."
    taken = page.js(
        "const target = document.querySelector('#curves-chart .nsewdrag');"
        "const touch = new Touch({identifier: 1, target, clientX: 200, clientY: 200});"
        "const event = new TouchEvent('touchstart', {touches: [touch], changedTouches: [touch],"
        " cancelable: true, bubbles: true});"
        "target.dispatchEvent(event);"
        "return event.defaultPrevented"
    )
    assert not taken


def test_what_is_downloaded_is_what_the_page_shows(
    page: Page, shown: Comparison, tmp_path: Path
) -> None:
    page.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#download-json")
    page.click("#download-csv")
    page.wait(lambda: (tmp_path / "comparison.json").exists())
    page.wait(lambda: (tmp_path / "comparison.csv").exists())
    saved = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert saved["title"] == shown.title
    assert saved["tasks"][2]["description"] == HOSTILE
    assert len(saved["curves"]) == len(shown.curves)
    for one, curve in zip(saved["curves"], shown.curves, strict=True):
        known = [(a, b) for a, b in zip(one["seconds"], curve.seconds, strict=True)]
        assert all(a == float(f"{b:.6g}") for a, b in known)
        assert one["steps"] == curve.steps
    with (tmp_path / "comparison.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["method"]) for row in rows] == [
        (row.task, row.method) for row in shown.rows
    ]
    for saved_row, row in zip(rows, shown.rows, strict=True):
        if row.test is not None:
            assert float(saved_row["test"]) == float(f"{row.test.value:.6g}")
        if row.steps_to_target is not None:
            assert float(saved_row["steps_to_target"]) == row.steps_to_target.value
        assert json.loads(saved_row["setting"]).keys() == row.setting.keys()


def test_every_figure_can_be_read_as_a_table(page: Page, shown: Comparison) -> None:
    for chart, rows in (("curves", 20), ("profile", 30), ("sensitivity", 96)):
        page.click(f"#{chart}-chart summary")
        page.wait(lambda chart=chart: page.all(f"#{chart}-chart tbody tr"))
        assert len(page.all(f"#{chart}-chart tbody tr")) == rows
    page.click("#trials summary")
    page.wait(lambda: page.all("#trials tbody tr"))
    assert "never" in page.one("#trials tbody tr").text
    page.click("#settings summary")
    page.wait(lambda: page.all("#settings tbody tr"))
    assert "lr 0.000316, beta 0.9, nesterov True" in page.one("#settings tbody tr").text


def test_25_methods_with_5_seeds_and_200_points_are_drawn(page: Page, tmp_path: Path) -> None:
    write_page(comparison(tasks=2, methods=25, seeds=5, points=200), tmp_path / "many.html")
    page.open(tmp_path / "many.html")
    assert len(page.traces()) == 22
    assert len(page.all("#table tbody tr")) == 25
    page.choose("#task", "cgan-mnist")
    assert len(page.traces()) == 21


def test_a_comparison_of_nothing_opens(page: Page, tmp_path: Path) -> None:
    base = comparison(tasks=1, methods=13)
    bare = replace(
        base,
        rows=[replace(row, test=None) for row in base.rows],
        curves=[],
        tried=[],
        profile=None,
        artifacts=[],
        notes=[],
    )
    write_page(bare, tmp_path / "bare.html")
    page.open(tmp_path / "bare.html")
    assert page.one("#curves .empty").text == "Nothing to draw here."
    assert not page.one("#profile").is_displayed()
    assert not page.one("#tasks").is_displayed()

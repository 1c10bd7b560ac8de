"""What docs/choosing.md says of the defaults is what was measured."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import badm
from badm.bench.methods import find
from badm.metrics import names

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def test_the_table_of_the_defaults_is_that_of_the_results() -> None:
    speed = json.loads((ROOT / "results/speed/untouched.json").read_text())["speed"]
    rows = [row for row in speed["rows"] if row["method"] == "badm-untouched"]
    (table,) = re.findall(r"<!-- untouched -->\n(.+?)<!-- /untouched -->", PAGE, re.S)
    shown = dict(re.findall(r"^\| ([a-z0-9-]+) \| (\S+) \|$", table, re.M))
    parts = (None if row["part"] is None else round(8 * row["part"]) for row in rows)
    measured = ["never" if part is None else f"{part}/8" for part in parts]
    assert shown == dict(zip((row["task"] for row in rows), measured, strict=True))

    (untouched,) = (one for one in speed["methods"] if one["method"] == "badm-untouched")
    mean = untouched["counted"]
    assert f"{mean['value']:.2f} in the geometric mean" in PAGE
    assert f"{mean['low']:.2f}–{mean['high']:.2f}" in PAGE
    assert f"{untouched['seconds_counted']:.2f} of the seconds" in PAGE


def test_the_results_are_of_the_defaults_as_they_are() -> None:
    speed = json.loads((ROOT / "results/speed/untouched.json").read_text())["speed"]
    settings = [
        part["setting"]
        for row in speed["rows"]
        if row["method"] == "badm-untouched"
        for part in row["parts"]
    ]
    assert all(setting == dict(find("badm").defaults) for setting in settings)
    arguments = inspect.signature(badm.BADM).parameters
    assert find("badm").defaults["lr"] == arguments["lr"].default
    assert find("badm").defaults["beta"] == arguments["beta"].default


def test_every_metric_is_named() -> None:
    for name in names():
        assert f'"{name}"' in PAGE

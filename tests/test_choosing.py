"""What docs/choosing.md says of the defaults is what was measured."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import badm
from badm.bench.methods import find
from badm.metrics import names

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def test_the_results_are_of_the_defaults_as_they_are() -> None:
    measured = json.loads((ROOT / "results/speed/defaults.json").read_text())["defaults"]["badm"]
    assert measured == dict(find("badm").defaults)
    arguments = inspect.signature(badm.BADM).parameters
    assert find("badm").defaults["lr"] == arguments["lr"].default
    assert find("badm").defaults["beta"] == arguments["beta"].default


def test_every_metric_is_named() -> None:
    for name in names():
        assert f'"{name}"' in PAGE

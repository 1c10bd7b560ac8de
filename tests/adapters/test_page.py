"""The page on JAX and Keras: its examples run, and its table is that of the results."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import ROOT

DTYPES = ("float64", "float32", "bfloat16", "float16")
PAGE = ROOT / "docs" / "jax-and-keras.md"


def run(section: str) -> dict[str, Any]:
    """Run the blocks of a section one after another, as somebody who copies them would."""
    text = PAGE.read_text(encoding="utf-8")
    (part,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", text, re.M | re.S)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", part, re.M | re.S):
        exec(block, names)
    return names


@pytest.mark.slow
def test_the_examples_for_jax_train() -> None:
    pytest.importorskip("jax")
    names = run("JAX")
    assert names["losses"][-1] < names["losses"][0] / 10
    # What a change from AdamW leads to is still an optimizer of these parameters.
    names["step"](names["params"], names["optimizer"].init(names["params"]), names["x"], names["y"])


@pytest.mark.slow
def test_the_examples_for_keras_train(keras: ModuleType) -> None:
    keras.utils.set_random_seed(0)
    names = run("Keras")
    losses = names["history"].history["loss"]
    assert losses[-1] < losses[0] / 2
    names["model"].fit(names["x"], names["x"][:, :1], verbose=0)


def test_the_table_of_deviations_is_that_of_the_results() -> None:
    (table,) = re.findall(
        r"<!-- deviations -->\n(.*?)<!-- /deviations -->", PAGE.read_text("utf-8"), re.S
    )
    largest = json.loads((ROOT / "results" / "adapters.json").read_text("utf-8"))["largest"]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]
    assert len(rows) == sum(map(len, largest.values()))
    for program, metric, *cells in rows:
        shown = largest[program][metric]
        assert cells == [f"{shown[dtype]:.0e}" if dtype in shown else "" for dtype in DTYPES]

"""How each method is drawn, in the page and on paper alike.

Every method has its own combination of colour, dash and marker: lines can be told apart without
colour. BADM's lines are solid and thick, the others dashed and thin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from badm.bench.records.comparisons import MethodInfo

# Hues after Okabe and Ito, which stay apart for colour-blind eyes; each twice, dark enough for
# white paper and light enough for a dark page.
COLOURS = (
    ("#0a66b0", "#5eb0f2"),  # blue
    ("#c94f0c", "#ff8f55"),  # vermilion
    ("#00805f", "#41cda2"),  # green
    ("#b23f86", "#ee95cb"),  # pink
    ("#a37200", "#e9bb45"),  # ochre
    ("#6951bd", "#b09cff"),  # violet
    ("#1e8ba8", "#7bd9ef"),  # sky
    ("#5d6672", "#aab4c0"),  # grey
)
DASHES = ((6.0, 3.0), (2.0, 2.0), (7.0, 2.5, 2.0, 2.5), (12.0, 3.0))  # in pixels: drawn, left out
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x")


@dataclass(frozen=True)
class Style:
    light: str  # the colour on a light page
    dark: str
    dash: tuple[float, ...]  # empty: solid
    marker: str
    width: float


def styles(methods: Sequence[MethodInfo]) -> dict[str, Style]:
    """By method, no two alike for up to 8 of BADM's and 32 others."""
    ours = [method.name for method in methods if method.family == "badm"]
    others = [method.name for method in methods if method.family != "badm"]
    made = {name: _style(i, (), 3.0) for i, name in enumerate(ours)}
    for i, name in enumerate(others):
        # The second round of colours has the next dash, so that no combination comes twice.
        made[name] = _style(i + len(ours), DASHES[(i + i // len(COLOURS)) % len(DASHES)], 1.7)
    return {method.name: made[method.name] for method in methods}


def _style(index: int, dash: tuple[float, ...], width: float) -> Style:
    light, dark = COLOURS[index % len(COLOURS)]
    return Style(light, dark, dash, MARKERS[index % len(MARKERS)], width)

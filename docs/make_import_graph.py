"""Draw docs/architecture.svg, the rooms of badm and their imports, from the code itself.

    python docs/make_import_graph.py

Every import between two rooms is shown once with its count: as an arrow, as ``→ room`` in a bar at
the top, or as ``← room`` in a bar at the bottom or in a box of the library.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import grimp

PICTURE = Path(__file__).with_name("architecture.svg")
Edges = Mapping[tuple[str, str], int]

CONTRACTS = ("task", "training_function", "method", "paper")
HELPERS = ("errors", "files", "formatting", "names")
LIBRARY = ("adapters", "metrics", "paper", "distributed", "checks", "processes")


def room(module: str) -> str:
    """Return the room of a module.

    >>> room("badm.bench.tasks.digits"), room("badm.bench.task"), room("badm.optimizer")
    ('tasks', 'contracts', 'badm')
    """
    _, *path = module.split(".")
    if path[:1] in (["cli"], ["commands"], ["__main__"]):
        return "commands"
    if path[:1] != ["bench"]:
        return path[0] if path and path[0] in LIBRARY else "badm"
    if len(path) == 1:
        return "bench"
    if path[1] in CONTRACTS:
        return "contracts"
    return "helpers" if path[1] in HELPERS else path[1]


def edges() -> Edges:
    """Count the imports between rooms: how many modules of one import how many of the other."""
    graph = grimp.build_graph("badm", exclude_type_checking_imports=True, cache_dir=None)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            found[room(module), room(imported)] += 1
    return {pair: found[pair] for pair in sorted(found) if pair[0] != pair[1]}


@dataclass(frozen=True)
class Box:
    """A room: its corner and size in grid units, its title and what it is for."""

    x: float
    y: float
    width: float
    title: str
    purpose: str
    height: float = 1.0
    bar: str = ""  # "top" lists what it imports as text, "bottom" what imports it


def _bar(y: float, title: str, purpose: str, bar: str) -> Box:
    return Box(0, y, 14.4, title, purpose, 1.25, bar)


BOXES = {
    "commands": _bar(0, "badm.commands, badm.cli", "parse, call and print", "top"),
    "bench": _bar(2.3, "badm.bench", "the functions and classes people use", "top"),
    "reproduce": _bar(3.9, "reproduce", "the paper's tables, ours beside them", "top"),
    "compare": Box(1.2, 5.75, 13.2, "compare", "which runs make a comparison: protocol, search"),
    "report": Box(1.2, 7.65, 2.7, "report", "page, tables, figures"),
    "engine": Box(8.2, 7.65, 3.5, "engine", "one run, from seed to result"),
    "analysis": Box(1.2, 9.55, 4.3, "analysis", "statistics, summaries, sentences"),
    "methods": Box(6.4, 9.55, 3.2, "methods", "optimizers to compare"),
    "tasks": Box(10.5, 9.55, 3.9, "tasks", "data, model, loss, score"),
    "models": Box(10.5, 11.45, 2.1, "models", "networks"),
    "data": Box(10.5, 13.35, 3.9, "data", "datasets: fetch, verify, read"),
    "records": _bar(15.0, "records", "what is written down: runs, plans, comparisons", "bottom"),
    "user_code": _bar(16.5, "user_code", "files of the user's own, executed", "bottom"),
    "contracts": _bar(18.0, "task, training_function, method, paper", "the contracts", "bottom"),
    "helpers": _bar(19.5, "errors, files, formatting, names", "the helpers", "bottom"),
    "adapters": Box(0, 21.65, 14.4, "badm.adapters", "the metrics in JAX and in Keras"),
    "paper": Box(0, 24.1, 3.0, "paper", "word for word", 1.8),
    "badm": Box(3.9, 24.1, 6.1, "badm", "optimizer, update, groups", 1.8),
    "metrics": Box(1.4, 26.8, 6.3, "metrics", "one file per metric", 1.4),
    "distributed": Box(4.6, 29.1, 5.4, "distributed", "replicas, ranks, fsdp", 1.8),
    "checks": Box(0, 31.8, 10.0, "checks", "checks of arguments"),
    "processes": Box(10.4, 24.1, 4.0, "processes", "signals, parent death", 2.2),
}

LIBRARY_TOP = 23.5

# Where each arrow runs down: its x.
ARROWS = {
    ("compare", "report"): 2.5,
    ("compare", "analysis"): 4.7,
    ("compare", "methods"): 7.3,
    ("compare", "engine"): 9.95,
    ("compare", "tasks"): 12.9,
    ("report", "analysis"): 2.5,
    ("engine", "methods"): 8.8,
    ("engine", "tasks"): 11.1,
    ("tasks", "models"): 11.5,
    ("tasks", "data"): 13.5,
    ("models", "data"): 11.5,
    ("badm", "metrics"): 5.6,
    ("badm", "distributed"): 9.0,
    ("paper", "metrics"): 2.2,
    ("paper", "checks"): 0.7,
    ("metrics", "distributed"): 6.4,
    ("distributed", "checks"): 7.7,
}

X_UNIT, Y_UNIT = 58, 40  # pixels
MARGIN = 24
LETTER = 6.8  # pixels of a letter of 12 px, at most on average
CAPTION = (
    "Imports point down. An arrow has the number of imports;",
    "so has “← tasks …” in a box that tasks imports,",
    "and “→ engine …” in a box that imports engine.",
)
STYLE = """
  svg { background: #fff; }
  .room { fill: #eef3fb; stroke: #4a6fa5; }
  .bar { fill: #f6f2e7; stroke: #a08a4f; }
  .library { fill: #eaf5ee; stroke: #4f8f66; }
  .panel { fill: none; stroke: #c9ced6; stroke-dasharray: 4 4; }
  .arrow { fill: none; stroke: #44546a; stroke-width: 1.6; marker-end: url(#head); }
  .head { fill: #44546a; }
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2937; }
  .title { font-size: 15px; font-weight: 600; }
  .purpose { font-size: 12px; font-weight: 400; fill: #4b5563; }
  .uses { font-size: 12px; fill: #6b5a24; }
  .count { font-size: 12px; font-weight: 600; fill: #44546a; }
  .heading { font-size: 13px; fill: #6b7280; }
"""


def draw(found: Edges) -> str:
    """Return the picture as SVG; raise if there is a room or an arrow that it has no place for."""
    rooms = {name for pair in found for name in pair}
    if unknown := rooms - set(BOXES):
        raise ValueError(f"no box for {', '.join(sorted(unknown))}: add one to BOXES")
    parts = [
        *(_text(1.2, 12.0 + 0.5 * n, "heading", line) for n, line in enumerate(CAPTION)),
        _panel(1.65, 19.5, "badm.bench: the evaluation"),
        _panel(LIBRARY_TOP - 0.05, 9.75, "badm: the library, which imports torch and nothing else"),
        *(part for pair, count in found.items() if pair in ARROWS for part in _arrow(pair, count)),
        *(part for name, box in BOXES.items() for part in _box(name, box, found)),
    ]
    left, width = MARGIN + round(0.4 * X_UNIT), round(15.2 * X_UNIT) + 2 * MARGIN
    height = round(33.1 * Y_UNIT) + 2 * MARGIN
    recorded = json.dumps([[*pair, count] for pair, count in found.items()])
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="-{left} -{MARGIN} {width} {height}" \
role="img" aria-label="The rooms of badm and their imports">
<metadata id="imports">{recorded}</metadata>
<style>{STYLE}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>
{body}
</svg>
"""


def _box(name: str, box: Box, found: Edges) -> Iterator[str]:
    kind = "bar" if box.bar else "library" if box.y > LIBRARY_TOP else "room"
    yield (
        f'<rect class="{kind}" x="{_x(box.x)}" y="{_y(box.y)}" width="{_x(box.width)}" '
        f'height="{_y(box.height)}" rx="7"/>'
    )
    uses = _uses(name, found)
    if box.bar:
        yield _text(box.x + 0.25, box.y + 0.52, "title", box.title, box.purpose)
        yield _text(box.x + 0.25, box.y + 1.0, "uses", uses)
        return
    lines = textwrap.wrap(uses, int(box.width * X_UNIT / LETTER) - 3, break_on_hyphens=False)
    texts = [("title", box.title), ("purpose", box.purpose), *(("uses", line) for line in lines)]
    if 0.42 + 0.4 * (len(texts) - 1) > box.height:
        raise ValueError(f"{box.title} needs a higher or a wider box for {uses}")
    for line, (style, text) in enumerate(texts):
        yield _text(box.x + 0.2, box.y + 0.42 + 0.4 * line, style, text)


def _uses(name: str, found: Edges) -> str:
    """List the imports that no arrow shows: of a bar at the top, or by others of this room."""
    if BOXES[name].bar == "top":
        return "→ " + _listed({b: n for (a, b), n in found.items() if a == name and _above(b)})
    by = {
        a: n
        for (a, b), n in found.items()
        if b == name and (a, b) not in ARROWS and not (BOXES[a].bar == "top" and _above(b))
    }
    if by and _above(name):
        raise ValueError(f"no arrow from {', '.join(by)} to {name}: add one to ARROWS")
    return "← " + _listed(by) if by else ""


def _above(name: str) -> bool:
    """Whether a room is above those that list what imports them: bottom bars and the library."""
    return BOXES[name].bar != "bottom" and BOXES[name].y < LIBRARY_TOP


def _listed(counts: Mapping[str, int]) -> str:
    return " · ".join(
        f"{n}\N{NO-BREAK SPACE}{counts[n]}" for n in sorted(counts, key=lambda n: (-counts[n], n))
    )


def _arrow(pair: tuple[str, str], count: int) -> Iterator[str]:
    above, below, x = BOXES[pair[0]], BOXES[pair[1]], ARROWS[pair]
    top = above.y + above.height
    yield f'<path class="arrow" d="M{_x(x)} {_y(top)}V{_y(below.y)}"/>'
    yield _text(x + 0.12, top + 0.58, "count", str(count))


def _panel(y: float, height: float, heading: str) -> str:
    return (
        f'<rect class="panel" x="{_x(-0.4)}" y="{_y(y)}" width="{_x(15.2)}" '
        f'height="{_y(height)}" rx="10"/>' + _text(0, y + 0.42, "heading", heading)
    )


def _text(x: float, y: float, kind: str, text: str, purpose: str = "") -> str:
    more = f'<tspan class="purpose" dx="10">{escape(purpose)}</tspan>' if purpose else ""
    return f'<text class="{kind}" x="{_x(x)}" y="{_y(y)}">{escape(text)}{more}</text>'


def _x(units: float) -> str:
    return f"{units * X_UNIT:g}"


def _y(units: float) -> str:
    return f"{units * Y_UNIT:g}"


if __name__ == "__main__":
    PICTURE.write_text(draw(edges()), encoding="utf-8")

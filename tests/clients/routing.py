"""The routing of all architectures as data; run it to write results/routing.json.

python -m tests.clients.routing
"""

from __future__ import annotations

import json
from collections import Counter
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

from torch import nn

from badm import BADM, explain
from tests.clients.architectures import ARCHITECTURES, Architecture, Labels
from tests.helpers import ROOT

FILE = ROOT / "results" / "routing.json"


def kinds(model: nn.Module) -> dict[str, str]:
    """What each trained parameter with two or more dimensions is taken to be."""
    rows = explain(BADM(model), model).rows
    return {row.name: row.kind for row in rows if len(row.shape) > 1 and row.used}


def labelled(name: str, labels: Labels) -> str:
    found = [
        kind
        for kind, patterns in labels.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    assert len(found) < 2, f"{name} has two labels: {found}"
    return found[0] if found else "matrix"


def misses(architecture: Architecture, found: dict[str, str]) -> dict[str, tuple[str, str]]:
    """name → (label, what it was taken to be), where they differ"""
    wanted = {name: labelled(name, architecture.labels) for name in found}
    return {name: (wanted[name], kind) for name, kind in found.items() if kind != wanted[name]}


def table() -> dict[str, Any]:
    rows = []
    for name, architecture in ARCHITECTURES.items():
        found = kinds(architecture.make())
        wrong = misses(architecture, found)
        rows.append(
            {
                "architecture": name,
                **dict(Counter(found.values())),
                "right": len(found) - len(wrong),
                "misses": {each: architecture.misses[each] for each in wrong},
            }
        )
    packages = ("torch", "transformers", "peft")
    return {"versions": {name: version(name) for name in packages}, "rows": rows}


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")

"""Results over many tasks: counts, gaps to the paper, learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sources.comparisons import NODES, comparisons, gap, setting, steps
from sources.studies import fashion_median

REPRODUCED = (
    "node-classification",
    "molecule",
    "image-classification",
    "detection",
    "image-generation",
    "image-generation-example",
    "diffusion",
    "text-classification",
    "language-model",
)
ON_FASHION = {"badm": "BADM spectral", "badm-kronecker": "BADM kronecker"}
TUNED = ("image-cifar10", "image-svhn", "image-cmaterdb", "mlm-pretrain")


def against_adam(method: str, files: Iterable[str] = REPRODUCED) -> tuple[int, int, int]:
    """Count tasks on which a method needs fewer steps to the target than Adam, as many, and more.

    Tasks on which both miss it are not counted.
    """
    fewer = level = more = 0
    for file in files:
        rows = {(r["task"], r["method"]) for c in comparisons(file) for r in c["rows"]}
        for name in sorted({task for task, _ in rows}):
            if not {(name, method), (name, "adam")} <= rows:
                continue
            ours, theirs = steps(file, name, method), steps(file, name, "adam")
            fewer += ours < theirs
            level += ours == theirs < math.inf
            more += ours > theirs
    return fewer, level, more


def tuned_against_adam(method: str) -> tuple[int, int, int]:
    """Count the same in the tuned comparisons, Fashion-MNIST among them."""
    fewer, level, more = against_adam(method, ("digits", *(f"tuned/{name}" for name in TUNED)))
    ours, theirs = (
        fashion_median(name, "steps_to_target") for name in (ON_FASHION[method], "Adam")
    )
    return fewer + (ours < theirs), level + (ours == theirs), more + (ours > theirs)


def gaps(method: str, file: str = NODES, tasks: str = "") -> list[float]:
    """Return our score minus the paper's for tasks whose name contains ``tasks``, ascending."""
    return sorted(
        gap(file, r["task"], method)
        for c in comparisons(file)
        for r in c["rows"]
        if r["method"] == method and r["paper"] is not None and tasks in r["task"]
    )


def printed_steps() -> list[float]:
    """Return the steps 1/σ of the printed form at the paper's penalties, ascending."""
    return sorted(
        {
            r["setting"]["lr"]
            for file in REPRODUCED
            for c in comparisons(file)
            for r in c["rows"]
            if r["method"] == "badm-printed" and not r["task"].endswith("-example")
        }
    )


def times_adams(file: str, method: str = "badm-diagonal", tasks: str = "") -> list[float]:
    """Return learning rates as multiples of Adam's on the same task, ascending."""
    names = {r["task"] for c in comparisons(file) for r in c["rows"] if r["method"] == method}
    return sorted(
        setting(file, name, method) / setting(file, name, "adam") for name in names if tasks in name
    )

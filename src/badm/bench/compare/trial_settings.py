"""Which settings a search tries: fixed beforehand, spread evenly over the space.

A trial depends on its number alone and not on how others ended, so that several processes can share
a search, in any order and at any time, and a search done twice is the same twice.
"""

from __future__ import annotations

import math
from dataclasses import replace

from scipy.stats import qmc

from badm.bench.method import Choice, Method, Range, Setting, Space

# Of the wide search, the same for all methods. A memory of 0.8 to 0.98 is 5 to 50 steps long, that
# of the second moment 10 to 1,000.
MEMORIES = ("beta", "momentum", "beta1")  # the first that a method has: muon's are both
MEMORY = Range(0.8, 0.98, complement=True)
BETA2 = Range(0.9, 0.999, complement=True)
WEIGHT_DECAY = Range(1e-3, 0.3)


def trial_settings(space: Space, trials: int) -> list[Setting]:
    """``trials`` settings: the middles of equal cells if one thing is searched, else Halton points.

    >>> from badm.bench.method import Range
    >>> [setting["lr"] for setting in trial_settings({"lr": Range(1e-4, 1e-1)}, 3)]
    [0.000316, 0.00316, 0.0316]
    """
    return [
        {name: value_at(part, u) for (name, part), u in zip(space.items(), point, strict=True)}
        for point in design_points(len(space), trials)
    ]


def design_points(dimensions: int, trials: int) -> list[list[float]]:
    """The coordinates of so many trials, between 0 and 1: the same on every machine.

    >>> design_points(1, 2), design_points(2, 2)[0]
    ([[0.25], [0.75]], [0.5, 0.3333333333333333])
    """
    if dimensions <= 1:
        return [[(i + 0.5) / trials] * dimensions for i in range(trials)]
    points: list[list[float]] = qmc.Halton(dimensions, scramble=False).random(trials + 1).tolist()
    return points[1:]  # the first is 0 in all coordinates


def value_at(part: Range | Choice, u: float) -> float | str | bool:
    """The value at ``u`` between 0 and 1; numbers with three digits, for people to read."""
    if isinstance(part, Choice):
        chosen: float | str | bool = part.values[
            min(int(u * len(part.values)), len(part.values) - 1)
        ]
        return chosen
    if part.complement:
        distance = value_at(Range(1 - part.high, 1 - part.low), 1 - u)
        assert isinstance(distance, float)
        return min(max(round(1 - distance, 9), part.low), part.high)
    if part.log:
        value = math.exp(math.log(part.low) + u * (math.log(part.high) - math.log(part.low)))
    else:
        value = part.low + u * (part.high - part.low)
    return min(max(float(f"{value:.3g}"), part.low), part.high)


def searched_space(method: Method, search: str) -> Space:
    """What a search of that name tries of a method.

    >>> from badm.bench.methods import find
    >>> list(searched_space(find("adamw"), "lr"))
    ['lr']
    >>> list(searched_space(find("muon"), "wide"))
    ['lr', 'momentum', 'beta2', 'weight_decay']
    """
    if search == "lr":
        return method.space
    wide = _wide(method) if method.wide_space is None else method.wide_space
    return {name: part for name, part in wide.items() if name not in method.fixed}


def _wide(method: Method) -> Space:
    memory = next((name for name in MEMORIES if name in method.defaults), "")
    wide = dict(method.space)
    for name, part in ((memory, MEMORY), ("beta2", BETA2)):
        # A memory outside the range is what makes the method: none in plain SGD, a long one in QHM.
        if name in method.defaults and part.low <= method.defaults[name] <= part.high:
            wide.setdefault(name, part)
    if "weight_decay" in method.defaults:
        wide.setdefault("weight_decay", WEIGHT_DECAY)
    return wide


def for_sum(space: Space, terms: int) -> Space:
    """The space where a loss is a sum of so many terms, which makes gradients as much longer.

    >>> from badm.bench.method import Range
    >>> for_sum({"lr": Range(1e-3, 1.0, per_gradient=True), "eps": Range(1e-8, 1e-4)}, 500)["lr"]
    Range(low=2e-06, high=0.002, log=True, per_gradient=True)
    """
    return {
        name: replace(part, low=part.low / terms, high=part.high / terms)
        if isinstance(part, Range) and part.per_gradient
        else part
        for name, part in space.items()
    }


def at_edge(space: Space, settings: list[Setting], best: Setting) -> list[str]:
    """What of the best setting is the smallest or largest that was tried: the range may be short.

    >>> from badm.bench.method import Range
    >>> space = {"lr": Range(1e-4, 1e-1)}
    >>> at_edge(space, trial_settings(space, 3), {"lr": 0.0316})
    ['lr']
    >>> at_edge(space, trial_settings(space, 3), {"lr": 0.00316})
    []
    """
    edges = []
    for name, part in space.items():
        tried = {setting[name] for setting in settings}
        if isinstance(part, Range) and len(tried) > 2 and best[name] in (min(tried), max(tried)):
            edges.append(name)
    return edges

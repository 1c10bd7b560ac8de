"""What the trials of a method search: its own space, or settings by name that all methods share.

Settings by name (``--search lr,weight_decay,beta``) are tried at the points of one design for all
methods: a method that has only some of them takes the same values of these as the others do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from badm.bench.compare.trial_settings import (
    BETA2,
    MEMORIES,
    MEMORY,
    WEIGHT_DECAY,
    design_points,
    for_sum,
    searched_space,
    value_at,
)
from badm.bench.errors import ProtocolError
from badm.bench.method import Choice, Method, Range, Setting, Space
from badm.bench.methods.sources import read_value
from badm.bench.names import suggestion
from badm.bench.records.plans import Plan

NAMED = ("lr", "wide")  # searches that have a name of their own
SHARED: Mapping[str, Range] = {
    **dict.fromkeys(MEMORIES, MEMORY),
    "beta2": BETA2,
    "weight_decay": WEIGHT_DECAY,
}


@dataclass(frozen=True)
class Design:
    """Which settings of a method are tried, and at which coordinates of the design."""

    space: Space
    columns: Mapping[str, int]
    dimensions: int

    def settings(self, trials: int) -> list[Setting]:
        """The settings of so many trials; without anything to search, as many empty ones."""
        points = design_points(self.dimensions, trials)
        return [
            {name: value_at(part, point[self.columns[name]]) for name, part in self.space.items()}
            for point in points
        ]


def design(method: Method, plan: Plan, terms: int = 1) -> Design:
    """The design of a method's search, on a task whose loss has so many terms."""
    ranges = read_ranges(plan.space)
    if plan.search in NAMED or "lr" not in method.defaults:
        space = dict(for_sum(searched_space(method, plan.search), terms))
        space |= {name: part for name, part in ranges.items() if name in space}
        return Design(space, {name: i for i, name in enumerate(space)}, len(space))
    names = searched_names(plan.search)
    space, columns = {}, {}
    for column, name in enumerate(names):
        own = own_name(method, name)
        part = _range(method, name, own, ranges)
        if own and part is not None and own not in method.fixed and own not in space:
            space[own], columns[own] = for_sum({own: part}, terms)[own], column
    return Design(space, columns, len(names))


def searched_names(search: str) -> list[str]:
    """
    >>> searched_names("lr, weight_decay"), searched_names("wide")
    (['lr', 'weight_decay'], ['wide'])
    """
    return [name.strip() for name in search.split(",") if name.strip()]


def own_name(method: Method, name: str) -> str:
    """What a method calls a setting; a memory is ``beta`` of one and ``beta1`` of another.

    >>> from badm.bench.methods import find
    >>> [own_name(find(method), "beta") for method in ("badm", "muon", "adamw", "dladmm")]
    ['beta', 'momentum', 'beta1', '']
    """
    if name in method.defaults:
        return name
    if name in MEMORIES:
        return next((memory for memory in MEMORIES if memory in method.defaults), "")
    return ""


def _range(
    method: Method, name: str, own: str, ranges: Mapping[str, Range | Choice]
) -> Range | Choice | None:
    """What is tried of a setting; ``None`` where its default is what makes the method."""
    if name in ranges:
        return ranges[name]
    if own in ranges:
        return ranges[own]
    if own in method.space:
        return method.space[own]
    shared = SHARED.get(own) or SHARED.get(name)
    default = method.defaults.get(own)
    if shared is not None and own in (*MEMORIES, "beta2"):
        return (
            shared if isinstance(default, float) and shared.low <= default <= shared.high else None
        )
    return shared


def read_ranges(texts: Sequence[str]) -> dict[str, Range | Choice]:
    """Read ``lr=1e-4..1e-1``, searched on a logarithmic scale, or ``nesterov=true|false``.

    >>> read_ranges(["lr=1e-4..1e-1", "beta=0.8..0.98"])["lr"]
    Range(low=0.0001, high=0.1, log=True, per_gradient=False)
    >>> read_ranges(["nesterov=true|false"])["nesterov"].values
    (True, False)
    """
    ranges: dict[str, Range | Choice] = {}
    for text in texts:
        name, equals, given = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and equals and given):
            raise ProtocolError(_bad_range(text))
        if name in ranges:
            raise ProtocolError(f"space must have every name once, got {name} twice")
        if "|" in given:
            ranges[name] = Choice(tuple(read_value(value.strip()) for value in given.split("|")))
        else:
            ranges[name] = _read_range(name, text, given)
    return ranges


def _read_range(name: str, text: str, given: str) -> Range:
    ends = re.fullmatch(r"(.+?)\.\.(.+)", given)
    try:
        low, high = (float(end) for end in ends.groups()) if ends else (math.nan, math.nan)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ProtocolError(_bad_range(text))
    if low >= high:
        raise ProtocolError(f"space must have a low end below its high end, got {text!r}")
    complement = name in (*MEMORIES, "beta2") and low >= 0 and high < 1
    return Range(low, high, log=low > 0, complement=complement)


def _bad_range(text: str) -> str:
    return f"space must be name=low..high, such as lr=1e-4..1e-1, or name=one|other, got {text!r}"


def read_stated(texts: Sequence[str]) -> Setting:
    """Read ``weight_decay=0.1`` and the like.

    >>> read_stated(["weight_decay=0.1", "nesterov=true"])
    {'weight_decay': 0.1, 'nesterov': True}
    """
    stated: dict[str, Any] = {}
    for text in texts:
        name, equals, given = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and equals and given):
            raise ProtocolError(f"set must be name=value, such as weight_decay=0.1, got {text!r}")
        if name in stated:
            raise ProtocolError(f"set must have every name once, got {name} twice")
        stated[name] = read_value(given)
    return stated


def with_stated(method: Method, texts: Sequence[str]) -> Method:
    """The method with the stated settings that it has, which no search changes."""
    found = {own_name(method, name): value for name, value in read_stated(texts).items()}
    own = {name: _like(method.defaults[name], value) for name, value in found.items() if name}
    if not own:
        return method

    def left(space: Space) -> Space:
        return {name: part for name, part in space.items() if name not in own}

    stated = method.paper

    return replace(
        method,
        defaults=method.setting(own),
        space=left(method.space),
        wide_space=None if method.wide_space is None else left(method.wide_space),
        fixed=method.fixed | own.keys(),
        paper=lambda paper: {
            **(stated(paper) if stated else {} if paper.lr is None else {"lr": paper.lr}),
            **own,
        },
    )


def _like(default: Any, value: Any) -> Any:
    """A whole number as a fraction, where the default is one."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if isinstance(default, float) and is_whole else value


def check_search(plan: Plan, chosen: Sequence[Method]) -> None:
    """Raise ``ProtocolError`` for a search, a range or a setting that no method has."""
    ranges, stated = read_ranges(plan.space), read_stated(plan.stated)
    names = searched_names(plan.search)
    if not names or (len(names) > 1 and any(name in ("wide",) for name in names)):
        raise ProtocolError(
            f"search must be lr, wide or names of settings, such as lr,weight_decay, "
            f"got {plan.search!r}"
        )
    if len(set(names)) < len(names):
        raise ProtocolError(f"search must have every name once, got {plan.search!r}")
    for what, wanted in (("search", [] if plan.search in NAMED else names), ("set", [*stated])):
        for name in wanted:
            if not any(own_name(method, name) for method in chosen):
                known = dict.fromkeys(key for method in chosen for key in method.defaults)
                near = suggestion(name, known)
                raise ProtocolError(
                    f"no method has the setting {name!r} of --{what}; {near}they have "
                    f"{', '.join(known)}"
                )
    for name, part in ranges.items():
        tried = [(m, own) for m in chosen for own in design(m, plan).space if _is(m, own, name)]
        if not tried:
            raise ProtocolError(f"{name} has a range and is not searched: name it in --search too")
        for method, own in tried:
            ends = part.values if isinstance(part, Choice) else (part.low, part.high)
            for value in ends:
                method.setting({own: value})
    if plan.search not in NAMED:
        for name in names:
            owners = [m for m in chosen if own_name(m, name) and own_name(m, name) not in m.fixed]
            if (
                owners
                and name not in ranges
                and not any(own_name(m, name) in {*m.space, *SHARED} for m in owners)
            ):
                raise ProtocolError(
                    f"{name} has no range of its own: give one, such as --space {name}=0.1..10"
                )


def _is(method: Method, own: str, name: str) -> bool:
    return own == name or own_name(method, name) == own


def next_range(part: Range, best: float) -> Range:
    """The range of the same width in which a best value at an edge would be away from it.

    >>> next_range(Range(1e-4, 0.1), 0.0562)
    Range(low=0.01, high=10.0, log=True, per_gradient=False)
    >>> next_range(Range(1e-4, 0.1), 0.000178)
    Range(low=1e-06, high=0.001, log=True, per_gradient=False)
    >>> next_range(MEMORY, 0.979)
    Range(low=0.9569, high=0.99569, log=True, per_gradient=False)
    """
    if part.complement:
        other = next_range(Range(1 - part.high, 1 - part.low), 1 - best)
        low, high = round(1 - other.high, 6), round(1 - other.low, 6)
        return replace(part, low=max(0.0, low), high=high)
    if part.log:
        width = part.high / part.low
        share = math.log(best / part.low) / math.log(width)
        by = width ** (2 / 3 if share > 0.5 else -2 / 3)
        return replace(part, low=_short(part.low * by), high=_short(part.high * by))
    shift = (part.high - part.low) * (2 / 3 if best > (part.low + part.high) / 2 else -2 / 3)
    return replace(part, low=_short(part.low + shift), high=_short(part.high + shift))


def _short(value: float) -> float:
    return float(f"{value:.3g}")

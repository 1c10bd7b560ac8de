"""Conversion of dataclasses and numbers to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

# Fields that came later, with the defaults that are not written.
LATER: dict[str, Any] = {
    "device": "cpu",
    "warmup": 0.0,
    "evaluate_every": 0,
    "part": 1.0,
    "baseline": "",
    "search": "lr",
    "space": (),
    "stated": (),
    "clip_norm": 0.0,
    "epoch_budget": None,
    "second_budget": None,
    "next_ranges": {},
}


def as_saved(record: Any) -> dict[str, Any]:
    """Convert a dataclass and those in it to dicts, leaving out what older files do not state.

    A field of ``LATER`` is left out while it has its default; so older bytes and keys stay the
    same.
    """
    return asdict(record, dict_factory=_without_later_defaults)


def _without_later_defaults(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: x for name, x in fields if name not in LATER or x != LATER[name]}


def finite_or_none(value: Any) -> Any:
    """Replace numbers that JSON does not have by ``None``, in nested data.

    >>> finite_or_none({"steps": [20.0, float("inf")]})
    {'steps': [20.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_none(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_none(part) for part in value]
    return value


def rounded(value: Any, digits: int) -> Any:
    """Round the numbers in nested data to so many significant digits; dataclasses become dicts.

    >>> rounded({"loss": [0.123456789, 2]}, 5)
    {'loss': [0.12346, 2]}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if is_dataclass(value):
        return {one.name: rounded(getattr(value, one.name), digits) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part, digits) for part in value]
    return value

"""Conversion of dataclasses and numbers to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any


def as_saved(record: Any) -> dict[str, Any]:
    """Convert a dataclass and those in it to dicts, leaving out a device that is the CPU.

    Older files do not state a device; so their bytes and keys stay the same.
    """
    return asdict(record, dict_factory=_without_cpu)


def _without_cpu(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if (name, value) != ("device", "cpu")}


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

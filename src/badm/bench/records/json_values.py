"""Data as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite_or_none(value: Any) -> Any:
    """A nest with ``None`` for numbers that JSON does not have.

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

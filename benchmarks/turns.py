"""Ratios of times measured in turns, because absolute times depend on the machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def ratios(times: Sequence[float], against: Sequence[float]) -> dict[str, float]:
    """Return the median, smallest and largest ratio over the turns."""
    each = sorted(a / b for a, b in zip(times, against, strict=True))
    return {
        "ratio": round(statistics.median(each), 4),
        "ratio_min": round(each[0], 4),
        "ratio_max": round(each[-1], 4),
        "ms": round(1e3 * statistics.median(times), 3),
    }

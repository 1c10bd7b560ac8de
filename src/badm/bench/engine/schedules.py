"""Learning-rate schedules: a warm-up, then a decay over the steps that are left."""

from __future__ import annotations

import math
from collections.abc import Callable

# What the learning rate is multiplied by, given the fraction of the steps that is done.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}

MOST_WARMUP = 0.9  # of the steps: a schedule needs some of them


def check_warmup(warmup: float) -> None:
    """Raise ``ValueError`` for a fraction that leaves a schedule no steps, or is none."""
    if not 0 <= warmup <= MOST_WARMUP:
        raise ValueError(f"warmup must be a number from 0 to {MOST_WARMUP}, got {warmup!r}")


def lr_factor(schedule: str, warmup: float, step: int, steps: int) -> float:
    """Return what the learning rate is multiplied by at a step, counted from 1.

    Args:
        schedule: A name in ``SCHEDULES``.
        warmup: Fraction of all steps over which the factor rises linearly to 1.
        step: The step, from 1 to ``steps``.
        steps: Length of the run.

    >>> [lr_factor("linear", 0.5, k, 4) for k in (1, 2, 3, 4)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [lr_factor("linear", 0.0, k, 4) for k in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    rising = round(warmup * steps)
    if step <= rising:
        return step / rising
    return SCHEDULES[schedule]((step - 1 - rising) / (steps - rising))

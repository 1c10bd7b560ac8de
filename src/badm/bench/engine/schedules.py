"""Learning-rate schedules: a warm-up, then a decay over the steps that are left.

Where torch has a schedule, its learning rates are torch's to the bit: of ``LinearLR`` down to 0 and
of ``CosineAnnealingLR``, in the closed form that each of them states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short

from badm.bench.errors import MethodError, described, error_location
from badm.bench.names import suggestion
from badm.bench.user_code.loading import in_file, load
from badm.processes.signals import raised_by_signal

DECAY = 0.2  # of the steps after the warm-up, at the end of wsd: warm up, stay, decay

# What the learning rate is multiplied by, given the steps that are done and how many there are.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda done, steps: 1.0,
    "linear": lambda done, steps: 1 - done / steps,
    "cosine": lambda done, steps: (1 + math.cos(math.pi * done / steps)) / 2,
    "wsd": lambda done, steps: min(1.0, (steps - done) / (DECAY * steps)),
}

# What runs state, where it is not the name: older ones of cosine rounded once more.
STORED = {"cosine": "cosine@2"}
OWN: dict[str, Callable[[int, int], float]] = {}  # the user's functions that were loaded

MOST_WARMUP = 0.9  # of the steps: a schedule needs some of them
POINTS = 100  # at which a user's function is tried before any run


class UnknownSchedule(ValueError):
    """There is no such schedule, or it cannot be one."""


@dataclass(frozen=True)
class Schedule:
    """A schedule that was found: ``stored`` is how runs state it, ``source`` how others find it."""

    stored: str
    source: str = ""  # of a user's function


def find(source: str, folder: Path | None = None) -> Schedule:
    """Find a schedule by name, or a function of the user's in a file: ``mine.py:falls``.

    The function is called with the fraction of the steps after the warm-up that is done, from 0 to
    below 1, and returns what the learning rate is multiplied by.

    >>> find("linear"), find("cosine").stored
    (Schedule(stored='linear', source=''), 'cosine@2')
    >>> find("cosin")
    Traceback (most recent call last):
    badm.bench.engine.schedules.UnknownSchedule: schedule must be one of constant, linear, cosine, \
wsd or a function in a file (my.py:falls), got 'cosin'; did you mean cosine?
    """
    if source in SCHEDULES:
        return Schedule(STORED.get(source, source))
    place = in_file(source)
    if place is None:
        near = suggestion(source, SCHEDULES)
        raise UnknownSchedule(
            f"schedule must be one of {', '.join(SCHEDULES)} or a function in a file "
            f"(my.py:falls), got {source!r}{'; ' if near else ''}{near}".rstrip()
        )
    path, name = place
    loaded = load(path, folder or Path.cwd(), unknown=UnknownSchedule, raised=MethodError)
    function = getattr(loaded.module, name, None)
    if not name or not callable(function):
        names = [
            n for n, x in vars(loaded.module).items() if callable(x) and not isinstance(x, type)
        ]
        near = suggestion(name, names)
        raise UnknownSchedule(
            f"{source} must name a function of the file, as in {path}:falls; {near}".rstrip("; ")
        )
    stored = f"{name}@{loaded.version}"

    def factor(done: int, steps: int) -> float:
        return _checked(source, function, done / steps)

    for point in range(POINTS):
        factor(point, POINTS)
    OWN[stored] = factor
    return Schedule(stored, f"{loaded.file}:{name}")


def _checked(source: str, function: Callable[[float], float], done: float) -> float:
    try:
        factor = function(done)
    except BaseException as error:
        if raised_by_signal(error):
            raise
        where = error_location(error, function.__code__.co_filename)
        raise MethodError(f"schedule {source} raised {described(error)} ({where})") from error
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    if not is_number or not 0 <= factor < math.inf:
        raise UnknownSchedule(
            f"schedule {source} must return a finite number of at least 0, "
            f"got {short(factor)} when {done:g} of the steps are done"
        )
    return float(factor)


def check_warmup(warmup: float) -> None:
    """Raise ``ValueError`` for a fraction that leaves a schedule no steps, or is none."""
    if not 0 <= warmup <= MOST_WARMUP:
        raise ValueError(f"warmup must be a number from 0 to {MOST_WARMUP}, got {warmup!r}")


def lr_factor(schedule: str, warmup: float, step: int, steps: int) -> float:
    """Return what the learning rate is multiplied by at a step, counted from 1.

    Args:
        schedule: A name in ``SCHEDULES``, or as a run states it.
        warmup: Fraction of all steps over which the factor rises linearly to 1.
        step: The step, from 1 to ``steps``.
        steps: Length of the run.

    >>> [lr_factor("linear", 0.5, k, 4) for k in (1, 2, 3, 4)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [lr_factor("linear", 0.0, k, 4) for k in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [round(lr_factor("wsd", 0.0, k, 10), 3) for k in (1, 8, 9, 10)]
    [1.0, 1.0, 1.0, 0.5]
    """
    rising = round(warmup * steps)
    if step <= rising:
        return step / rising
    function = OWN.get(schedule) or SCHEDULES[schedule.partition("@")[0]]
    return function(step - 1 - rising, steps - rising)

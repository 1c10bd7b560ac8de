"""Budgets in epochs and in seconds, turned into the steps that a run takes.

A run has a number of steps, to which its schedule is fitted, whatever the budget is stated in: so
it is the same when it is done again. The steps that a method takes in a second are measured once,
by a short run of its own that is kept like any other.
"""

from __future__ import annotations

import math
import statistics
from functools import lru_cache
from itertools import pairwise

from badm.bench.engine.streams import same_directory
from badm.bench.engine.task_data import load_splits, samples_of
from badm.bench.errors import ProtocolError
from badm.bench.records.runs import Run
from badm.bench.task import MOST
from badm.bench.tasks import FoundTask
from badm.bench.training_function import TrainingFunction

TIMED_STEPS = 32  # of the run that measures how long a step takes


def steps_in_epochs(found: FoundTask, epochs: float) -> int:
    """The steps in so many epochs of a task; this loads its data.

    >>> from badm.bench.tasks import find
    >>> steps_in_epochs(find("digits"), 2)
    36
    """
    return _within(math.ceil(epochs * _steps_per_epoch(found)))


@lru_cache(maxsize=64)
def _steps_per_epoch(found: FoundTask) -> int:
    task = found.task
    if isinstance(task, TrainingFunction):
        if not task.epoch:
            raise ProtocolError(
                f"{task.name} is a training function, whose epochs badm cannot count: state "
                "epoch=..., its steps in an epoch, in @badm.bench.training, or give --steps"
            )
        return task.epoch
    with same_directory():
        return math.ceil(samples_of(task, load_splits(task)) / task.batch_size)


def steps_in(seconds: float, timed: Run) -> int | None:
    """The steps that fit into so many seconds; ``None`` if the short run took none."""
    took = seconds_per_step(timed)
    return None if took is None else _within(max(1, int(seconds / took)))


def seconds_per_step(timed: Run) -> float | None:
    """The median time of a step, or the mean where single steps were not timed."""
    result = timed.result
    at = [(point.step, point.seconds) for point in timed.points if point.losses is not None]
    each = [
        after - before for (earlier, before), (later, after) in pairwise(at) if later == earlier + 1
    ]
    if len(each) >= TIMED_STEPS // 2:
        took = statistics.median(each)
    elif result is not None and result.step:
        took = result.seconds / result.step
    else:
        return None
    return took if took > 0 else None


def _within(steps: int) -> int:
    return max(1, min(steps, MOST))

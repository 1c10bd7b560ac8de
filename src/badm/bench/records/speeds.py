"""How fast methods reach the score of a baseline: plain data, computed from runs.

A part is a fraction of the baseline's budget, in eighths. A method that does not reach the target
at the whole budget never does: its part is ``inf``, and ``null`` in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from badm.bench.records.schema import Count, Measured, Time

PARTS = 8  # of a budget
NEVER_COUNTS = 2.0  # budgets, where a mean must be finite


@dataclass(frozen=True)
class MeasuredPart:
    """A method on a task at one part of the budget, its schedule fitted to that part."""

    part: float
    steps: Count
    setting: dict[str, Any]  # chosen by its own search at this part
    at_edge: list[str]  # settings whose best value is at an end of those tried
    scores: list[Measured]  # last validation score by seed; NaN if the run did not finish
    mean: Measured
    reached: bool
    seconds: Measured  # of training, median over seeds


@dataclass(frozen=True)
class TaskSpeed:
    """A method on a task: the smallest part of the budget at which it reaches the target.

    The costs are those at that part, or at the whole budget where the target is never reached, as
    ratios to the baseline's at the whole budget.
    """

    task: str
    method: str
    status: Literal["reached", "never", "missing"]  # missing: not known yet
    part: Time
    steps: Time  # part × budget
    seconds: Time  # of training until then, over those of the baseline's whole budget
    step_time: Measured  # ratio of seconds per step
    state: Measured  # ratio of the bytes kept between steps; NaN if the baseline keeps none
    parts: list[MeasuredPart]  # in ascending order


@dataclass(frozen=True)
class Bounded:
    """A statistic over tasks with its 95 % interval; one task has none."""

    value: Time
    low: Time
    high: Time


@dataclass(frozen=True)
class MethodSpeed:
    """A method over all tasks that it has a result on: one row of the table over tasks."""

    method: str
    tasks: Count
    never: Count  # of these tasks
    part: Bounded  # geometric mean; infinite as soon as a task is never
    counted: Bounded  # geometric mean with each never counted as ``NEVER_COUNTS`` budgets
    seconds: Time  # geometric mean of the ratios; infinite as soon as a task is never
    seconds_counted: Measured  # with each never counted as that many budgets of its own steps
    step_time: Measured  # geometric mean of the ratios
    state: Measured  # geometric mean of the ratios
    won: Count  # tasks with a smaller part than the reference has
    tied: Count
    lost: Count
    p_value: Measured  # against the reference; NaN for itself and where too few tasks are shared


@dataclass(frozen=True)
class SpeedTarget:
    """What the baseline reaches on a task with its whole budget."""

    task: str
    steps: Count  # the budget
    score: Measured  # mean over seeds of the last validation score; NaN if not known


@dataclass(frozen=True)
class Speeds:
    """The result of the speed protocol."""

    baseline: str
    search: str
    targets: list[SpeedTarget]
    rows: list[TaskSpeed]
    methods: list[MethodSpeed]

"""What a comparison found: plain data, made from runs, that reports and tables are made from.

Everything here goes to JSON and back as it is. Times to a target are ``inf`` where the target was
missed; JSON has ``null`` for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from badm.bench.records import schema
from badm.bench.records.json_values import finite_or_none
from badm.bench.records.schema import Amount, Count, Measured, Time
from badm.bench.task import Score

SCHEMA = 1

Status = Literal["finished", "diverged", "failed", "cannot", "missing"]


@dataclass(frozen=True)
class Interval:
    """A figure over the seeds, with its confidence interval and the values it is made of."""

    value: Time  # mean of scores, median of times
    low: Time
    high: Time
    values: list[Time]  # by seed, in the order of Row.seeds


@dataclass(frozen=True)
class PairedTest:
    """A paired test against the reference method of the comparison."""

    __test__ = False  # for pytest, which takes every class of that name for its own

    against: str
    difference: Measured  # of the means: positive where this row's score is the higher one
    p_value: Measured  # corrected for the number of comparisons


@dataclass(frozen=True)
class ResultRow:
    """A method on a task: one line of the table."""

    task: str
    method: str
    status: Status  # diverged or failed as soon as one seed did
    message: str = ""  # why it is not "finished"
    setting: dict[str, Any] = field(default_factory=dict)
    searched: list[str] = field(default_factory=list)  # the settings that a search chose
    at_edge: list[str] = field(default_factory=list)  # those whose best value ends its range
    good_lr: list[float] | None = None  # from, to: scores almost as good as the best one's
    trials: int = 0
    seeds: list[int] = field(default_factory=list)
    diverged: int = 0  # seeds of which the loss left the numbers
    test: Interval | None = None  # the score on the test split
    validation: Interval | None = None  # the score on the validation split, of the kept weights
    train_loss: Interval | None = None  # at the end
    steps_to_target: Interval | None = None
    gradients_to_target: Interval | None = None
    seconds_to_target: Interval | None = None
    seconds_per_step: float | None = None
    peak_bytes: int | None = None  # of memory, of the process
    state_bytes: int | None = None  # of the trainer
    compared: PairedTest | None = None
    paper: float | None = None  # the figure the paper reports


@dataclass(frozen=True)
class Curve:
    """One run: the training loss at some steps, figures on the validation split at others."""

    task: str
    method: str
    seed: int
    steps: list[Count]
    seconds: list[Amount]  # spent in training until then
    losses: dict[str, list[Measured]]  # by player, mean since the point before
    evaluated: list[Count]  # steps
    evaluated_seconds: list[Amount]
    validation: dict[str, list[Measured]]  # by figure, the score among them


@dataclass(frozen=True)
class Trial:
    """One setting tried in the search; ``score`` is the best on the validation split."""

    task: str
    method: str
    index: int
    setting: dict[str, Any]
    status: Status
    score: float | None = None
    steps_to_target: Time | None = None


@dataclass(frozen=True)
class Artifact:
    """Something a task shows of a trained model: a PNG file (a data URL) or a text."""

    task: str
    method: str
    seed: int
    step: int
    title: str
    picture: str = ""
    text: str = ""


@dataclass(frozen=True)
class TaskInfo:
    """What a reader has to know of a task."""

    name: str
    description: str
    scale: str
    score: str
    best: Literal["high", "low"]
    percent: bool
    steps: Count
    batch_size: Count
    target: float | None
    synthetic: bool
    notes: list[str] = field(default_factory=list)
    version: str = ""  # older files do not say
    data: str = ""  # what tells its data files from others; nothing where it has none
    paper_note: str = ""  # what the paper leaves open about the task; older files do not say
    paper_steps: Count | None = None  # at the paper's scale; older files do not say


def score_from_info(task: TaskInfo) -> Score:
    """The score of a task, from its facts."""
    return Score(task.score, task.best, task.percent)


@dataclass(frozen=True)
class MethodInfo:
    name: str
    description: str
    family: str
    version: str = ""  # with that of the package its code is from; older files do not say


@dataclass(frozen=True)
class PerformanceProfile:
    """For each method the part of all tasks it solves within τ times the steps of the fastest."""

    taus: list[float]
    solved: dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """Everything a report shows."""

    title: str
    created: str  # time of day, ISO 8601
    protocol: Literal["paper", "tuned"]
    objective: Literal["score", "steps"]
    schedule: str
    reference: str  # the method that the tests are against
    trials: int  # for each method; 0 where nothing was searched
    summary: list[str]  # one to three sentences
    tasks: list[TaskInfo]
    methods: list[MethodInfo]
    rows: list[ResultRow]
    curves: list[Curve]
    tried: list[Trial]
    profile: PerformanceProfile | None
    artifacts: list[Artifact]
    environment: dict[str, Any]
    notes: list[str]  # what was skipped, damaged or not measured
    schema: int = SCHEMA


def to_json(comparison: Comparison) -> str:
    """Its numbers as JSON text, infinities and NaN as null; pictures are for pages and folders."""
    numbers = asdict(replace(comparison, artifacts=[]))
    return json.dumps(finite_or_none(numbers), allow_nan=False)


def from_json(text: str) -> Comparison:
    """What :func:`to_json` has written; ``SchemaError`` says what is wrong with it.

    A null is infinite in an interval, where a target was missed, and NaN elsewhere.
    """
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        raise schema.SchemaError("a comparison must be JSON") from None
    return schema.build(Comparison, plain)

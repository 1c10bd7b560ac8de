"""The results of a comparison: plain data, computed from runs, for reports and tables.

Everything here can be saved as JSON and loaded again. Times to a target are ``inf`` if the target
was missed, and ``null`` in JSON.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from badm.bench.records import schema
from badm.bench.records.json_values import finite_or_none, rounded
from badm.bench.records.schema import Amount, Count, Measured, Time
from badm.bench.records.speeds import Speeds
from badm.bench.task import Score

SCHEMA = 1
CURVE_DIGITS = 5  # most of a file is curves
SAVED_ARTIFACTS = "exhibits"  # their name in files, where the list is always empty

Status = Literal["finished", "diverged", "failed", "cannot", "missing"]


@dataclass(frozen=True)
class Interval:
    """A statistic over the seeds, with its 95 % interval and the values of the seeds."""

    value: Time  # mean of scores, median of times
    low: Time
    high: Time
    values: list[Time]  # by seed, in the order of ResultRow.seeds

    @property
    def has_ends(self) -> bool:
        """Whether there is an interval to show; three seeds of which one missed have none."""
        is_known = not math.isnan(self.low + self.high) and math.isfinite(self.low)
        return len(self.values) > 1 and is_known and (self.low > 0 or math.isfinite(self.high))


@dataclass(frozen=True)
class ScoreNoise:
    """What the interval of a score is made of: the half width of each part at the same level."""

    seeds: Measured  # other seeds, on this test split
    split: Measured  # other test samples, for these models
    samples: Count  # of the test split


@dataclass(frozen=True)
class PairedTest:
    """A paired test against another method: of scores, or of steps to the target."""

    __test__ = False  # pytest would collect it

    against: str
    # Of scores, that of the means: positive if this row's is higher. Of steps the geometric mean
    # of ratios: below 1 if this row needs fewer; NaN where a seed misses the target.
    difference: Measured
    p_value: Measured  # corrected for the number of comparisons
    low: Measured = math.nan  # of the 95 % interval of the difference, not corrected
    high: Measured = math.nan
    test: str = ""  # its name and that of the correction; empty in older files


@dataclass(frozen=True)
class ResultRow:
    """A method on a task: one line of the table."""

    task: str
    method: str
    status: Status  # diverged or failed as soon as one seed did
    message: str = ""  # why it is not "finished"
    setting: dict[str, Any] = field(default_factory=dict)
    searched: list[str] = field(default_factory=list)  # settings chosen by the search
    at_edge: list[str] = field(
        default_factory=list
    )  # those whose best value is at an end of its range
    good_lr: list[float] | None = None  # low, high: scores almost as good as the best
    trials: int = 0
    seeds: list[int] = field(default_factory=list)
    diverged: int = 0  # seeds whose loss became NaN or infinite
    test: Interval | None = None  # the score on the test split
    validation: Interval | None = None  # the score on the validation split, of the kept weights
    train_loss: Interval | None = None  # at the end
    steps_to_target: Interval | None = None
    gradients_to_target: Interval | None = None
    seconds_to_target: Interval | None = None
    seconds_per_step: float | None = None
    peak_bytes: int | None = None  # memory of the process
    state_bytes: int | None = None  # of the trainer
    compared: PairedTest | None = None  # scores, against the reference
    paper: float | None = None  # the score that the paper reports
    # Older files lack these.
    noise: ScoreNoise | None = None  # of the test score, where it is a fraction of samples
    rival: PairedTest | None = None  # scores, against the best of the other methods
    steps_compared: PairedTest | None = None  # steps to the target, against the reference
    steps_rival: PairedTest | None = None  # steps to the target, against the fastest of the others


@dataclass(frozen=True)
class Curve:
    """One run: training losses at some steps, validation metrics at others."""

    task: str
    method: str
    seed: int
    steps: list[Count]
    seconds: list[Amount]  # of training until then
    losses: dict[str, list[Measured]]  # by player, mean since the previous point
    evaluated: list[Count]  # steps
    evaluated_seconds: list[Amount]
    validation: dict[str, list[Measured]]  # by metric, the score among them


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
    """Something a task shows of a trained model: a PNG image (a data URL) or a text."""

    task: str
    method: str
    seed: int
    step: int
    title: str
    picture: str = ""
    text: str = ""


@dataclass(frozen=True)
class TaskInfo:
    """What readers need to know about a task."""

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
    version: str = ""  # empty in older files
    data: str = ""  # digest of its data files; empty if it has none
    paper_note: str = ""  # what the paper leaves open about the task; empty in older files
    paper_steps: Count | None = None  # at the paper's scale; None in older files
    test_samples: Count | None = None  # that the score is a fraction of; None if it is not one


def score_from_info(task: TaskInfo) -> Score:
    """Return the score of a task from its info."""
    return Score(task.score, task.best, task.percent)


@dataclass(frozen=True)
class MethodInfo:
    name: str
    description: str
    family: str
    version: str = ""  # with that of the package; empty in older files


@dataclass(frozen=True)
class PerformanceProfile:
    """For each method, the fraction of tasks it solves within τ times the steps of the fastest."""

    taus: list[float]
    solved: dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """Everything a report shows."""

    title: str
    created: str  # date and time, ISO 8601
    protocol: Literal["paper", "tuned", "speed"]
    objective: Literal["score", "steps"]
    schedule: str
    reference: str  # method that the others are tested against
    trials: int  # per method; 0 if nothing was searched
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
    speed: Speeds | None = None  # of the speed protocol
    # The options that make it, as a file for `badm compare` has them; empty in older files.
    study: dict[str, Any] = field(default_factory=dict)


def to_json(comparison: Comparison) -> str:
    """Serialize without artifacts, curves with few digits; infinities and NaN become null."""
    numbers = asdict(replace(comparison, artifacts=[], curves=[]))
    numbers["curves"] = rounded(comparison.curves, CURVE_DIGITS)
    numbers[SAVED_ARTIFACTS] = numbers.pop("artifacts")
    if comparison.speed is None:  # as in older files
        del numbers["speed"]
    return json.dumps(finite_or_none(numbers), allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Comparison:
    """Load what :func:`to_json` has written; ``SchemaError`` says what is wrong with it.

    Null is infinity in an interval, where a target was missed, and NaN elsewhere.
    """
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        raise schema.SchemaError("a comparison must be JSON") from None
    if isinstance(plain, dict):
        plain.pop(SAVED_ARTIFACTS, None)
        plain["artifacts"] = []
    return schema.build(Comparison, plain)

"""The plan of a comparison, and the record of its progress.

The record is saved beside the runs, so that ``badm report`` can make a report at any time and on
any machine, without the task files.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from badm.bench import files
from badm.bench.errors import StoreError
from badm.bench.files import os_error_reason, write_atomically
from badm.bench.records import schema
from badm.bench.records.comparisons import MethodInfo, TaskInfo, Trial
from badm.bench.records.json_values import as_saved
from badm.bench.records.runs import RUN_BYTES, RunConfig, RunStore
from badm.bench.records.schema import Between, Count, SchemaError
from badm.bench.records.speeds import PARTS
from badm.bench.task import Scale

SCHEMA = 1
NAMED = r"[\w+-][\w.+-]{0,199}(\[[^\x00-\x1f\x7f]{0,199}\][\w+-]{0,99})*"  # badm[beta=0.95]
TUNING_SEED = 1000  # of all trials; final runs have 0, 1, 2, …, which no trial uses

Seeds = Annotated[int, Between(0, TUNING_SEED)]
Part = Annotated[float, Between(1 / PARTS, 1)]
ProtocolName = Literal["paper", "tuned", "speed"]
Objective = Literal["score", "steps"]


@dataclass(frozen=True)
class Plan:
    """All options of a comparison; the same plan gives the same numbers."""

    tasks: tuple[str, ...]  # names or files
    methods: tuple[str, ...]
    protocol: ProtocolName = "tuned"
    trials: Count = 6
    seeds: Seeds = 3
    scale: Scale = "cpu"
    schedule: str = "constant"
    objective: Objective = "score"
    target: float | None = None  # instead of the task's own
    steps: Count | None = None  # instead of the task's own
    reference: str = ""  # method that the others are tested against
    threads: int = 1  # per run; another number changes the order of sums, and so results
    device: str = "cpu"  # of every run: cpu, cuda or mps
    warmup: float = 0.0  # fraction of the steps over which the learning rate rises
    baseline: str = ""  # of the speed protocol: the method whose score is the target
    search: str = "lr"  # which settings are searched: lr, wide or names of settings
    space: tuple[str, ...] = ()  # ranges instead of the methods' own: lr=1e-4..1e-1
    stated: tuple[str, ...] = ()  # settings of all methods that have them: weight_decay=0.1
    clip_norm: float = 0.0  # norm that gradients are clipped to; 0: they are not
    epoch_budget: float | None = None  # instead of steps
    second_budget: float | None = None  # of training, from which each method gets its steps

    @property
    def key(self) -> str:
        plain = as_saved(self)
        if self.threads == 1:  # left out, as in older records
            del plain["threads"]
        text = json.dumps(plain, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass
class MethodRecord:
    """The progress of one method on one task; in the speed protocol, at one part of the budget."""

    task: str
    method: str
    setting: dict[str, Any] | None = None
    searched: list[str] = field(default_factory=list)
    at_edge: list[str] = field(default_factory=list)
    tried: list[Trial] = field(default_factory=list)
    finals: dict[int, RunConfig] = field(default_factory=dict)  # by seed
    faults: dict[int, str] = field(default_factory=dict)  # by seed, why its run has no result
    paper: float | None = None
    part: Part = 1.0  # of the budget, in eighths
    # Of a best value at the edge of its range: the ends of the range to try next, by setting.
    next_ranges: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class ComparisonRecord:
    """The current state of a comparison."""

    plan: Plan
    created: str
    tasks: list[TaskInfo]
    methods: list[MethodInfo]
    entries: list[MethodRecord]
    interrupted: bool = False

    def write(self, store: RunStore) -> None:
        if not self.plan.seeds:  # a search only, without final runs
            return
        path = store.folder / "comparisons" / f"{self.plan.key}.json"
        plain = {"badm": "comparison", "schema": SCHEMA, **as_saved(self)}
        text = json.dumps(plain, indent=1, ensure_ascii=False)
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, text.encode(errors="replace"))  # as in run files
        except OSError as error:
            raise StoreError(f"cannot write {path}: {os_error_reason(error)}") from None


def read_record(path: Path) -> ComparisonRecord:
    """Read a record; ``StoreError`` names the file and what is wrong with it."""
    try:
        plain = json.loads(files.read_bounded(path, RUN_BYTES))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {os_error_reason(error)}") from None
    except (ValueError, RecursionError):
        raise StoreError(f"{path} cannot be read: it is not JSON") from None
    if not isinstance(plain, dict) or plain.pop("badm", None) != "comparison":
        raise StoreError(f"{path}: not a comparison of badm")
    version = plain.pop("schema", None)
    if version != SCHEMA:
        found = reprlib.repr(version)
        raise StoreError(f"{path}: schema {found}, this version reads {SCHEMA}")
    try:
        record = schema.build(ComparisonRecord, plain)
        for entry in record.entries:
            _check(entry, record)
    except SchemaError as error:
        raise StoreError(f"{path}: not a valid comparison ({error})") from None
    return record


def latest_record(store: RunStore) -> tuple[ComparisonRecord | None, list[str]]:
    """Read the latest comparison; return it and a message for each file that is not valid."""
    problems: list[str] = []
    folder = store.folder / "comparisons"
    for path in sorted(folder.glob("*.json"), key=_written, reverse=True):
        try:
            return read_record(path), problems
        except StoreError as error:
            problems.append(str(error))
    return None, problems


def _written(path: Path) -> float:
    """Return the time of modification; a broken link comes first."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -math.inf


def _check(entry: MethodRecord, record: ComparisonRecord) -> None:
    """Refuse an entry that contradicts the rest of its record."""
    where = f"the entry of {reprlib.repr(entry.method)} on {reprlib.repr(entry.task)}"
    for name, known in (
        (entry.task, [task.name for task in record.tasks]),
        (entry.method, [method.name for method in record.methods]),
    ):
        if name not in known or not re.fullmatch(NAMED, name):
            raise SchemaError(f"{where} must be of one of its tasks and methods")
    if not (entry.part * PARTS).is_integer():
        raise SchemaError(f"{where} must be at a part of the budget in eighths")
    own = entry.task, entry.method
    for seed, final in entry.finals.items():
        if (final.task, final.method, final.seed) != (*own, seed):
            raise SchemaError(f"{where} must have final runs of its own")
    for trial in entry.tried:
        rate = trial.setting.get("lr")
        if (trial.task, trial.method) != own:
            raise SchemaError(f"{where} must have trials of its own")
        if "lr" in entry.searched and not (isinstance(rate, (int, float)) and rate > 0):
            raise SchemaError(f"{where} must have trials with a learning rate above 0")

"""What a comparison is to be, and what is known of it so far: the two things it writes down.

The record lies beside the runs, so that ``badm report`` can make a report at any time and anywhere,
without the task files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from badm.bench.comparison import MethodFacts, TaskFacts, Trial
from badm.bench.store import Config, Store, StoreError, write_atomically
from badm.bench.task import Scale

SCHEMA = 1
TUNING_SEED = 1000  # of all trials; the final runs have 0, 1, 2, …, which no trial has seen

ProtocolName = Literal["paper", "tuned"]
Objective = Literal["score", "steps"]


class ProtocolError(Exception):
    """The rules of a protocol cannot be kept; the message says which."""


@dataclass(frozen=True)
class Plan:
    """Everything that a comparison can be told; the same plan gives the same numbers."""

    tasks: tuple[str, ...]  # names or files
    methods: tuple[str, ...]
    protocol: ProtocolName = "tuned"
    trials: int = 6
    seeds: int = 3
    scale: Scale = "cpu"
    schedule: str = "constant"
    objective: Objective = "score"
    target: float | None = None  # instead of the task's own
    steps: int | None = None  # instead of the task's own
    reference: str = ""  # the method that the others are tested against
    threads: int = 1  # of each run: sums in another order are other numbers

    @property
    def key(self) -> str:
        plain = asdict(self)
        if self.threads == 1:  # the records of older versions do not say
            del plain["threads"]
        text = json.dumps(plain, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass
class Entry:
    """What is known of one method on one task."""

    task: str
    method: str
    setting: dict[str, Any] | None = None
    searched: list[str] = field(default_factory=list)
    at_edge: list[str] = field(default_factory=list)
    tried: list[Trial] = field(default_factory=list)
    finals: dict[int, Config] = field(default_factory=dict)  # by seed
    faults: dict[int, str] = field(default_factory=dict)  # seeds whose run left no result, and why
    paper: float | None = None


@dataclass
class Record:
    """A comparison as it stands."""

    plan: Plan
    created: str
    tasks: list[TaskFacts]
    methods: list[MethodFacts]
    entries: list[Entry]
    interrupted: bool = False

    def write(self, store: Store) -> None:
        if not self.plan.seeds:  # a search alone, which compares nothing
            return
        folder = store.folder / "comparisons"
        folder.mkdir(exist_ok=True)
        text = json.dumps({"badm": "comparison", "schema": SCHEMA, **asdict(self)}, indent=1)
        write_atomically(folder / f"{self.plan.key}.json", text.encode())


def read_record(path: Path) -> Record:
    """Read a record; ``StoreError`` names the file and what is wrong with it."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    if not isinstance(plain, dict) or plain.get("badm") != "comparison":
        raise StoreError(f"{path}: not a comparison of badm")
    if plain.get("schema") != SCHEMA:
        raise StoreError(f"{path}: schema {plain.get('schema')!r}, this version reads {SCHEMA}")
    try:
        return Record(
            _plan(plain["plan"]),
            plain["created"],
            [TaskFacts(**fields) for fields in plain["tasks"]],
            [MethodFacts(**fields) for fields in plain["methods"]],
            [_entry(fields) for fields in plain["entries"]],
            plain["interrupted"],
        )
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path}: not as a comparison should be ({error})") from None


def latest_record(store: Store) -> tuple[Record | None, list[str]]:
    """The comparison written last, and a sentence for each file that is none."""
    problems: list[str] = []
    folder = store.folder / "comparisons"
    for path in sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            return read_record(path), problems
        except StoreError as error:
            problems.append(str(error))
    return None, problems


def _plan(plain: Mapping[str, Any]) -> Plan:
    return Plan(**{**plain, "tasks": tuple(plain["tasks"]), "methods": tuple(plain["methods"])})


def _entry(plain: Mapping[str, Any]) -> Entry:
    return Entry(
        **{
            **plain,
            "tried": [Trial(**fields) for fields in plain["tried"]],
            "finals": {int(seed): Config.of(fields) for seed, fields in plain["finals"].items()},
            "faults": {int(seed): text for seed, text in plain["faults"].items()},
        }
    )

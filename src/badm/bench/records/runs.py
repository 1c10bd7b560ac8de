"""A folder of run files that several processes may write to.

A run file has one JSON object per line: first the configuration and environment of the run, then
its trajectory as it is measured, finally the result. Without a result, the run has not ended.
Beside it are a checkpoint while it is running and, if a later stage needs them, the weights. Files
that are damaged or not of badm are named and left as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from filelock import FileLock, Timeout

from badm.bench import files
from badm.bench.errors import StoreError
from badm.bench.files import os_error_reason
from badm.bench.records import schema
from badm.bench.records.json_values import as_saved, finite_or_none
from badm.bench.records.schema import Amount, Count

SCHEMA = 1
# Raise it with anything that changes the results of all methods: seeds, batches, schedules.
ENGINE = 1
MOST_OF_A_NAME = 120  # characters of a method in the name of a file
RUN_BYTES = 100_000_000  # of a run file or a record; 100,000 points take a sixth of it
NAN = float("nan")

RunStatus = Literal["finished", "diverged", "failed", "cannot"]


@dataclass(frozen=True)
class RunConfig:
    """Everything that the result of a run depends on.

    >>> a = RunConfig("digits", "1", "cpu", 300, "adam", {"lr": 1e-3}, seed=0)
    >>> b = RunConfig("digits", "1", "cpu", 300, "adam", {"lr": 2e-3}, seed=0)
    >>> len(a.key), a.key == b.key
    (16, False)
    """

    task: str
    task_version: str
    scale: str
    steps: int
    method: str
    setting: Mapping[str, Any]
    seed: int
    schedule: str = "constant"
    test: bool = True  # whether to evaluate the test split at the end; never in a search
    after: RunConfig | None = None  # run whose weights this one starts from
    # Older run files lack these. Defaults are not part of the key, so that old keys stay valid.
    method_version: str = ""  # of its code and package; unknown for older runs
    data: str = ""  # digest of the data files; empty if there are none
    threads: int = 1
    engine: int = 1
    device: str = "cpu"  # type: cpu, cuda or mps
    warmup: float = 0.0  # fraction of the steps over which the learning rate rises
    evaluate_every: Count = 0  # steps between evaluations; 0: the task's own number
    clip_norm: Amount = 0.0  # norm that gradients are clipped to; 0: they are not

    def __post_init__(self) -> None:
        for name, value in dict(self.setting).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} of {self.method} must be a finite number, got {value}")
            if isinstance(value, str) and value != value.encode(errors="replace").decode():
                raise ValueError(f"{name} of {self.method} must be valid Unicode, got {value!r}")

    @property
    def key(self) -> str:
        text = json.dumps({"schema": SCHEMA, **_without_defaults(self.to_dict())}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return as_saved(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RunConfig:
        after = plain["after"]
        return cls(**{**plain, "after": None if after is None else cls.from_dict(after)})


_LATER = {"method_version": "", "data": "", "threads": 1, "engine": 1}


def _without_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Drop defaults that older run files do not have, so that their keys stay the same."""
    told = {k: v for k, v in config.items() if k not in _LATER or v != _LATER[k]}
    return {**told, "after": config["after"] and _without_defaults(config["after"])}


@dataclass(frozen=True)
class TrajectoryPoint:
    """One line of the trajectory."""

    step: Count
    seconds: Amount  # of training so far; the only value in which equal runs differ
    gradients: Amount  # of batches, computed so far
    # By player, mean since the previous point; NaN and infinity are read as None.
    losses: Mapping[str, float | None] | None = None
    validation: Mapping[str, float | None] | None = None
    exhibits: Mapping[str, str] | None = None  # files of artifacts, by title


@dataclass(frozen=True)
class RunResult:
    """How a run ended. ``weights`` and ``kept`` are digests of the last and the kept weights."""

    status: RunStatus
    step: Count
    message: str = ""
    score: float | None = None  # on the validation split, of the kept weights
    validation: Mapping[str, float | None] | None = None
    test: Mapping[str, float | None] | None = None
    seconds: Amount = 0.0
    gradients: Amount = 0.0
    weights: str = ""
    kept: str = ""
    peak_bytes: Count | None = None
    state_bytes: Count | None = None


class _LaterFacts(TypedDict, total=False):
    """What older run files lack."""

    test_samples: Count | None  # that the score is the mean of; None if it is no such mean


class Facts(_LaterFacts):
    """What reports need to know about a task beside its record; there may be more keys."""

    synthetic: bool
    notes: list[str]


@dataclass(frozen=True)
class Run:
    """The contents of a run file; without a result, the run has not ended."""

    path: Path
    config: RunConfig
    environment: dict[str, Any]
    facts: Facts
    points: list[TrajectoryPoint] = field(default_factory=list)
    result: RunResult | None = None

    def validation_curve(self, metric: str, at: str = "step") -> tuple[list[float], list[float]]:
        """Return a validation metric and when it was measured, in steps, seconds or gradients.

        Nulls of the file, which JSON has for NaN and infinity, become NaN.
        """
        read = [(getattr(p, at), p.validation) for p in self.points if p.validation is not None]
        values = [validation.get(metric) for _, validation in read]
        return [when for when, _ in read], [NAN if v is None else v for v in values]


class RunStore:
    """The runs in a folder, which is created if it does not exist."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ".locks").mkdir(exist_ok=True)
            probe = self.folder / ".locks" / f"probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot write to the folder {self.folder}: {os_error_reason(error)}"
            ) from None

    def anchored(self) -> RunStore:
        """Return the store with an absolute path, as the code of a task may call ``os.chdir``."""
        same = copy(self)
        same.folder = self.folder.absolute()
        return same

    def path(self, config: RunConfig) -> Path:
        """Return the path of a run's file."""
        # Of badm[beta=0.95] the name of a file has letters, digits and - . + alone.
        method = re.sub(r"[^\w.+-]+", "-", config.method).strip("-")[:MOST_OF_A_NAME]
        name = f"{method}-seed{config.seed}-{config.key}.jsonl"
        return self.folder / config.task / name

    def checkpoint(self, config: RunConfig) -> Path:
        return self.path(config).with_suffix(".checkpoint")

    def weights(self, config: RunConfig) -> Path:
        return self.path(config).with_suffix(".weights")

    def artifacts(self, config: RunConfig) -> Path:
        return self.path(config).with_suffix(".exhibits")

    def read(self, config: RunConfig) -> Run | None:
        """Read a run, ended or not; ``None`` if there is none, ``StoreError`` if it is damaged."""
        path = self.path(config)
        return read_run(path) if path.exists() else None

    def finished(self, config: RunConfig, *, with_weights: bool) -> Run | None:
        """Read a run if there is nothing left to do; ``StoreError`` if it is damaged.

        One that failed is to be tried again, one whose weights are wanted and not there to be
        repeated.
        """
        found = self.read(config)
        if found is None or found.result is None or found.result.status == "failed":
            return None
        has_all = not with_weights or self.weights(config).exists()
        return found if has_all or found.result.status != "finished" else None

    def read_all(self) -> tuple[list[Run], list[str]]:
        """Read all runs in the folder; return them and a message for each invalid file."""
        found, problems = [], []
        for path in sorted(self.folder.glob("*/*.jsonl")):
            try:
                found.append(read_run(path))
            except StoreError as error:
                problems.append(str(error))
        return found, problems

    def remove_partial_files(self, config: RunConfig) -> None:
        """Remove incomplete files of a killed process; the caller must hold the lock."""
        path = self.path(config)
        left = path.parent.glob(f"{path.stem}.*.part*")
        for part in [*left, *self.artifacts(config).glob("*.part*")]:
            part.unlink(missing_ok=True)

    def quarantine(self, path: Path) -> Path:
        """Rename a file that cannot be used, so that nothing is lost and its name is free."""
        number = 1
        while (renamed := path.with_name(f"{path.name}.damaged{number}")).exists():
            number += 1
        path.rename(renamed)
        return renamed

    @contextmanager
    def lock(self, config: RunConfig, *, timeout: float) -> Iterator[bool]:
        """Lock a run; yield false if another process holds it for ``timeout`` seconds.

        The lock is released when the process ends, in whatever way.
        """
        lock = FileLock(self.folder / ".locks" / config.key)
        try:
            lock.acquire(timeout=timeout, poll_interval=0.05)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def json_line(content: Mapping[str, Any]) -> bytes:
    """Return one line of a run file; NaN and infinity become null."""
    plain = {key: value for key, value in content.items() if value is not None}
    text = json.dumps(finite_or_none(plain), ensure_ascii=False, allow_nan=False)
    # Readers refuse lone surrogates, such as for a byte of a file name that is not UTF-8.
    return text.encode(errors="replace") + b"\n"


def header(config: RunConfig, environment: Mapping[str, Any], facts: Mapping[str, Any]) -> bytes:
    """Return the first line of a run file."""
    return json_line(
        {
            "badm": "run",
            "schema": SCHEMA,
            "key": config.key,
            "config": config.to_dict(),
            "environment": environment,
            "facts": facts,
        }
    )


@dataclass(frozen=True)
class _Header:
    """The first line of a run file, as it is read."""

    badm: str
    schema: int
    config: RunConfig
    environment: dict[str, Any]
    facts: Facts
    key: str = ""


@dataclass(frozen=True)
class _Last:
    """The last line of the file of an ended run."""

    result: RunResult


def read_run(path: Path) -> Run:
    """Read a run file; ``StoreError`` names it and what is wrong with it."""
    try:
        raw = files.read_bounded(path, RUN_BYTES)
    except OSError as error:
        raise StoreError(f"{path}: {os_error_reason(error)}") from None
    # After the last newline is a line that was being written when the process was killed.
    *complete, _ = raw.split(b"\n")
    if not complete:
        raise StoreError(f"{path}: the first line is incomplete")
    try:
        first, *rest = [json.loads(text) for text in complete]
    except (ValueError, RecursionError):
        number = next(i for i, text in enumerate(complete, 1) if not _is_json(text))
        raise StoreError(f"{path}: line {number} is not JSON") from None
    if not isinstance(first, dict) or first.get("badm") != "run":
        raise StoreError(f"{path}: not a run of badm")
    if first.get("schema") != SCHEMA:
        found = reprlib.repr(first.get("schema"))
        raise StoreError(f"{path}: schema {found}, this version reads {SCHEMA}")
    ended = bool(rest) and isinstance(rest[-1], dict) and "result" in rest[-1]
    kinds = [_Header, *[TrajectoryPoint] * (len(rest) - ended), *[_Last] * ended]
    built: list[Any] = []
    try:
        for kind, plain in zip(kinds, (first, *rest), strict=True):
            built.append(schema.build(kind, plain))
    except schema.SchemaError as error:
        where = f"line {len(built) + 1}: {error}"
        raise StoreError(f"{path}: not a valid run file ({where})") from None
    head, *points = built
    result = points.pop().result if ended else None
    if head.key != head.config.key or head.key not in path.name:
        key = head.key if head.key.isalnum() else reprlib.repr(head.key)
        raise StoreError(f"{path}: the configuration does not match its key {key[:40]}")
    return Run(path, head.config, head.environment, head.facts, points, result)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

"""A search that several processes and machines can share: every trial is done once.

The settings to try are fixed beforehand (``trial_settings.py``). Optuna keeps them in a database:
each process takes the next trial that nobody has, and reports how it ended. By default the database
is one file beside the runs; with the URL of a database server any number of machines share it.
A trial whose process died is taken over by the next process that checks. Which process has which
trial is an append-only log, so that of several that reach for a trial exactly one gets it.

A server may disappear at any moment, and nobody knows whether the last write succeeded. Therefore
every operation here can be repeated: an attribute is set to the same value, a trial that has ended
stays as it is, a repeated entry in the log changes nothing, and a trial that is ours by the log,
although no answer told us so, is the one we asked for.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from badm.bench.compare.database import DatabaseConnection
from badm.bench.errors import ProtocolError, StoreError
from badm.bench.method import Choice, Range, Setting, Space
from badm.bench.records.runs import RunStatus

HEARTBEAT_SECONDS = 10.0  # between two heartbeats
STALE_SECONDS = 45.0  # without one: the machine is taken to be gone

optuna.logging.set_verbosity(optuna.logging.ERROR)  # errors are reported by ``DatabaseConnection``


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended. ``score`` is the best on the validation split."""

    status: RunStatus
    score: float | None = None
    loss: float | None = None  # at that point, for ties
    steps_to_target: float | None = None
    message: str = ""

    @property
    def value(self) -> float | None:
        """The score, if it is one that others can be compared with."""
        if self.status != "finished" or self.score is None or math.isnan(self.score):
            return None
        return self.score


class ProcessOwner:
    """This process as others see it: a lock that is released when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = uuid.uuid4().hex
        self.lock = FileLock(folder / f"owner-{self.name}")
        self.lock.acquire()

    def lives(self, name: str) -> bool | None:
        """Whether the owner of that name is alive, by its lock; ``None`` if on another machine."""
        if name == self.name:
            return True
        path = self.folder / f"owner-{name}"
        if not path.exists():  # on another machine
            return None
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True


class SearchDatabase:
    """The database that keeps all searches, opened for this process."""

    def __init__(
        self, url: str, locks: Path, say: Callable[[str], None] = lambda message: None
    ) -> None:
        """``url`` is that of a database; ``say`` is called with what is being waited for."""
        self.owner = ProcessOwner(locks)
        self.database = DatabaseConnection(url, locks, say)

    def search(
        self, name: str, space: Space, settings: Sequence[Setting], best: Literal["high", "low"]
    ) -> Search:
        return Search(self.database, self.owner, name, space, settings, best)


@dataclass
class Search:
    """The trials of one method on one task."""

    database: DatabaseConnection
    owner: ProcessOwner
    name: str
    space: Space
    settings: Sequence[Setting]
    best: Literal["high", "low"]
    running: dict[int, float] = field(default_factory=dict)  # number: time of the last heartbeat
    failed: dict[int, TrialResult] = field(
        default_factory=dict
    )  # in this process, which tries once
    in_other_processes: list[int] = field(default_factory=list)  # as of the last check
    study: Study = field(init=False)
    handovers: Study = field(init=False)  # a log: trial, whose it was, whose it is

    def __post_init__(self) -> None:
        self.storage = self.database.storage
        self.database.ask(self._open)

    def _open(self) -> None:
        self.study = optuna.create_study(
            storage=self.storage,
            study_name=self.name,
            direction="maximize" if self.best == "high" else "minimize",
            load_if_exists=True,
        )
        self.handovers = optuna.create_study(
            storage=self.storage, study_name=f"{self.name}/handovers", load_if_exists=True
        )

    def claim(self) -> int | None:
        """The number of a trial that is now ours to do; ``None`` if there is none to be had."""
        number = self.database.ask(self._claim)
        if number is not None:
            self.running[number] = time.monotonic()
        return number

    def _claim(self) -> int | None:
        trials = self._trials()
        number = self._take_orphan(trials)
        if number is None and len(trials) < len(self.settings):
            number = self._new_trial()
        return number

    def _new_trial(self) -> int | None:
        """A trial that nobody has had before."""
        # Made in one transaction with its owner: at no moment is it nobody's.
        made = create_trial(
            state=TrialState.RUNNING,
            user_attrs={"owner": self.owner.name, "seen": self.database.now()},
        )
        trial = self._add(self.study, made)
        number = self.storage.get_trial_number_from_id(trial)
        if number >= len(self.settings):  # another process was faster by a moment
            self.storage.set_trial_state_values(trial, TrialState.FAIL)
            return None
        self._show_setting(trial, number)
        return number

    def _show_setting(self, trial: int, number: int) -> None:
        """For people who look into the database."""
        with suppress(UpdateFinishedTrialError):  # by another process, that took us for dead
            for name, part in self.space.items():
                kind, value = _distribution(part), self.settings[number][name]
                self.storage.set_trial_param(trial, name, kind.to_internal_repr(value), kind)

    def _take_orphan(self, trials: Sequence[FrozenTrial]) -> int | None:
        """A trial that was begun by a process that is no more, made ours."""
        running = [t for t in trials if t.state == TrialState.RUNNING]
        others = [t for t in running if t.number not in self.running | self.failed]
        owners = self._owners(others) if others else {}
        now = self.database.now() if others else 0.0
        self.in_other_processes = []
        for trial in others:
            owner = owners[trial.number]
            if owner == self.owner.name:  # the server went away before it could answer
                self._touch(trial)
                self._show_setting(trial._trial_id, trial.number)
                return trial.number
            if owner and self._is_alive(owner, trial, now):
                self.in_other_processes.append(trial.number)
                continue
            # It may have ended as it should, between the looks at its trials and its owner.
            if self.storage.get_trial(trial._trial_id).state.is_finished():
                continue
            self._touch(trial)  # first, or it would look abandoned again as soon as it is ours
            self._hand_over(trial.number, owner, self.owner.name)
            if self._owners([trial])[trial.number] == self.owner.name:
                return trial.number
        return None

    def _is_alive(self, owner: str, trial: FrozenTrial, now: float) -> bool:
        """By its lock on this machine, by its last heartbeat on another."""
        here = self.owner.lives(owner)
        if here is not None:
            return here
        # Who was cut off from the server while we were has not been able to give one. A time to
        # come is of a clock that was set back, and says as little as one long ago.
        seen: float = max(trial.user_attrs["seen"], self.database.back)
        return abs(now - seen) < STALE_SECONDS

    def _owners(self, trials: Sequence[FrozenTrial]) -> dict[int, str]:
        """Whose the trials are; nobody is the empty name."""
        owners = {trial.number: trial.user_attrs["owner"] for trial in trials}
        for number, before, after in self._log():
            if owners.get(number) == before:  # else another process was faster
                owners[number] = after
        return owners

    def _log(self) -> Iterator[tuple[int, str, str]]:
        for trial in self._read(self.handovers):
            match trial.user_attrs.get("handover"):
                case [int(number), str(before), str(after)]:
                    yield number, before, after
                case entry:
                    raise self._tampered(f"the log of who has which trial, with {entry!r} in it,")

    def _hand_over(self, number: int, before: str, after: str) -> None:
        entry = create_trial(
            state=TrialState.PRUNED, user_attrs={"handover": [number, before, after]}
        )
        self._add(self.handovers, entry)

    def send_heartbeat(self) -> None:
        """To be called now and then while trials of ours are running."""
        now = time.monotonic()
        if any(now - given >= HEARTBEAT_SECONDS for given in self.running.values()):
            self.database.ask(self._see_all)
            self.running = dict.fromkeys(self.running, now)

    def _see_all(self) -> None:
        for trial in self._trials():
            if trial.number in self.running:
                self._touch(trial)

    def _touch(self, trial: FrozenTrial) -> None:
        with suppress(UpdateFinishedTrialError):  # by another process, that took us for dead
            self.storage.set_trial_user_attr(trial._trial_id, "seen", self.database.now())

    def report(self, number: int, ended: TrialResult) -> None:
        """Write down how a trial of ours ended. One that failed can be tried again later."""
        if ended.status == "failed":
            self.failed[number] = ended
            return self.release(number)
        self.database.ask(partial(self._end, number, ended))
        self.running.pop(number, None)

    def _end(self, number: int, ended: TrialResult) -> None:
        trials = self._trials()
        if number >= len(trials):
            raise self._tampered(f"trial {number}")
        trial = trials[number]._trial_id
        with suppress(UpdateFinishedTrialError):  # by another process, that took us for dead
            self.storage.set_trial_user_attr(trial, "ended", asdict(ended))
            if ended.value is not None:
                self.storage.set_trial_state_values(trial, TrialState.COMPLETE, [ended.value])
            else:
                self.storage.set_trial_state_values(trial, TrialState.PRUNED)

    def release(self, number: int) -> None:
        """Give up a trial that has not ended, so that another process can take it at once."""
        self.database.ask(partial(self._hand_over, number, self.owner.name, ""))
        self.running.pop(number, None)

    def leave(self) -> None:
        """Give up all that has not ended, at exit: this does not wait for a server."""
        with suppress(StoreError, ProtocolError):  # others will see that we are silent
            while self.running and not self.database.away:
                number, _ = self.running.popitem()
                give_up = partial(self._hand_over, number, self.owner.name, "")
                self.database.ask(give_up, patient=False)

    def results(self) -> dict[int, TrialResult]:
        """The trials that have ended, by number; with those that failed here."""
        return self.failed | {
            trial.number: TrialResult(**trial.user_attrs["ended"])
            for trial in self.database.ask(self._trials)
            if trial.state.is_finished()
        }

    def _trials(self) -> list[FrozenTrial]:
        """Those that count, by number: a trial too many is none, one that is missing an error."""
        trials = self._read(self.study)[: len(self.settings)]
        for number, trial in enumerate(trials):
            if trial.number != number or not _is_ours(trial):
                raise self._tampered(f"trial {number}")
        return trials

    def _read(self, study: Study) -> list[FrozenTrial]:
        try:
            return study.get_trials(deepcopy=False)
        except LookupError:  # the study is gone, or a trial has a state that there is not
            raise self._tampered("what has been done so far") from None

    def _add(self, study: Study, trial: FrozenTrial) -> int:
        try:
            return self.storage.create_new_trial(study._study_id, trial)
        except LookupError:
            raise self._tampered("what has been done so far") from None

    def _tampered(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"{what} of the search {self.name} is not as badm left it, so methods would not have "
            "equal trials: remove that study from its database or use another one"
        )


def _is_ours(trial: FrozenTrial) -> bool:
    """Whether all is there, and of the kind, that badm writes down."""
    attributes = trial.user_attrs
    if not isinstance(attributes.get("owner"), str) or not _is_number(attributes.get("seen")):
        return False
    return not trial.state.is_finished() or _is_end(attributes.get("ended"))


def _is_end(plain: object) -> bool:
    if not isinstance(plain, dict) or not plain.keys() <= {
        part.name for part in fields(TrialResult)
    }:
        return False
    numbers = [plain.get(name) for name in ("score", "loss", "steps_to_target")]
    return (
        plain.get("status") in get_args(RunStatus)
        and isinstance(plain.get("message", ""), str)
        and all(number is None or _is_number(number) for number in numbers)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _distribution(part: Range | Choice) -> BaseDistribution:
    if isinstance(part, Choice):
        return CategoricalDistribution(part.values)
    return FloatDistribution(part.low, part.high, log=part.log and not part.complement)

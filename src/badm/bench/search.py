"""A search that several processes and machines can share: every trial is done once.

The settings to try are fixed beforehand (``design.py``). Optuna keeps the book: in a database,
each process takes the next trial that nobody has, and reports how it ended. By default the database
is one file beside the runs; with the URL of a database server any number of machines share it.
A trial whose process died is taken over by the next one that looks. Who has which trial is a log
that is only ever added to, so that of several processes that reach for a trial one gets it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from badm.bench.method import Choice, Range, Setting, Space
from badm.bench.plan import ProtocolError
from badm.bench.store import Outcome, StoreError

SEEN_SECONDS = 30.0  # between two signs of life
STALE_SECONDS = 300.0  # without one: its machine is taken to be gone
OPEN_TRIES, OPEN_SECONDS = 6, 0.2  # to open a database that others may be making

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Ended:
    """How a trial ended. ``score`` is the best on the validation split."""

    status: Outcome
    score: float | None = None
    loss: float | None = None  # at that point, for ties
    steps_to_target: float | None = None
    message: str = ""


class Owner:
    """This process, for others to see that it lives: a lock that ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = uuid.uuid4().hex
        self.lock = FileLock(folder / f"owner-{self.name}")
        self.lock.acquire()

    def is_alive(self, name: str, seen: float) -> bool:
        """Whether the owner of that name lives: by its lock, or by its last sign of life."""
        if name == self.name:
            return True
        path = self.folder / f"owner-{name}"
        if not path.exists():  # on another machine
            return time.time() - seen < STALE_SECONDS
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True


@contextmanager
def reached() -> Iterator[None]:
    """Turn what a database that went away makes Optuna raise into a ``StoreError``."""
    try:
        yield
    except StorageInternalError as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise StoreError(f"the search database cannot be used: {first}") from None


class Book:
    """Where all searches are written down, and who writes."""

    def __init__(self, url: str, locks: Path) -> None:
        """``url`` is that of a database; ``ValueError`` says what is wrong with it."""
        arguments: dict[str, Any] = {}
        if url.startswith("sqlite"):
            arguments = {"connect_args": {"timeout": 60}}  # others may be writing
        self.owner = Owner(locks)
        for tries_left in reversed(range(OPEN_TRIES)):
            try:
                # Two that make the tables at the same moment are in each other's way: on one
                # machine a lock keeps them apart, of several the slower one tries again.
                with FileLock(locks / "search"):
                    self.storage: BaseStorage = RDBStorage(url, engine_kwargs=arguments)
                break
            except Exception as error:  # whatever a database driver raises
                if tries_left and isinstance(error, DBAPIError):
                    time.sleep(OPEN_SECONDS)
                    continue
                first = (str(error).splitlines() or [type(error).__name__])[0]
                raise ValueError(
                    f"cannot open the search database {_shown(url)}: {first}"
                ) from None

    def search(
        self, name: str, space: Space, settings: Sequence[Setting], best: Literal["high", "low"]
    ) -> Search:
        return Search(self.storage, self.owner, name, space, settings, best)


@dataclass
class Search:
    """The trials of one method on one task."""

    storage: BaseStorage
    owner: Owner
    name: str
    space: Space
    settings: Sequence[Setting]
    best: Literal["high", "low"]
    running: dict[int, float] = field(default_factory=dict)  # number: when we last gave a sign
    failed: dict[int, Ended] = field(default_factory=dict)  # in this process, which tries once
    study: Study = field(init=False)
    handovers: Study = field(init=False)  # a log: trial, whose it was, whose it is

    def __post_init__(self) -> None:
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
        trials = self._trials()
        number = self._orphan(trials)
        if number is None and len(trials) < len(self.settings):
            number = self._new()
        if number is not None:
            self.running[number] = time.time()
        return number

    def _new(self) -> int | None:
        """A trial that nobody has had before."""
        # Made in one transaction with its owner: at no moment is it nobody's.
        made = create_trial(
            state=TrialState.RUNNING,
            user_attrs={"owner": self.owner.name, "seen": time.time()},
        )
        trial = self.storage.create_new_trial(self.study._study_id, made)
        number = self.storage.get_trial_number_from_id(trial)
        if number >= len(self.settings):  # another process was faster by a moment
            self.storage.set_trial_state_values(trial, TrialState.FAIL)
            return None
        for name, part in self.space.items():  # for people who look into the database
            kind, value = _distribution(part), self.settings[number][name]
            self.storage.set_trial_param(trial, name, kind.to_internal_repr(value), kind)
        return number

    def _orphan(self, trials: Sequence[FrozenTrial]) -> int | None:
        """A trial that was begun by a process that is no more, made ours."""
        running = [t for t in trials if t.state == TrialState.RUNNING]
        others = [t for t in running if t.number not in self.running | self.failed]
        owners = self._owners(others) if others else {}
        for trial in others:
            owner = owners[trial.number]
            if owner and self.owner.is_alive(owner, trial.user_attrs["seen"]):
                continue
            # It may have ended as it should, between the look at its trials and that at its pulse.
            if self.storage.get_trial(trial._trial_id).state.is_finished():
                continue
            self._see(trial)  # first, or it would look abandoned again as soon as it is ours
            self._hand_over(trial.number, owner, self.owner.name)
            if self._owners([trial])[trial.number] == self.owner.name:
                return trial.number
        return None

    def _owners(self, trials: Sequence[FrozenTrial]) -> dict[int, str]:
        """Whose the trials are; nobody is the empty name."""
        owners = {trial.number: trial.user_attrs["owner"] for trial in trials}
        for entry in self.handovers.get_trials(deepcopy=False):
            number, before, after = entry.user_attrs["handover"]
            if owners.get(number) == before:  # else another process was faster
                owners[number] = after
        return owners

    def _hand_over(self, number: int, before: str, after: str) -> None:
        entry = create_trial(
            state=TrialState.PRUNED, user_attrs={"handover": [number, before, after]}
        )
        self.storage.create_new_trial(self.handovers._study_id, entry)

    def sign_of_life(self) -> None:
        """To be called now and then while trials of ours are running."""
        now = time.time()
        if all(now - given < SEEN_SECONDS for given in self.running.values()):
            return
        for trial in self._trials():
            if now - self.running.get(trial.number, now) >= SEEN_SECONDS:
                self._see(trial)
                self.running[trial.number] = now

    def _see(self, trial: FrozenTrial) -> None:
        with suppress(UpdateFinishedTrialError):  # by another process, that took us for dead
            self.storage.set_trial_user_attr(trial._trial_id, "seen", time.time())

    def report(self, number: int, ended: Ended) -> None:
        """Write down how a trial of ours ended. One that failed can be tried again later."""
        if ended.status == "failed":
            self.failed[number] = ended
            return self.release(number)
        trial = self._trials()[number]
        with suppress(UpdateFinishedTrialError):  # by another process, that took us for dead
            self.storage.set_trial_user_attr(trial._trial_id, "ended", asdict(ended))
            if ended.status == "finished":
                self.study.tell(number, ended.score, skip_if_finished=True)
            else:
                self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
        self.running.pop(number, None)

    def release(self, number: int) -> None:
        """Give up a trial that has not ended, so that another process can take it at once."""
        self._hand_over(number, self.owner.name, "")
        self.running.pop(number, None)

    def ended(self) -> dict[int, Ended]:
        """The trials that have ended, by number; with those that failed here."""
        return self.failed | {
            trial.number: Ended(**trial.user_attrs["ended"])
            for trial in self._trials()
            if trial.state.is_finished()
        }

    def _trials(self) -> list[FrozenTrial]:
        """Those that count, by number: a trial too many is none, one that is missing an error."""
        trials = self.study.get_trials(deepcopy=False)[: len(self.settings)]
        for number, trial in enumerate(trials):
            attributes = {"owner", "seen"} | ({"ended"} if trial.state.is_finished() else set())
            if trial.number != number or not attributes <= set(trial.user_attrs):
                raise ProtocolError(
                    f"trial {number} of the search {self.name} is not as badm left it, so methods "
                    "would not have equal trials: remove that study from its database or use "
                    "another one"
                )
        return trials


def _distribution(part: Range | Choice) -> BaseDistribution:
    if isinstance(part, Choice):
        return CategoricalDistribution(part.values)
    return FloatDistribution(part.low, part.high, log=part.log)


def _shown(url: str) -> str:
    """The URL without the password that may be in it."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url

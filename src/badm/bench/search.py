"""A search that several processes and machines can share: every trial is done once.

The settings to try are fixed beforehand (``design.py``). Optuna keeps the book: in a database,
each process takes the next trial that nobody has, and reports how it ended. By default the database
is one file beside the runs; with the URL of a database server any number of machines share it.
A trial whose process died is taken over by the next one that looks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from badm.bench.method import Choice, Range, Setting, Space
from badm.bench.store import Outcome

SEEN_SECONDS = 30.0  # between two signs of life
STALE_SECONDS = 300.0  # without one: its machine is taken to be gone

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


class Book:
    """Where all searches are written down, and who writes."""

    def __init__(self, url: str, locks: Path) -> None:
        """``url`` is that of a database; ``ValueError`` says what is wrong with it."""
        arguments: dict[str, Any] = {}
        if url.startswith("sqlite"):
            arguments = {"connect_args": {"timeout": 60}}  # others may be writing
        self.owner = Owner(locks)
        try:
            # Two processes that make the tables at the same moment would be in each other's way.
            with FileLock(locks / "search"):
                self.storage: BaseStorage = RDBStorage(url, engine_kwargs=arguments)
        except Exception as error:  # whatever a database driver raises
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"cannot open the search database {url}: {first}") from None

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

    def __post_init__(self) -> None:
        self.study = optuna.create_study(
            storage=self.storage,
            study_name=self.name,
            sampler=_Design(self.settings),
            direction="maximize" if self.best == "high" else "minimize",
            load_if_exists=True,
        )

    def claim(self) -> int | None:
        """The number of a trial that is now ours to do; ``None`` if there is none to be had."""
        trials = self._trials()
        number = self._orphan(trials)
        if number is None and len(trials) < len(self.settings):
            distributions = {name: _distribution(part) for name, part in self.space.items()}
            trial = self.study.ask(distributions)
            trial.set_user_attr("owner", self.owner.name)
            number = trial.number
            if number >= len(self.settings):  # another process was faster by a moment
                self.study.tell(number, state=TrialState.FAIL)
                return None
        if number is not None:
            self.running[number] = 0.0
            self.sign_of_life()
        return number

    def _orphan(self, trials: Sequence[FrozenTrial]) -> int | None:
        """A trial that was begun by a process that is no more, made ours."""
        for trial in trials:
            mine = trial.number in self.running or trial.number in self.failed
            if trial.state != TrialState.RUNNING or mine:
                continue
            began = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
            owner = trial.user_attrs.get("owner", "?")
            if not owner or not self.owner.is_alive(owner, trial.user_attrs.get("seen", began)):
                self.storage.set_trial_user_attr(trial._trial_id, "owner", self.owner.name)
                return trial.number
        return None

    def sign_of_life(self) -> None:
        """To be called now and then while trials of ours are running."""
        now = time.time()
        if all(now - given < SEEN_SECONDS for given in self.running.values()):
            return
        for trial in self._trials():
            if now - self.running.get(trial.number, now) >= SEEN_SECONDS:
                self.storage.set_trial_user_attr(trial._trial_id, "seen", now)
                self.running[trial.number] = now

    def report(self, number: int, ended: Ended) -> None:
        """Write down how a trial of ours ended. One that failed can be tried again later."""
        trial = self._trials()[number]
        if ended.status == "failed":
            self.failed[number] = ended
            return self.release(number)
        self.storage.set_trial_user_attr(trial._trial_id, "ended", asdict(ended))
        if ended.status == "finished":
            self.study.tell(number, ended.score, skip_if_finished=True)
        else:
            self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
        self.running.pop(number, None)

    def release(self, number: int) -> None:
        """Give up a trial that has not ended, so that another process can take it at once."""
        self.storage.set_trial_user_attr(self._trials()[number]._trial_id, "owner", "")
        self.running.pop(number, None)

    def ended(self) -> dict[int, Ended]:
        """The trials that have ended, by number; with those that failed here."""
        return self.failed | {
            trial.number: Ended(**trial.user_attrs["ended"])
            for trial in self._trials()
            if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        }

    def _trials(self) -> list[FrozenTrial]:
        """Those that count, by number: a trial too many is none."""
        return self.study.get_trials(deepcopy=False)[: len(self.settings)]


class _Design(BaseSampler):
    """Optuna's way to be told what to try: the setting that belongs to the number of the trial."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = settings

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self.settings[min(trial.number, len(self.settings) - 1)][param_name]


def _distribution(part: Range | Choice) -> BaseDistribution:
    if isinstance(part, Choice):
        return CategoricalDistribution(part.values)
    return FloatDistribution(part.low, part.high, log=part.log)

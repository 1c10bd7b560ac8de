"""One method on one task: its search, if there is one, then its final runs."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

from badm.bench.comparison import Trial
from badm.bench.design import at_edge, design, for_sum
from badm.bench.method import Method, Setting, Space
from badm.bench.plan import TUNING_SEED, Entry, Plan
from badm.bench.search import Book, Ended, Search
from badm.bench.statistics import time_to_target
from badm.bench.store import Config, Run
from badm.bench.tasks import Found
from badm.bench.workers import Job


@dataclass
class Contest:
    """Says which run comes next and takes note of those that ended.

    With a ``book`` the setting is searched for, without one it is there from the beginning.
    """

    plan: Plan
    found: Found
    method: Method
    entry: Entry
    book: Book | None
    before: Contest | None = None  # the stage whose weights this one starts from
    later: bool = False  # whether another stage starts from the weights of this one
    search: Search | None = None
    # Numbers by key of the configuration: several where the design has a setting more than once.
    trials: dict[str, list[int]] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)  # seeds of final runs
    ended: set[int] = field(default_factory=set)

    @property
    def seeds(self) -> list[int]:
        """Of the final runs; the trials of a later stage start from one of them too."""
        tuning = [TUNING_SEED] if self.later and self.book is not None else []
        return [*range(self.plan.seeds), *tuning]

    @property
    def steps(self) -> int:
        return self.plan.steps or self.found.task.steps

    @property
    def target(self) -> float | None:
        return self.found.task.target if self.plan.target is None else self.plan.target

    @property
    def space(self) -> Space:
        return for_sum(self.method.space, self.found.task.terms)

    @property
    def done(self) -> bool:
        return self.entry.setting is not None and self.ended == set(self.seeds)

    @property
    def runs_wanted(self) -> int:
        return (self.plan.trials if self.book is not None else 0) + len(self.seeds)

    @property
    def runs_started(self) -> int:
        return sum(map(len, self.trials.values())) + len(self.started)

    @property
    def runs_ended(self) -> int:
        return len(self.entry.tried) + len(self.ended)

    def next_job(self) -> Job | None:
        """A run that can be started now; ``None`` if there is none, now or at all."""
        if self.before is not None and not self.before.done:
            return None
        if self.entry.setting is None:
            self._take_note_of_trials()
        if self.entry.setting is None:
            return self._next_trial()
        for seed in self.seeds:
            if seed not in self.started:
                self.started.add(seed)
                config = self.entry.finals[seed] = self._config(self.entry.setting, seed, test=True)
                fault = self._fault_before(seed)
                if not fault:
                    return self._job(config)
                self.fail(config, fault)
        return None

    def _next_trial(self) -> Job | None:
        search = self._opened()
        while (number := search.claim()) is not None:
            setting = self.method.setting(search.settings[number])
            config = self._config(setting, TUNING_SEED, test=False)
            others = self.trials.setdefault(config.key, [])
            others.append(number)
            fault = self._fault_before(TUNING_SEED)
            if fault:
                self.fail(config, fault)
            elif len(others) == 1:  # else that run is at work or done, and counts for this one too
                return self._job(config)
            elif others[0] not in search.running:
                search.report(number, search.ended()[others[0]])
        return None

    def _opened(self) -> Search:
        """The search, under a name that covers all that its trials depend on."""
        if self.search is None:
            assert self.book is not None
            settings = design(self.space, self.plan.trials)
            keys = [
                self._config(self.method.setting(setting), TUNING_SEED, test=False).key
                for setting in settings
            ]
            name = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:12]
            self.search = self.book.search(
                f"{self.entry.task}/{self.method.name}/{name}",
                self.space,
                settings,
                self.found.task.score.best,
            )
        return self.search

    def _config(self, setting: Setting, seed: int, *, test: bool) -> Config:
        return self.found.config(
            self.method,
            setting,
            seed,
            steps=self.steps,
            schedule=self.plan.schedule,
            test=test,
            after=None if self.before is None else self.before.entry.finals[seed],
            threads=self.plan.threads,
        )

    def _fault_before(self, seed: int) -> str:
        """Why there are no weights to start from, if there are none."""
        if self.before is None or seed not in self.before.entry.faults:
            return ""
        return f"{self.before.entry.task}, the stage before: {self.before.entry.faults[seed]}"

    def _job(self, config: Config) -> Job:
        return Job(self.found.source, self.plan.scale, config, self.later and config.test)

    def finish(self, run: Run) -> None:
        """Take note of a run that has ended."""
        result = run.result
        assert result is not None
        numbers = self.trials.get(run.config.key)
        if numbers is None:
            self.ended.add(run.config.seed)
            if result.status != "finished":
                self.entry.faults[run.config.seed] = result.message
            return
        loss = None if result.validation is None else result.validation.get("loss")
        steps = self._steps_to_target(run)
        ended = Ended(result.status, result.score, loss, steps, result.message)
        for number in numbers:
            self._opened().report(number, ended)
        self._take_note_of_trials()

    def fail(self, config: Config, message: str) -> None:
        """Take note of a run that left no result."""
        numbers = self.trials.get(config.key)
        if numbers is None:
            self.ended.add(config.seed)
            self.entry.faults[config.seed] = message
            return
        for number in numbers:
            if number in self._opened().running:
                self._opened().report(number, Ended("failed", message=message))
        self._take_note_of_trials()

    def _steps_to_target(self, run: Run) -> float | None:
        score = self.found.task.score
        if self.target is None:
            return None
        return time_to_target(*run.readings(score.name), self.target, score)

    def _take_note_of_trials(self) -> None:
        """Choose the setting once all trials have ended, whoever has done them."""
        search = self._opened()
        ended = search.ended()
        settings = [self.method.setting(setting) for setting in search.settings]
        self.entry.tried = [
            Trial(
                self.entry.task,
                self.method.name,
                number,
                settings[number],
                trial.status,
                trial.score,
                trial.steps_to_target,
            )
            for number, trial in sorted(ended.items())
        ]
        if sorted(ended) != list(range(self.plan.trials)):
            return
        best = min(sorted(ended), key=lambda number: self._cost(ended[number]))
        self.entry.setting = settings[best]
        if ended[best].status == "finished":
            self.entry.at_edge = at_edge(self.space, settings, settings[best])

    def _cost(self, ended: Ended) -> tuple[float, ...]:
        """Less is better: what the plan searches for, then the rest for ties."""
        if ended.value is None:
            return (math.inf, math.inf, math.inf)
        score = -ended.value if self.found.task.score.best == "high" else ended.value
        loss = math.inf if ended.loss is None else ended.loss
        if self.plan.objective == "score" or ended.steps_to_target is None:
            return score, loss, 0.0
        return ended.steps_to_target, score, loss

    def sign_of_life(self) -> None:
        if self.search is not None and self.search.running:
            self.search.sign_of_life()

    @property
    def elsewhere(self) -> list[str]:
        """The trials that other processes have at work, in words."""
        numbers = [] if self.search is None or self.entry.setting else self.search.elsewhere
        return [f"trial {n} of {self.method.name} on {self.entry.task}" for n in numbers]

    def release(self) -> None:
        """Leave the trials that have not ended to others."""
        if self.search is not None:
            self.search.leave()

"""One method on one task: its search, if there is one, then its final runs.

In the speed protocol this is one method on one task at one part of the budget.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

from badm.bench.analysis.speed import last_value
from badm.bench.analysis.statistics import time_to_target
from badm.bench.compare.budgets import TIMED_STEPS, steps_in
from badm.bench.compare.parts import evaluate_every, steps_of_part, whole_budget
from badm.bench.compare.search import Search, SearchDatabase, TrialResult
from badm.bench.compare.search_space import Design, design, next_range
from badm.bench.compare.trial_settings import at_edge
from badm.bench.engine import schedules
from badm.bench.engine.workers import Job
from badm.bench.method import Method, Range, Setting, Space
from badm.bench.records.comparisons import Trial
from badm.bench.records.plans import TUNING_SEED, MethodRecord, Plan
from badm.bench.records.runs import Run, RunConfig
from badm.bench.tasks import FoundTask


@dataclass
class MethodOnTask:
    """Choose the next run and keep a record of those that ended.

    With a ``database`` the setting is searched for; without one it is known from the start.
    """

    plan: Plan
    found: FoundTask
    method: Method
    entry: MethodRecord
    database: SearchDatabase | None
    previous: MethodOnTask | None = None  # the stage whose weights this one starts from
    has_next_stage: bool = False  # whether another stage starts from the weights of this one
    search: Search | None = None
    # Numbers by key of the configuration: several where a setting is tried more than once.
    trial_numbers: dict[str, list[int]] = field(default_factory=dict)
    started_seeds: set[int] = field(default_factory=set)  # seeds of final runs
    ended_seeds: set[int] = field(default_factory=set)
    # At the end of each final run that finished: by seed, on the validation split.
    last_scores: dict[int, float] = field(default_factory=dict)
    # Of a budget in seconds: the short run that is timed, and the steps that fit into the budget.
    timed_run: RunConfig | None = None
    timed_steps: int | None = None

    @property
    def entries(self) -> list[MethodRecord]:
        return [self.entry]

    @property
    def is_urgent(self) -> bool:
        """Whether others wait for its result."""
        return False

    @property
    def seeds(self) -> list[int]:
        """Of the final runs; the trials of a later stage start from one of them too."""
        tuning = [TUNING_SEED] if self.has_next_stage and self.database is not None else []
        return [*range(self.plan.seeds), *tuning]

    @property
    def budget(self) -> int:
        """The steps of a run at the whole budget."""
        return self.timed_steps or whole_budget(self.plan, self.found)

    @property
    def is_untimed(self) -> bool:
        """Whether the steps of a budget in seconds are not known yet."""
        return self.plan.second_budget is not None and self.timed_steps is None

    @property
    def steps(self) -> int:
        return steps_of_part(self.entry.part, self.budget)

    @property
    def by_last_score(self) -> bool:
        """Whether runs count by their last validation score, and not by their best."""
        return self.plan.protocol == "speed"

    @property
    def target(self) -> float | None:
        if self.plan.protocol == "speed":  # it is the baseline's score, known later
            return None
        return self.found.task.target if self.plan.target is None else self.plan.target

    @property
    def design(self) -> Design:
        return design(self.method, self.plan, self.found.task.terms)

    @property
    def space(self) -> Space:
        return self.design.space

    @property
    def done(self) -> bool:
        return self.entry.setting is not None and self.ended_seeds == set(self.seeds)

    @property
    def cannot_train(self) -> bool:
        """Whether the method cannot train the task, whatever its setting."""
        return any(trial.status == "cannot" for trial in self.entry.tried)

    def update(self) -> None:
        """Nothing: what comes next does not depend on other methods."""

    @property
    def runs_planned(self) -> int:
        timed = self.plan.second_budget is not None
        return (self.plan.trials if self.database is not None else 0) + len(self.seeds) + timed

    @property
    def runs_started(self) -> int:
        timed = self.timed_run is not None
        return sum(map(len, self.trial_numbers.values())) + len(self.started_seeds) + timed

    @property
    def runs_ended(self) -> int:
        return len(self.entry.tried) + len(self.ended_seeds) + (self.timed_steps is not None)

    def next_job(self) -> Job | None:
        """A run that can be started now; ``None`` if there is none, yet or any more."""
        if self.previous is not None and not self.previous.done:
            return None
        if self.is_untimed:
            return self._next_timed()
        if self.entry.setting is None:
            self._update_trials()
        if self.entry.setting is None:
            return self._next_trial()
        for seed in self.seeds:
            if seed not in self.started_seeds:
                self.started_seeds.add(seed)
                config = self.entry.finals[seed] = self._config(self.entry.setting, seed, test=True)
                fault = self._previous_stage_error(seed)
                if not fault:
                    return self._job(config)
                self.record_failed(config, fault)
        return None

    def _next_timed(self) -> Job | None:
        """The short run that says how long a step takes, at the method's defaults."""
        if self.timed_run is not None:
            return None
        config = self._config(self.method.setting({}), TUNING_SEED, test=False)
        self.timed_run = replace(config, steps=TIMED_STEPS, evaluate_every=self._timed_evaluation)
        return self._job(self.timed_run)

    @property
    def _timed_evaluation(self) -> int:
        """As seldom as can be; a training function evaluates when it does."""
        return 0 if self.found.is_function else TIMED_STEPS

    def _record_timed(self, run: Run | None) -> None:
        """Take the steps that fit into the budget, or the task's own if none could be timed."""
        assert self.plan.second_budget is not None
        steps = None if run is None else steps_in(self.plan.second_budget, run)
        self.timed_steps = steps or self.found.task.steps

    def _next_trial(self) -> Job | None:
        search = self._open_search()
        while (number := search.claim()) is not None:
            setting = self.method.setting(search.settings[number])
            config = self._config(setting, TUNING_SEED, test=False)
            others = self.trial_numbers.setdefault(config.key, [])
            others.append(number)
            fault = self._previous_stage_error(TUNING_SEED)
            if fault:
                self.record_failed(config, fault)
            elif len(others) == 1:  # else that run has been started, and counts for this one too
                return self._job(config)
            elif others[0] not in search.running:
                search.report(number, search.results()[others[0]])
        return None

    def _open_search(self) -> Search:
        """The search, under a name that covers all that its trials depend on."""
        if self.search is None:
            assert self.database is not None
            settings = self.design.settings(self.plan.trials)
            keys = [
                self._config(self.method.setting(setting), TUNING_SEED, test=False).key
                for setting in settings
            ]
            if self.by_last_score:  # what is written down of the same runs is another score
                keys.append("last score")
            name = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:12]
            self.search = self.database.search(
                f"{self.entry.task}/{self.method.name}/{name}",
                self.space,
                settings,
                self.found.task.score.best,
            )
        return self.search

    def _config(self, setting: Setting, seed: int, *, test: bool) -> RunConfig:
        return self.found.config(
            self.method,
            setting,
            seed,
            steps=self.steps,
            schedule=schedules.find(self.plan.schedule, self.found.folder).stored,
            test=test,
            after=None if self.previous is None else self.previous.entry.finals[seed],
            threads=self.plan.threads,
            device=self.plan.device,
            warmup=self.plan.warmup,
            evaluate_every=self._evaluate_every(is_trial=not test),
            clip_norm=self.plan.clip_norm,
        )

    def _evaluate_every(self, *, is_trial: bool) -> int:
        if not self.by_last_score:
            return 0
        # Trials are judged by their last score alone; reading more would cost as much as training.
        return self.steps if is_trial else evaluate_every(self.budget)

    def _previous_stage_error(self, seed: int) -> str:
        """Why the stage before left no weights to start from; empty if it did."""
        if self.previous is None or seed not in self.previous.entry.faults:
            return ""
        return f"{self.previous.entry.task}, the stage before: {self.previous.entry.faults[seed]}"

    def _job(self, config: RunConfig) -> Job:
        keep = self.has_next_stage and config.test
        schedule = schedules.find(self.plan.schedule, self.found.folder).source
        return Job(self.found.source, self.plan.scale, config, keep, self.method.found_by, schedule)

    def record_finished(self, run: Run) -> None:
        """Record a run that has ended."""
        result = run.result
        assert result is not None
        if self.timed_run is not None and run.config.key == self.timed_run.key:
            return self._record_timed(run)
        numbers = self.trial_numbers.get(run.config.key)
        if numbers is None:
            self.ended_seeds.add(run.config.seed)
            if result.status != "finished":
                self.entry.faults[run.config.seed] = result.message
            elif (last := last_value(run, self.found.task.score.name)) is not None:
                self.last_scores[run.config.seed] = last
            return
        score = result.score
        loss = None if result.validation is None else result.validation.get("loss")
        if self.by_last_score:
            score, loss = last_value(run, self.found.task.score.name), last_value(run, "loss")
        steps = self._steps_to_target(run)
        ended = TrialResult(result.status, score, loss, steps, result.message)
        for number in numbers:
            self._open_search().report(number, ended)
        self._update_trials()

    def record_failed(self, config: RunConfig, message: str) -> None:
        """Record a run that left no result."""
        if self.timed_run is not None and config.key == self.timed_run.key:
            return self._record_timed(None)
        numbers = self.trial_numbers.get(config.key)
        if numbers is None:
            self.ended_seeds.add(config.seed)
            self.entry.faults[config.seed] = message
            return
        for number in numbers:
            if number in self._open_search().running:
                self._open_search().report(number, TrialResult("failed", message=message))
        self._update_trials()

    def _steps_to_target(self, run: Run) -> float | None:
        score = self.found.task.score
        if self.target is None:
            return None
        return time_to_target(*run.validation_curve(score.name), self.target, score)

    def _update_trials(self) -> None:
        """Choose the setting once all trials have ended, in this process or in others."""
        search = self._open_search()
        ended = search.results()
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
            self.entry.next_ranges = {
                name: [beyond.low, beyond.high]
                for name in self.entry.at_edge
                if isinstance(part := self.space[name], Range)
                and (beyond := next_range(part, settings[best][name]))
            }

    def _cost(self, ended: TrialResult) -> tuple[float, ...]:
        """What to minimise: the plan's objective first, the others to break ties."""
        if ended.value is None:
            return (math.inf, math.inf, math.inf)
        score = -ended.value if self.found.task.score.best == "high" else ended.value
        loss = math.inf if ended.loss is None else ended.loss
        if self.plan.objective == "score" or ended.steps_to_target is None:
            return score, loss, 0.0
        return ended.steps_to_target, score, loss

    def send_heartbeat(self) -> None:
        if self.search is not None and self.search.running:
            self.search.send_heartbeat()

    @property
    def trials_of_others(self) -> list[str]:
        """The trials that other processes are running, in words."""
        if self.search is None or self.entry.setting:
            return []
        numbers = self.search.in_other_processes
        return [f"trial {n} of {self.method.name} on {self.entry.task}" for n in numbers]

    def release(self) -> None:
        """Give up the trials that have not ended, so that other processes can take them."""
        if self.search is not None:
            self.search.leave()

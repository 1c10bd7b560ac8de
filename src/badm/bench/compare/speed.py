"""One method on one task in the speed protocol: the smallest part of the budget that is enough.

The baseline is tuned at the whole budget, and the mean of the scores its runs end with is the
target. Every other method is tuned anew at each part that is measured, with its schedule fitted to
that part, and reaches the target or does not. The first part of a method can run before the target
is known; which part comes next depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from badm.bench.analysis.speed import reaches, target_score
from badm.bench.compare.method_on_task import MethodOnTask
from badm.bench.compare.parts import next_part
from badm.bench.engine.workers import Job
from badm.bench.method import Method
from badm.bench.records.plans import MethodRecord
from badm.bench.records.runs import Run, RunConfig
from badm.bench.records.speeds import PARTS
from badm.bench.tasks import FoundTask


@dataclass
class SpeedOnTask:
    """Choose the next run of a method on a task, part after part of the budget.

    ``make(part)`` makes the method on the task at a part. Without a ``baseline`` it is the baseline
    itself.
    """

    found: FoundTask
    method: Method
    make: Callable[[float], MethodOnTask]
    baseline: SpeedOnTask | None = None
    parts: dict[int, MethodOnTask] = field(default_factory=dict)  # by eighths, as they were begun
    reached: dict[int, bool] = field(default_factory=dict)  # of those that are known
    done: bool = False

    def __post_init__(self) -> None:
        self._begin(PARTS if self.baseline is None else next_part({}))

    def _begin(self, part: int | None) -> None:
        if part is None:
            self.done = True
        else:
            self.parts[part] = self.make(part / PARTS)

    @property
    def current(self) -> MethodOnTask:
        return next(reversed(self.parts.values()))

    @property
    def target_score(self) -> float | None:
        """The mean of the scores that its final runs ended with; ``None`` until it is known."""
        return target_score(self.current.last_scores, self.current.plan.seeds)

    @property
    def entry(self) -> MethodRecord:
        return self.current.entry

    @property
    def entries(self) -> list[MethodRecord]:
        return [one.entry for one in self.parts.values()]

    @property
    def is_urgent(self) -> bool:
        """Whether others wait for its result."""
        return self.baseline is None

    @property
    def budget(self) -> int:
        return self.current.budget

    @property
    def target(self) -> float | None:
        return None

    @property
    def runs_planned(self) -> int:
        return sum(one.runs_planned for one in self.parts.values())

    @property
    def runs_started(self) -> int:
        return sum(one.runs_started for one in self.parts.values())

    @property
    def runs_ended(self) -> int:
        return sum(one.runs_ended for one in self.parts.values())

    def next_job(self) -> Job | None:
        """A run that can be started now; ``None`` if there is none, yet or any more."""
        self.update()
        return None if self.done else self.current.next_job()

    def update(self) -> None:
        """Go on to the next part once it is known whether the last one was enough."""
        if self.done or not self.current.done:
            return
        if self.baseline is None:
            self.done = True
        elif self.baseline.current.done:
            part, last = next(reversed(self.parts.items()))
            target = self.baseline.target_score
            scores = [last.last_scores.get(seed) for seed in range(last.plan.seeds)]
            self.reached[part] = reaches(scores, target, self.found.task.score)
            # Without a target, or for a method that cannot train the task, no part will do.
            is_hopeless = target is None or last.cannot_train
            self._begin(None if is_hopeless else next_part(self.reached))

    def record_finished(self, run: Run) -> None:
        """Record a run that has ended."""
        self.current.record_finished(run)

    def record_failed(self, config: RunConfig, message: str) -> None:
        """Record a run that left no result."""
        self.current.record_failed(config, message)

    def send_heartbeat(self) -> None:
        self.current.send_heartbeat()

    @property
    def trials_of_others(self) -> list[str]:
        """The trials that other processes are running, in words."""
        return self.current.trials_of_others

    def release(self) -> None:
        """Give up the trials that have not ended, so that other processes can take them."""
        for one in self.parts.values():
            one.release()

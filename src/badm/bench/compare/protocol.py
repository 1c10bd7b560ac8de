"""Which runs make a comparison, and how they are brought to an end.

- ``tuned``: every method searches its own space with the same number of trials, judged on the
  validation split, with a seed of its own. The best setting then runs on fresh seeds, and the test
  split is read once.
- ``paper``: the settings the paper states for the task, or the defaults where it states none;
  nothing is searched.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from badm.bench import methods, tasks
from badm.bench.analysis.summaries import summarise
from badm.bench.compare.database import file_url
from badm.bench.compare.method_on_task import MethodOnTask
from badm.bench.compare.search import STALE_SECONDS, SearchDatabase
from badm.bench.engine.environment import available_cores
from badm.bench.engine.options import Machine
from badm.bench.engine.training import SCHEDULES
from badm.bench.engine.workers import RunBroken, RunProgress, WorkerDied, WorkerEvent, Workers
from badm.bench.errors import ProtocolError, StoreError
from badm.bench.method import Method
from badm.bench.records.comparisons import Comparison, MethodInfo, TaskInfo
from badm.bench.records.plans import TUNING_SEED, ComparisonRecord, MethodRecord, Plan
from badm.bench.records.runs import RunStore
from badm.bench.task import SCALES
from badm.bench.tasks import FoundTask

RESTARTS = 1  # of a run whose process died, before it counts as failed
POLL_SECONDS = 0.5  # between two looks at what other processes have done
SILENT_SECONDS = 5.0  # with nothing to do but to wait for them, before a word about it
MOST_JOBS = 8  # at a time, unless asked for

log = logging.getLogger("badm.bench").warning


def run_all(
    runners: Sequence[ComparisonRunner],
    *,
    jobs: int | None,
    machine: Machine,
    watch: Callable[[WorkerEvent], None],
) -> None:
    """Do the runs of these comparisons, one comparison after the other.

    Args:
        runners: The comparisons.
        jobs: Runs at a time. Default: one for each core, at most eight.
        machine: What each run has of the machine.
        watch: Called with whatever happens in the workers.
    """
    count = jobs or max(1, min(MOST_JOBS, available_cores() // machine.threads))
    for runner in runners:
        with Workers(count, runner.store, machine=machine) as workers:
            runner.run(workers, watch)


class ComparisonRunner:
    """A comparison at work."""

    def __init__(
        self,
        plan: Plan,
        store: RunStore,
        study: str = "",
        say: Callable[[str], None] | None = None,
    ) -> None:
        """``study`` is the URL of a database to share searches through; default: a file.

        ``say`` is called with what the comparison is waiting for; default: it is logged.
        """
        say = say or log
        _check_plan(plan)
        self.plan, self.store, self.say = plan, store.anchored(), say
        here = Path.cwd()  # the code of a task may go elsewhere
        found = [tasks.find(source, plan.scale, here) for source in plan.tasks]
        chosen = [methods.find(name) for name in plan.methods]
        _check(plan, found)
        for one in found:  # before any of them trains
            one.require_data()
        database = None
        if plan.protocol == "tuned":
            database = _open_database(study, self.store, say)
        made: dict[tuple[str, str], MethodOnTask] = {}
        for one in found:
            for method in chosen:
                _method_on_task(plan, one, method, database, made)
        self.pairs = list(made.values())
        self.record = ComparisonRecord(
            plan,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            _task_infos(plan, self.pairs),
            [MethodInfo(m.name, m.description, m.family, m.identity) for m in chosen],
            [pair.entry for pair in self.pairs],
        )

    def run(
        self, workers: Workers, watch: Callable[[WorkerEvent], None] = lambda _: None
    ) -> ComparisonRecord:
        """Do all runs that are left; the record is written whenever something becomes known."""
        self.record.write(self.store)
        try:
            self._run_all(workers, watch)
        finally:
            workers.stop()
            for pair in self.pairs:
                pair.release()
            self.record.interrupted = not self.done
            self.record.write(self.store)
        self._check_trials()
        return self.record

    def comparison(self) -> Comparison:
        """Summarise the runs that are done; a note says so if some are missing."""
        return summarise(replace(self.record, interrupted=not self.done), self.store)

    def _run_all(self, workers: Workers, watch: Callable[[WorkerEvent], None]) -> None:
        running: dict[str, MethodOnTask] = {}
        deaths: Counter[str] = Counter()
        look_at = 0.0  # when to look again for what can be started
        say_at = time.monotonic() + SILENT_SECONDS  # when to say that others are waited for
        while not self.done:
            if time.monotonic() >= look_at:
                self._start(workers, running)
                look_at = time.monotonic() + POLL_SECONDS
            if running:
                say_at = time.monotonic() + SILENT_SECONDS
            else:
                time.sleep(POLL_SECONDS)  # the rest is with other processes
                if time.monotonic() >= say_at:
                    self._say_what_is_waited_for()
                    say_at = math.inf
            for event in workers.events(0.2):
                self._handle(event, workers, running, deaths)
                watch(event)
                if not isinstance(event, RunProgress):
                    look_at = 0.0
            for pair in self.pairs:
                pair.send_heartbeat()

    def _say_what_is_waited_for(self) -> None:
        trials = [trial for pair in self.pairs for trial in pair.elsewhere]
        more = [f"{len(trials) - 3} more"] if len(trials) > 3 else []
        if trials:
            self.say(
                f"waiting for {', '.join(trials[:3] + more)}, at work in other processes; a trial "
                f"is taken over when its machine has been silent for {STALE_SECONDS:g} seconds"
            )

    @property
    def done(self) -> bool:
        return all(pair.done for pair in self.pairs)

    @property
    def has_final_runs(self) -> bool:
        """Whether a final run has been started, so that there is something to report."""
        return any(pair.entry.finals for pair in self.pairs)

    def _start(self, workers: Workers, running: dict[str, MethodOnTask]) -> None:
        """Give every free worker a run, of the pair that has had the fewest so far."""
        waiting = sorted(self.pairs, key=lambda pair: pair.runs_started)
        while workers.free and waiting:
            job = waiting[0].next_job()
            if job is None:
                del waiting[0]
                continue
            running[job.config.key] = waiting[0]
            workers.start(job)
            waiting.sort(key=lambda pair: pair.runs_started)

    def _handle(
        self,
        event: WorkerEvent,
        workers: Workers,
        running: dict[str, MethodOnTask],
        deaths: Counter[str],
    ) -> None:
        key = event.job.config.key
        if isinstance(event, RunProgress):
            return
        if isinstance(event, RunBroken):
            raise event.error
        if isinstance(event, WorkerDied):
            deaths[key] += 1
            if deaths[key] <= RESTARTS:
                workers.start(event.job)  # it goes on from its checkpoint
                return
            running.pop(key).record_failed(event.job.config, f"its process died: {event.reason}")
        else:
            run = self.store.read(event.job.config)
            assert run is not None
            running.pop(key).record_finished(run)
        self.record.write(self.store)

    def _check_trials(self) -> None:
        """Equal numbers of trials, or no comparison."""
        if self.plan.protocol == "paper":
            return
        for pair in self.pairs:
            numbers = [trial.index for trial in pair.entry.tried]
            if numbers != list(range(self.plan.trials)):
                raise ProtocolError(
                    f"{pair.method.name} on {pair.entry.task} has the trials {numbers}, "
                    f"and every method must have {self.plan.trials}"
                )


def _open_database(study: str, store: RunStore, say: Callable[[str], None]) -> SearchDatabase:
    """Open the database that keeps the searches: the one asked for, or a file beside the runs."""
    locks = store.folder / ".locks"
    if study:
        return SearchDatabase(study, locks, say)
    try:
        return SearchDatabase(file_url(store.folder / "search.db"), locks, say)
    except ValueError as error:  # nothing was asked for that could be wrong: it is the disk
        raise StoreError(str(error)) from None


def _method_on_task(
    plan: Plan,
    found: FoundTask,
    method: Method,
    database: SearchDatabase | None,
    made: dict[tuple[str, str], MethodOnTask],
) -> MethodOnTask:
    """One method on one task, after the stage before it."""
    where = found.source, method.name
    if where not in made:
        before = None
        if found.previous_stage is not None:
            earlier = tasks.find(found.previous_stage, plan.scale, found.folder)
            before = _method_on_task(plan, earlier, method, database, made)
            before.has_next_stage = True
        stated = found.task.paper
        entry = MethodRecord(found.task.name, method.name)
        if stated is not None:
            entry.paper = stated.scores.get(method.name)
        if database is None:
            entry.setting = method.paper_setting(stated)
        else:
            entry.searched = list(method.space)
        made[where] = MethodOnTask(plan, found, method, entry, database, before)
    return made[where]


def _check_plan(plan: Plan) -> None:
    """Refuse what no comparison can be made of, whatever its tasks."""
    tuned = plan.protocol == "tuned"
    rules = (
        ("tasks", len(plan.tasks) > 0, "at least one"),
        ("methods", len(plan.methods) > 0, "at least one"),
        ("methods", len(set(plan.methods)) == len(plan.methods), "different from each other"),
        ("protocol", plan.protocol in ("tuned", "paper"), "tuned or paper"),
        ("objective", plan.objective in ("score", "steps"), "score or steps"),
        ("schedule", plan.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
        ("scale", plan.scale in SCALES, f"one of {', '.join(SCALES)}"),
        ("trials", plan.trials >= tuned, "a whole number of at least 1"),
        ("seeds", 0 <= plan.seeds <= TUNING_SEED, f"a whole number from 0 to {TUNING_SEED}"),
        ("steps", plan.steps is None or plan.steps >= 1, "a whole number of at least 1"),
        ("target", plan.target is None or math.isfinite(plan.target), "a finite number"),
        ("reference", plan.reference in ("", *plan.methods), "one of the methods"),
    )
    for name, right, wanted in rules:
        if not right:
            raise ProtocolError(f"{name} must be {wanted}, got {getattr(plan, name)!r}")


def _check(plan: Plan, found: Sequence[FoundTask]) -> None:
    by_name: dict[str, list[str]] = {}
    for one in found:
        by_name.setdefault(one.task.name, []).append(one.source)
    for name, sources in by_name.items():
        if len(sources) > 1:
            raise ProtocolError(
                f"tasks must have different names, got {name} from {' and '.join(sources)}"
            )
    if plan.objective == "steps" and plan.target is None:
        for one in found:
            if one.task.target is None:
                raise ProtocolError(
                    f"task {one.task.name} has no target to count steps to: give one with --target"
                )


def _task_infos(plan: Plan, pairs: Sequence[MethodOnTask]) -> list[TaskInfo]:
    facts = {}
    for pair in pairs:
        task = pair.found.task
        facts[task.name] = TaskInfo(
            task.name,
            task.description,
            plan.scale,
            task.score.name,
            task.score.best,
            task.score.percent,
            pair.steps,
            task.batch_size,
            pair.target,
            synthetic=False,  # the runs will tell
            version=pair.found.version,
            data=pair.found.data,
            paper_note="" if task.paper is None else task.paper.note,
            paper_steps=_paper_steps(pair.found),
        )
    return list(facts.values())


def _paper_steps(found: FoundTask) -> int | None:
    """The steps of a task of ours at the paper's scale; a user's own task may have no such."""
    make = tasks.TASKS.get(found.source)
    return None if make is None else make("paper").steps

"""Which runs make a comparison, and the loop that does them.

- ``tuned``: every method searches its own space with the same number of trials, judged on the
  validation split, with a seed of its own. The best setting then runs on fresh seeds, and the test
  split is read once.
- ``speed``: a baseline is tuned at its whole budget, and every other method at parts of it, to find
  the smallest part in which it reaches what the baseline does (``speed.py``).
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
from badm.bench.compare.plan_checks import check_methods, check_plan, check_speed, check_tasks
from badm.bench.compare.search import STALE_SECONDS, SearchDatabase
from badm.bench.compare.search_space import check_search, design, with_stated
from badm.bench.compare.speed import SpeedOnTask
from badm.bench.engine import schedules
from badm.bench.engine.environment import available_cores
from badm.bench.engine.options import Machine
from badm.bench.engine.streams import same_directory
from badm.bench.engine.workers import (
    Job,
    RunBroken,
    RunFinished,
    RunProgress,
    WorkerDied,
    WorkerEvent,
    Workers,
)
from badm.bench.errors import ProtocolError, StoreError
from badm.bench.method import Method
from badm.bench.records.comparisons import Comparison, MethodInfo, TaskInfo
from badm.bench.records.plans import (
    ComparisonRecord,
    MethodRecord,
    Plan,
)
from badm.bench.records.runs import Run, RunStore
from badm.bench.tasks import FoundTask

RESTARTS = 1  # of a run whose process died, before it counts as failed
POLL_SECONDS = 0.5  # between two checks of what other processes have done
SILENT_SECONDS = 5.0  # of waiting for them, before a message says so
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
    """Do the runs of a comparison and keep its record."""

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
        check_plan(plan)
        self.plan, self.store, self.say = plan, store.anchored(), say
        here = Path.cwd()  # the code of a task may change it
        with same_directory():
            found = [tasks.find(source, plan.scale, here) for source in plan.tasks]
            chosen = [with_stated(methods.find(name, here), plan.stated) for name in plan.methods]
            _require_schedule(plan.schedule, here)
        check_methods(plan, chosen)
        check_search(plan, chosen)
        check_tasks(plan, found, chosen)
        for one in found:  # before any of them trains
            one.require_data()
        database = None
        if plan.protocol != "paper":
            database = _open_database(study, self.store, say)
        self.methods_on_tasks: Sequence[MethodOnTask | SpeedOnTask]
        if plan.protocol == "speed":
            check_speed(plan, found, chosen)
            self.methods_on_tasks = _speeds_on_tasks(plan, found, chosen, database)
        else:
            made: dict[tuple[str, str], MethodOnTask] = {}
            for one in found:
                for method in chosen:
                    _method_on_task(plan, one, method, database, made)
            self.methods_on_tasks = list(made.values())
        self.record = ComparisonRecord(
            plan,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            _task_infos(plan, self.methods_on_tasks),
            [MethodInfo(m.name, m.description, m.family, m.identity) for m in chosen],
            self._entries(),
        )

    def run(
        self, workers: Workers, watch: Callable[[WorkerEvent], None] = lambda _: None
    ) -> ComparisonRecord:
        """Do all runs that are left; the record is written whenever something becomes known."""
        self._write()
        try:
            self._run_all(workers, watch)
        finally:
            workers.stop()
            for one in self.methods_on_tasks:
                one.release()
            self.record.interrupted = not self.done
            self._write()
        self._check_trials()
        return self.record

    def comparison(self) -> Comparison:
        """Summarise the runs that are done; a note says so if some are missing."""
        infos = _task_infos(self.plan, self.methods_on_tasks)
        record = replace(
            self.record, tasks=infos, entries=self._entries(), interrupted=not self.done
        )
        return summarise(record, self.store)

    def _entries(self) -> list[MethodRecord]:
        return [entry for one in self.methods_on_tasks for entry in one.entries]

    def _write(self) -> None:
        self.record.entries = self._entries()  # parts of a budget join as they are begun
        if self.plan.second_budget is not None:  # steps are known one method after the other
            self.record.tasks = _task_infos(self.plan, self.methods_on_tasks)
        self.record.write(self.store)

    def _run_all(self, workers: Workers, watch: Callable[[WorkerEvent], None]) -> None:
        running: dict[str, MethodOnTask | SpeedOnTask] = {}
        deaths: Counter[str] = Counter()
        look_at = 0.0  # when to check again for what can be started
        say_at = time.monotonic() + SILENT_SECONDS  # when to say what it is waiting for
        while not self.done:
            done_before: list[RunFinished] = []
            if time.monotonic() >= look_at:
                done_before = self._start(workers, running)
                look_at = time.monotonic() + POLL_SECONDS
            if running:
                say_at = time.monotonic() + SILENT_SECONDS
            else:
                time.sleep(POLL_SECONDS)  # the rest is with other processes
                if time.monotonic() >= say_at:
                    self._say_what_it_waits_for()
                    say_at = math.inf
            for event in [*done_before, *workers.events(0.0 if done_before else 0.2)]:
                self._handle(event, workers, running, deaths)
                watch(event)
                if not isinstance(event, RunProgress):
                    look_at = 0.0
            if look_at == 0.0:  # something has become known
                self._write()
            for one in self.methods_on_tasks:
                one.send_heartbeat()

    def _say_what_it_waits_for(self) -> None:
        trials = [trial for one in self.methods_on_tasks for trial in one.trials_of_others]
        more = [f"{len(trials) - 3} more"] if len(trials) > 3 else []
        if trials:
            self.say(
                f"waiting for {', '.join(trials[:3] + more)}, running in other processes; a trial "
                f"is taken over if its machine sends no heartbeat for {STALE_SECONDS:g} seconds"
            )

    @property
    def done(self) -> bool:
        return all(one.done for one in self.methods_on_tasks)

    @property
    def has_final_runs(self) -> bool:
        """Whether a final run has been started, so that there is something to report."""
        return any(entry.finals for entry in self._entries())

    def _start(
        self, workers: Workers, running: dict[str, MethodOnTask | SpeedOnTask]
    ) -> list[RunFinished]:
        """Give every free worker a run, of whichever method and task has had the fewest so far.

        What others wait for comes first. A run that was done before needs no worker, which would
        import torch to find it done: it is returned as finished.
        """
        done_before = []

        def place(one: MethodOnTask | SpeedOnTask) -> tuple[bool, int]:
            return not one.is_urgent, one.runs_started

        waiting = sorted(self.methods_on_tasks, key=place)
        while workers.free and waiting:
            job = waiting[0].next_job()
            if job is None:
                del waiting[0]
                continue
            running[job.config.key] = waiting[0]
            run = self._done_before(job)
            if run is not None:
                done_before.append(RunFinished(job, run))
            else:
                workers.start(job)
            waiting.sort(key=place)
        return done_before

    def _done_before(self, job: Job) -> Run | None:
        """Read a run of which nothing is left to do, not even a checkpoint to remove.

        A damaged file is left to a worker: only who holds the lock of a run may put it aside.
        """
        if self.store.checkpoint(job.config).exists():
            return None
        try:
            return self.store.finished(job.config, with_weights=job.keep_weights)
        except StoreError:
            return None

    def _handle(
        self,
        event: WorkerEvent,
        workers: Workers,
        running: dict[str, MethodOnTask | SpeedOnTask],
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
                workers.start(event.job)  # it resumes from its checkpoint
                return
            running.pop(key).record_failed(event.job.config, f"its process died: {event.reason}")
        else:
            run = event.run or self.store.read(event.job.config)
            assert run is not None
            running.pop(key).record_finished(run)
        for one in self.methods_on_tasks:
            one.update()

    def _check_trials(self) -> None:
        """Raise an error unless every method has had the same number of trials."""
        if self.plan.protocol == "paper":
            return
        for entry in self._entries():
            numbers = [trial.index for trial in entry.tried]
            if numbers != list(range(self.plan.trials)):
                raise ProtocolError(
                    f"{entry.method} on {entry.task} has the trials {numbers}, "
                    f"and every method must have {self.plan.trials}"
                )


def _require_schedule(schedule: str, folder: Path) -> None:
    """Raise ``ProtocolError`` for a schedule that there is not, before anything is run."""
    try:
        schedules.find(schedule, folder)
    except schedules.UnknownSchedule as error:
        raise ProtocolError(str(error)) from None


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
        entry = _new_entry(plan, found, method, 1.0)
        made[where] = MethodOnTask(plan, found, method, entry, database, before)
    return made[where]


def _speeds_on_tasks(
    plan: Plan,
    found: Sequence[FoundTask],
    chosen: Sequence[Method],
    database: SearchDatabase | None,
) -> list[SpeedOnTask]:
    """Every method on every task; on each the baseline's result decides about the others'."""

    def speed(one: FoundTask, method: Method, baseline: SpeedOnTask | None) -> SpeedOnTask:
        def at_part(part: float) -> MethodOnTask:
            entry = _new_entry(plan, one, method, part)
            return MethodOnTask(plan, one, method, entry, database)

        return SpeedOnTask(one, method, at_part, baseline)

    (base,) = (method for method in chosen if method.name == plan.baseline)
    made = []
    for one in found:
        baseline = speed(one, base, None)
        made += [baseline if method is base else speed(one, method, baseline) for method in chosen]
    return made


def _new_entry(plan: Plan, found: FoundTask, method: Method, part: float) -> MethodRecord:
    stated = found.task.paper
    entry = MethodRecord(found.task.name, method.name, part=part)
    if stated is not None:
        entry.paper = stated.scores.get(method.name)
    if plan.protocol == "paper":
        entry.setting = method.paper_setting(stated)
    else:
        entry.searched = list(design(method, plan).space)
    return entry


def _task_infos(
    plan: Plan, methods_on_tasks: Sequence[MethodOnTask | SpeedOnTask]
) -> list[TaskInfo]:
    infos = {}
    for one in methods_on_tasks:
        task = one.found.task
        infos[task.name] = TaskInfo(
            task.name,
            task.description,
            plan.scale,
            task.score.name,
            task.score.best,
            task.score.percent,
            max(other.budget for other in methods_on_tasks if other.found.task.name == task.name),
            task.batch_size,
            one.target,
            synthetic=False,  # known when the data are loaded, by the runs
            version=one.found.version,
            data=one.found.data,
            paper_note="" if task.paper is None else task.paper.note,
            paper_steps=_paper_steps(one.found),
        )
    return list(infos.values())


def _paper_steps(found: FoundTask) -> int | None:
    """The steps at the paper's scale, of a task that comes with badm."""
    make = tasks.TASKS.get(found.source)
    return None if make is None else make("paper").steps

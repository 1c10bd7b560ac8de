"""Run several runs at once: worker processes that each do one run at a time."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.streams import leave_to_the_parent
from badm.bench.errors import MethodError, StoreError, TaskError
from badm.bench.records.runs import Run, RunConfig, RunStore
from badm.bench.task import Scale
from badm.processes.exit_status import describe_exit
from badm.processes.parent_death import exit_with_parent
from badm.processes.signals import (
    Stopped,
    StopRequest,
    defer_stop,
    handle_signals,
    stop_requested,
)

REPORT_SECONDS = 0.1  # between two progress reports of a worker
SHUTDOWN_SECONDS = 15.0  # for workers to write their checkpoints when asked to stop


@dataclass(frozen=True)
class Job:
    """A run to do, and the sources that its task and method are found by."""

    source: str
    scale: Scale
    config: RunConfig
    keep_weights: bool = False
    method: str = ""  # by default the name in the configuration
    schedule: str = ""  # the source of a user's function


@dataclass(frozen=True)
class RunProgress:
    job: Job
    step: int
    loss: float


@dataclass(frozen=True)
class RunFinished:
    """The run has ended and its file is in the store; ``run`` is its content if it was read."""

    job: Job
    run: Run | None = None


@dataclass(frozen=True)
class WorkerDied:
    """The process of a run or one of its ranks has died; if started again, the run resumes."""

    job: Job
    reason: str


@dataclass(frozen=True)
class RunBroken:
    """The run cannot continue, nor can others like it: an error of the task or of the store."""

    job: Job
    error: Exception


WorkerEvent = RunProgress | RunFinished | WorkerDied | RunBroken


class Workers:
    """A fixed number of worker processes. Use it in a ``with`` block, which ends them."""

    def __init__(
        self,
        count: int,
        store: RunStore,
        *,
        machine: Machine | None = None,
        options: RunOptions | None = None,
    ) -> None:
        """Prepare for up to ``count`` processes, each with the threads and device of ``machine``.

        The callbacks of ``options`` are not used: :meth:`events` reports progress, and :meth:`stop`
        stops the runs.
        """
        self.context = multiprocessing.get_context("spawn")
        # Not an Event: that has a lock, which a killed worker may hold forever.
        self.stopping = self.context.RawValue("b", 0)
        folder = str(store.anchored().folder)
        self.arguments = (
            folder,
            machine or Machine(),
            RunOptions(**options.to_dict()) if options else RunOptions(),
            self.stopping,
        )
        self.idle: list[_Worker] = []
        self.busy: dict[Connection[Any, Any], tuple[_Worker, Job]] = {}
        self.count = count

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def free(self) -> int:
        """How many more jobs can be started now."""
        return self.count - len(self.busy)

    def start(self, job: Job) -> None:
        while self.idle:
            worker = self.idle.pop()
            try:
                worker.pipe.send(job)
                break
            except OSError:  # it was killed while it was idle
                worker.end()
        else:
            worker = _Worker(self.context, self.arguments)
            worker.pipe.send(job)
        self.busy[worker.pipe] = worker, job

    def events(self, seconds: float) -> list[WorkerEvent]:
        """Wait up to ``seconds`` for something to happen, and return what did."""
        events: list[WorkerEvent] = []
        for pipe in wait(list(self.busy), seconds):
            assert isinstance(pipe, Connection)
            worker, job = self.busy[pipe]
            try:
                kind, content = pipe.recv()
            except (EOFError, OSError):  # between two messages, or in the middle of one
                del self.busy[pipe]
                events.append(WorkerDied(job, worker.end()))
                continue
            if kind == "progress":
                events.append(RunProgress(job, *content))
                continue
            del self.busy[pipe]
            self.idle.append(worker)
            events.append(_event_of(job, kind, content))
        return events

    def stop(self) -> None:
        """Let every run write a checkpoint, then end the processes; at once after a Ctrl-C."""
        self.stopping.value = 1
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        try:
            while self.busy and time.monotonic() < deadline:
                self.events(0.1)
        except KeyboardInterrupt:
            pass
        for worker, _ in self.busy.values():
            worker.process.kill()
        for worker in [*self.idle, *(worker for worker, _ in self.busy.values())]:
            worker.end()
        self.idle, self.busy = [], {}


def _event_of(job: Job, kind: str, content: Any) -> WorkerEvent:
    if kind == "finished":
        return RunFinished(job)
    return WorkerDied(job, content) if kind == "died" else RunBroken(job, content)


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(self, context: Any, arguments: tuple[Any, ...]) -> None:
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_worker_main, args=(theirs, *arguments), daemon=True
        )
        with _sigint_blocked():
            self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def end(self) -> str:
        """End the process, and return how it ended."""
        self.pipe.close()
        self.process.join(timeout=2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return describe_exit(self.process.exitcode or 0)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start a process that Ctrl-C does not reach, not even before its first line."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # it would unblock the signal when it starts itself
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(
    pipe: Connection[Any, Any],
    folder: str,
    machine: Machine,
    options: RunOptions,
    stopping: Any,
) -> None:
    """Receive jobs, run them and report, until the pipe is closed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    exit_with_parent(parent.pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C does
    leave_to_the_parent()
    try:
        with handle_signals([signal.SIGTERM]):
            _do_jobs(pipe, folder, machine, options, stopping)
    except Stopped:  # with a checkpoint, if there was a run: now let the signal end the process
        signal.raise_signal(signal.SIGTERM)


def _do_jobs(
    pipe: Connection[Any, Any],
    folder: str,
    machine: Machine,
    options: RunOptions,
    stopping: Any,
) -> None:
    try:
        job = pipe.recv()
        try:
            do = _job_runner(RunStore(folder), machine, options, stopping)
        except Exception as error:
            return pipe.send(_broken_message(error))
        while True:
            pipe.send(do(job, pipe))
            job = pipe.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has gone


def _job_runner(
    store: RunStore, machine: Machine, options: RunOptions, stopping: Any
) -> Callable[[Job, Connection[Any, Any]], tuple[str, Any]]:
    from badm.bench import methods, tasks
    from badm.bench.engine import schedules
    from badm.bench.engine.launcher import run_or_launch
    from badm.bench.engine.training import Interrupted
    from badm.distributed.ranks import RankLostError

    machine.prepare()
    found: dict[tuple[str, Scale], tasks.FoundTask] = {}
    stop_request = StopRequest(lambda: bool(stopping.value))

    def stop() -> bool:
        return stop_requested() or stop_request.requested()

    @contextmanager
    def hold() -> Iterator[None]:
        with defer_stop(), stop_request.defer():
            yield

    def do(job: Job, pipe: Connection[Any, Any]) -> tuple[str, Any]:
        reported = 0.0

        def on_step(step: int, loss: float) -> None:
            nonlocal reported
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                with suppress(OSError):  # the parent has gone, and this process will go too
                    pipe.send(("progress", (step, loss)))

        where = job.source, job.scale
        try:
            if where not in found:
                found[where] = tasks.find(*where)
            found[where].confirm(job.config)
            own = replace(
                options,
                keep_weights=options.keep_weights or job.keep_weights,
                on_step=on_step,
                should_stop=stop,
                hold=hold,
            )
            method = methods.find(job.method or job.config.method)
            method.confirm(job.config.method_version)
            if job.schedule:
                schedules.find(job.schedule)
            run_or_launch(found[where], job.config, method, store, own, machine, job.schedule)
        except Interrupted:
            if stop_requested():  # this very process was asked to end
                raise Stopped from None
            return "interrupted", Interrupted()
        except RankLostError as error:
            return "died", str(error)
        except (Exception, SystemExit) as error:
            return _broken_message(error)
        return "finished", None

    return do


def _broken_message(error: BaseException) -> tuple[str, Exception]:
    """An error as a message: without its frames, which cannot be sent."""
    if isinstance(error, (TaskError, MethodError, StoreError)):
        return "broken", type(error)(str(error))
    text = "".join(traceback.format_exception(error))
    return "broken", RuntimeError(f"this is a bug in badm:\n{text}")

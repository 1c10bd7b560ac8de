"""Start a run of several ranks with torchrun, and wait for it as for any other run.

Each rank executes ``python -m badm.bench.engine.launcher``. Nothing that is started here outlives
this process, however it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from badm.bench import methods, tasks
from badm.bench.engine import schedules
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.ranks import join_ranks
from badm.bench.engine.run import finished_run, run, run_on_ranks
from badm.bench.engine.streams import leave_to_the_parent
from badm.bench.engine.training import Interrupted
from badm.bench.errors import MethodError, StoreError, TaskError
from badm.bench.files import write_atomically
from badm.bench.method import Method
from badm.bench.records.runs import NAN, Run, RunConfig, RunStore
from badm.bench.task import Scale
from badm.distributed.ranks import RankLostError
from badm.processes.exit_status import describe_exit
from badm.processes.parent_death import child_environment
from badm.processes.signals import StopRequest

RESTARTS = 1  # of all ranks from the last checkpoint, if one of them dies
POLL_SECONDS = 0.5  # between two checks of how far the ranks are
OUTPUT_TAIL = 2_000  # characters of the ranks' output that are shown if they fail


@dataclass(frozen=True)
class RankArguments:
    """The arguments of every rank: plain data, sent as JSON on its command line."""

    source: str
    scale: Scale
    config: RunConfig
    folder: str  # of the runs
    machine: Machine
    options: dict[str, Any]  # without callbacks: each rank has its own
    scratch: str  # a folder for the files below
    method: str = ""  # what the method is found by, if not by its name
    schedule: str = ""  # what a schedule of the user's is found by

    @property
    def error_file(self) -> Path:
        """Where a rank writes an error of the task or the store that ends the run."""
        return Path(self.scratch, "error")

    @property
    def stop_file(self) -> Path:
        """Exists when the ranks are asked to write a checkpoint and end."""
        return Path(self.scratch, "stop")

    @property
    def started_file(self) -> Path:
        """Exists when training has started, so that there is something to write a checkpoint of."""
        return Path(self.scratch, "started")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankArguments:
        plain = json.loads(text)
        config, machine = RunConfig.from_dict(plain["config"]), Machine(**plain["machine"])
        return cls(**{**plain, "config": config, "machine": machine})


def run_or_launch(
    found: tasks.FoundTask,
    config: RunConfig,
    method: Method,
    store: RunStore,
    options: RunOptions,
    machine: Machine,
    schedule: str = "",
) -> Run:
    """Do a run here, or on ranks of its own if its method takes several.

    ``schedule`` is what a schedule of the user's is found by.
    """
    if method.family != "replicas":
        return run(config, found.task, method, store, options, machine)
    done = finished_run(config, store, options)
    if done is not None:
        return done
    with tempfile.TemporaryDirectory(prefix="badm-") as scratch:
        arguments = RankArguments(
            found.source,
            found.task.scale,
            config,
            str(store.anchored().folder),
            machine,
            options.to_dict(),
            scratch,
            method.source,
            schedule,
        )
        ranks = method.ranks(dict(config.setting))
        with options.hold():
            _launch(arguments, ranks, store, options, found.folder)
    done = store.read(config)
    if done is None or done.result is None:
        raise RankLostError(f"the ranks of {config.method} on {config.task} left no result")
    return done


def _launch(
    arguments: RankArguments,
    ranks: int,
    store: RunStore,
    options: RunOptions,
    here: Path,
) -> None:
    config, scratch = arguments.config, Path(arguments.scratch)
    output_file, killed_file = scratch / "output", scratch / "killed"
    command = [
        *(
            sys.executable,
            "-m",
            "badm.processes.parent_death",
            "badm.bench.engine.torchrun",
            str(killed_file),
        ),
        *("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}"),
        *("-m", "badm.processes.parent_death", "badm.bench.engine.launcher", arguments.to_json()),
    ]
    with output_file.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=here,  # where the code of the task expects to run
            env=child_environment(),
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    _report_progress(config, store, options)
                if options.should_stop():
                    arguments.stop_file.touch()
                    if not arguments.started_file.exists():
                        break
        finally:
            process.kill()  # and with it all ranks, if it has not ended
            process.wait()
    if arguments.error_file.exists():
        kind, message = json.loads(arguments.error_file.read_text(encoding="utf-8"))
        known = {one.__name__: one for one in (TaskError, MethodError, StoreError)}
        raise known.get(kind, ValueError)(message)
    if arguments.stop_file.exists() and not _ended(config, store):
        raise Interrupted
    if process.returncode:
        raise RankLostError(
            f"the ranks of {config.method} on {config.task} failed: "
            f"{_why(process.returncode, output_file, killed_file)}"
        )


def _ended(config: RunConfig, store: RunStore) -> bool:
    found = store.read(config)
    return found is not None and found.result is not None


def _why(code: int, output_file: Path, killed_file: Path) -> str:
    """Say which rank was killed and how, or else show the end of their output."""
    if code < 0:
        return f"torchrun was {describe_exit(code)}"
    if killed_file.exists():
        return killed_file.read_text(encoding="utf-8")
    return "\n" + output_file.read_text(encoding="utf-8", errors="replace")[-OUTPUT_TAIL:]


def _report_progress(config: RunConfig, store: RunStore, options: RunOptions) -> None:
    """Report how far the ranks are, as their run file says."""
    try:
        found = store.read(config)
    except StoreError:  # it is being written
        return
    points = found.points if found else []
    trained = [point for point in points if point.losses]
    if trained:
        loss = next(iter((trained[-1].losses or {}).values()))
        options.on_step(trained[-1].step, NAN if loss is None else loss)


def _run_rank(arguments: RankArguments) -> None:
    arguments.machine.prepare()
    config = arguments.config
    stop_request = StopRequest(arguments.stop_file.exists)

    @contextmanager
    def hold() -> Iterator[None]:
        with stop_request.defer():
            arguments.started_file.touch()
            yield

    options = RunOptions(**arguments.options, should_stop=stop_request.requested, hold=hold)
    found = tasks.find(arguments.source, arguments.scale)
    method = methods.find(arguments.method or config.method)
    found.confirm(config)
    method.confirm(config.method_version)
    if arguments.schedule:
        schedules.find(arguments.schedule)
    store = RunStore(arguments.folder)
    run_on_ranks(join_ranks(), config, found.task, method, store, options, arguments.machine)


def main() -> None:
    leave_to_the_parent()
    arguments = RankArguments.from_json(sys.argv[1])
    try:
        _run_rank(arguments)
    except Interrupted:
        return
    except (TaskError, MethodError, StoreError, ValueError) as error:
        # Not raised: torchrun would try again, which would end the same way.
        message = json.dumps([type(error).__name__, str(error)])
        write_atomically(arguments.error_file, message.encode())


if __name__ == "__main__":
    main()

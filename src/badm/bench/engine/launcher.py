"""Runs of several ranks: started with torchrun and waited for, as one run of many processes.

``python -m badm.bench.engine.launcher`` is what each rank executes. Nothing that is started here
outlives this process, however it ends.
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

import torch

from badm.bench import methods, tasks
from badm.bench.engine.ranks import join_ranks
from badm.bench.engine.run import finished_run, run, run_on_ranks
from badm.bench.engine.streams import leave_to_the_parent
from badm.bench.engine.training import Interrupted, RunOptions
from badm.bench.errors import StoreError, TaskError
from badm.bench.files import write_atomically
from badm.bench.method import Method
from badm.bench.records.runs import NAN, Run, RunConfig, RunStore
from badm.bench.task import Scale
from badm.distributed.ranks import RankLostError
from badm.lifetime import how_it_ended, variables
from badm.stopping import Wish

RESTARTS = 1  # of all ranks, from the last checkpoint, if one of them dies
POLL_SECONDS = 0.5  # between two looks at how far the ranks are
OUTPUT_TAIL = 2_000  # characters of what the ranks said that are passed on if they fail


@dataclass(frozen=True)
class RankArguments:
    """What every rank is told: plain data, as it goes through the command line."""

    source: str
    scale: Scale
    config: dict[str, Any]
    folder: str
    threads: int
    checkpoint_seconds: float
    keep_weights: bool
    error_file: str  # the file for an error that is not one of badm
    stop: str  # the file whose presence asks for a checkpoint and an end
    begun: str  # the file that says that there is something to write a checkpoint of


def run_or_launch(
    found: tasks.FoundTask, config: RunConfig, method: Method, store: RunStore, options: RunOptions
) -> Run:
    """Do a run here, or on ranks of its own if its method takes several."""
    if method.family != "replicas":
        return run(config, found.task, method, store, options)
    done = finished_run(config, store, options)
    if done is not None:
        return done
    with tempfile.TemporaryDirectory(prefix="badm-") as name:
        scratch = Path(name)
        arguments = RankArguments(
            found.source,
            found.task.scale,
            config.to_dict(),
            str(store.anchored().folder),
            torch.get_num_threads(),
            options.checkpoint_seconds,
            options.keep_weights,
            str(scratch / "complaint"),
            str(scratch / "stop"),
            str(scratch / "begun"),
        )
        ranks = method.ranks(dict(config.setting))
        with options.hold():
            _launch(arguments, ranks, config, store, options, scratch, found.folder)
    done = store.read(config)
    if done is None or done.result is None:
        raise RankLostError(f"the ranks of {config.method} on {config.task} left no result")
    return done


def _launch(
    arguments: RankArguments,
    ranks: int,
    config: RunConfig,
    store: RunStore,
    options: RunOptions,
    scratch: Path,
    here: Path,
) -> None:
    output_file, deaths = scratch / "said", scratch / "deaths"
    command = [
        *(sys.executable, "-m", "badm.lifetime", "badm.bench.engine.torchrun", str(deaths)),
        *("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}"),
        *("-m", "badm.lifetime", "badm.bench.engine.launcher", json.dumps(asdict(arguments))),
    ]
    with output_file.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=here,  # the code of the task does from there what it does here
            env=variables(),
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    _report_progress(config, store, options)
                if options.should_stop():
                    Path(arguments.stop).touch()
                    if not Path(arguments.begun).exists():
                        break
        finally:
            process.kill()  # and with it all ranks, if it has not ended
            process.wait()
    complaint = Path(arguments.error_file)
    if complaint.exists():
        kind, message = json.loads(complaint.read_text(encoding="utf-8"))
        raise {"TaskError": TaskError, "StoreError": StoreError}.get(kind, ValueError)(message)
    if Path(arguments.stop).exists() and not _ended(config, store):
        raise Interrupted
    if process.returncode:
        raise RankLostError(
            f"the ranks of {config.method} on {config.task} failed: "
            f"{_why(process.returncode, output_file, deaths)}"
        )


def _ended(config: RunConfig, store: RunStore) -> bool:
    found = store.read(config)
    return found is not None and found.result is not None


def _why(code: int, output_file: Path, deaths: Path) -> str:
    """Which of them was killed and how; if none was, the last that they said."""
    if code < 0:
        return f"torchrun was {how_it_ended(code)}"
    if deaths.exists():
        return deaths.read_text(encoding="utf-8")
    return "\n" + output_file.read_text(encoding="utf-8", errors="replace")[-OUTPUT_TAIL:]


def _report_progress(config: RunConfig, store: RunStore, options: RunOptions) -> None:
    """Pass on how far the ranks are."""
    try:
        found = store.read(config)
    except StoreError:  # being written
        return
    points = found.points if found else []
    trained = [point for point in points if point.losses]
    if trained:
        loss = next(iter((trained[-1].losses or {}).values()))
        options.on_step(trained[-1].step, NAN if loss is None else loss)


def _run_rank(arguments: RankArguments) -> None:
    torch.set_num_threads(arguments.threads)
    config = RunConfig.from_dict(arguments.config)
    wish = Wish(Path(arguments.stop).exists)

    @contextmanager
    def hold() -> Iterator[None]:
        with wish.held():
            Path(arguments.begun).touch()
            yield

    options = RunOptions(
        arguments.checkpoint_seconds, arguments.keep_weights, should_stop=wish.asked, hold=hold
    )
    found, method = tasks.find(arguments.source, arguments.scale), methods.find(config.method)
    found.confirm(config)
    run_on_ranks(join_ranks(), config, found.task, method, RunStore(arguments.folder), options)


def main() -> None:
    leave_to_the_parent()
    arguments = RankArguments(**json.loads(sys.argv[1]))
    try:
        _run_rank(arguments)
    except Interrupted:
        return
    except (TaskError, StoreError, ValueError) as error:
        # Another try would end alike, so that torchrun is not told.
        complaint = json.dumps([type(error).__name__, str(error)])
        write_atomically(Path(arguments.error_file), complaint.encode())


if __name__ == "__main__":
    main()

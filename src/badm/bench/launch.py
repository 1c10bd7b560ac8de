"""Runs of several ranks: started with torchrun and waited for, as one run of many processes.

``python -m badm.bench.launch`` is what each rank executes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from badm.bench import methods, tasks
from badm.bench.faults import TaskError
from badm.bench.method import Method
from badm.bench.run import done_before, run, run_on
from badm.bench.store import NAN, Config, Run, Store, StoreError, write_atomically
from badm.bench.task import Scale
from badm.bench.team import gathered
from badm.bench.training import Interrupted, Options
from badm.company import ReplicaLost

RESTARTS = 1  # of all ranks, from the last checkpoint, if one of them dies
LOOK_SECONDS = 0.5  # between two looks at how far the ranks are
LAST_WORDS = 2_000  # characters of what the ranks said that are passed on if they fail


@dataclass(frozen=True)
class Order:
    """What every rank is told: plain data, as it goes through the command line."""

    source: str
    scale: Scale
    config: dict[str, Any]
    folder: str
    threads: int
    checkpoint_seconds: float
    keep_weights: bool
    complaint: str  # the file for an error that is not one of badm


def run_or_launch(
    found: tasks.Found, config: Config, method: Method, folder: Store, options: Options
) -> Run:
    """Do a run here, or on ranks of its own if its method takes several."""
    if method.family != "replicas":
        return run(config, found.task, method, folder, options)
    done = done_before(config, folder, options)
    if done is not None:
        return done
    with tempfile.TemporaryDirectory(prefix="badm-") as scratch:
        order = Order(
            found.source,
            found.task.scale,
            config.plain(),
            str(folder.folder.resolve()),
            torch.get_num_threads(),
            options.checkpoint_seconds,
            options.keep_weights,
            str(Path(scratch) / "complaint"),
        )
        ranks = method.ranks(dict(config.setting))
        _launch(order, ranks, config, folder, options, Path(scratch) / "said")
    done = folder.read(config)
    if done is None or done.result is None:
        raise ReplicaLost(f"the ranks of {config.method} on {config.task} left no result")
    return done


def _launch(
    order: Order, ranks: int, config: Config, folder: Store, options: Options, said: Path
) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}"),
        *("-m", "badm.bench.launch", json.dumps(asdict(order))),
    ]
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    _watch(config, folder, options)
                if options.stop():  # they go on from their last checkpoint
                    raise Interrupted
        finally:
            _end(process)
    complaint = Path(order.complaint)
    if complaint.exists():
        kind, message = json.loads(complaint.read_text(encoding="utf-8"))
        raise {"TaskError": TaskError, "StoreError": StoreError}.get(kind, ValueError)(message)
    if process.returncode:
        words = said.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]
        raise ReplicaLost(f"the ranks of {config.method} on {config.task} failed:\n{words}")


def _watch(config: Config, folder: Store, options: Options) -> None:
    """Pass on how far the ranks are."""
    try:
        found = folder.read(config)
    except StoreError:  # being written
        return
    points = found.points if found else []
    trained = [point for point in points if point.losses]
    if trained:
        loss = next(iter((trained[-1].losses or {}).values()))
        options.watch(trained[-1].step, NAN if loss is None else loss)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End torchrun and with it all ranks."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _rank(order: Order) -> None:
    torch.set_num_threads(order.threads)
    config = Config.of(order.config)
    options = Options(order.checkpoint_seconds, order.keep_weights)
    found, method = tasks.find(order.source, order.scale), methods.find(config.method)
    found.confirm(config)
    run_on(gathered(), config, found.task, method, Store(order.folder), options)


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    sys.stdout = sys.stderr  # which takes any character that a task prints
    try:
        _rank(order)
    except (TaskError, StoreError, ValueError) as error:
        # Another try would end alike, so that torchrun is not told.
        complaint = json.dumps([type(error).__name__, str(error)])
        write_atomically(Path(order.complaint), complaint.encode())


if __name__ == "__main__":
    main()

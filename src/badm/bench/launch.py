"""Runs of several ranks: started with torchrun and waited for, as one run of many processes.

``python -m badm.bench.launch`` is what each rank executes. Nothing that is started here outlives
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

import torch

from badm.bench import methods, tasks
from badm.bench.faults import TaskError
from badm.bench.method import Method
from badm.bench.run import done_before, run, run_on
from badm.bench.store import NAN, Config, Run, Store, StoreError, write_atomically
from badm.bench.streams import leave_to_the_parent
from badm.bench.task import Scale
from badm.bench.team import gathered
from badm.bench.training import Interrupted, Options
from badm.company import ReplicaLost
from badm.lifetime import how_it_ended, variables
from badm.stopping import Wish

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
    stop: str  # the file whose presence asks for a checkpoint and an end
    begun: str  # the file that says that there is something to write a checkpoint of


def run_or_launch(
    found: tasks.Found, config: Config, method: Method, folder: Store, options: Options
) -> Run:
    """Do a run here, or on ranks of its own if its method takes several."""
    if method.family != "replicas":
        return run(config, found.task, method, folder, options)
    done = done_before(config, folder, options)
    if done is not None:
        return done
    with tempfile.TemporaryDirectory(prefix="badm-") as name:
        scratch = Path(name)
        order = Order(
            found.source,
            found.task.scale,
            config.plain(),
            str(folder.anchored().folder),
            torch.get_num_threads(),
            options.checkpoint_seconds,
            options.keep_weights,
            str(scratch / "complaint"),
            str(scratch / "stop"),
            str(scratch / "begun"),
        )
        ranks = method.ranks(dict(config.setting))
        with options.hold():
            _launch(order, ranks, config, folder, options, scratch, found.folder)
    done = folder.read(config)
    if done is None or done.result is None:
        raise ReplicaLost(f"the ranks of {config.method} on {config.task} left no result")
    return done


def _launch(
    order: Order,
    ranks: int,
    config: Config,
    folder: Store,
    options: Options,
    scratch: Path,
    here: Path,
) -> None:
    said, deaths = scratch / "said", scratch / "deaths"
    command = [
        *(sys.executable, "-m", "badm.lifetime", "badm.bench.torchrun", str(deaths)),
        *("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={RESTARTS}"),
        *("-m", "badm.lifetime", "badm.bench.launch", json.dumps(asdict(order))),
    ]
    with said.open("wb") as output:
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
                    process.wait(LOOK_SECONDS)
                except subprocess.TimeoutExpired:
                    _watch(config, folder, options)
                if options.stop():
                    Path(order.stop).touch()
                    if not Path(order.begun).exists():
                        break
        finally:
            process.kill()  # and with it all ranks, if it has not ended
            process.wait()
    complaint = Path(order.complaint)
    if complaint.exists():
        kind, message = json.loads(complaint.read_text(encoding="utf-8"))
        raise {"TaskError": TaskError, "StoreError": StoreError}.get(kind, ValueError)(message)
    if Path(order.stop).exists() and not _ended(config, folder):
        raise Interrupted
    if process.returncode:
        raise ReplicaLost(
            f"the ranks of {config.method} on {config.task} failed: "
            f"{_why(process.returncode, said, deaths)}"
        )


def _ended(config: Config, folder: Store) -> bool:
    found = folder.read(config)
    return found is not None and found.result is not None


def _why(code: int, said: Path, deaths: Path) -> str:
    """Which of them was killed and how; if none was, the last that they said."""
    if code < 0:
        return f"torchrun was {how_it_ended(code)}"
    if deaths.exists():
        return deaths.read_text(encoding="utf-8")
    return "\n" + said.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:]


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


def _rank(order: Order) -> None:
    torch.set_num_threads(order.threads)
    config = Config.of(order.config)
    wish = Wish(Path(order.stop).exists)

    @contextmanager
    def hold() -> Iterator[None]:
        with wish.held():
            Path(order.begun).touch()
            yield

    options = Options(order.checkpoint_seconds, order.keep_weights, stop=wish.asked, hold=hold)
    found, method = tasks.find(order.source, order.scale), methods.find(config.method)
    found.confirm(config)
    run_on(gathered(), config, found.task, method, Store(order.folder), options)


def main() -> None:
    leave_to_the_parent()
    order = Order(**json.loads(sys.argv[1]))
    try:
        _rank(order)
    except Interrupted:
        return
    except (TaskError, StoreError, ValueError) as error:
        # Another try would end alike, so that torchrun is not told.
        complaint = json.dumps([type(error).__name__, str(error)])
        write_atomically(Path(order.complaint), complaint.encode())


if __name__ == "__main__":
    main()

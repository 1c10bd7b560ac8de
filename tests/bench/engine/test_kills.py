"""A run that is killed at any moment goes on and ends as if nothing had happened, bit for bit.

The tests start this file as a program. It imports torch once and forks a child for every attempt,
because a kill is to cost milliseconds and an import takes seconds. A kill comes after a random
time, or at a moment that no random time would hit: in the middle of a line, between the last byte
of a checkpoint and its new name, between the result and the removal of the checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

METHODS = ("badm-kronecker", "adam", "schedule-free")
TIMES, MOMENTS = 8, 14  # kills after a time and at a moment, for each method

Moment = tuple[str, int]  # what happens, and which time it does


def driven(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resume_after_kill_is_bitwise_equal(tmp_path: Path, method: str) -> None:
    told = driven("kills", str(tmp_path), method)
    assert told["different"] == []
    assert told["kills"] == TIMES + MOMENTS
    assert len(told["runs"]) >= 3
    # Most runs that were killed went on from a checkpoint, and from all over their length.
    resumed = [step for step in told["started at"] if step > 1]
    assert len(resumed) >= told["kills"] // 3, told
    assert max(resumed) - min(resumed) > 15, told
    # Nothing was taken for damage, and nothing is left lying about.
    assert told["left"] == []


@pytest.mark.slow
def test_processes_that_want_the_same_run_do_it_once(tmp_path: Path) -> None:
    told = driven("together", str(tmp_path), "momentum")
    assert told["codes"] == [0, 0, 0]
    assert told["started at"] == [1]  # one of them trained, from the beginning
    assert told["different"] == []


@pytest.mark.slow
def test_a_run_whose_holder_is_killed_is_taken_over_by_who_waits(tmp_path: Path) -> None:
    told = driven("taken over", str(tmp_path), "momentum")
    assert told["codes"] == [-signal.SIGKILL, 0]
    first, second = told["started at"]
    assert first == 1
    assert second > 1  # it went on from the checkpoint of the other
    assert told["different"] == []


@dataclass
class Driver:
    """The program: it has imported everything and computes nothing, so that it may fork."""

    folder: Path
    method: Any
    seen: Counter[str] = field(default_factory=Counter)  # moments of an unbroken run

    def config(self) -> Any:
        from tests.helpers.engine_tasks import Noisy, config_of

        return config_of(Noisy(), self.method)

    def start(self, runs: Path, moment: Moment | None = None) -> int:
        """Fork a child that does the run, and kills itself at that moment."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            self.work(runs, moment)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)

    def work(self, runs: Path, moment: Moment | None) -> None:
        from badm.bench.engine.options import RunOptions
        from badm.bench.engine.run import run
        from badm.bench.records.runs import RunStore
        from tests.helpers.engine_tasks import Noisy

        config, store = self.config(), RunStore(runs)
        started = False

        def watch(step: int, loss: float) -> None:
            nonlocal started
            if not started:
                started = True
                with (runs / "started").open("a") as file:
                    file.write(f"{step}\n")

        with_moments(store.path(config), self.seen, moment)
        # A checkpoint after every step: as many on a fast machine as on a slow one.
        run(
            config,
            Noisy(),
            self.method,
            store,
            RunOptions(checkpoint_seconds=0.0, keep_weights=True, on_step=watch),
        )
        (runs / "seen").write_text(json.dumps(self.seen))

    def whole(self) -> float:
        """The unbroken run; its seconds."""
        began = time.monotonic()
        runs = self.folder / "whole"
        assert ended(self.start(runs)) == 0
        self.seen.update(json.loads((runs / "seen").read_text()))
        return time.monotonic() - began

    def different(self, runs: Path) -> bool:
        from badm.bench.records.runs import RunStore
        from tests.helpers.engine_tasks import comparable

        a, b = (
            RunStore(self.folder / "whole").read(self.config()),
            RunStore(runs).read(self.config()),
        )
        return a is None or b is None or b.result is None or comparable(a) != comparable(b)


def ended(pid: int) -> int:
    """Wait for a child; its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def started_at(runs: Path) -> list[int]:
    path = runs / "started"
    return [int(text) for text in path.read_text().split()] if path.exists() else []


def with_moments(run_file: Path, seen: Counter[str], moment: Moment | None) -> None:
    """Count what happens to the files of a run, and kill this process at the moment."""
    from badm.bench.records import runs as store

    seen.clear()

    def happens(what: str, first: Callable[[], object] = lambda: None) -> None:
        seen[what] += 1
        if moment == (what, seen[what]):
            first()
            os.kill(os.getpid(), signal.SIGKILL)

    line, fsync, replace, unlink = store.json_line, os.fsync, Path.replace, Path.unlink

    def half_a_line(content: Any) -> bytes:
        whole = line(content)

        def half() -> None:
            with run_file.open("ab") as file:
                file.write(whole[: len(whole) // 2])

        if run_file.exists():
            happens("half a result" if "result" in content else "half a point", half)
        return whole

    def half_a_file(number: int) -> None:
        name = os.readlink(f"/proc/self/fd/{number}")
        if ".part" in name:
            size = os.fstat(number).st_size
            what = f"half of {Path(name).suffixes[-2]}"
            happens(what, lambda: os.ftruncate(number, size // 2))
        fsync(number)
        if ".part" not in name:
            happens("synced lines")

    def renamed(path: Path, target: Path) -> Path:
        new = replace(path, target)
        happens(f"renamed to {target.suffix}")
        return new

    def removed(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".checkpoint" and path.exists():
            happens("before the checkpoint is removed")
        unlink(path, missing_ok)

    store.json_line, os.fsync = half_a_line, half_a_file  # type: ignore[assignment]
    Path.replace, Path.unlink = renamed, removed  # type: ignore[assignment,method-assign]


def kills(driver: Driver) -> dict[str, Any]:
    """Kill run after run until there are enough kills, each until it ends."""
    rng = random.Random(f"kills of {driver.method.name}")
    life = driver.whole()
    assert len(driver.seen) == MOMENTS, driver.seen
    plan: list[Moment | float] = [
        *((what, rng.randint(1, times)) for what, times in sorted(driver.seen.items())),
        *(rng.uniform(0, life) for _ in range(TIMES)),
    ]
    rng.shuffle(plan)
    told: dict[str, Any] = {"kills": 0, "runs": [], "started at": [], "different": [], "left": []}
    while plan:
        runs = driver.folder / f"run{len(told['runs'])}"
        killed, code = 0, -signal.SIGKILL
        while code == -signal.SIGKILL:
            how = plan[-1] if plan else None
            code = attempt(driver, runs, how)
            if code == -signal.SIGKILL:
                plan.pop()
                killed += 1
        assert code == 0
        if killed == 0:  # the machine is faster than it was, and the run ended before its kill
            how = plan[-1]
            plan[-1] = how / 2 if isinstance(how, float) else (how[0], (how[1] + 1) // 2)
        told["runs"].append(killed)
        told["kills"] += killed
        told["started at"] += started_at(runs)
        if driver.different(runs):
            told["different"].append(str(runs))
        left = [*runs.rglob("*.part*"), *runs.rglob("*.damaged*"), *runs.rglob("*.checkpoint")]
        told["left"] += map(str, left)
        shutil.rmtree(runs)
    return {**told, "life": life, "moments": dict(driver.seen)}


def attempt(driver: Driver, runs: Path, how: Moment | float | None) -> int:
    pid = driver.start(runs, how if isinstance(how, tuple) else None)
    if isinstance(how, float):
        timer = threading.Timer(how, os.kill, (pid, signal.SIGKILL))
        timer.start()
        code = ended(pid)
        timer.cancel()
        timer.join()  # before the next fork
        return code
    return ended(pid)


def together(driver: Driver) -> dict[str, Any]:
    driver.whole()
    runs = driver.folder / "together"
    codes = [ended(pid) for pid in [driver.start(runs) for _ in range(3)]]
    return outcome(driver, runs, codes)


def taken_over(driver: Driver) -> dict[str, Any]:
    from tests.helpers.waiting import wait_for

    driver.whole()
    runs = driver.folder / "taken over"
    first = driver.start(runs, ("renamed to .checkpoint", 8))
    wait_for(lambda: started_at(runs), every=0.001)  # so that it is this one that holds the run
    codes = [ended(pid) for pid in (first, driver.start(runs))]
    return outcome(driver, runs, codes)


def outcome(driver: Driver, runs: Path, codes: list[int]) -> dict[str, Any]:
    different = [str(runs)] if driver.different(runs) else []
    return {"codes": codes, "started at": started_at(runs), "different": different}


def main(what: str, folder: str, name: str) -> None:
    import torch

    from badm.bench.methods import METHODS as ALL
    from tests.helpers.engine_tasks import MOMENTUM

    torch.set_num_threads(1)
    method = ALL.get(name, MOMENTUM)
    if name != "momentum":  # what it imports when it is built is imported here, once
        from badm.bench.method import TrainingSetup

        method.build(TrainingSetup(torch.nn.Linear(1, 1), 1), method.setting({}))
    do = {"kills": kills, "together": together, "taken over": taken_over}[what]
    print(json.dumps(do(Driver(Path(folder), method))))


if __name__ == "__main__":
    main(*sys.argv[1:])

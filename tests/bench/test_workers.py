"""Processes that do runs: what happens when they are killed, stopped or given a broken task."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from badm.bench import methods, tasks, workers
from badm.bench.faults import TaskError
from badm.bench.run import run
from badm.bench.store import Result, Store
from badm.bench.workers import Broken, Died, Finished, Happening, Job, Progress, Workers

TASKS = Path(__file__).with_name("quick_tasks.py")
DEADLINE_SECONDS = 60.0
pytestmark = pytest.mark.slow
Found = TypeVar("Found")


def until(look: Callable[[], Found | None]) -> Found:
    """What ``look`` gives as soon as it gives something."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not (found := look()):
        assert time.monotonic() < end, "waited too long"
    return found


def ended(pool: Workers) -> Happening:
    def look() -> Happening | None:
        happened = [one for one in pool.happenings(0.1) if not isinstance(one, Progress)]
        return happened[0] if happened else None

    return until(look)


def job(name: str = "quick", seed: int = 0, source: Path = TASKS) -> Job:
    found = tasks.find(f"{source}:{name}")
    config = found.config(methods.find("sgd"), {"lr": 0.1}, seed)
    return Job(found.source, "cpu", config)


def result(store: Store, one: Job) -> Result:
    found = store.read(one.config)
    assert found is not None
    assert found.result is not None
    return found.result


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gate"
    path.touch()
    monkeypatch.setenv("QUICK_GATE", str(path))
    monkeypatch.setenv("QUICK_LOG", str(tmp_path / "log"))
    return path


def at_the_gate(gate: Path) -> bool:
    log = gate.with_name("log")
    return log.exists() and "gate" in log.read_text()


def test_runs_survive_the_death_of_their_process_and_of_idle_ones(
    tmp_path: Path, gate: Path
) -> None:
    store, one, two = Store(tmp_path / "runs"), job(), job(seed=1)
    with Workers(1, store) as pool:
        pool.start(one)
        until(lambda: at_the_gate(gate))
        assert pool.free == 0
        ((worker, _),) = pool.busy.values()
        worker.process.kill()
        died = ended(pool)
        assert died == Died(one, "killed by SIGKILL, perhaps for lack of memory")
        assert pool.free == 1
        gate.unlink()
        pool.start(one)
        assert ended(pool) == Finished(one)
        pool.idle[0].process.kill()
        pool.idle[0].process.join()
        pool.start(two)
        assert ended(pool) == Finished(two)
    assert result(store, one).status == result(store, two).status == "finished"
    assert pool.idle == []


def test_stopping_writes_a_checkpoint_and_the_run_goes_on_from_it(
    tmp_path: Path, gate: Path
) -> None:
    store, one = Store(tmp_path / "runs"), job()
    with Workers(1, store) as pool:
        pool.start(one)
        until(lambda: at_the_gate(gate))
        pool.stopping.value = 1
        gate.unlink()
    assert store.checkpoint(one.config).exists()
    with Workers(1, store) as pool:
        pool.start(one)
        assert ended(pool) == Finished(one)
    task = tasks.find(one.source).task
    unbroken = run(one.config, task, methods.find("sgd"), Store(tmp_path / "unbroken")).result
    assert unbroken is not None
    assert result(store, one).weights == unbroken.weights
    assert result(store, one).test == unbroken.test


def test_a_process_that_does_not_stop_is_ended(
    tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 0.0)
    with Workers(1, Store(tmp_path / "runs")) as pool:
        pool.start(job())
        until(lambda: at_the_gate(gate))
        ((worker, _),) = pool.busy.values()
    assert not worker.process.is_alive()


@pytest.mark.parametrize("changed", ["neighbour", "data"])
def test_a_task_that_changes_during_a_comparison_is_told(tmp_path: Path, changed: str) -> None:
    source = tmp_path / "my_task.py"
    files = {"neighbour": tmp_path / "neighbour.py", "data": tmp_path / "data.csv"}
    for file in files.values():
        file.write_text("# 1")
    text = TASKS.read_text().replace(
        'name = "quick"', f'name = "quick"\n    data_files = ({str(files["data"])!r},)'
    )
    source.write_text(text.replace("import os\n", "import os\nimport neighbour\n"))
    one = job(source=source)
    files[changed].write_text("# 2")
    with Workers(1, Store(tmp_path / "runs")) as pool:
        pool.start(one)
        broken = ended(pool)
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, TaskError)
    subject = f"the data of {one.source} were" if changed == "data" else f"{one.source} was"
    assert str(broken.error) == f"{subject} changed while it was being compared"


def test_a_broken_task_says_where_and_prints_go_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "broken.py"
    lines = TASKS.read_text().splitlines()
    number = lines.index("        self.taken += 1") + 1
    lines[number - 1] = "        print('hello'); raise KeyError('colour')"
    source.write_text("\n".join(lines))
    with Workers(1, Store(tmp_path / "runs")) as pool:
        pool.start(job(source=source))
        broken = ended(pool)
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, TaskError)
    assert str(broken.error) == (
        f"task quick: loss raised KeyError: 'colour' (broken.py, line {number})"
    )
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n")

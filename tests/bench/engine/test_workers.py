"""Processes that do runs: what happens when they are killed, stopped or given a broken task."""

from __future__ import annotations

from pathlib import Path

import pytest

from badm.bench import methods, tasks
from badm.bench.engine import workers
from badm.bench.engine.run import run
from badm.bench.engine.workers import (
    Job,
    RunBroken,
    RunFinished,
    RunProgress,
    WorkerDied,
    WorkerEvent,
    Workers,
)
from badm.bench.errors import TaskError
from badm.bench.records.runs import RunResult, RunStore
from tests.helpers import QUICK_TASKS
from tests.helpers.waiting import wait_for

DEADLINE_SECONDS = 60.0
pytestmark = pytest.mark.slow


def ended(pool: Workers) -> WorkerEvent:
    def look() -> WorkerEvent | None:
        events = [one for one in pool.events(0.1) if not isinstance(one, RunProgress)]
        return events[0] if events else None

    return wait_for(look)


def job(name: str = "quick", seed: int = 0, source: Path = QUICK_TASKS) -> Job:
    found = tasks.find(f"{source}:{name}")
    config = found.config(methods.find("sgd"), {"lr": 0.1}, seed)
    return Job(found.source, "cpu", config)


def result(store: RunStore, one: Job) -> RunResult:
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
    store, one, two = RunStore(tmp_path / "runs"), job(), job(seed=1)
    with Workers(1, store) as pool:
        pool.start(one)
        wait_for(lambda: at_the_gate(gate))
        assert pool.free == 0
        ((worker, _),) = pool.busy.values()
        worker.process.kill()
        died = ended(pool)
        assert died == WorkerDied(one, "killed by SIGKILL, perhaps for lack of memory")
        assert pool.free == 1
        gate.unlink()
        pool.start(one)
        assert ended(pool) == RunFinished(one)
        pool.idle[0].process.kill()
        pool.idle[0].process.join()
        pool.start(two)
        assert ended(pool) == RunFinished(two)
    assert result(store, one).status == result(store, two).status == "finished"
    assert pool.idle == []


def test_stopping_writes_a_checkpoint_and_the_run_goes_on_from_it(
    tmp_path: Path, gate: Path
) -> None:
    store, one = RunStore(tmp_path / "runs"), job()
    with Workers(1, store) as pool:
        pool.start(one)
        wait_for(lambda: at_the_gate(gate))
        pool.stopping.value = 1
        gate.unlink()
    assert store.checkpoint(one.config).exists()
    with Workers(1, store) as pool:
        pool.start(one)
        assert ended(pool) == RunFinished(one)
    task = tasks.find(one.source).task
    unbroken = run(one.config, task, methods.find("sgd"), RunStore(tmp_path / "unbroken")).result
    assert unbroken is not None
    assert result(store, one).weights == unbroken.weights
    assert result(store, one).test == unbroken.test


def test_a_process_that_does_not_stop_is_ended(
    tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SHUTDOWN_SECONDS", 0.0)
    with Workers(1, RunStore(tmp_path / "runs")) as pool:
        pool.start(job())
        wait_for(lambda: at_the_gate(gate))
        ((worker, _),) = pool.busy.values()
    assert not worker.process.is_alive()


@pytest.mark.parametrize("changed", ["beside", "data"])
def test_a_task_that_changes_during_a_comparison_is_reported(tmp_path: Path, changed: str) -> None:
    source = tmp_path / "my_task.py"
    files = {"beside": tmp_path / "beside.py", "data": tmp_path / "data.csv"}
    for file in files.values():
        file.write_text("# 1")
    text = QUICK_TASKS.read_text().replace(
        'name = "quick"', f'name = "quick"\n    data_files = ({str(files["data"])!r},)'
    )
    source.write_text(text.replace("import os\n", "import os\nimport beside\n"))
    one = job(source=source)
    files[changed].write_text("# 2")
    with Workers(1, RunStore(tmp_path / "runs")) as pool:
        pool.start(one)
        broken = ended(pool)
    assert isinstance(broken, RunBroken)
    assert isinstance(broken.error, TaskError)
    subject = f"the data of {one.source} were" if changed == "data" else f"{one.source} was"
    assert str(broken.error) == f"{subject} changed while it was being compared"


def test_a_broken_task_says_where_and_prints_go_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "broken.py"
    lines = QUICK_TASKS.read_text().splitlines()
    number = lines.index("        self.taken += 1") + 1
    lines[number - 1] = "        print('hello'); raise KeyError('colour')"
    source.write_text("\n".join(lines))
    with Workers(1, RunStore(tmp_path / "runs")) as pool:
        pool.start(job(source=source))
        broken = ended(pool)
    assert isinstance(broken, RunBroken)
    assert isinstance(broken.error, TaskError)
    assert str(broken.error) == (
        f"task quick: loss raised KeyError: 'colour' (broken.py, line {number})"
    )
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n")

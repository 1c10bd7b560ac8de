"""A search that processes share: every trial is done once, whoever lives and dies."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import text

from badm.bench.compare import search as module
from badm.bench.compare.database import DatabaseConnection
from badm.bench.compare.search import Search, SearchDatabase, TrialResult
from badm.bench.compare.trial_settings import trial_settings
from badm.bench.errors import ProtocolError
from badm.bench.method import Range

SPACE = {"lr": Range(1e-4, 1e-1)}
FORK = multiprocessing.get_context("fork")  # no process has opened a database before


def opened(database: Path, machine: str = "here", trials: int = 4) -> Search:
    """The search as a process on that machine opens it."""
    locks = database.parent / machine
    locks.mkdir(exist_ok=True)
    shared = SearchDatabase(f"sqlite:///{database}", locks)
    return shared.search("task/method/abc", SPACE, trial_settings(SPACE, trials), "high")


def do_all(database: Path, machine: str, log: Path, trials: int) -> None:
    search = opened(database, machine, trials)
    while len(search.results()) < trials:
        number = search.claim()
        if number is None:
            continue
        with log.open("a") as file:
            file.write(f"{os.getpid()} {number}\n")
        search.report(number, TrialResult("finished", score=number / trials))
    with log.open("a") as file:
        file.write(f"{os.getpid()} sees {sorted(search.results().items())}\n")


def processes(target: Callable[..., None], arguments: Sequence[tuple[object, ...]]) -> list[int]:
    """Exit codes of processes that all run at once."""
    started = [FORK.Process(target=target, args=some) for some in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    return [process.exitcode for process in started]


@pytest.mark.slow
@pytest.mark.parametrize("machines", [("a", "a", "a"), ("a", "b", "c")], ids=["one", "three"])
def test_three_processes_do_every_trial_once(tmp_path: Path, machines: tuple[str, ...]) -> None:
    log, trials = tmp_path / "log", 12
    some = [(tmp_path / "search.db", machine, log, trials) for machine in machines]
    assert processes(do_all, some) == [0, 0, 0]
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    done = Counter(what for _, what in lines if not what.startswith("sees"))
    assert done == Counter(map(str, range(trials)))
    assert len({what for _, what in lines if what.startswith("sees")}) == 1


def claim_and_die(database: Path, machine: str, count: int) -> None:
    search = opened(database, machine)
    assert [search.claim() for _ in range(count)] == list(range(count))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_trials_of_a_killed_process_are_taken_over_at_once(tmp_path: Path) -> None:
    database = tmp_path / "search.db"
    assert processes(claim_and_die, [(database, "here", 2)]) == [-signal.SIGKILL]
    search = opened(database)
    assert [search.claim() for _ in range(5)] == [0, 1, 2, 3, None]


@pytest.mark.slow
def test_trials_of_another_machine_are_taken_over_when_it_gives_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "search.db"
    processes(claim_and_die, [(database, "there", 2)])
    search = opened(database)
    assert [search.claim() for _ in range(3)] == [2, 3, None]
    monkeypatch.setattr(module, "STALE_SECONDS", 0.0)
    assert [search.claim() for _ in range(3)] == [0, 1, None]


def test_a_sign_of_life_keeps_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (opened(tmp_path / "search.db", machine, trials=1) for machine in "ab")
    assert one.claim() == 0
    later = one.database.now() + 0.9 * module.STALE_SECONDS
    monkeypatch.setattr(DatabaseConnection, "now", lambda _: later)
    one.running[0] -= module.HEARTBEAT_SECONDS
    one.send_heartbeat()
    monkeypatch.setattr(DatabaseConnection, "now", lambda _: later + 0.9 * module.STALE_SECONDS)
    assert other.claim() is None
    monkeypatch.setattr(DatabaseConnection, "now", lambda _: later + 1.1 * module.STALE_SECONDS)
    assert other.claim() == 0


@pytest.mark.parametrize("hours", [-12.0, 12.0])
def test_a_clock_that_is_hours_off_takes_nothing_from_a_machine_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    one, other = (opened(tmp_path / "search.db", machine, trials=1) for machine in "ab")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    assert one.claim() == 0
    monkeypatch.setattr(time, "time", real)
    assert other.claim() is None


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-12.0, 12.0])
def test_a_machine_whose_clock_is_hours_off_is_taken_over_from_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    one, other = (opened(tmp_path / "search.db", machine, trials=1) for machine in "ab")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    assert one.claim() == 0
    monkeypatch.setattr(time, "time", real)
    monkeypatch.setattr(module, "STALE_SECONDS", 0.0)
    assert other.claim() == 0


def test_a_lost_machine_is_taken_over_from_within_a_minute() -> None:
    assert module.HEARTBEAT_SECONDS * 3 < module.STALE_SECONDS < 60  # two signs may go missing


@pytest.mark.slow
def test_of_two_that_reach_for_an_orphan_one_gets_it(tmp_path: Path) -> None:
    database = tmp_path / "search.db"
    processes(claim_and_die, [(database, "here", 1)])
    one, other = opened(database, trials=1), opened(database, trials=1)
    seen_by_both = other._trials()
    assert one.claim() == 0
    assert other._take_orphan(seen_by_both) is None


@pytest.mark.slow
def test_who_was_taken_for_dead_neither_fails_nor_disturbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, other, third = (opened(tmp_path / "search.db", m, trials=1) for m in "abc")
    assert slept.claim() == 0
    with monkeypatch.context() as patch:
        patch.setattr(module, "STALE_SECONDS", 0.0)
        assert other.claim() == 0
    slept.release(0)  # not its own any more
    assert third.claim() is None
    other.report(0, TrialResult("finished", score=0.5))
    slept.running[0] = -math.inf
    slept.send_heartbeat()
    slept.report(0, TrialResult("finished", score=0.9))
    assert [s.results()[0].score for s in (slept, other, third)] == [0.5] * 3


@pytest.mark.slow
def test_a_trial_given_up_is_free_at_once(tmp_path: Path) -> None:
    one, other = (opened(tmp_path / "search.db", machine, trials=1) for machine in "ab")
    assert one.claim() == 0
    assert other.claim() is None
    one.release(0)
    assert other.claim() == 0


@pytest.mark.slow
def test_a_trial_that_failed_here_can_be_done_elsewhere(tmp_path: Path) -> None:
    one, other = (opened(tmp_path / "search.db", machine, trials=1) for machine in "ab")
    assert one.claim() == 0
    one.report(0, TrialResult("failed", message="its process died"))
    assert one.claim() is None
    assert one.results()[0].status == "failed"
    assert other.claim() == 0
    other.report(0, TrialResult("finished", score=0.5))
    assert one.results() == other.results() == {0: TrialResult("finished", score=0.5)}


@pytest.mark.slow
def test_the_database_shows_people_what_was_tried(tmp_path: Path) -> None:
    search = opened(tmp_path / "search.db")
    for score in (0.5, None, 0.75, 0.25):
        number = search.claim()
        assert number is not None
        search.report(number, TrialResult("diverged" if score is None else "finished", score))
    study = optuna.load_study(
        study_name="task/method/abc", storage=f"sqlite:///{tmp_path / 'search.db'}"
    )
    assert [trial.params for trial in study.trials] == list(search.settings)
    assert [trial.state.name for trial in study.trials] == [
        "COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"
    ]  # fmt: skip
    assert study.best_params == search.settings[2]


def _delete(search: Search) -> None:
    with search.storage.engine.begin() as connection:
        connection.execute(text("delete from trials where number = 1"))


TAMPERED: dict[str, Callable[[Search], object]] = {
    "missing": _delete,
    "told by hand": lambda search: search.study.tell(1, 0.9),
    "failed by hand": lambda search: search.study.tell(1, state=TrialState.FAIL),
    "asked by hand": lambda search: search.study.ask(),
    "enqueued by hand": lambda search: search.study.enqueue_trial({"lr": 0.01}),
}


@pytest.mark.slow
@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_a_search_with_other_trials_than_its_own_is_refused(
    tmp_path: Path, tamper: Callable[[Search], object]
) -> None:
    search = opened(tmp_path / "search.db")
    for _ in range(3):
        number = search.claim()
    assert number == 2
    tamper(search)
    with pytest.raises(ProtocolError, match=r"equal trials.*remove that study"):
        opened(tmp_path / "search.db").claim()


@pytest.mark.slow
def test_a_trial_too_many_is_none(tmp_path: Path) -> None:
    search = opened(tmp_path / "search.db", trials=1)
    assert search.claim() == 0
    search.study.ask()
    search.report(0, TrialResult("finished", score=1.0))
    assert list(search.results()) == [0]
    assert search.claim() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////nowhere/search.db", "sqlite:////nowhere/search.db: .*unable to open"),
        ("nonsense", "nonsense"),
        ("oracle+nosuch://me:secret@host/name", r"oracle\+nosuch://me:\*\*\*@host/name"),
        ("nosuch://me@host/name?password=secret", r"nosuch://me@host/name\?password=\*\*\*"),
        ("nosuch://me@host/name?sslpassword=secret&a=b", r"nosuch://me@host/name\?sslpassword="),
        ("nosuch://me:secret@host:secret/name", r"nosuch://me:\*\*\*@host"),
    ],
)
def test_a_database_that_cannot_be_opened_is_named_without_its_password(
    tmp_path: Path, url: str, shown: str
) -> None:
    with pytest.raises(ValueError, match=f"^cannot open the search database {shown}") as error:
        SearchDatabase(url, tmp_path)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.slow
def test_a_trial_that_ends_while_its_owner_is_looked_at_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (opened(tmp_path / "search.db", "a", 1) for _ in range(2))
    assert first.claim() == 0

    def ends_and_is_gone(name: str) -> bool:
        first.report(0, TrialResult("finished", score=1.0))
        return False

    monkeypatch.setattr(second.owner, "lives", ends_and_is_gone)
    assert second.claim() is None
    assert second.results() == {0: TrialResult("finished", score=1.0)}

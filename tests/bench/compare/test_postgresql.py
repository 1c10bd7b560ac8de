"""A search that machines share through a PostgreSQL server: it restarts, and they get lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from badm.bench.compare import database as patience
from badm.bench.compare.search import Search, SearchDatabase, TrialResult
from badm.bench.compare.trial_settings import trial_settings
from badm.bench.errors import ProtocolError, StoreError
from badm.bench.method import Range
from tests.helpers import MACHINE, QUICK_TASKS, ROOT
from tests.helpers.postgresql import PASSWORD, USER, Server
from tests.helpers.waiting import wait_for

TUTORIAL = ROOT / "docs" / "tutorial" / "README.md"
SPACE = {"lr": Range(1e-4, 1e-1)}
TUNED = ("tune", f"{QUICK_TASKS}:quick", "-m", "sgd", "--trials", "5", "--jobs", "1")
DEADLINE_SECONDS = 90.0
pytestmark = pytest.mark.slow  # on a server of their own


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


class Machine:
    """A ``badm`` with a folder and a clock of its own; its runs wait at a gate."""

    def __init__(self, folder: Path, *arguments: str, clock: float = 0.0) -> None:
        folder.mkdir()
        self.gate, self.log, self.words = folder / "gate", folder / "log", folder / "said"
        self.gate.touch()
        environment = {"QUICK_LOG": str(self.log), "QUICK_GATE": str(self.gate)}
        self.process = subprocess.Popen(
            [sys.executable, str(MACHINE), str(clock), *arguments, "--json"],
            cwd=folder,
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def did(self, word: str) -> int:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(word in line.split() for line in lines)

    def said(self) -> str:
        return self.words.read_text() if self.words.exists() else ""

    def wait_until(self, condition: Callable[[], object]) -> None:
        wait_for(lambda: condition() or self.process.poll() is not None)
        assert condition(), self.said()

    def lose(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def ended(self) -> Any:
        out, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0, self.said()
        return json.loads(out)


def test_with_the_server_restarted_and_a_machine_lost_the_search_ends_as_one_process_alone(
    tmp_path: Path, server: Server
) -> None:
    alone = Machine(tmp_path / "alone", *TUNED)
    alone.gate.unlink()
    study = ("--study", server.database("restarted"))
    lost = Machine(tmp_path / "lost", *TUNED, *study, clock=3 * 3600.0)
    kept = Machine(tmp_path / "kept", *TUNED, *study, clock=-3 * 3600.0)
    try:
        for machine in (lost, kept):
            machine.wait_until(lambda machine=machine: machine.did("gate"))
        server.stop()
        for machine in (lost, kept):
            machine.wait_until(lambda machine=machine: "waiting for the" in machine.said())
        server.start()
        for machine in (lost, kept):
            machine.wait_until(lambda machine=machine: "is back" in machine.said())
        assert (lost.did("model"), kept.did("model")) == (1, 1)  # nobody was taken for lost
        lost.lose()
        kept.gate.unlink()
        found, expected = kept.ended(), alone.ended()
    finally:
        for machine in (alone, lost, kept):
            if machine.process.poll() is None:
                machine.lose()
    assert found == expected
    assert [trial["status"] for trial in found[0]["trials"]] == ["finished"] * 5
    assert alone.did("model") == kept.did("model") == 5  # with the one that was begun and lost
    counted = (
        "select state::text, count(*) from trials join studies using (study_id)"
        " where study_name not like '%/handovers' group by 1"
    )
    assert server.sql(counted, "restarted") == [("COMPLETE", 5)]
    assert "s3cret" not in lost.said() + kept.said()


# What a server refuses, and forms of its URL.


def opened(url: str, folder: Path, trials: int = 2) -> Search:
    folder.mkdir(exist_ok=True)
    return SearchDatabase(url, folder).search(
        "task/method/abc", SPACE, trial_settings(SPACE, trials), "high"
    )


@pytest.fixture(scope="module")
def database(server: Server) -> str:
    """The URL of a database."""
    return server.database("shared")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(patience, "OPEN_SECONDS", 0.0)


def test_the_line_of_the_tutorial_works_as_it_is_typed(
    tmp_path: Path, server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = re.findall(r"--study (postgresql://user@host/name)", TUTORIAL.read_text())
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGPORT", str(server.port))
    typed = line.replace("user", USER).replace("host", "127.0.0.1").replace("name", "shared")
    assert opened(typed, tmp_path).results() == {}
    assert 'pip install "badm[bench,postgresql]"' in TUTORIAL.read_text()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
@pytest.mark.parametrize("query", [False, True], ids=["user:password@", "?password="])
def test_a_server_is_reached_by_every_form_of_its_url(
    tmp_path: Path, server: Server, database: str, scheme: str, query: bool
) -> None:
    url = f"{scheme}{database.removeprefix('postgresql')}"
    if query:
        url = (
            f"{scheme}://127.0.0.1:{server.port}/shared?user={USER}&password={quote(PASSWORD)}"
            "&connect_timeout=30"
        )
    assert opened(url, tmp_path).results() == {}


def test_the_time_is_the_servers(
    tmp_path: Path, server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (told,) = server.sql("select extract(epoch from now())::float8")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= SearchDatabase(database, tmp_path).database.now() - told[0] < 600  # type: ignore[operator]


REFUSED: dict[str, tuple[str, str, type[Exception]]] = {
    "a wrong password": ("shared", "password authentication failed", StoreError),
    "no such database": ("nowhere", "does not exist", StoreError),
    "read-only": ("only_read", "read-only transaction", ValueError),
    "no right to make tables": ("of_others", "permission denied", ValueError),
    "another application's": ("used", "a database of its own", ValueError),
}


@pytest.mark.parametrize(("name", "said", "kind"), REFUSED.values(), ids=REFUSED)
def test_what_a_server_refuses_is_reported_in_a_sentence_without_the_password(
    tmp_path: Path,
    server: Server,
    database: str,
    hurried: None,
    name: str,
    said: str,
    kind: type[Exception],
) -> None:
    prepared = {
        "only_read": "alter database only_read set default_transaction_read_only = on",
        "of_others": "alter database of_others owner to postgres",
    }
    url = server.url(name, "wr0ng s3cret") if name == "shared" else server.url(name)
    if name in (*prepared, "used"):
        server.database(name)
        if name == "used":
            server.sql("create table alembic_version (version_num varchar(32) primary key)", name)
            server.sql("insert into alembic_version values ('theirs')", name)
            server.sql(f"grant all on alembic_version to {USER}", name)
        else:
            server.sql(prepared[name])
    with pytest.raises(kind, match=f"^cannot open the search database .*{said}") as error:
        SearchDatabase(url, tmp_path)
    assert "s3cret" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("drop database gone with (force)", "has not answered for .*does not exist"),
        ("drop table trials cascade", 'cannot be used: relation "trials" does not exist'),
        ("truncate studies cascade", "is not as badm left it"),
    ],
    ids=["database", "table", "study"],
)
def test_what_is_dropped_midway_ends_the_search_in_a_sentence(
    tmp_path: Path, server: Server, hurried: None, damage: str, said: str
) -> None:
    search = opened(server.database("gone"), tmp_path)
    assert search.claim() == 0
    server.sql(damage, "postgres" if "force" in damage else "gone")
    with pytest.raises((StoreError, ProtocolError), match=said) as error:
        search.report(0, TrialResult("finished", score=1.0))
    assert "s3cret" not in str(error.value)
    search.leave()
    server.sql("drop database if exists gone with (force)")


def test_connections_that_an_administrator_ends_are_made_anew(
    tmp_path: Path, server: Server, database: str
) -> None:
    search = opened(database, tmp_path)
    for number in range(2):
        server.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname='shared'")
        assert search.claim() == number
        server.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname='shared'")
        search.report(number, TrialResult("finished", score=0.5))
    assert sorted(search.results()) == [0, 1]
    assert [t.params for t in search.study.get_trials()] == list(search.settings)


def test_machines_that_make_the_tables_at_the_same_moment_both_get_them(
    tmp_path: Path, server: Server
) -> None:
    url = server.database("at_once")
    with ThreadPoolExecutor(4) as machines:
        found = list(machines.map(lambda n: opened(url, tmp_path / str(n), 4).claim(), range(4)))
    assert sorted(found) == [0, 1, 2, 3]


def test_a_machine_lost_in_the_middle_of_a_transaction_blocks_nobody_for_long(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "IDLE_SECONDS", 1)
    url = server.database("blocked")
    lost, other = opened(url, tmp_path / "lost"), opened(url, tmp_path / "other")
    held = lost.storage.engine.connect()
    held.execute(text("select * from studies for update"))  # and nothing more
    with ThreadPoolExecutor(1) as machine:
        try:
            assert machine.submit(other.claim).result(timeout=30) == 0
        finally:
            held.invalidate()
            held.close()

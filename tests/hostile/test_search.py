"""A shared search among odd URLs, broken databases, lost answers, wrong clocks and lies."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError
from typer.testing import CliRunner

from badm import cli
from badm.bench.compare import database as patience
from badm.bench.compare import search as module
from badm.bench.compare.database import DatabaseConnection, _is_away
from badm.bench.compare.masking import masked
from badm.bench.compare.search import Search, SearchDatabase, TrialResult
from badm.bench.compare.trial_settings import trial_settings
from badm.bench.errors import ProtocolError, StoreError
from badm.bench.method import Range
from tests.helpers import QUICK_TASKS

SPACE = {"lr": Range(1e-4, 1e-1)}
NAME = "task/method/abc"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, which take longer to make than to copy."""
    folder = tmp_path_factory.mktemp("made")
    SearchDatabase(f"sqlite:///{folder / 'search.db'}", folder)
    return folder / "search.db"


@pytest.fixture
def file(tmp_path: Path, made: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "search.db"))


@pytest.fixture(scope="module")
def head() -> str:
    """Optuna's newest schema, which it takes longer to look up than all the rest of opening."""
    return RDBStorage("sqlite://").get_head_version()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    within = "optuna.storages._rdb.storage"
    monkeypatch.setattr(f"{within}._VersionManager.get_head_version", lambda _: head)
    monkeypatch.setattr(f"{within}.random.random", lambda: 0.0)  # its pauses
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(patience, "OPEN_SECONDS", 0.0)


def opened(file: Path, machine: str = "here", trials: int = 2) -> Search:
    locks = file.parent / machine
    locks.mkdir(exist_ok=True)
    said: list[str] = []
    database = SearchDatabase(f"sqlite:///{file}", locks, said.append)
    database.database.said = said  # type: ignore[attr-defined]
    return database.search(NAME, SPACE, trial_settings(SPACE, trials), "high")


def run_sql(file: Path, statement: str, **values: object) -> None:
    import sqlite3

    with sqlite3.connect(file) as connection:
        connection.execute(statement, values)
    connection.close()


# Passwords.

SECRET = "s3cr3t"
URLS = [
    f"postgresql://me:{SECRET}@host/name",
    f"postgresql+psycopg://me:{SECRET}@host:5432/name?sslmode=require",
    f"postgresql://:{SECRET}@host/name",
    f"postgresql://me:{SECRET}@/name?host=/var/run/postgresql",
    f"postgresql://me:{SECRET}@[::1]:5432/name",
    f"postgresql://host/name?user=me&password={SECRET}",
    f"postgresql://host/name?PASSWORD={SECRET}&user=me",
    f"postgresql://host/name?%70assword={SECRET}",
    f"postgresql://host/name?sslpassword={SECRET}",
    f"postgresql://me:other@host/name?sslpassword={SECRET}",
    f"postgresql://me:{SECRET}@host/name?sslpassword=other",
    f"mysql://host/name?passwd={SECRET}",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dme%3BPWD%3D{SECRET}",
    f"mysql://me@host/name?access_token={SECRET}",
    f"postgresql://me:{SECRET}@host@other/name",
    f"postgresql://me:x@{SECRET}@host/name",
    f"postgresql://me:x/{SECRET}@host/name",
    f"postgresql://me:x?{SECRET}@host/name",
    f"postgresql://me:x#{SECRET}@host/name",
    f"postgresql://me:{SECRET}/name",
    f"postgresql://me:{SECRET}@host:{SECRET}/name",
    f"postgresql:me:{SECRET}@host/name",
    f"me:{SECRET}@host/name",
    f"postgresql//me:{SECRET}@host",
    f"://me:{SECRET}@host",
]


@pytest.mark.parametrize("url", URLS)
def test_no_url_shows_its_password(url: str) -> None:
    assert SECRET not in masked(url, url)
    assert SECRET not in masked(f"could not connect to {url} as {SECRET}", url)
    assert "***" in masked(url, url)


@pytest.mark.parametrize(
    "url", URLS[:1] + [url for url in URLS if not url.startswith(f"postgresql://me:{SECRET}@")]
)
def test_no_message_shows_the_password_of_a_database_that_cannot_be_opened(
    tmp_path: Path, url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "CONNECTING", {"connect_timeout": 2, "hostaddr": "127.0.0.9"})
    with pytest.raises((ValueError, StoreError), match="cannot open the search database") as error:
        SearchDatabase(url, tmp_path)
    shown = "".join([str(error.getrepr(showlocals=False)).rpartition("E  ")[2], str(error.value)])
    assert SECRET not in shown + "".join(capfd.readouterr())
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__  # a traceback would show what it comes from


@pytest.mark.parametrize(
    ("password", "message"),
    [
        ("p%40ss", "p@ss"),
        ("p%40ss", "p%40ss"),
        ("p@ss", "user 'p%40ss'"),
        ("a+b", "a b"),
        ("back\\slash", repr("back\\slash")),
        ("ü", "%C3%BC"),
        ("pa/word", "port 'pa'"),
    ],
)
def test_a_password_is_masked_however_it_is_written(password: str, message: str) -> None:
    url = f"postgresql://me:{password}@host/name"
    assert message not in masked(message, url)
    assert "***" in masked(message, url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////tmp/search.db",
        "sqlite:///C:/runs/search.db",
        "postgresql://me@host:5432/name",
        "postgresql://[::1]:5432/name?sslmode=require",
        "postgresql://host/name?passfile=/home/me/.pgpass&application_name=me@here",
        "nonsense",
        "",
    ],
)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert masked(url, url) == url


def test_a_password_that_is_a_common_word_leaves_the_rest_of_a_message_readable() -> None:
    url = "postgresql://postgres:postgres@host/name"
    assert masked(url, url) == "postgresql://***:***@host/name"
    assert masked("is on", "postgresql://me:i@host/name") == "is on"


# Databases that cannot be used.


def garbage(path: Path) -> str:
    path.write_bytes(b"no database at all" * 100)
    return f"sqlite:///{path}"


def truncated(path: Path) -> str:
    run_sql(path, "create table a (b)")
    path.write_bytes(path.read_bytes()[:100])
    return f"sqlite:///{path}"


def foreign_revision(path: Path) -> str:
    run_sql(path, "create table alembic_version (version_num varchar(32) primary key)")
    run_sql(path, "insert into alembic_version values ('of another application')")
    return f"sqlite:///{path}"


def read_only(path: Path) -> str:
    run_sql(path, "create table a (b)")
    return f"sqlite:///file:{path}?mode=ro&uri=true"


BROKEN: dict[str, tuple[Callable[[Path], str], str]] = {
    "garbage": (garbage, "not a database"),
    "truncated": (truncated, "malformed|not a database|disk image"),
    "another application's": (foreign_revision, "a database of its own"),
    "read-only": (read_only, "readonly"),
    "a folder": (lambda path: f"sqlite:///{path.parent}", "unable to open"),
    "nowhere": (lambda path: f"sqlite:///{path}/nowhere/search.db", "unable to open"),
    "unknown": (lambda _: "oracle://me@host/name", "PostgreSQL, MySQL, MariaDB or SQLite"),
    "no plugin": (lambda _: "nosuch://me@host/name", "PostgreSQL, MySQL, MariaDB or SQLite"),
    "no port": (lambda _: "postgresql://host:many/name", "invalid literal"),
    "no url": (lambda _: "host/name", "parse"),
    "blank": (lambda _: "   ", "parse"),
    "no driver": (lambda _: "postgresql+nosuch://host/name", "plugin"),
    "unknown option": (lambda _: "postgresql://127.0.0.1:1/name?speed=high", "speed"),
}


@pytest.mark.parametrize(("make", "said"), BROKEN.values(), ids=BROKEN)
def test_a_database_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, make: Callable[[Path], str], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^cannot open the search database .*({said})") as error:
        SearchDatabase(make(tmp_path / "search.db"), tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://127.0.0.1:1/name", "postgres://127.0.0.1:1/name", "postgresql:///x?host=/no"],
)
def test_a_server_that_does_not_answer_is_named_at_once(tmp_path: Path, url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot open the search database .*(refused|/no)"):
        SearchDatabase(url, tmp_path)


@pytest.mark.parametrize("driver", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_a_missing_driver_names_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    if find_spec("psycopg2") is not None and driver.endswith("2"):
        pytest.skip("psycopg2 is installed")
    monkeypatch.setattr(patience, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "badm\[postgresql\]" brings'):
        SearchDatabase(f"{driver}://me@host/name", tmp_path)


@pytest.mark.parametrize("name", ["{}", "{b}", "{SCHEMA_VERSION}", "a{", "100%", "a b", "ü"])
def test_a_file_may_have_any_name(tmp_path: Path, made: Path, name: str) -> None:
    shutil.copy(made, tmp_path / name)
    assert opened(tmp_path / name).claim() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "here"])


@pytest.mark.parametrize(
    ("study", "code"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/name", 4),
        (f"postgresql://me:{SECRET}@127.0.0.1:many/name", 2),
        (f"postgresql://127.0.0.1:1/name?password={SECRET}", 4),
        ("sqlite:////nowhere/search.db", 2),
        (f"nosuch://me:{SECRET}@host", 2),
    ],
)
def test_a_command_with_such_a_study_ends_in_a_sentence(
    tmp_path: Path, study: str, code: int
) -> None:
    command = [
        "tune",
        f"{QUICK_TASKS}:quick",
        "-m",
        "sgd",
        "--runs",
        str(tmp_path),
        "--study",
        study,
    ]
    result = CliRunner().invoke(cli.application(), command)
    assert result.exit_code == code, result.output
    assert len(result.stderr.splitlines()) == 1
    assert SECRET not in result.output
    assert not any(SECRET in p.read_text() for p in tmp_path.rglob("*") if p.is_file())


# A server that goes away.


class Gone(Exception):
    """What a driver raises, by the code of PostgreSQL for it."""

    def __init__(self, sqlstate: str | None = None) -> None:
        super().__init__(f"server closed the connection: {SECRET}")
        self.sqlstate = sqlstate


def went_away() -> Exception:
    """As Optuna raises it."""
    error = StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = OperationalError("select 1", None, Gone())
    return error


OPERATIONS = (
    "_get_trials",
    "create_new_trial",
    "get_trial_number_from_id",
    "set_trial_param",
    "set_trial_user_attr",
    "set_trial_state_values",
)


def fails_once(storage: Any, operation: str, time_of: int, *, done: bool) -> None:
    """At one call, after it has been done or before; Optuna's own attempts included."""
    real, calls = getattr(storage, operation), iter(range(10**6))

    def unreliable(*arguments: Any, **named: Any) -> Any:
        if next(calls) != time_of:
            return real(*arguments, **named)
        if done:
            real(*arguments, **named)
        raise went_away()

    setattr(storage, operation, unreliable)


@pytest.mark.parametrize("done", [False, True], ids=["undone", "done"])
@pytest.mark.parametrize(
    ("operation", "time_of"),
    [*((operation, 0) for operation in OPERATIONS), ("_get_trials", 3), ("create_new_trial", 1)],
)
def test_whenever_the_server_goes_away_every_trial_is_done_once(
    file: Path, operation: str, time_of: int, done: bool
) -> None:
    search = opened(file)
    fails_once(search.storage, operation, time_of, done=done)
    claimed = []
    while len(search.results()) < 2:
        number = search.claim()
        assert number is not None
        claimed.append(number)
        search.running[number] = -math.inf
        search.send_heartbeat()
        search.report(number, TrialResult("finished", score=number / 2))
    assert sorted(claimed) == [0, 1]
    other = opened(file, "there")
    assert [other.results()[n].score for n in (0, 1)] == [0.0, 0.5]
    assert other.claim() is None
    trials = other.study.get_trials()
    assert [trial.params for trial in trials[:2]] == list(search.settings)
    assert [t.state.name for t in trials if t.number < 2] == ["COMPLETE", "COMPLETE"]
    first, last = search.database.said  # type: ignore[attr-defined]
    assert first.startswith("waiting for the search database")
    assert last == "the search database is back"


def test_an_orphan_is_taken_over_once_though_the_answer_is_lost(file: Path) -> None:
    opened(file).claim()  # by an owner that is gone at once
    search = opened(file, trials=1)
    fails_once(search.storage, "create_new_trial", 0, done=True)
    assert [search.claim(), search.claim()] == [0, None]


def test_a_server_that_stays_away_ends_the_search_after_the_stated_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = opened(file)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(pauses))

    def unreachable(*_: Any, **__: Any) -> Any:
        raise went_away()

    search.storage._get_trials = unreachable
    with pytest.raises(
        StoreError,
        match=r"has not answered for 5 minutes: server closed.*run the same command to resume",
    ):
        search.claim()
    assert 290 < sum(pauses) <= 300
    assert max(pauses) == patience.LONGEST_PAUSE_SECONDS
    (said,) = search.database.said  # type: ignore[attr-defined]
    assert "for at most 5 minutes" in said


def test_nobody_waits_for_a_server_in_order_to_say_good_bye(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = opened(file)
    assert search.claim() == 0
    asked = []

    def unreachable(*_: Any, **__: Any) -> Any:
        asked.append(1)
        raise went_away()

    search.storage.create_new_trial = unreachable
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    search.leave()
    search.running[0] = 0.0
    search.leave()
    assert asked == [1]  # and not again


def test_ctrl_c_ends_the_wait(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = opened(file)
    fails_once(search.storage, "_get_trials", 0, done=False)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search.claim()


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (OperationalError("", None, Gone()), True),
        (InterfaceError("", None, Gone()), True),
        (OperationalError("", None, Gone("08006")), True),
        (OperationalError("", None, Gone("57P01")), True),  # an administrator ended it
        (OperationalError("", None, Gone("57P03")), True),  # it is starting up
        (OperationalError("", None, Gone("53300")), True),  # too many connections
        (OperationalError("", None, Gone("40P01")), True),  # a deadlock
        (OperationalError("", None, Gone("53100")), False),  # the disk is full
        (OperationalError("", None, Gone("28P01")), False),  # a wrong password
        (ProgrammingError("", None, Gone("42P01")), False),  # no such table
        (IntegrityError("", None, Gone("23505")), False),
        (went_away(), True),
        (ValueError("wrong"), False),
    ],
)
def test_only_what_passes_is_waited_for(error: Exception, away: bool) -> None:
    assert _is_away(error) is away


# Clocks.


@pytest.mark.parametrize("hours", [-24 * 365.0, -1.0, 1.0, 24 * 365.0])
@pytest.mark.parametrize("whose", ["owner's", "other's"])
def test_no_clock_of_a_machine_matters(
    file: Path, monkeypatch: pytest.MonkeyPatch, hours: float, whose: str
) -> None:
    real = time.time

    def off(machine: str) -> Callable[[], float]:
        return lambda: real() + 3600 * hours * (machine == whose)

    monkeypatch.setattr(time, "time", off("owner's"))
    owner = opened(file, "a", trials=1)
    assert owner.claim() == 0
    monkeypatch.setattr(time, "time", off("other's"))
    other = opened(file, "b", trials=1)
    assert other.claim() is None
    monkeypatch.setattr(module, "STALE_SECONDS", 0.0)
    assert other.claim() == 0


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
def test_a_server_whose_clock_is_set_anew_keeps_a_living_owner_and_frees_a_lost_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    owner, other = opened(file, "a", trials=1), opened(file, "b", trials=1)
    assert owner.claim() == 0
    real = DatabaseConnection.now
    monkeypatch.setattr(DatabaseConnection, "now", lambda database: real(database) + jump)
    owner.running[0] = -math.inf
    owner.send_heartbeat()
    assert other.claim() is None
    monkeypatch.setattr(
        DatabaseConnection, "now", real
    )  # back again, and the owner says nothing any more
    assert other.claim() == 0


def test_who_could_not_reach_the_server_either_is_not_taken_for_lost(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = opened(file, "a", trials=1), opened(file, "b", trials=1)
    assert owner.claim() == 0
    long_after = other.database.now() + 10 * module.STALE_SECONDS
    fails_once(other.storage, "_get_trials", 0, done=False)
    monkeypatch.setattr(DatabaseConnection, "now", lambda _: long_after)
    assert other.claim() is None
    monkeypatch.setattr(DatabaseConnection, "now", lambda _: long_after + 2 * module.STALE_SECONDS)
    assert other.claim() == 0


# Lies.


def attribute(file: Path, key: str, value: object) -> None:
    run_sql(
        file,
        "update trial_user_attributes set value_json = :value where key = :key",
        key=key,
        value=json.dumps(value),
    )


ENDED = {"status": "finished", "score": 0.5}
LIES: list[tuple[str, object]] = [
    ("owner", 3),
    ("owner", None),
    ("owner", ["a"]),
    ("seen", "yesterday"),
    ("seen", True),
    ("seen", None),
    ("ended", None),
    ("ended", "finished"),
    ("ended", []),
    ("ended", {}),
    ("ended", {**ENDED, "status": "perfect"}),
    ("ended", {**ENDED, "status": ["finished"]}),
    ("ended", {**ENDED, "score": "0.5"}),
    ("ended", {**ENDED, "loss": [1.0]}),
    ("ended", {**ENDED, "steps_to_target": True}),
    ("ended", {**ENDED, "message": 7}),
    ("ended", {**ENDED, "of a later version": 1}),
]


@pytest.mark.parametrize(("key", "value"), LIES)
def test_a_record_that_badm_did_not_write_is_refused(file: Path, key: str, value: object) -> None:
    search = opened(file, trials=1)
    assert search.claim() == 0
    search.report(0, TrialResult("finished", score=0.5))
    attribute(file, key, value)
    with pytest.raises(ProtocolError, match=r"trial 0 .* is not as badm left it"):
        opened(file, trials=1).results()


@pytest.mark.parametrize(
    "entry", [None, 0, [], [0, "a"], ["0", "a", "b"], [0, None, "a"], {"a": 1}]
)
def test_a_log_that_badm_did_not_write_is_refused(file: Path, entry: object) -> None:
    one, other = opened(file, "a", trials=1), opened(file, "b", trials=1)
    assert one.claim() == 0
    one.release(0)
    attribute(file, "handover", entry)
    with pytest.raises(ProtocolError, match=r"the log .* is not as badm left it"):
        opened(file, "c", trials=1).claim()
    with pytest.raises(ProtocolError, match=r"the log .* is not as badm left it"):
        other.claim()


@pytest.mark.parametrize("seen", [math.nan, math.inf, -math.inf, 0, 1e300])
def test_a_sign_of_life_from_no_time_is_none(file: Path, seen: float) -> None:
    one, other = opened(file, "a", trials=1), opened(file, "b", trials=1)
    assert one.claim() == 0
    attribute(file, "seen", seen)
    assert other.claim() == 0


def test_an_end_as_an_earlier_version_wrote_it_is_read(file: Path) -> None:
    search = opened(file, trials=1)
    assert search.claim() == 0
    search.report(0, TrialResult("finished", score=0.5, loss=0.1))
    attribute(file, "ended", ENDED)
    assert opened(file, trials=1).results() == {0: TrialResult("finished", 0.5)}


def drop(table: str) -> Callable[[Path], None]:
    return lambda file: run_sql(file, f"drop table {table}")


def forget(file: Path) -> None:
    for table in ("studies", "trials", "trial_user_attributes"):
        run_sql(file, f"delete from {table}")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no table of trials": drop("trials"),
    "no table of attributes": drop("trial_user_attributes"),
    "all forgotten": forget,
    "no study": lambda file: run_sql(file, "delete from studies"),
    "another application's studies": lambda file: run_sql(
        file, "alter table studies rename column study_id to id"
    ),
    "an unknown state": lambda file: run_sql(file, "update trials set state = 'AGAIN'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_database_that_is_damaged_midway_ends_the_search_in_a_sentence(
    file: Path, damage: Callable[[Path], None]
) -> None:
    search = opened(file)
    assert search.claim() == 0
    search.running[0] = -math.inf
    damage(file)
    end = partial(search.report, 0, TrialResult("finished", score=1.0))
    for call in (search.claim, search.send_heartbeat, search.results, end):
        with pytest.raises((StoreError, ProtocolError)) as error:
            call()
        assert "\n" not in str(error.value)
    search.leave()  # and does not fail either


# Owners and scores.


def test_of_two_owners_that_both_end_a_trial_the_first_counts(file: Path) -> None:
    one, other = opened(file, "a", trials=1), opened(file, "b", trials=1)
    assert one.claim() == 0
    other.running[0] = 0.0  # believes that it is its own
    other.report(0, TrialResult("finished", score=0.25))
    one.report(0, TrialResult("diverged"))
    assert one.results() == other.results() == {0: TrialResult("finished", score=0.25)}


def test_an_entry_that_repeats_another_in_the_log_changes_nothing(file: Path) -> None:
    one, other, third = (opened(file, machine, trials=1) for machine in "abc")
    assert one.claim() == 0
    for _ in range(3):
        one._hand_over(0, one.owner.name, "")
    assert other.claim() == 0
    one._hand_over(0, "", one.owner.name)  # too late
    assert third.claim() is None
    assert other._owners(other._trials()) == {0: other.owner.name}


@pytest.mark.parametrize("best", ["high", "low"])
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, None])
def test_a_score_that_is_no_number_is_kept_and_is_nobodys_best(
    file: Path, score: float | None, best: Any
) -> None:
    search = opened(file).database
    locks = file.parent / "here"
    database = SearchDatabase(search.url, locks)
    shared = database.search("task/method/scores", SPACE, trial_settings(SPACE, 2), best)
    for number, value in enumerate([score, 0.5]):
        assert shared.claim() == number
        shared.report(number, TrialResult("finished", score=value))
    again = SearchDatabase(search.url, locks).search(
        "task/method/scores", SPACE, trial_settings(SPACE, 2), best
    )
    first = again.results()[0].score
    assert first == score or (math.isnan(score or 0.0) and math.isnan(first or 0.0))
    assert (again.results()[0].value is None) == (score is None or math.isnan(score))
    assert again.claim() is None


@pytest.fixture
def locked(file: Path) -> Iterator[Path]:
    import sqlite3

    with sqlite3.connect(file, isolation_level=None) as connection:
        connection.execute("begin exclusive")
        yield file
        connection.execute("rollback")
    connection.close()


def test_a_file_that_another_program_has_locked_is_named(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_arguments", lambda _: {"connect_args": {"timeout": 0}})
    with pytest.raises(ValueError, match=r"cannot open the search database .*locked"):
        opened(locked)

"""The database that a search is shared through: it is opened by its URL and provides the clock.

Servers are restarted and networks fail: every query is repeated until the server answers, for some
minutes. Clocks of machines disagree: the time is the server's. The URL may contain a password: no
message shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from badm.bench.compare.masking import masked
from badm.bench.errors import StoreError

WAIT_SECONDS = 300.0  # for a server that is away
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0  # between two attempts; doubles
OPEN_TRIES, OPEN_SECONDS = 6, 0.2  # to open a database that others may be making

DRIVERS = ("psycopg", "psycopg2")  # of PostgreSQL; the first that is installed
EXTRA = 'pip install "badm[postgresql]"'
# A machine that is gone says nothing: without these, its silence is waited for by the hour.
CONNECTING = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "badm",
}
IDLE_SECONDS = 20  # within a transaction; a machine lost in one would keep others from their trials
# Codes of PostgreSQL for what passes: shutting or starting up, too many connections, deadlocks.
PASSING = ("08", "57P", "53300", "40001", "40P01")

SECONDS = {  # since 1970, by the clock of the database
    "postgresql": "select extract(epoch from clock_timestamp())",
    "mysql": "select unix_timestamp(now(6))",
    "mariadb": "select unix_timestamp(now(6))",
    "sqlite": "select (julianday('now') - 2440587.5) * 86400.0",
}

Answer = TypeVar("Answer")


def file_url(path: Path) -> str:
    """The URL of a database that is one file, whatever its path is called.

    >>> file_url(Path("/what?/100%/search.db")).count("?")
    1
    """
    # A URI of SQLite's own within the URL: older versions of SQLAlchemy do not escape a path.
    inner = path.resolve().as_uri()
    url = URL.create("sqlite", database=inner, query={"uri": "true"})
    return url.render_as_string(hide_password=False)


class DatabaseConnection:
    """Optuna's storage, with queries that are repeated while the server is away."""

    def __init__(self, url: str, locks: Path, say: Callable[[str], None]) -> None:
        """Raise ``ValueError`` for a URL that cannot be used, ``StoreError`` if nothing answers."""
        self.url, self.shown, self.say = url, _shown(url), say
        self.away = False  # whether the last attempt failed
        self.back = 0.0  # when, by its own clock, the server answered again after that
        try:
            self.storage = self._opened(locks)
            _limit_transactions(self.storage.engine)
            self.now()
        except Exception as error:  # whatever a database driver raises
            kind = StoreError if _is_away(error) else ValueError
            raise kind(
                f"cannot open the search database {self.shown}: {self._reason(error)}"
            ) from None

    def _opened(self, locks: Path) -> RDBStorage:
        given = make_url(self.url)
        if given.get_backend_name() == "postgres":  # as many people write it
            given = given.set(drivername=given.drivername.replace("postgres", "postgresql"))
        if given.get_backend_name() not in SECONDS:
            raise ValueError("must be of PostgreSQL, MySQL, MariaDB or SQLite")
        given = _with_driver(given)
        for tries_left in reversed(range(OPEN_TRIES)):
            try:
                # Two that make the tables at the same moment are in each other's way: on one
                # machine a lock keeps them apart, of several the slower one tries again.
                with FileLock(locks / "search"):
                    return RDBStorage(self._template(given), engine_kwargs=_arguments(given))
            except DBAPIError as error:
                if not tries_left or _is_away(error):
                    raise
                time.sleep(OPEN_SECONDS)
        raise AssertionError

    def _template(self, url: URL) -> str:
        """As text, for Optuna, to which braces mean something."""
        is_file = url.get_backend_name() == "sqlite"  # whose path stays as it was given
        plain = self.url if is_file else url.render_as_string(hide_password=False)
        return plain.replace("{", "{{").replace("}", "}}")

    def now(self) -> float:
        """Seconds since 1970 by the clock that all who share the database have in common."""
        engine = self.storage.engine
        with engine.connect() as connection:
            return float(connection.execute(text(SECONDS[engine.dialect.name])).scalar_one())

    def ask(self, question: Callable[[], Answer], *, patient: bool = True) -> Answer:
        """Ask until there is an answer; ``question`` may be called several times."""
        deadline = time.monotonic() + WAIT_SECONDS
        pause = FIRST_PAUSE_SECONDS
        waiting = False
        while True:
            try:
                if self.away:
                    self.back, self.away = self.now(), False
                answer = question()
            except (StorageInternalError, SQLAlchemyError) as error:
                self.away = _is_away(error)
                if not self.away:
                    raise StoreError(
                        f"the search database {self.shown} cannot be used: {self._reason(error)}"
                    ) from None
                if not patient or time.monotonic() + pause > deadline:
                    raise StoreError(
                        f"the search database {self.shown} has not answered for {_minutes()}: "
                        f"{self._reason(error)}; run the same command to resume"
                    ) from None
                if not waiting:
                    waiting = True
                    self.say(
                        f"waiting for the search database {self.shown}, for at most {_minutes()}: "
                        f"{self._reason(error)}"
                    )
            else:
                if waiting:
                    self.say("the search database is back")
                return answer
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _reason(self, error: BaseException) -> str:
        """The first line of what went wrong, without a password."""
        cause = _cause(error)
        if isinstance(cause, ImportError):
            return f"its driver cannot be imported ({cause}); {EXTRA} brings that of PostgreSQL"
        if isinstance(cause, RuntimeError) and "schema" in str(cause):
            return (
                "its tables are those of another application or of another version of Optuna: "
                "give badm a database of its own"
            )
        source = cause.orig if isinstance(cause, DBAPIError) and cause.orig else cause
        lines = str(source).strip().splitlines() or [type(source).__name__]
        return masked(lines[0], self.url)


def _shown(url: str) -> str:
    """The URL without its passwords; one of ours as the path that it was made from."""
    database = make_url(url).database or "" if url.startswith("sqlite:///file") else ""
    if database.startswith("file:///"):
        return unquote(database.removeprefix("file://"))
    return masked(url, url)


def _with_driver(url: URL) -> URL:
    """The URL with a driver that is installed, where it names none."""
    if url.drivername != "postgresql":
        return url
    for driver in DRIVERS:
        if find_spec(driver) is not None:
            return url.set(drivername=f"postgresql+{driver}")
    raise ValueError(f"PostgreSQL needs a driver: {EXTRA} brings it")


def _arguments(url: URL) -> dict[str, Any]:
    """What the engine is made with."""
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": 60}}  # others may be writing
    connecting = {}
    if url.get_driver_name() in DRIVERS:
        connecting = {name: value for name, value in CONNECTING.items() if name not in url.query}
    return {"connect_args": connecting, "pool_pre_ping": True}


def _limit_transactions(engine: Engine) -> None:
    """Let a server of PostgreSQL end those of a machine that says nothing more."""
    if engine.dialect.name != "postgresql":
        return

    @event.listens_for(engine, "connect")
    def limit(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"set idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        connection.commit()

    engine.dispose()  # connections of before


def _cause(error: BaseException) -> BaseException:
    """What the driver raised, if it did; Optuna and SQLAlchemy wrap it and stumble over it."""
    chain: list[BaseException] = [error]
    while (deeper := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(deeper)
    for kind in (DBAPIError, ImportError):
        found = [e for e in chain if isinstance(e, kind)]
        if found:
            return found[-1]
    return error.__cause__ or error


def _is_away(error: BaseException) -> bool:
    """Whether it is the server that does not answer, which passes, and not what was asked."""
    cause = _cause(error)
    if not isinstance(cause, (OperationalError, InterfaceError)):
        return False
    if type(cause.orig).__module__.partition(".")[0] == "sqlite3":  # a file is there or is not
        return False
    code = getattr(cause.orig, "sqlstate", None) or getattr(cause.orig, "pgcode", None)
    return code is None or code.startswith(PASSING)


def _minutes() -> str:
    return f"{WAIT_SECONDS / 60:g} minutes"

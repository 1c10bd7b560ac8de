"""A PostgreSQL server of a test's own: from Debian's package, in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

REQUIRED = os.environ.get("BADM_POSTGRESQL") == "required"  # then whatever is missing is a failure
PASSWORD = "s3cret@/:%?ü"  # with all that means something in a URL
USER = "badm"


def programs() -> Path:
    """The folder with ``initdb`` and ``pg_ctl``, which Debian does not put into the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    missing = "PostgreSQL must be installed (apt install postgresql)"
    if REQUIRED:
        pytest.fail(f"BADM_POSTGRESQL=required, and {missing}")
    pytest.skip(missing)


class Server:
    """Started and stopped at will; databases by name, for a user with a password."""

    def __init__(self) -> None:
        self.programs = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="badm-postgresql-"))
        self.user: str | None = None
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            self.user = "postgres"
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._run("initdb", "-D", "data", "-U", "postgres", "-E", "UTF8", "--no-sync",
                  "--auth-local=trust", "--auth-host=scram-sha-256")  # fmt: skip
        self.start()
        self.sql(f"create role {USER} login password '{PASSWORD}'")

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off "
            f"-c unix_socket_directories={self.folder}"
        )
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "fast", "-w", "stop")

    def remove(self) -> None:
        subprocess.run(self._command("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop"),
                       cwd=self.folder, capture_output=True, user=self.user)  # fmt: skip
        shutil.rmtree(self.folder)

    def database(self, name: str) -> str:
        """The URL of a new database of that name."""
        self.sql(f"create database {name} owner {USER}")
        return self.url(name)

    def url(self, name: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Say it to the server as its administrator."""
        import psycopg

        where = f"host={self.folder} port={self.port} user=postgres dbname={database}"
        with psycopg.connect(where, autocommit=True) as connection:
            answer = connection.execute(statement)
            return answer.fetchall() if answer.description else []

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [str(self.programs / name), *arguments]

    def _run(self, name: str, *arguments: str) -> None:
        # Not a pipe: the server would keep it open, and reading it would never end.
        with (self.folder / "said").open("wb") as said:
            done = subprocess.run(
                self._command(name, *arguments),
                cwd=self.folder,
                stdout=said,
                stderr=said,
                user=self.user,
                env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
            )
        assert done.returncode == 0, (self.folder / "said").read_text()

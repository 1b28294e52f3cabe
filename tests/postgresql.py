"""A throw-away PostgreSQL server, in a folder under /tmp, gone afterwards."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

#: Marks of what needs a server: all of it in one process.
on_server = [pytest.mark.postgres, pytest.mark.xdist_group("postgres")]


class Server:
    """A throw-away PostgreSQL: makes databases and runs SQL as its superuser."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.password = secrets.token_hex(8)
        self.folder = folder
        self._databases = 0
        (folder / "password").write_text(self.password)
        # PostgreSQL refuses to run as root. pdeathsig: it goes when this process does.
        user = "--reuid=postgres --regid=postgres --clear-groups" if os.geteuid() == 0 else ""
        self._prefix = f"setpriv {user} --pdeathsig=QUIT {programs}"
        if user:
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(folder / "password", "postgres", "postgres")
        self._start(
            f"initdb -D {folder}/data -U tester --pwfile={folder}/password -A scram-sha-256 "
            "-N --locale=C -E UTF8"
        ).wait(60)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = self._start(
            f"postgres -D {folder}/data -p {self.port} -k {folder} -h 127.0.0.1 -F"
        )
        self._engine = sa.create_engine(
            self._url("postgres").replace("postgresql:", "postgresql+psycopg:"),
            isolation_level="AUTOCOMMIT",
            poolclass=sa.NullPool,
        )

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(
                f"{self._prefix}/{command}".split(), stdout=log, stderr=log, cwd="/"
            )

    def _url(self, database: str) -> str:
        return f"postgresql://tester:{self.password}@127.0.0.1:{self.port}/{database}"

    def wait(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.sql("SELECT 1")
            except sa.exc.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def sql(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def database(self, options: str = "") -> str:
        """Make an empty database; returns its URL."""
        self._databases += 1
        self.sql(f"CREATE DATABASE store_{self._databases} {options}")
        return self._url(f"store_{self._databases}")

    def stop(self) -> None:
        self._engine.dispose()
        self._process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        self._process.wait(30)


@contextmanager
def running() -> Iterator[Server]:
    """A running server; skips the test where there is no PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [
        Path(shutil.which("initdb") or "")
    ]
    if not (found[-1] / "initdb").exists() or not shutil.which("setpriv"):
        pytest.skip("no PostgreSQL; apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgresql-"))
    made = Server(folder, found[-1])
    try:
        made.wait()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)

"""The store's address, printed without secrets, its engine, and messages for database errors.

A SQLite file is opened in WAL mode: readers and one writer do not wait for each other. With
``synchronous=NORMAL`` a committed row survives the death of the process. The wait for another writer's
lock is limited in both databases.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from autotune.errors import MissingDependencyError, StoreError
from autotune.files import data_path

EXPECTED = (
    "expected the path of a SQLite file, or postgresql://user:password@host/database with special "
    "characters of the password percent-encoded"
)
_DRIVERS = ("postgresql", "postgres", "postgresql+psycopg")
CONNECT_TIMEOUT_S = 10

#: Execution options of a connection that takes SQLite's write lock when it begins.
WRITES = {"begin": "BEGIN IMMEDIATE"}
#: Execution options of a connection without transactions.
NO_TRANSACTION = {"begin": ""}


# A pool logs errors and Ctrl-C with a traceback, and raises them as well: silence the log.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)


def default_url() -> str:
    """Return the default address: ``$AUTOTUNE_STORE``, else a file in the user's data folder."""
    return os.environ.get("AUTOTUNE_STORE") or data_path("store.sqlite")


@dataclass(frozen=True, repr=False)
class Address:
    """The parsed address of a store. Its text contains no password and no URL options."""

    url: sa.URL
    #: Maximum wait in seconds for another process's lock.
    wait_s: float

    @classmethod
    def parse(cls, url: str | Path, wait_s: float) -> Address:
        """Read the address of a file or a server; raise `StoreError` if it is neither."""
        text = os.fspath(url)
        if isinstance(url, Path) or "://" not in text:
            return cls(_file(text), wait_s)
        if text.count("@") > 1:  # the rest of the password would count as the host, and be printed
            raise StoreError(f"the address of the results store has more than one @; {EXPECTED}")
        try:
            parsed = sa.make_url(text)
        except (sa.exc.ArgumentError, ValueError):  # their messages may quote the password
            raise StoreError(
                f"the address of the results store cannot be read; {EXPECTED}"
            ) from None
        if parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.query:
            return cls(_file(parsed.database), wait_s)
        if parsed.drivername not in _DRIVERS:
            raise StoreError(
                f"the address of the results store begins with {parsed.drivername}://; {EXPECTED}"
            )
        return cls(parsed.set(drivername="postgresql+psycopg"), wait_s)

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for a server."""
        is_file = self.url.drivername == "sqlite" and self.url.database
        return Path(self.url.database or "") if is_file else None

    @property
    def holds_secret(self) -> bool:
        """True if the address has a password."""
        return any(self._secrets)

    @property
    def _secrets(self) -> list[object]:
        options = (self.url.query.get(name) for name in ("password", "sslpassword"))
        return [secret for secret in (self.url.password, *options) if secret]

    @property
    def key(self) -> str:
        """A name of a server's database for file names, the same for all its users."""
        query = self.url.query
        place = self.url.host or query.get("host"), self.url.port or query.get("port")
        return sha256(repr((*place, self.url.database)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        if self.path:
            return str(self.path)
        user = f"{self.url.username}@" if self.url.username else ""
        port = f":{self.url.port}" if self.url.port else ""
        return f"postgresql://{user}{self.url.host or ''}{port}/{self.url.database or ''}"

    __repr__ = __str__

    def without_secrets(self, text: str) -> str:
        """Remove the password from a driver's message."""
        for secret in self._secrets:
            text = text.replace(str(secret), "***")
        return text

    def engine(self) -> sa.Engine:
        """Make the engine, which connects later; for a file, make its folder."""
        return self._file_engine(self.path) if self.path else self._server_engine()

    def _file_engine(self, path: Path) -> sa.Engine:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"results store {path}: its folder cannot be made or entered ({error.strerror}); "
                "change its permissions, or name another file by AUTOTUNE_STORE"
            ) from None
        # isolation_level None: only `_begin` begins transactions.
        options = {"timeout": self.wait_s, "isolation_level": None}
        engine = sa.create_engine(self.url, connect_args=options)
        _on_connect(engine, "PRAGMA foreign_keys=ON", "PRAGMA synchronous=NORMAL")
        sa.event.listen(engine, "begin", _begin)
        return engine

    def _server_engine(self) -> sa.Engine:
        wait_ms = int(self.wait_s * 1000)
        limits = {"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": wait_ms}
        options = {name: limit for name, limit in limits.items() if name not in self.url.query}
        try:
            engine = sa.create_engine(self.url, connect_args=options, pool_pre_ping=True)
        except ModuleNotFoundError:
            raise MissingDependencyError("psycopg", "postgres", f"the store {self}") from None
        _on_connect(engine, f"SET lock_timeout = {wait_ms}")
        return engine


def _file(text: str) -> sa.URL:
    return sa.URL.create("sqlite", database=str(Path(text).expanduser().absolute()))


def _begin(connection: sa.Connection) -> None:
    """Take SQLite's write lock when a write begins: a later attempt can fail without a wait."""
    statement = connection.get_execution_options().get("begin", "BEGIN")
    if statement:
        connection.exec_driver_sql(statement)


def _on_connect(engine: sa.Engine, *statements: str) -> None:
    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()


# ---------------------------------------------------------------------- messages for errors

KEPT = "stored rows are kept, and the same command resumes there"
_NO_ACCESS = (
    "this user cannot open or write the file or its folder, or the path is a folder; change the "
    "permissions, or name another file by AUTOTUNE_STORE"
)

#: SQLite's primary result codes, by the start of their names.
SQLITE = {
    "SQLITE_BUSY": "another process has held its lock for {wait:g} s; let that process finish, or "
    "find it with: fuser '{where}'",
    "SQLITE_FULL": f"the disk is full; free some space: {KEPT}",
    "SQLITE_IOERR": "the disk fails, or a quota or file-size limit (ulimit -f) is reached; fix "
    f"that: {KEPT}",
    "SQLITE_NOTADB": "it is not a SQLite database, or a damaged one, and was not changed; move it "
    "away, or name another file by AUTOTUNE_STORE",
    "SQLITE_CORRUPT": "the file is damaged; move it away, and save what can be read: "
    "sqlite3 OLD .recover | sqlite3 NEW",
    **dict.fromkeys(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM"), _NO_ACCESS),
}

#: PostgreSQL's SQLSTATE codes, by their start; https://www.postgresql.org/docs/current/errcodes-appendix.html
POSTGRESQL = {
    "53": f"the server is out of disk space or another resource; free some there: {KEPT}",
    "55P03": "another session has held a lock for {wait:g} s; find it in pg_stat_activity",
    "42501": "this user lacks a right; GRANT it, or use another user",
    "25006": "the server takes no writes (a standby?); name the primary server",
    "57P": f"the server is going down or starting; wait until it is up: {KEPT}",
}
UNREACHABLE = (
    "the server cannot be reached, or refuses this user; check that it runs, and check host, "
    "port, user, password and database"
)
CHANGED = "the tables differ from the tables of this autotune version; name another store"


def explained(error: Exception, address: Address) -> StoreError:
    """Return an error of SQLAlchemy as one message, without secrets.

    Raise it ``from None``: the driver's own message may quote secrets.
    """
    cause = getattr(error, "orig", None) or error
    text = address.without_secrets(" ".join(str(cause).split()))
    state = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    if state is None and not address.path and not isinstance(cause, sa.exc.SQLAlchemyError):
        advice = UNREACHABLE
    else:
        known = SQLITE if address.path else POSTGRESQL
        advice = next((known[start] for start in known if (state or "").startswith(start)), CHANGED)
    advice = advice.format(wait=address.wait_s, where=address)
    return StoreError(f"results store {address}: {text}: {advice}")

"""The store's address, printed without its secrets, and an engine that reaches it. Knows no tables.

A SQLite file is opened in WAL mode, where readers and one writer do not wait for each other, with
``synchronous=NORMAL``: a row outlives the death of the process, whenever it happens. Waiting for
another writer's lock is bounded in both databases.
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
POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
CONNECT_TIMEOUT_S = 10

#: Execution options of a connection: SQLite's write lock at once, or no transaction at all.
WRITES = {"begin": "BEGIN IMMEDIATE"}
NO_TRANSACTION = {"begin": ""}


def default_url() -> str:
    """Return the default address: ``$AUTOTUNE_STORE``, else a file in the user's data folder."""
    return os.environ.get("AUTOTUNE_STORE") or data_path("store.sqlite")


@dataclass(frozen=True)
class Address:
    """One parsed address. Printing it shows no password and no URL options."""

    url: sa.URL
    #: Longest wait for another process's lock.
    wait_s: float

    @classmethod
    def parse(cls, url: str | Path, wait_s: float) -> Address:
        """Read the address of a file or a server; raise StoreError where it is neither."""
        text = os.fspath(url)
        if isinstance(url, Path) or "://" not in text:
            return cls(_file(text), wait_s)
        if text.count("@") > 1:  # what follows the first would be taken for the host, and printed
            raise StoreError(f"the address of the results store holds more than one @; {EXPECTED}")
        try:
            parsed = sa.make_url(text)
        except (sa.exc.ArgumentError, ValueError):  # their messages may quote the password
            raise StoreError(
                f"the address of the results store cannot be read; {EXPECTED}"
            ) from None
        if parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.query:
            return cls(_file(parsed.database), wait_s)
        if parsed.drivername not in POSTGRESQL:
            raise StoreError(f"no results store by {parsed.drivername}:// here; {EXPECTED}")
        return cls(parsed.set(drivername="postgresql+psycopg"), wait_s)

    @property
    def path(self) -> Path | None:
        """Return the SQLite file; None for a server."""
        is_file = self.url.drivername == "sqlite" and self.url.database
        return Path(self.url.database or "") if is_file else None

    @property
    def holds_secret(self) -> bool:
        """Return whether it has a password."""
        return any(self._secrets)

    @property
    def _secrets(self) -> list[object]:
        options = (self.url.query.get(name) for name in ("password", "sslpassword"))
        return [secret for secret in (self.url.password, *options) if secret]

    @property
    def key(self) -> str:
        """Return a name of a server's database, the same for all its users, as part of a file name."""
        query = self.url.query
        place = self.url.host or query.get("host"), self.url.port or query.get("port")
        return sha256(repr((*place, self.url.database)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        if self.path:
            return str(self.path)
        user = f"{self.url.username}@" if self.url.username else ""
        port = f":{self.url.port}" if self.url.port else ""
        return f"postgresql://{user}{self.url.host or ''}{port}/{self.url.database or ''}"

    def __repr__(self) -> str:
        return f"Address({self})"

    def without_secrets(self, text: str) -> str:
        """Blank out the password in a driver's message."""
        for secret in self._secrets:
            text = text.replace(str(secret), "***")
        return text

    def engine(self) -> sa.Engine:
        """Make the engine, and a file's folder; it connects later."""
        engine = self._file_engine(self.path) if self.path else self._server_engine()
        pool = type(engine.pool)  # by whose name it logs
        logging.getLogger(f"{pool.__module__}.{pool.__name__}").addFilter(_is_no_interruption)
        return engine

    def _file_engine(self, path: Path) -> sa.Engine:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_folder = path.is_dir()
        except OSError as error:
            raise StoreError(
                f"results store {path}: its folder cannot be made or entered ({error.strerror}); "
                "change its permissions, or name another file by AUTOTUNE_STORE"
            ) from None
        if is_folder:
            raise StoreError(f"{path} is a folder; name a file in it: {path / 'store.sqlite'}")
        # isolation_level None: transactions begin where `_begin` says so, and nowhere else.
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
    """Take SQLite's write lock at the begin of a write: a later lock can fail without a wait."""
    statement = connection.get_execution_options().get("begin", "BEGIN")
    if statement:
        connection.exec_driver_sql(statement)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Filter out a pool's messages of interruptions, which it logs with a traceback and passes on."""
    return record.exc_info is None or not isinstance(record.exc_info[1], KeyboardInterrupt)


def _on_connect(engine: sa.Engine, *statements: str) -> None:
    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

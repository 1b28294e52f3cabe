"""`Database`: the tables behind one address, opened, read and written.

Every transaction is one of `reading` or `writing`, which say what failed, where and what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from autotune.errors import StoreError
from autotune.store import schema
from autotune.store.address import NO_TRANSACTION, WRITES, Address
from autotune.store.schema import scopes

#: Longest wait for another process's lock; a write takes a millisecond.
WAIT_S = 20.0

_INSERT: Mapping[str, Callable[..., Any]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


class Database:
    """The tables behind one address; made by `Database.open`. Use it as a context manager."""

    def __init__(self, address: Address, engine: sa.Engine) -> None:
        self.address = address
        self._engine = engine
        self._writing = engine.execution_options(**WRITES)
        #: Numbers of scopes that are known to be there, by fingerprint.
        self._scopes: dict[str, int] = {}

    @classmethod
    def open(cls, url: str | Path, *, wait_s: float = WAIT_S, must_exist: bool = False) -> Self:
        """Open the store of a SQLite file or ``postgresql://`` URL; make it where there is none."""
        address = Address.parse(url, wait_s)
        if must_exist and address.path and not address.path.exists():
            raise StoreError(f"results store {address}: there is no such file")
        store = cls(address, address.engine())
        with store._explaining():
            try:
                schema.prepare(store._engine, address)
                if address.path:
                    _use_wal(store._engine, wait_s)
            except BaseException:
                store._engine.dispose()
                raise
        return store

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def scope_ids(
        self, connection: sa.Connection, wanted: Iterable[Mapping[str, object]]
    ) -> dict[str, int]:
        """Return the numbers of scopes by fingerprint; add those that are missing."""
        rows = {str(row["fingerprint"]): row for row in wanted}
        known = {text: self._scopes[text] for text in rows if text in self._scopes}
        new = [row for text, row in rows.items() if text not in known]
        if new:
            connection.execute(
                _INSERT[connection.dialect.name](scopes).on_conflict_do_nothing(), new
            )
            texts = [row["fingerprint"] for row in new]
            query = sa.select(scopes.c.fingerprint, scopes.c.id)
            found = connection.execute(query.where(scopes.c.fingerprint.in_(texts)))
            known |= {row.fingerprint: row.id for row in found}
        return known

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Begin a transaction that reads."""
        with self._explaining(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Begin a transaction that writes."""
        with self._explaining(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            raise explained(error, self.address) from None


def _use_wal(engine: sa.Engine, wait_s: float) -> None:
    """Switch the file to WAL, once in its life; SQLite does not wait for other processes here."""
    deadline = time.monotonic() + wait_s
    with engine.execution_options(**NO_TRANSACTION).connect() as connection:
        while True:
            try:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL").close()
                return
            except sa.exc.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


# ---------------------------------------------------------------------- errors in words

NO_RUN = "there is no such run here; begin_run first"
KEPT = "what was stored before is kept, and the same command resumes there"

#: SQLite's primary result codes, by the start of their names.
SQLITE = {
    "SQLITE_BUSY": "another process has held its lock for {wait:g} s; let that process finish, or "
    "see which one it is: fuser '{where}'",
    "SQLITE_LOCKED": "another part of this process has held its lock for {wait:g} s",
    "SQLITE_FULL": f"the disk is full; free some space: {KEPT}",
    "SQLITE_IOERR": "the disk fails, or a quota or file-size limit (ulimit -f) is reached; change "
    f"that: {KEPT}",
    "SQLITE_TOOBIG": "a value is too large for the database",
    "SQLITE_NOTADB": "it is no SQLite database, or a damaged one, and was left as it is; move it "
    "away, or name another file by AUTOTUNE_STORE",
    "SQLITE_CORRUPT": "the file is damaged; move it away, and save what can be read: "
    "sqlite3 OLD .recover | sqlite3 NEW",
    "SQLITE_CONSTRAINT": NO_RUN,
    "SQLITE_CANTOPEN": "the file or its folder may not be opened or written by this user; change its "
    "permissions, or name another file by AUTOTUNE_STORE",
    "SQLITE_READONLY": "the file or its folder is read-only for this user; change its permissions, "
    "or name another file by AUTOTUNE_STORE",
}
for _name in ("SQLITE_PERM", "SQLITE_AUTH", "SQLITE_NOLFS"):
    SQLITE[_name] = SQLITE["SQLITE_CANTOPEN"]

#: PostgreSQL's SQLSTATE codes, by their start; https://www.postgresql.org/docs/current/errcodes-appendix.html
POSTGRESQL = {
    "53100": f"the server's disk is full; free some space there: {KEPT}",
    "53": f"the server is out of a resource; wait, or raise its limit: {KEPT}",
    "55P03": "another session has held a lock for {wait:g} s; see pg_stat_activity for which one",
    "42501": "this user may not do that; GRANT the rights, or use another user",
    "25006": "the server takes no writes (a standby?); name the primary server",
    "57P": f"the server is going down or starting; wait until it is up: {KEPT}",
    "23503": NO_RUN,
    "XX": f"the database is damaged; see the server's log: {KEPT}",
}
UNREACHABLE = (
    "the server cannot be reached, or does not let this user in; check that it runs, and host, "
    "port, user, password and database"
)
CHANGED = "the tables are not as this version of autotune left them; name another store"


def explained(error: Exception, address: Address) -> StoreError:
    """Return an error of SQLAlchemy as one message; raise it ``from None``: a driver's may quote secrets."""
    cause = getattr(error, "orig", None) or error
    text = address.without_secrets(" ".join(str(cause).split()))
    advice = _advice(cause, address).format(wait=address.wait_s, where=address)
    return StoreError(f"results store {address}: {text}: {advice}")


def _advice(cause: Exception, address: Address) -> str:
    if address.path:
        return _by_start(SQLITE, getattr(cause, "sqlite_errorname", ""))
    if isinstance(cause, sa.exc.SQLAlchemyError):
        return CHANGED
    state = getattr(cause, "sqlstate", None)  # None where no server answered
    return _by_start(POSTGRESQL, state) if state else UNREACHABLE


def _by_start(table: dict[str, str], code: str) -> str:
    return next((advice for start, advice in table.items() if code.startswith(start)), CHANGED)

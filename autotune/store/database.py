"""`Database`: the tables behind one address, opened, read and written.

Every transaction is one of `reading` or `writing`, which explain their failures.
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
from autotune.store.faults import explained
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

    def learn_scopes(self, known: Mapping[str, int]) -> None:
        """Keep the numbers that `scope_ids` returned, once its transaction is committed."""
        self._scopes |= known

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

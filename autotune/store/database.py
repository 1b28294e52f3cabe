"""The tables of the store, and `Database`: the tables at one address, and their transactions.

Every transaction is one of `Database.reading` or `Database.writing`, which turn errors into messages.
Indices keep large stores fast: a command reads no more rows than it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from autotune.errors import StoreError
from autotune.store.connection import NO_TRANSACTION, WRITES, Address, explained

#: Maximum wait in seconds for another process's lock; a write takes 1 ms.
WAIT_S = 20.0

#: Version of the tables, increased with every change; other versions are refused.
VERSION = 4

_CREATION_LOCK = 0x6175746F  # any number that other programs on the server are unlikely to lock


def _words(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, **options)


metadata = sa.MetaData()

schema = sa.Table("autotune_schema", metadata, sa.Column("version", sa.Integer, nullable=False))

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    *map(_words, ("kernel", "device_name", "strategy")),
    _words("seed"),  # as text, since seeds of numpy have 128 bits
    *map(_words, ("version", "command")),
    _words("state"),  # running, or rows.RunState
    _words("process"),  # the process that writes the run: access.identity
    _words("started"),
    sa.Column("finished", sa.Text),
)

scopes = sa.Table(  # the columns of rows.Scope; many measurements share a scope
    "scopes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    _words("fingerprint", unique=True),  # Scope.fingerprint, of all other columns
    *map(_words, ("kernel", "problem", "device_uuid", "device_name", "arch", "driver")),
    *map(_words, ("toolchain", "source", "arguments", "timing")),
)

attempts = sa.Table(  # open attempts, which have no row of measurements yet
    "attempts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False),
    _words("scope"),  # Scope.fingerprint
    _words("configuration"),  # canonical JSON
    _words("opened"),
)
sa.Index("attempts_by_configuration", attempts.c.scope, attempts.c.configuration)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False),
    sa.Column("scope_id", sa.ForeignKey("scopes.id"), nullable=False),
    _words("status"),  # part of `measurement`
    sa.Column("median_ms", sa.Double),  # part of `measurement`
    _words("measurement"),  # the whole measurement, as JSON
    _words("created"),
    _words("configuration", server_default=""),  # canonical JSON; part of `measurement`
)
sa.Index("measurements_by_run", measurements.c.run_id, measurements.c.id)
sa.Index("measurements_by_age", measurements.c.scope_id, measurements.c.id)
sa.Index(
    "measurements_by_time",
    *(measurements.c.scope_id, measurements.c.status, measurements.c.median_ms),
)
sa.Index("measurements_by_configuration", measurements.c.scope_id, measurements.c.configuration)

sizes = (
    sa.Table(  # a row for each problem size, on which several configurations were timed together
        "sizes",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("scope_id", sa.ForeignKey("scopes.id"), nullable=False),
        _words("times"),  # JSON: pairs of a configuration and its median in milliseconds
        _words("created"),
    )
)
sa.Index("sizes_by_age", sizes.c.scope_id, sizes.c.id)

sent = sa.Table(  # for the local file of runs that share a server: the last row that the server has
    "sent",
    metadata,
    sa.Column("table", sa.Text, primary_key=True),
    sa.Column("last_id", sa.Integer, nullable=False),
)

_INSERT: Mapping[str, Callable[..., Any]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


class Database:
    """The tables at one address; made by `Database.open`. Use it as a context manager."""

    def __init__(self, address: Address, engine: sa.Engine) -> None:
        self.address = address
        self._engine = engine
        self._writing = engine.execution_options(**WRITES)
        #: Numbers of scopes that the store has, by fingerprint; not complete.
        self._scopes: dict[str, int] = {}

    @classmethod
    def open(cls, url: str | Path, *, wait_s: float = WAIT_S, must_exist: bool = False) -> Self:
        """Open the store of a SQLite file or ``postgresql://`` URL; make a missing file or tables."""
        address = Address.parse(url, wait_s)
        if must_exist and address.path and not address.path.exists():
            raise StoreError(f"results store {address}: there is no such file")
        store = cls(address, address.engine())
        with store._explaining():
            try:
                _prepare(store._engine, address)
                if address.path:
                    _use_wal(store._engine)
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

    def scope_ids(
        self, connection: sa.Connection, wanted: Iterable[Mapping[str, object]]
    ) -> dict[str, int]:
        """Return the numbers of scopes by fingerprint; add missing scopes."""
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


def _use_wal(engine: sa.Engine) -> None:
    """Switch the file to WAL mode, once; if another process holds the lock, it does the same."""
    with (
        engine.execution_options(**NO_TRANSACTION).connect() as connection,
        suppress(sa.exc.OperationalError),
    ):
        connection.exec_driver_sql("PRAGMA journal_mode=WAL").close()


def _prepare(engine: sa.Engine, address: Address) -> None:
    with engine.begin() as connection:
        if _has_tables(connection, address):
            return
    with engine.execution_options(**WRITES).begin() as connection:
        if (
            connection.dialect.name == "postgresql"
        ):  # in SQLite this transaction holds the write lock
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        if not _has_tables(connection, address):  # another process may have been faster
            metadata.create_all(connection, checkfirst=False)
            connection.execute(schema.insert().values(version=VERSION))


def _has_tables(connection: sa.Connection, address: Address) -> bool:
    names = set(sa.inspect(connection).get_table_names())
    if not names:
        return False
    if schema.name not in names:
        raise StoreError(
            f"results store {address}: the database belongs to another program (its tables: "
            f"{', '.join(sorted(names)[:5])}) and was not changed; name an empty database"
        )
    version = connection.scalar(sa.select(schema.c.version))
    if version != VERSION:
        raise StoreError(
            f"results store {address}: its tables have version {version}, and this autotune reads "
            f"{VERSION}; the store was not changed: install the autotune that made it, or name another "
            "store by AUTOTUNE_STORE"
        )
    return True

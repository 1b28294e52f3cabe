"""The tables of the store, and whether a database holds ours, nothing, or another program's."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.store.address import WRITES, Address

#: Raised whenever a table changes; `prepare` refuses what is newer.
VERSION = 1

_CREATION_LOCK = 0x6175746F  # any number that other programs on the server are unlikely to lock


class Words(sa.types.TypeDecorator[str]):
    """Text of any origin: what a database would refuse (NUL, broken UTF-8) becomes an escape."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return value and value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _words(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, Words, nullable=False, **options)


metadata = sa.MetaData()

schema = sa.Table("autotune_schema", metadata, sa.Column("version", sa.Integer, nullable=False))

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    *map(_words, ("kernel", "device_name", "strategy")),
    _words("seed"),  # as text: seeds of numpy have 128 bits
    *map(_words, ("version", "command")),
    _words("state"),  # running, done, interrupted, failed
    _words("process"),  # which process writes it: see access.identity
    _words("started"),
    sa.Column("finished", Words),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False),
    _words("scope"),  # Scope.fingerprint
    _words("configuration"),  # canonical JSON
    _words("opened"),
    sa.Column("closed", Words),  # NULL while open
)
_is_open = attempts.c.closed.is_(None)
sa.Index("attempts_open", attempts.c.scope, sqlite_where=_is_open, postgresql_where=_is_open)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False, index=True),
    _words("scope", index=True),  # Scope.fingerprint, of the columns up to `timing`
    *map(_words, ("kernel", "problem", "device_uuid", "device_name", "arch", "driver")),
    *map(_words, ("toolchain", "source", "arguments", "timing")),
    _words("status"),  # this and the next for people who look with sqlite3 or psql
    sa.Column("median_ms", sa.Double),
    _words("measurement"),  # all of it, as JSON: what is read back
    _words("created"),
)


def prepare(engine: sa.Engine, address: Address) -> None:
    """Make the tables where the database is empty; StoreError where it is not ours."""
    with engine.begin() as connection:
        found = _found(connection, address)
    if not found:
        with engine.execution_options(**WRITES).begin() as connection:
            _create(connection, address)


def _found(connection: sa.Connection, address: Address) -> bool:
    """Whether our tables are there, of a version that is read here; False in an empty database."""
    names = set(sa.inspect(connection).get_table_names())
    if not names:
        return False
    if schema.name not in names:
        raise StoreError(
            f"results store {address}: the database belongs to another program (its tables: "
            f"{', '.join(sorted(names)[:5])}) and was left as it is; name an empty one"
        )
    version = connection.scalar(sa.select(schema.c.version)) or 0
    if version > VERSION:
        raise StoreError(
            f"results store {address}: its schema has version {version}, and this autotune knows "
            f"{VERSION}; install a newer one (pip install -U kernel-autotune), or name another "
            "store by AUTOTUNE_STORE"
        )
    missing = {table.name for table in metadata.sorted_tables} - names
    if missing or version < VERSION:
        lost = ", ".join(sorted(missing)) or "its version"
        raise StoreError(
            f"results store {address}: the database is damaged, {lost} missing, and was left as it "
            "is; restore it from a copy, or name another store by AUTOTUNE_STORE"
        )
    return True


def _create(connection: sa.Connection, address: Address) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's write lock is held already
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
    if not _found(connection, address):  # another process may have been faster
        metadata.create_all(connection, checkfirst=False)
        connection.execute(schema.insert().values(version=VERSION))

"""The tables of the store, and the check that a database holds them.

Indices keep large stores fast: a command reads no more rows than it shows.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.store.address import WRITES, Address

#: Raised whenever a table changes; `prepare` refuses any other.
VERSION = 3

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
    _words("state"),  # running, or how it ended: rows.RunState
    _words("process"),  # which process writes it: see access.identity
    _words("started"),
    sa.Column("finished", Words),
)

scopes = sa.Table(  # the columns of rows.Scope, which many measurements share
    "scopes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    _words("fingerprint", unique=True),  # Scope.fingerprint, of all others
    *map(_words, ("kernel", "problem", "device_uuid", "device_name", "arch", "driver")),
    *map(_words, ("toolchain", "source", "arguments", "timing")),
)

attempts = sa.Table(  # only those that are open: no row has come of them
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
    _words("status"),  # this and the next for people who look with sqlite3 or psql
    sa.Column("median_ms", sa.Double),
    _words("measurement"),  # all of it, as JSON: what is read back
    _words("created"),
    _words("configuration", server_default=""),  # canonical JSON; a part of `measurement`
)
sa.Index("measurements_by_run", measurements.c.run_id, measurements.c.id)
sa.Index("measurements_by_age", measurements.c.scope_id, measurements.c.id)
sa.Index(
    "measurements_by_time",
    *(measurements.c.scope_id, measurements.c.status, measurements.c.median_ms),
)
sa.Index("measurements_by_configuration", measurements.c.scope_id, measurements.c.configuration)


def prepare(engine: sa.Engine, address: Address) -> None:
    """Make the tables where the database is empty; refuse one that is not of this version."""
    with engine.begin() as connection:
        if _has_tables(connection, address):
            return
    with engine.execution_options(**WRITES).begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite's write lock is held already
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
            f"{', '.join(sorted(names)[:5])}) and was left as it is; name an empty one"
        )
    version = connection.scalar(sa.select(schema.c.version)) or 0
    if version > VERSION:
        raise StoreError(
            f"results store {address}: its schema has version {version}, and this autotune knows "
            f"{VERSION}; install a newer autotune, or name another store by AUTOTUNE_STORE"
        )
    if 0 < version < VERSION:
        raise StoreError(
            f"results store {address}: its schema has version {version}, of an older autotune, and "
            f"this one needs {VERSION}; it was left as it is: move it away or name another store by "
            "AUTOTUNE_STORE, and what is needed is measured again"
        )
    missing = {table.name for table in metadata.sorted_tables} - names
    if missing or version < 1:
        lost = ", ".join(sorted(missing)) or "its version"
        raise StoreError(
            f"results store {address}: the database is damaged, {lost} missing, and was left as it "
            "is; restore it from a copy, or name another store by AUTOTUNE_STORE"
        )
    return True

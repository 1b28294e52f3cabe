"""The tables of the store, and whether a database holds ours, an older form of them, nothing, or another program's.

The larger a store, the more its indices matter: whatever a command asks for, it reads no more rows than it shows.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.store.address import WRITES, Address
from autotune.values import Configuration

#: Raised whenever a table changes; `prepare` converts what is older and refuses what is newer.
VERSION = 2
#: Rows that are converted at a time.
_CONVERTED = 5000

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
_open_attempts = sa.Index(
    "attempts_open_by_configuration",
    attempts.c.scope,
    attempts.c.configuration,
    sqlite_where=_is_open,
    postgresql_where=_is_open,
)

measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False, index=True),
    _words("scope"),  # Scope.fingerprint, of the columns up to `timing`
    *map(_words, ("kernel", "problem", "device_uuid", "device_name", "arch", "driver")),
    *map(_words, ("toolchain", "source", "arguments", "timing")),
    _words("status"),  # this and the next for people who look with sqlite3 or psql
    sa.Column("median_ms", sa.Double),
    _words("measurement"),  # all of it, as JSON: what is read back
    _words("created"),
    _words("configuration", server_default=""),  # canonical JSON; a part of `measurement`
)
_of_measurements = [
    sa.Index("measurements_by_age", measurements.c.scope, measurements.c.id),
    sa.Index(
        "measurements_by_time",
        *(measurements.c.scope, measurements.c.status, measurements.c.median_ms),
    ),
    sa.Index("measurements_by_configuration", measurements.c.scope, measurements.c.configuration),
]


def prepare(engine: sa.Engine, address: Address) -> None:
    """Make the tables where the database is empty, convert older ones; StoreError where it is not ours."""
    with engine.begin() as connection:
        found = _version(connection, address)
    if found == VERSION:
        return
    with engine.execution_options(**WRITES).begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite's write lock is held already
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        found = _version(connection, address)  # another process may have been faster
        if not found:
            metadata.create_all(connection, checkfirst=False)
            connection.execute(schema.insert().values(version=VERSION))
        elif found < VERSION:
            _convert(connection)


def _version(connection: sa.Connection, address: Address) -> int:
    """The version of our tables, which is one that is read or converted here; 0 in an empty database."""
    names = set(sa.inspect(connection).get_table_names())
    if not names:
        return 0
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
    missing = {table.name for table in metadata.sorted_tables} - names
    if missing or version < 1:
        lost = ", ".join(sorted(missing)) or "its version"
        raise StoreError(
            f"results store {address}: the database is damaged, {lost} missing, and was left as it "
            "is; restore it from a copy, or name another store by AUTOTUNE_STORE"
        )
    return int(version)


def _convert(connection: sa.Connection) -> None:
    """Make version 1 the present one: configurations get a column, and other indices.

    What a process of an older version adds afterwards has no configuration there: it is listed, but
    not remembered.
    """
    connection.exec_driver_sql(
        "ALTER TABLE measurements ADD COLUMN configuration TEXT DEFAULT '' NOT NULL"
    )
    table, last = measurements.c, 0
    fill = measurements.update().where(table.id == sa.bindparam("row"))
    while rows := connection.execute(
        sa.select(table.id, table.measurement)
        .where(table.id > last)
        .order_by(table.id)
        .limit(_CONVERTED)
    ).all():
        last = rows[-1].id
        connection.execute(
            fill.values(configuration=sa.bindparam("text")),
            [{"row": number, "text": _configuration(text)} for number, text in rows],
        )
    for name in ("ix_measurements_scope", "attempts_open"):
        connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
    for index in (_open_attempts, *_of_measurements):
        index.create(connection)
    connection.execute(schema.update().values(version=VERSION))


def _configuration(measurement: str) -> str:
    """The configuration of a stored measurement, as canonical JSON; empty where it is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(measurement)["configuration"]
        return Configuration(found).canonical_json()
    return ""

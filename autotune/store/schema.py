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
VERSION = 3
#: The first with a table of scopes.
_WITH_SCOPES = 3
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
_open_attempts = sa.Index("attempts_by_configuration", attempts.c.scope, attempts.c.configuration)

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
_of_measurements = [
    sa.Index("measurements_by_run", measurements.c.run_id, measurements.c.id),
    sa.Index("measurements_by_age", measurements.c.scope_id, measurements.c.id),
    sa.Index(
        "measurements_by_time",
        *(measurements.c.scope_id, measurements.c.status, measurements.c.median_ms),
    ),
    sa.Index(
        "measurements_by_configuration", measurements.c.scope_id, measurements.c.configuration
    ),
]


def prepare(engine: sa.Engine, address: Address, *, may_convert: bool) -> int:
    """Make the tables where the database is empty, or convert older ones; returns the version found.

    Raises
    ------
    StoreError
        If it is not ours, of a newer version, or of an older one that may not be converted.
    """
    with engine.begin() as connection:
        found = _version(connection, address)
    if found == VERSION:
        return found
    if found and not may_convert:
        raise StoreError(
            f"results store {address}: its schema has version {found}, and this autotune needs "
            f"{VERSION}; who owns the tables converts them: autotune store migrate (older versions "
            "of autotune then refuse it)"
        )
    with engine.execution_options(**WRITES).begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite's write lock is held already
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        found = _version(connection, address)  # another process may have been faster
        if not found:
            metadata.create_all(connection, checkfirst=False)
            connection.execute(schema.insert().values(version=VERSION))
        elif found < VERSION:
            if found == 1:
                _with_configurations(connection)
            _with_scopes(connection)
            connection.execute(schema.update().values(version=VERSION))
    return found


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
    needed = {table.name for table in metadata.sorted_tables}
    missing = needed - names - ({scopes.name} if version < _WITH_SCOPES else set())
    if missing or version < 1:
        lost = ", ".join(sorted(missing)) or "its version"
        raise StoreError(
            f"results store {address}: the database is damaged, {lost} missing, and was left as it "
            "is; restore it from a copy, or name another store by AUTOTUNE_STORE"
        )
    return int(version)


def _with_configurations(connection: sa.Connection) -> None:
    """Make version 1 the second: configurations get a column.

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


def _with_scopes(connection: sa.Connection) -> None:
    """Make version 2 the third: what many rows share is said once, and only open attempts are kept."""
    old = (
        *("ix_measurements_scope", "ix_measurements_run_id", "attempts_open"),
        *("attempts_open_by_configuration", *(str(index.name) for index in _of_measurements)),
    )
    for name in old:
        connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
    connection.exec_driver_sql("ALTER TABLE measurements RENAME TO measurements_before")
    for table in (scopes, measurements):
        connection.execute(sa.schema.CreateTable(table))
    shared = [column.name for column in scopes.c if column.name not in ("id", "fingerprint")]
    least = ", ".join(f"min({name})" for name in shared)
    connection.exec_driver_sql(
        f"INSERT INTO scopes (fingerprint, {', '.join(shared)}) "
        f"SELECT scope, {least} FROM measurements_before GROUP BY scope"
    )
    kept = ", ".join(column.name for column in measurements.c if column.name != "scope_id")
    theirs = ", ".join(f"old.{name}" for name in kept.split(", "))
    connection.exec_driver_sql(
        f"INSERT INTO measurements (scope_id, {kept}) SELECT scopes.id, {theirs} "
        "FROM measurements_before AS old JOIN scopes ON scopes.fingerprint = old.scope "
        "ORDER BY old.id"
    )
    connection.exec_driver_sql("DROP TABLE measurements_before")
    for index in (*scopes.indexes, *measurements.indexes):  # quicker than row by row
        index.create(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "SELECT setval(pg_get_serial_sequence('measurements', 'id'), max(id)) FROM measurements"
        )
    connection.exec_driver_sql("DELETE FROM attempts WHERE closed IS NOT NULL")
    connection.exec_driver_sql("ALTER TABLE attempts DROP COLUMN closed")
    _open_attempts.create(connection)


def _configuration(measurement: str) -> str:
    """The configuration of a stored measurement, as canonical JSON; empty where it is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(measurement)["configuration"]
        return Configuration(found).canonical_json()
    return ""

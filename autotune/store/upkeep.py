"""What a whole store holds, removing what is old, and giving back its space. Counts; reads no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from autotune.store import schema
from autotune.store.database import Database
from autotune.store.schema import attempts, measurements, runs, scopes

#: Rows that are looked at in one transaction: for so long nobody else can write to a file.
_AT_ONCE = 10_000


@dataclass(frozen=True)
class Contents:
    """How much of what is in a store."""

    #: Of its schema.
    version: int
    rows: int
    runs: int
    #: What measurements are remembered by: kernel, problem, device, source …
    scopes: int
    size_bytes: int
    #: When its first and its latest run began, ISO 8601, UTC; None where it has none.
    first_run: str | None
    last_run: str | None
    #: Rows by kernel.
    kernels: dict[str, int]


def contents(store: Database) -> Contents:
    """Count what is in a store; `StoreError` where it cannot be read."""
    rows = sa.func.count(measurements.c.id)
    per_scope = (
        sa.select(measurements.c.scope_id, rows.label("rows"))
        .group_by(measurements.c.scope_id)
        .subquery()
    )
    by_kernel = (
        sa.select(scopes.c.kernel, sa.func.sum(per_scope.c.rows))
        .join_from(scopes, per_scope)
        .group_by(scopes.c.kernel)
        .order_by(scopes.c.kernel)
    )
    of_runs = sa.select(
        sa.func.count(runs.c.id), sa.func.min(runs.c.started), sa.func.max(runs.c.started)
    )
    with store.reading() as connection:
        kernels = {name: int(count) for name, count in connection.execute(by_kernel)}
        count, first, last = connection.execute(of_runs).one()
        return Contents(
            version=schema.VERSION,
            rows=sum(kernels.values()),
            runs=count,
            scopes=connection.scalar(sa.select(sa.func.count(scopes.c.id))) or 0,
            size_bytes=size_bytes(store),
            first_run=first,
            last_run=last,
            kernels=kernels,
        )


def remove_older(store: Database, days: float, *, dry_run: bool = False) -> int:
    """Remove rows, and runs and attempts without any, that are older; returns how many rows.

    Scopes stay: a run in progress may be about to add to one. With ``dry_run`` nothing is removed.
    """
    before = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="milliseconds")
    table = measurements.c
    if dry_run:
        with store.reading() as connection:
            query = sa.select(sa.func.count(table.id)).where(table.created < before)
            return connection.scalar(query) or 0
    removed, last = 0, None
    while True:
        some = sa.select(table.id).order_by(table.id).limit(_AT_ONCE)
        if last is not None:
            some = some.where(table.id > last)
        with store.writing() as connection:
            ids = connection.scalars(some).all()
            if not ids:
                break
            old = table.id.between(ids[0], ids[-1]), table.created < before
            removed += connection.execute(measurements.delete().where(*old)).rowcount
        last = ids[-1]
    has_rows = sa.exists().where(table.run_id == runs.c.id)
    has_attempts = sa.exists().where(attempts.c.run_id == runs.c.id)
    with store.writing() as connection:
        connection.execute(attempts.delete().where(attempts.c.opened < before))
        connection.execute(runs.delete().where(runs.c.started < before, ~has_rows, ~has_attempts))
    return removed


def compact(store: Database) -> None:
    """Give back the space of what was removed; others wait meanwhile where it is a file."""
    if store.address.path:
        store.run_alone("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        store.run_alone("VACUUM (ANALYZE) measurements, attempts, runs, scopes")


def size_bytes(store: Database) -> int:
    """What a store takes on its disk."""
    path = store.address.path
    if path is None:
        size = sa.select(sa.func.pg_database_size(sa.func.current_database()))
        with store.reading() as connection:
            return connection.scalar(size) or 0
    files = (path, Path(f"{path}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())

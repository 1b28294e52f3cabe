"""Copies into one store what another has and it lacks; told apart by content, not by number.

A run, a scope or a row is the same where all that was stored of it is equal, so that merging twice
adds nothing. It goes by batches, each of one transaction: killed in between, the same merge goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa

from autotune.store.database import Database
from autotune.store.schema import attempts, measurements, runs, scopes

#: Is told after each batch how many rows were looked at.
Progress: TypeAlias = Callable[[int], None]

#: Rows of one transaction.
_BATCH = 1000
_MERGE_LOCK = 0x6D657267  # two merges at once would both find a row missing
#: What makes a run the same; ``state`` and ``finished`` change while it lasts.
_RUN = [column for column in runs.c if column.name not in ("id", "state", "finished")]


@dataclass(frozen=True)
class Merged:
    """How many rows one store had, and how many of them, and of its runs, the other lacked."""

    rows: int
    added: int
    runs: int


def merge(source: Database, target: Database, progress: Progress = lambda rows: None) -> Merged:
    """Add to one store what another has, in its order.

    A row that is older than the newest that the target has of its configuration is numbered before
    all others there, so that the newest stays what is remembered.

    Raises
    ------
    StoreError
        If one of the two fails; what was copied before is kept.
    """
    return _Merge(source, target).done(progress)


@dataclass
class _Merge:
    source: Database
    target: Database
    #: Numbers in the target of the source's runs and scopes.
    runs: dict[int, int] = field(default_factory=dict)
    scopes: dict[int, int] = field(default_factory=dict)
    added_runs: int = 0

    def done(self, progress: Progress) -> Merged:
        with self._writing() as connection:
            newest = connection.scalar(sa.select(sa.func.max(measurements.c.id)))
        for batch in self._pages(runs):
            with self._writing() as connection:
                self._add_runs(connection, batch)
        looked_at = added = 0
        for batch in self._pages(measurements):
            with self._writing() as connection:
                added += self._add_rows(connection, batch, newest or 0)
            looked_at += len(batch)
            progress(looked_at)
        for batch in self._pages(attempts):
            with self._writing() as connection:
                self._add_attempts(connection, batch)
        return Merged(looked_at, added, self.added_runs)

    def _pages(self, table: sa.Table) -> Iterator[Sequence[sa.RowMapping]]:
        """All rows of a table of the source, by number."""
        query = page = sa.select(table).order_by(table.c.id).limit(_BATCH)
        while True:
            with self.source.reading() as connection:
                found = connection.execute(page).mappings().all()
            if not found:
                return
            yield found
            page = query.where(table.c.id > found[-1]["id"])

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction of the target, while which nobody else merges into it."""
        with self.target.writing() as connection:
            if connection.dialect.name == "postgresql":  # SQLite's write lock is held already
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MERGE_LOCK)))
            yield connection

    def _add_runs(self, connection: sa.Connection, batch: Sequence[sa.RowMapping]) -> None:
        """Add runs that are missing, and how those ended that had not."""
        begun = {run["started"] for run in batch}
        found = connection.execute(sa.select(runs).where(runs.c.started.in_(begun))).mappings()
        there = {_content(run): run for run in found}
        missing = {_content(run): run for run in batch if _content(run) not in there}
        if missing:
            new = [_without_number(run) for run in missing.values()]
            insert = runs.insert().returning(runs, sort_by_parameter_order=True)
            there |= {_content(run): run for run in connection.execute(insert, new).mappings()}
            self.added_runs += len(new)
        for run in batch:
            known = there[_content(run)]
            self.runs[run["id"]] = known["id"]
            if known["state"] == "running" != run["state"]:
                ending = {"state": run["state"], "finished": run["finished"]}
                change = runs.update().where(runs.c.id == known["id"])
                connection.execute(change.values(ending))
                connection.execute(attempts.delete().where(attempts.c.run_id == known["id"]))

    def _number(self, connection: sa.Connection, batch: Iterable[sa.RowMapping]) -> None:
        """Learn the numbers of runs and scopes that began after the merge did, or are new."""
        new_runs = {row["run_id"] for row in batch} - self.runs.keys()
        new_scopes = {row["scope_id"] for row in batch if "scope_id" in row} - self.scopes.keys()
        with self.source.reading() as reading:
            found = reading.execute(sa.select(runs).where(runs.c.id.in_(new_runs)))
            begun = found.mappings().all()
            of_rows = sa.select(scopes).where(scopes.c.id.in_(new_scopes))
            named = reading.execute(of_rows).mappings().all()
        if begun:
            self._add_runs(connection, begun)
        if named:
            numbers = self.target.scope_ids(connection, map(_without_number, named))
            self.scopes |= {row["id"]: numbers[row["fingerprint"]] for row in named}

    def _add_rows(
        self, connection: sa.Connection, batch: Sequence[sa.RowMapping], newest: int
    ) -> int:
        """Add measurements that are missing, and close their attempts; returns how many."""
        self._number(connection, batch)
        renumbered = (
            {**row, "run_id": self.runs[row["run_id"]], "scope_id": self.scopes[row["scope_id"]]}
            for row in batch
        )
        rows = {_content_of_row(row): row for row in renumbered}
        latest: dict[tuple[int, str], str] = {}
        for known in self._there(connection, rows.values()):
            rows.pop(_content_of_row(known), None)
            if known["id"] <= newest:
                place = known["scope_id"], known["configuration"]
                latest[place] = max(latest.get(place, ""), known["created"])
        older: list[dict[str, Any]] = []
        newer: list[dict[str, Any]] = []
        for row in map(_without_number, rows.values()):
            is_older = row["created"] < latest.get((row["scope_id"], row["configuration"]), "")
            (older if is_older else newer).append(row)
        if older:
            least = connection.scalar(sa.select(sa.func.min(measurements.c.id))) or 0
            first = min(least, 0) - len(older)
            numbered = [{**row, "id": number} for number, row in enumerate(older, first)]
            connection.execute(measurements.insert(), numbered)
        if newer:
            connection.execute(measurements.insert(), newer)
        closed = [
            {"of_scope_id": row["scope_id"], "of": row["configuration"], "at": row["created"]}
            for row in rows.values()
        ]
        if closed and connection.scalar(sa.select(attempts.c.id).limit(1)):
            connection.execute(_CLOSE, closed)
        return len(rows)

    def _there(
        self, connection: sa.Connection, rows: Iterable[Mapping[Any, Any]]
    ) -> Iterator[sa.RowMapping]:
        """What the target has of the same configurations, where some are known, or of the same moments."""
        by_scope = defaultdict(list)
        for row in rows:
            by_scope[row["scope_id"]].append(row)
        table = measurements.c
        for scope_id, of_scope in by_scope.items():
            named = {row["configuration"] for row in of_scope} - {""}
            moments = {row["created"] for row in of_scope if not row["configuration"]}
            for some in (
                table.configuration.in_(named) if named else None,
                (table.configuration == "") & table.created.in_(moments) if moments else None,
            ):
                if some is not None:
                    query = sa.select(measurements).where(table.scope_id == scope_id, some)
                    yield from connection.execute(query).mappings()

    def _add_attempts(self, connection: sa.Connection, batch: Sequence[sa.RowMapping]) -> None:
        """Add open attempts that no row of the target has closed."""
        self._number(connection, batch)
        table, row = attempts.c, measurements.c
        for found in batch:
            same = {name: found[name] for name in ("scope", "configuration", "opened")}
            same["run_id"] = self.runs[found["run_id"]]
            is_there = sa.exists().where(*(table[name] == same[name] for name in same))
            is_closed = sa.exists().where(
                row.scope_id == scopes.c.id,
                scopes.c.fingerprint == found["scope"],
                row.configuration == found["configuration"],
                row.created >= found["opened"],
            )
            if not connection.scalar(sa.select(sa.or_(is_there, is_closed))):
                connection.execute(attempts.insert(), same)


def _without_number(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if name != "id"}


def _content(run: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(run[column.name] for column in _RUN)


def _content_of_row(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    names = ("run_id", "scope_id", "configuration", "created", "measurement")
    return tuple(row[name] for name in names)


#: Attempts that were opened before a row was made of them.
_CLOSE = attempts.delete().where(
    attempts.c.scope
    == sa.select(scopes.c.fingerprint)
    .where(scopes.c.id == sa.bindparam("of_scope_id"))
    .scalar_subquery(),
    attempts.c.configuration == sa.bindparam("of"),
    attempts.c.opened <= sa.bindparam("at"),
)

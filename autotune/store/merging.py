"""Copying into one store the rows of another that it lacks.

A run, a scope or a row is the same where its content is equal, so merging twice adds nothing. Rows go
by batches, each of one transaction: a merge that was killed is continued by the next. Attempts stay
where they are: they are of one device, and so of one machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from autotune.store.database import Database
from autotune.store.schema import measurements, runs, scopes

#: Rows of one transaction.
BATCH = 1000
_MERGE_LOCK = 0x6D657267  # two merges at once would both find a row missing
#: Columns that make a run the same; ``state`` and ``finished`` change while it lasts.
_RUN = [column.name for column in runs.c if column.name not in ("id", "state", "finished")]
_ROW = ("run_id", "scope_id", "configuration", "created", "measurement")


@dataclass(frozen=True)
class MergeCounts:
    """The number of rows that were compared, of rows and runs that were added, and the last row's id."""

    rows: int
    added: int
    runs: int
    last: int


def merge(
    source: Database,
    target: Database,
    rows: sa.ColumnElement[bool] | None = None,
    with_runs: bool = True,
) -> MergeCounts:
    """Add to a store the rows of another that it lacks, all or those of a condition.

    A row that is older than the target's newest of its configuration is numbered before all others
    there, so that the newest stays the one that is remembered. Without ``with_runs`` only the runs of
    the rows are added.
    """
    return _Merge(source, target).done(rows, with_runs)


@dataclass
class _Merge:
    source: Database
    target: Database
    #: Numbers in the target by those in the source.
    runs: dict[int, int] = field(default_factory=dict)
    scopes: dict[int, int] = field(default_factory=dict)
    added_runs: int = 0

    def done(self, chosen: sa.ColumnElement[bool] | None, with_runs: bool) -> MergeCounts:
        with self._writing() as connection:
            newest = connection.scalar(sa.select(sa.func.max(measurements.c.id))) or 0
        compared = added = last = 0
        for batch in self._pages(measurements, chosen):
            with self._writing() as connection:
                self._learn_numbers(connection, batch)
                added += self._add_rows(connection, batch, newest)
            compared, last = compared + len(batch), batch[-1]["id"]
        for batch in self._pages(runs) if with_runs else ():
            with self._writing() as connection:
                self._add_runs(connection, batch)
        return MergeCounts(compared, added, self.added_runs, last)

    def _pages(
        self, table: sa.Table, chosen: sa.ColumnElement[bool] | None = None
    ) -> Iterator[Sequence[sa.RowMapping]]:
        query = sa.select(table).order_by(table.c.id).limit(BATCH)
        page = query = query if chosen is None else query.where(chosen)
        while True:
            with self.source.reading() as connection:
                found = connection.execute(page).mappings().all()
            if not found:
                return
            yield found
            page = query.where(table.c.id > found[-1]["id"])

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Begin a transaction of the target, which no other merge interrupts."""
        with self.target.writing() as connection:
            if connection.dialect.name == "postgresql":  # SQLite's write lock is held already
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MERGE_LOCK)))
            yield connection

    def _add_runs(self, connection: sa.Connection, batch: Sequence[sa.RowMapping]) -> None:
        """Add runs that are missing, and the ends of those that had not ended."""
        begun = {run["started"] for run in batch}
        found = connection.execute(sa.select(runs).where(runs.c.started.in_(begun))).mappings()
        there = {_content(run, _RUN): run for run in found}
        missing = {_content(run, _RUN): run for run in batch if _content(run, _RUN) not in there}
        if missing:
            new = [_without_number(run) for run in missing.values()]
            insert = runs.insert().returning(runs, sort_by_parameter_order=True)
            there |= {
                _content(run, _RUN): run for run in connection.execute(insert, new).mappings()
            }
            self.added_runs += len(new)
        for run in batch:
            known = there[_content(run, _RUN)]
            self.runs[run["id"]] = known["id"]
            if known["state"] == "running" != run["state"]:
                end = runs.update().where(runs.c.id == known["id"])
                connection.execute(end.values(state=run["state"], finished=run["finished"]))

    def _learn_numbers(self, connection: sa.Connection, batch: Iterable[sa.RowMapping]) -> None:
        """Learn the target's numbers of the runs and scopes of rows; add those that are missing."""
        new_runs = {row["run_id"] for row in batch} - self.runs.keys()
        new_scopes = {row["scope_id"] for row in batch} - self.scopes.keys()
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
        """Add the measurements that are missing; return their count."""
        renumbered = (
            {**row, "run_id": self.runs[row["run_id"]], "scope_id": self.scopes[row["scope_id"]]}
            for row in batch
        )
        rows = {_content(row, _ROW): row for row in renumbered}
        latest: dict[tuple[int, str], str] = {}
        for known in _of_same_configurations(connection, rows.values()):
            rows.pop(_content(known, _ROW), None)
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
        return len(rows)


def _of_same_configurations(
    connection: sa.Connection, rows: Iterable[Mapping[Any, Any]]
) -> Iterator[sa.RowMapping]:
    by_scope = defaultdict(set)
    for row in rows:
        by_scope[row["scope_id"]].add(row["configuration"])
    table = measurements.c
    for scope_id, named in by_scope.items():
        same = table.scope_id == scope_id, table.configuration.in_(named)
        yield from connection.execute(sa.select(measurements).where(*same)).mappings()


def _without_number(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if name != "id"}


def _content(row: Mapping[Any, Any], names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)

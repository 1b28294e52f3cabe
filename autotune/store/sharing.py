"""Merges one store into another, and connects runs with a shared server by a local file.

Two rows, runs or scopes with equal content are the same, so a second merge adds nothing. A merge copies
rows in batches, each in its own transaction: if it is killed, the next merge continues. Attempts are not
copied, since they belong to a device and so to one machine.

A run waits for the server when it begins, and never for a write. Rows that the server lacks stay in
the file; the next run with this server, or `autotune doctor merge`, sends them.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.files import data_folder
from autotune.store import size_rows
from autotune.store.access import Remembered, Store, number_of
from autotune.store.database import Database, measurements, runs, scopes, sent, sizes
from autotune.store.rows import Scope, SizeTimes

#: Time in seconds between two merges into the server during a run.
PUSH_S = 5.0
#: Maximum wait in seconds for the last merge of a run.
_LAST_PUSH_S = 60.0
#: Maximum wait in seconds for the last merge after Ctrl-C or an error.
_BROKEN_OFF_S = 1.0
#: Maximum number of rows of one transaction.
BATCH = 1000
_MERGE_LOCK = 0x6D657267  # without the lock, two merges at once would both add a missing row
#: Columns that identify a run; ``state`` and ``finished`` change while it lasts.
_RUN = [column.name for column in runs.c if column.name not in ("id", "state", "finished")]
#: Columns that identify a row, for each table of results.
_CONTENT: Mapping[sa.Table, Sequence[str]] = {
    measurements: ("run_id", "scope_id", "configuration", "created", "measurement"),
    sizes: size_rows.CONTENT,
}
#: A condition on the rows to merge, for each table.
Chosen: TypeAlias = "Mapping[sa.Table, sa.ColumnElement[bool]]"


@dataclass(frozen=True)
class MergeCounts:
    """The number of rows of a merge."""

    #: Number of compared rows.
    rows: int
    #: Number of added rows.
    added: int
    #: Id of the last row of each table.
    last: Mapping[sa.Table, int]


def merge(
    source: Database,
    target: Database,
    chosen: Chosen | None = None,
    with_runs: bool = True,
) -> MergeCounts:
    """Add the rows of the source that the target lacks: all rows, or the ``chosen`` ones.

    With ``with_runs`` also add runs without rows.
    """
    every = dict.fromkeys(_CONTENT, sa.true())
    return _Merge(source, target).done(every if chosen is None else chosen, with_runs)


@dataclass
class _Merge:
    source: Database
    target: Database
    #: Numbers of runs in the target, by number in the source.
    runs: dict[int, int] = field(default_factory=dict)
    #: Numbers of scopes in the target, by number in the source.
    scopes: dict[int, int] = field(default_factory=dict)

    def done(self, chosen: Chosen, with_runs: bool) -> MergeCounts:
        compared, added, last = 0, 0, dict[sa.Table, int]()
        for table, condition in chosen.items():
            for batch in self._pages(table, condition):
                with self._writing() as connection:
                    self._learn_numbers(connection, batch)
                    added += self._add_rows(connection, table, batch)
                compared, last[table] = compared + len(batch), batch[-1]["id"]
        for batch in self._pages(runs) if with_runs else ():
            with self._writing() as connection:
                self._add_runs(connection, batch)
        return MergeCounts(compared, added, last)

    def _pages(
        self, table: sa.Table, condition: sa.ColumnElement[bool] | None = None
    ) -> Iterator[Sequence[sa.RowMapping]]:
        query = sa.select(table).order_by(table.c.id).limit(BATCH)
        page = query = query if condition is None else query.where(condition)
        while True:
            with self.source.reading() as connection:
                found = connection.execute(page).mappings().all()
            if not found:
                return
            yield found
            page = query.where(table.c.id > found[-1]["id"])

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Begin a transaction in the target that excludes other merges."""
        with self.target.writing() as connection:
            if connection.dialect.name == "postgresql":  # SQLite's write lock excludes them already
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MERGE_LOCK)))
            yield connection

    def _add_runs(self, connection: sa.Connection, batch: Sequence[sa.RowMapping]) -> None:
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
        for run in batch:
            known = there[_content(run, _RUN)]
            self.runs[run["id"]] = known["id"]
            if known["state"] == "running" != run["state"]:
                end = runs.update().where(runs.c.id == known["id"])
                connection.execute(end.values(state=run["state"], finished=run["finished"]))

    def _learn_numbers(self, connection: sa.Connection, batch: Iterable[sa.RowMapping]) -> None:
        """Find the numbers of the rows' runs and scopes in the target; add missing ones."""
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
        self, connection: sa.Connection, table: sa.Table, batch: Sequence[sa.RowMapping]
    ) -> int:
        renumbered = (
            {**row, "run_id": self.runs[row["run_id"]], "scope_id": self.scopes[row["scope_id"]]}
            for row in batch
        )
        names = _CONTENT[table]
        rows = {_content(row, names): _without_number(row) for row in renumbered}
        for known in _alike(connection, table, rows.values()):
            rows.pop(_content(known, names), None)
        if rows:
            connection.execute(table.insert(), list(rows.values()))
        return len(rows)


def _alike(
    connection: sa.Connection, table: sa.Table, rows: Iterable[Mapping[Any, Any]]
) -> Iterator[sa.RowMapping]:
    """Yield the rows of the same scopes, and of the same configurations if the table has that column."""
    by_scope = defaultdict(set)
    for row in rows:
        by_scope[row["scope_id"]].add(row.get("configuration"))
    if table is sizes:
        query = sa.select(table).where(table.c.scope_id.in_(by_scope))
        yield from connection.execute(query).mappings()
        return
    for scope_id, named in by_scope.items():
        same = table.c.scope_id == scope_id, table.c.configuration.in_(named)
        yield from connection.execute(sa.select(table).where(*same)).mappings()


def _without_number(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if name != "id"}


def _content(row: Mapping[Any, Any], names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


# ---------------------------------------------------------------------- runs that share a server


@contextmanager
def open_for_runs(url: str) -> Iterator[Store]:
    """Open the store that runs write to: the file of the URL, or the local file for its server."""
    with Store.open(url) as store:
        if store.address.path:
            yield store
            return
        file = data_folder("shared") / f"{store.address.key}.sqlite"
        with SharedStore.open(file) as local, local.shared_with(store):
            yield local


class SharedStore(Store):
    """The local file of runs that share a server; used within `shared_with`."""

    _server: Store
    #: Message of the last failed merge; empty after a successful one.
    _fault = ""

    @contextmanager
    def shared_with(self, server: Store) -> Iterator[None]:
        """Send rows to a server: now, every `PUSH_S` seconds, and at the end."""
        self._server, ended = server, threading.Event()
        self.push()  # a run does not begin without its server
        pushing = threading.Thread(target=self._push_often, args=[ended], daemon=True)
        pushing.start()
        wait_s = _BROKEN_OFF_S
        try:
            yield
            wait_s = _LAST_PUSH_S
        finally:
            ended.set()
            pushing.join(wait_s)
            if pushing.is_alive() or self._fault:
                warnings.warn(
                    f"{self._fault or server.address}: some rows are only in {self.address}; the "
                    "next run with this store sends them; to send them now: autotune doctor merge "
                    f"{self.address} {server.address}",
                    stacklevel=1,
                )

    def push(self) -> None:
        """Send the rows that the server lacks."""
        with self.reading() as connection:
            last = {row.table: row.last_id for row in connection.execute(sa.select(sent))}
        chosen = {table: table.c.id > last.get(table.name, 0) for table in _CONTENT}
        merged = merge(self, self._server, chosen)
        if merged.last:
            names = [table.name for table in merged.last]
            rows = [{"table": table.name, "last_id": id_} for table, id_ in merged.last.items()]
            with self.writing() as connection:
                connection.execute(sent.delete().where(sent.c.table.in_(names)))
                connection.execute(sent.insert(), rows)

    def _push_often(self, ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(PUSH_S)
            try:
                self.push()
                self._fault = ""
            except StoreError as error:
                self._note(error)

    def _note(self, error: StoreError) -> None:
        if not self._fault:
            warnings.warn(f"{error}; until then, rows are kept in {self.address}", stacklevel=1)
        self._fault = str(error)

    def remembered(self, scope: Scope) -> Remembered:
        """Return the newest row of every configuration of a scope, including the server's rows."""
        if not self._fault:
            try:
                self._pull(scope.fingerprint)
            except StoreError as error:
                self._note(error)
        return super().remembered(scope)

    def _pull(self, scope: str) -> None:
        if self._server.count(scope) > self.count(scope):
            rows = {measurements: measurements.c.scope_id == number_of(scope)}
            merge(self._server, self, rows, with_runs=False)

    def sizes(
        self, kernel: str, source: str, device_name: str, arguments: Iterable[str]
    ) -> list[SizeTimes]:
        """Return the times on problem sizes, including the server's rows; see `Store.sizes`."""
        if not self._fault:
            chosen = size_rows.of_kernel(kernel, source, device_name)
            try:
                if size_rows.count(self._server, chosen) > size_rows.count(self, chosen):
                    merge(self._server, self, {sizes: chosen}, with_runs=False)
            except StoreError as error:
                self._note(error)
        return super().sizes(kernel, source, device_name, arguments)

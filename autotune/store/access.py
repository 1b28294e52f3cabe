"""`Store`: runs, attempts and measurements in the store; `Appender`: a thread that adds measurements.

An attempt marks a configuration being tried, so that one that kills the process is known later.

Every method is one transaction: its effect is complete and outlives the process, or it fails and has no
effect.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from threading import Condition, Thread
from typing import TypeVar

import sqlalchemy as sa

from autotune.errors import AutotuneError, StoreError
from autotune.measure.measurement import Measurement, Status
from autotune.store import size_rows
from autotune.store.database import Database, attempts, measurements, runs, scopes, sizes
from autotune.store.rows import (
    PastRun,
    Row,
    RunEnding,
    RunInfo,
    RunState,
    Scope,
    SizeTimes,
    decode,
    encode,
)
from autotune.values import Configuration, Problem

Value = TypeVar("Value")

#: File with an identifier of this boot of the machine.
_BOOT_FILE = "/proc/sys/kernel/random/boot_id"
#: Maximum number of rows that wait for a transaction; a killed process loses them.
MAX_WAITING = 32
#: Time in seconds during which rows and attempts are collected for one transaction. The transaction
#: begins earlier if half of `MAX_WAITING` rows wait.
_GATHER_S = 0.05
#: Maximum number of configurations in one statement.
_BATCH = 500

_table = measurements.c
_columns_of_row = {**runs.c, **scopes.c, **_table, "scope": scopes.c.fingerprint}
_ROWS = (
    sa.select(*(_columns_of_row[field.name].label(field.name) for field in fields(Row)))
    .join_from(measurements, runs)
    .join(scopes)
)


class Store(Database):
    """The results store behind one address; made by `Store.open`. Use it as a context manager."""

    def begin_run(self, info: RunInfo) -> int:
        """Add a run of this process; return its id."""
        with self.beginning(info) as run_id:
            return run_id

    @contextmanager
    def beginning(self, info: RunInfo) -> Iterator[int]:
        """Yield the id of a new run of this process; add the run when the block ends.

        Ctrl-C may come immediately after: the caller then has the id and can finish the run.
        """
        command = info.command.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        about = {**vars(info), "seed": str(info.seed), "command": command}
        about |= {"state": "running", "started": now(), "process": identity(os.getpid())}
        with self.writing() as connection:
            (run_id,) = connection.execute(runs.insert(), about).inserted_primary_key or (0,)
            yield int(run_id)

    def finish_run(self, run_id: int, state: RunState) -> None:
        """End a run of this process, and remove its open attempts: the process survived them."""
        # If the run was rolled back, another process may have its id by now.
        ours = runs.update().where(runs.c.id == run_id, runs.c.process == identity(os.getpid()))
        with self.writing() as connection:
            if connection.execute(ours.values(state=state, finished=now())).rowcount:
                connection.execute(attempts.delete().where(attempts.c.run_id == run_id))

    def open_attempts(
        self, run_id: int, scope: Scope, configurations: Iterable[Configuration]
    ) -> None:
        """Open an attempt for each of these configurations."""
        self.add_many(run_id, scope, (), configurations)

    def interrupted_attempts(self, scope: Scope) -> dict[Configuration, int]:
        """Count, for each configuration, the attempts that dead runs left open since its newest row.

        A run is dead if its process was killed, crashed, or ended with its machine. A process that is not
        visible from here, in another container or on another machine, counts as dead.
        """
        query = (
            sa.select(attempts.c.configuration, runs.c.process)
            .join(runs)
            .where(attempts.c.scope == scope.fingerprint)
        )
        with self.reading() as connection:
            found = connection.execute(query).all()
        alive = {process: _is_alive(process) for _, process in found}
        counts = Counter(key for key, process in found if not alive[process])
        return {decode(key, Configuration): count for key, count in counts.items()}

    def add(self, run_id: int, scope: Scope, measurement: Measurement) -> None:
        """Append one row and close the attempts of its configuration."""
        self.add_many(run_id, scope, [measurement])

    def add_many(
        self,
        run_id: int,
        scope: Scope,
        added: Iterable[Measurement],
        tried: Iterable[Configuration] = (),
    ) -> None:
        """Append rows, close the attempts of their configurations, and open attempts of ``tried``.

        A measurement may come from a device other than the scope's, of the same model. Its row then belongs
        to that device; its attempt, opened before a device was free, belongs to the scope's device.
        """
        created, listed = now(), list(added)
        attempt = {"run_id": run_id, "scope": scope.fingerprint, "opened": created}
        opened = [{**attempt, "configuration": found.canonical_json()} for found in tried]
        if not (listed or opened):
            return
        others = {row.device_uuid for row in listed} - {"", scope.device_uuid}
        of_device = {uuid: replace(scope, device_uuid=uuid) for uuid in others}
        of_device |= {"": scope, scope.device_uuid: scope}
        scope_of = [of_device[row.device_uuid].fingerprint for row in listed]
        texts = [row.configuration.canonical_json() for row in listed]
        values: list[dict[str, object]] = [
            {
                "run_id": run_id,
                "status": row.status,
                "median_ms": row.median_ms,
                "measurement": encode(row),
                "created": created,
                "configuration": text,
            }
            for row, text in zip(listed, texts, strict=True)
        ]
        with self.writing() as connection:
            known: dict[str, int] = {}
            if values:
                known = self.scope_ids(connection, map(_columns_of_scope, of_device.values()))
                for row, fingerprint in zip(values, scope_of, strict=True):
                    row["scope_id"] = known[fingerprint]
                connection.execute(measurements.insert(), values)
            closed = attempts.c.scope.in_({scope.fingerprint, *scope_of})
            for begin in range(0, len(texts), _BATCH):
                some = attempts.c.configuration.in_(texts[begin : begin + _BATCH])
                connection.execute(attempts.delete().where(closed, some))
            if opened:
                connection.execute(attempts.insert(), opened)
        self._scopes |= known  # only now: the transaction is committed

    def add_sizes(self, run_id: int, measured: Iterable[tuple[Scope, SizeTimes]]) -> None:
        """Append the times of configurations on problem sizes, a row for each size."""
        created, listed = now(), list(measured)
        if not listed:
            return
        with self.writing() as connection:
            columns = (_columns_of_scope(scope) for scope, _ in listed)
            known = self.scope_ids(connection, columns)
            rows = [
                size_rows.values_of(times, run_id, known[scope.fingerprint], created)
                for scope, times in listed
            ]
            connection.execute(sizes.insert(), rows)
        self._scopes |= known  # only now: the transaction is committed

    def sizes(
        self, kernel: str, source: str, device_name: str, arguments: Iterable[str]
    ) -> list[SizeTimes]:
        """Return the times on problem sizes of a kernel with these fingerprints, oldest rows first."""
        chosen = size_rows.of_kernel(kernel, source, device_name)
        return size_rows.read(self, chosen, arguments)

    def remembered(self, scope: Scope) -> Remembered:
        """Return the newest row of every configuration measured in this scope."""
        return Remembered(self, scope.fingerprint)

    def rows(
        self,
        kernel: str | None = None,
        device: str | None = None,
        scope: str | None = None,
        most: int | None = None,
    ) -> list[Row]:
        """List the measurements that match, oldest first; with ``most``, the newest of them.

        A device is given by name or uuid.
        """
        conditions: list[sa.ColumnElement[bool]] = []
        if chosen := _chosen(kernel, device, scope):
            conditions.append(_table.scope_id.in_(sa.select(scopes.c.id).where(*chosen)))
        query = _ROWS.where(*conditions).order_by(_table.id.desc()).limit(most)
        with self.reading() as connection:
            found = connection.execute(query).mappings().all()
        return [self._row(row) for row in reversed(found)]

    def runs(
        self, kernel: str | None = None, device: str | None = None, most: int | None = None
    ) -> list[PastRun]:
        """List the runs that match, oldest first; with ``most``, the newest of them.

        A device is given by name. A run without an end is ``killed`` if its process is gone. It is
        ``unknown`` if the process is not visible: after a restart, or from another machine.
        """
        wanted = [(kernel, runs.c.kernel == kernel), (device, runs.c.device_name == device)]
        matching = [condition for value, condition in wanted if value is not None]
        chosen = sa.select(runs).where(*matching).order_by(runs.c.id.desc()).limit(most).subquery()
        rows, timed = (
            sa.select(sa.func.count()).where(table.c.run_id == chosen.c.id).scalar_subquery()
            for table in (measurements, sizes)
        )
        query = sa.select(*chosen.c, (rows + timed).label("rows")).order_by(chosen.c.id)
        with self.reading() as connection:
            found = connection.execute(query).mappings().all()
        return [_past_run(run) for run in found]

    def newest_of_scopes(self, kernel: str | None = None, device: str | None = None) -> list[Row]:
        """Return the newest row of every scope, oldest first; a device is given by name or uuid."""
        newest = sa.select(sa.func.max(_table.id)).where(_table.scope_id == scopes.c.id)
        numbers = sa.select(newest.scalar_subquery()).select_from(scopes)
        chosen = _table.id.in_(numbers.where(*_chosen(kernel, device)))
        with self.reading() as connection:
            found = connection.execute(_ROWS.where(chosen).order_by(_table.id))
            return [self._row(row) for row in found.mappings()]

    def count(self, scope: str) -> int:
        """Count the rows of a scope."""
        query = sa.select(sa.func.count(_table.id)).where(_table.scope_id == number_of(scope))
        with self.reading() as connection:
            return connection.scalar(query) or 0

    def fastest(self, scope: str, count: int) -> list[Row]:
        """Return the correct rows of a scope with the smallest medians, best first.

        Only the newest row of a configuration counts, since finals may have disqualified it.
        """
        right = _table.status == Status.OK, _table.median_ms.is_not(None), _is_newest()
        query = _ROWS.where(_table.scope_id == number_of(scope), *right)
        query = query.order_by(_table.median_ms, _table.id).limit(count)
        with self.reading() as connection:
            return [self._row(row) for row in connection.execute(query).mappings()]

    def _row(self, found: sa.RowMapping) -> Row:
        number = found["id"]
        problem = self.decoded(number, found["problem"], Problem)
        measurement = self.decoded(number, found["measurement"], Measurement)
        seed = int(found["seed"])
        return Row(**{**found, "problem": problem, "measurement": measurement, "seed": seed})

    def decoded(self, number: int, text: str, kind: type[Value]) -> Value:
        """Return a value of a row; raise `StoreError` if it is damaged."""
        try:
            return decode(text, kind)
        except ValueError as error:
            raise StoreError(
                f"results store {self.address}: measurement {number} is damaged ({error}); delete "
                "its row, or name another store by AUTOTUNE_STORE"
            ) from None

    def rows_by_kernel(self) -> dict[str, int]:
        """Count the rows of each kernel in the whole store."""
        per_scope = sa.select(_table.scope_id, sa.func.count(_table.id).label("rows"))
        counted = per_scope.group_by(_table.scope_id).subquery()
        query = sa.select(scopes.c.kernel, sa.func.sum(counted.c.rows)).join_from(scopes, counted)
        with self.reading() as connection:
            found = connection.execute(query.group_by(scopes.c.kernel).order_by(scopes.c.kernel))
            return {kernel: int(rows) for kernel, rows in found}


class Remembered(Mapping[Configuration, Measurement]):
    """The newest row of every configuration measured in a scope so far, read from the store on demand."""

    def __init__(self, store: Store, scope: str) -> None:
        self._store = store
        self._read: dict[Configuration, Measurement | None] = {}
        last = sa.select(_table.scope_id, _table.id).where(_table.scope_id == number_of(scope))
        newest = last.order_by(_table.scope_id.desc(), _table.id.desc()).limit(1)
        with store.reading() as connection:
            found = connection.execute(newest).one_or_none()
        scope_id, last_id = found or (0, 0)
        #: Number of the scope; 0 if it has no row.
        self._scope_id: int = scope_id
        self._rows = _table.scope_id == self._scope_id, _table.id <= last_id

    @cached_property
    def _count(self) -> int:
        query = sa.select(sa.func.count(_table.configuration.distinct())).where(*self._rows)
        with self._store.reading() as connection:
            return connection.scalar(query) or 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Configuration]:
        query = sa.select(_table.configuration).where(*self._rows)
        with self._store.reading() as connection:
            rows = connection.execute(query.execution_options(yield_per=10_000))
            yield from (decode(text, Configuration) for text in dict.fromkeys(rows.scalars()))

    def __getitem__(self, configuration: Configuration) -> Measurement:
        self.read([configuration])
        found = self._read.get(configuration)
        if found is None:
            raise KeyError(configuration)
        return found

    def read(self, configurations: Iterable[Configuration]) -> None:
        """Read the rows of configurations that are not read yet, in batches."""
        if not self._scope_id:  # the scope has no row
            return
        unread = {c.canonical_json(): c for c in configurations if c not in self._read}
        texts = list(unread)
        for begin in range(0, len(texts), _BATCH):
            some = texts[begin : begin + _BATCH]
            newest = sa.select(sa.func.max(_table.id)).where(
                *self._rows, _table.configuration.in_(some)
            )
            query = sa.select(_table.id, _table.configuration, _table.measurement).where(
                _table.id.in_(newest.group_by(_table.configuration))
            )
            self._read |= {unread[text]: None for text in some}
            with self._store.reading() as connection:
                found = connection.execute(query).all()
            for number, text, measurement in found:
                self._read[unread[text]] = self._store.decoded(number, measurement, Measurement)

    def pending(self) -> list[Configuration]:
        """Return the configurations whose newest row is pending."""
        query = sa.select(_table.configuration).where(
            _table.scope_id == self._scope_id, _table.status == Status.PENDING, _is_newest()
        )
        with self._store.reading() as connection:
            return [decode(text, Configuration) for text in connection.execute(query).scalars()]

    def by_time(self, status: Status) -> Iterator[Configuration]:
        """Yield the configurations whose newest row has this status and a median, fastest first."""
        query = (
            sa.select(_table.configuration)
            .where(_table.scope_id == self._scope_id, _table.status == status)
            .where(_table.median_ms.is_not(None), _is_newest())
            .order_by(_table.median_ms, _table.id)
        )
        with self._store.reading() as connection:
            rows = connection.execute(query.execution_options(yield_per=_BATCH))
            yield from (decode(text, Configuration) for text in rows.scalars())


class Appender:
    """A thread that appends rows in order and opens attempts; a context manager.

    Rows and attempts that wait share a transaction. If the row arrives before the transaction begins, its
    attempt is not opened, which saves most attempts. If the process is killed, waiting rows are lost and
    measured again.
    """

    def __init__(self, store: Store, run_id: int, scope: Scope) -> None:
        self._store, self._run_id, self._scope = store, run_id, scope
        self._changed = Condition()
        self._waiting: list[Measurement] = []
        #: Attempts that are not in the store yet.
        self._tried: dict[Configuration, None] = {}
        self._error: AutotuneError | None = None
        self._is_over = False
        self._thread = Thread(target=self._append, daemon=True)

    def begin(self, configuration: Configuration) -> None:
        """Open an attempt soon."""
        with self._changed:
            self._tried[configuration] = None
            self._changed.notify_all()

    def add(self, measurement: Measurement) -> None:
        """Append a row soon; raise the `StoreError` of an earlier row."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < MAX_WAITING or self._error)
            if self._error:
                raise self._error
            self._tried.pop(measurement.configuration, None)
            self._waiting.append(measurement)
            self._changed.notify_all()

    def _append(self) -> None:
        while any(gathered := self._next()):
            try:
                self._store.add_many(self._run_id, self._scope, *gathered)
            except AutotuneError as error:
                with self._changed:
                    self._waiting, self._error = [*gathered[0], *self._waiting], error
                    self._changed.notify_all()
                return

    def _next(self) -> tuple[list[Measurement], list[Configuration]]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._tried or self._is_over)
            self._changed.wait_for(
                lambda: len(self._waiting) >= MAX_WAITING // 2 or self._is_over, _GATHER_S
            )
            gathered = self._waiting, [*self._tried]
            self._waiting, self._tried = [], {}
            self._changed.notify_all()
        return gathered

    def __enter__(self) -> Appender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        # Try once more after a failure: another process may have released its lock.
        self._store.add_many(self._run_id, self._scope, self._waiting)


def _past_run(run: sa.RowMapping) -> PastRun:
    ended: RunEnding = "finished" if run["state"] == "done" else run["state"]
    if ended == "running" and not _is_alive(run["process"]):
        boot = run["process"].partition(" ")[0]
        ended = "killed" if boot and boot == _text(_BOOT_FILE) else "unknown"
    about = {field.name: run[field.name] for field in fields(PastRun) if field.name in run}
    return PastRun(**{**about, "seed": int(run["seed"]), "ended": ended})


def _columns_of_scope(scope: Scope) -> dict[str, object]:
    named = {field.name: getattr(scope, field.name) for field in fields(scope)}
    return {**named, "fingerprint": scope.fingerprint, "problem": encode(scope.problem)}


def number_of(scope: str) -> sa.ScalarSelect[int]:
    """Return a query for the number of a scope with this fingerprint."""
    return sa.select(scopes.c.id).where(scopes.c.fingerprint == scope).scalar_subquery()


def _is_newest() -> sa.ColumnElement[bool]:
    """Return the condition that a row is the newest of its configuration in its scope."""
    newer = measurements.alias()
    same = newer.c.scope_id == _table.scope_id, newer.c.configuration == _table.configuration
    return ~sa.exists().where(*same, newer.c.id > _table.id)


def _chosen(
    kernel: str | None, device: str | None, scope: str | None = None
) -> list[sa.ColumnElement[bool]]:
    wanted = [
        (kernel, scopes.c.kernel == kernel),
        (device, sa.or_(scopes.c.device_name == device, scopes.c.device_uuid == device)),
        (scope, scopes.c.fingerprint == scope),
    ]
    return [condition for value, condition in wanted if value is not None]


def identity(pid: int) -> str:
    """Return a unique name of a running process; empty if the process is gone."""
    # The program's name, in parentheses, may contain any character. State and start time are fields 3
    # and 22.
    about = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(about) < 20 or about[0] in "ZX":
        return ""
    return f"{_text(_BOOT_FILE)} {about[19]} {pid}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_alive(process: str) -> bool:
    pid = process.rpartition(" ")[2]
    return pid.isdigit() and identity(int(pid)) == process


def now() -> str:
    """Return the current time in the format of rows: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

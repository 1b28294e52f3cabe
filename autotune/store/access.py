"""`Store`: begins runs, opens attempts, adds measurements and remembers them.

Knows neither devices nor what makes a measurement good. Every method is one transaction: after it
returns its effect outlives the process, and where it fails it has none.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.measure.measurement import Measurement, Status
from autotune.store import schema
from autotune.store.address import NO_TRANSACTION, WRITES, Address
from autotune.store.faults import explained
from autotune.store.rows import (
    PastRun,
    Row,
    RunEnding,
    RunInfo,
    RunState,
    Scope,
    decode,
    encode,
)
from autotune.store.schema import attempts, measurements, runs
from autotune.values import Configuration, Problem

Value = TypeVar("Value")

#: Longest wait for another process's lock; a write takes a millisecond.
WAIT_S = 20.0
#: Numbers of rows times one prime, modulo another, are spread evenly, and as no habit of a search is:
#: every 96th row might be what it tried first in each batch.
_MULTIPLIER, _MODULUS = 7919, 10007
#: Names one start of this machine's system.
_BOOT = "/proc/sys/kernel/random/boot_id"
#: Remembered rows that are read at a time.
_AT_ONCE = 500

_table = measurements.c
_ROWS = sa.select(
    *(_table[field.name] if field.name in _table else runs.c[field.name] for field in fields(Row))
).join_from(measurements, runs)


class Store:
    """The results store behind one address; made by `Store.open`. Use it as a context manager."""

    def __init__(self, address: Address, engine: sa.Engine) -> None:
        self._address = address
        self._engine = engine
        self._writing = engine.execution_options(**WRITES)

    @classmethod
    def open(cls, url: str | Path, *, wait_s: float = WAIT_S) -> Store:
        """Open the store of a SQLite file or ``postgresql://`` URL, and make it where there is none.

        Raises
        ------
        StoreError
            It cannot be opened, is damaged, belongs to another program, or is of a newer version.
        """
        address = Address.parse(url, wait_s)
        store = cls(address, address.engine())
        with store._explaining():
            try:
                schema.prepare(store._engine, address)
                if address.path:
                    _use_wal(store._engine, wait_s)
            except BaseException:
                store.close()
                raise
        return store

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self._address})"

    def begin_run(self, info: RunInfo) -> int:
        """Open a run, written by this process; returns its id."""
        about = {**vars(info), "seed": str(info.seed), "process": identity(os.getpid())}
        new = runs.insert().values(**about, state="running", started=_now())
        with self._write() as connection:
            (run_id,) = connection.execute(new).inserted_primary_key or (0,)
        return int(run_id)

    def finish_run(self, run_id: int, state: RunState) -> None:
        """End a run in good order: its open attempts killed nobody, and so do not count."""
        now = _now()
        run = runs.update().where(runs.c.id == run_id).values(state=state, finished=now)
        mine = attempts.c.run_id == run_id, attempts.c.closed.is_(None)
        with self._write() as connection:
            connection.execute(run)
            connection.execute(attempts.update().where(*mine).values(closed=now))

    def open_attempts(
        self, run_id: int, scope: Scope, configurations: Iterable[Configuration]
    ) -> None:
        """Note that these configurations are about to be tried."""
        attempt = {"run_id": run_id, "scope": scope.fingerprint, "opened": _now()}
        keys = [configuration.canonical_json() for configuration in configurations]
        if keys:
            with self._write() as connection:
                connection.execute(
                    attempts.insert(), [{**attempt, "configuration": k} for k in keys]
                )

    def interrupted_attempts(self, scope: Scope) -> dict[Configuration, int]:
        """Count the attempts that a dead run left open, since the configuration's last row.

        A run is dead when its process is: killed, crashed, or gone with its machine. A process that
        cannot be seen from here, in another container or on another machine, passes for dead.
        """
        query = (
            sa.select(attempts.c.configuration, runs.c.process)
            .join(runs)
            .where(attempts.c.scope == scope.fingerprint, attempts.c.closed.is_(None))
        )
        with self.reading() as connection:
            found = connection.execute(query).all()
        alive = {process: _is_alive(process) for _, process in found}
        counts = Counter(key for key, process in found if not alive[process])
        return {decode(key, Configuration): count for key, count in counts.items()}

    def add(self, run_id: int, scope: Scope, measurement: Measurement) -> None:
        """Append one row and close the attempts of its configuration."""
        self.add_many(run_id, scope, [measurement])

    def add_many(self, run_id: int, scope: Scope, added: Iterable[Measurement]) -> None:
        """Append rows and close the attempts of their configurations, all or none.

        Where a measurement names another device than the scope does, of the same model, its row is
        that device's; the attempt was noted before it was known which would be free.
        """
        now, listed = _now(), list(added)
        if not listed:
            return
        others = {row.device_uuid for row in listed} - {"", scope.device_uuid}
        scopes = {uuid: replace(scope, device_uuid=uuid) for uuid in others}
        scopes |= {"": scope, scope.device_uuid: scope}
        rows = [
            {"run_id": run_id, "created": now, **_columns(scopes[row.device_uuid], row)}
            for row in listed
        ]
        closed = [
            {
                "of_scope": tried.fingerprint,
                "of_configuration": row.configuration.canonical_json(),
                "now": now,
            }
            for row in listed
            for tried in {scope, scopes[row.device_uuid]}
        ]
        with self._write() as connection:
            connection.execute(measurements.insert(), rows)
            connection.execute(_CLOSE, closed)

    def remembered(self, scope: Scope) -> Remembered:
        """The newest row of every configuration measured in this scope."""
        return Remembered(self, scope.fingerprint)

    def rows(
        self,
        kernel: str | None = None,
        device: str | None = None,
        problem: Problem | None = None,
        run: int | None = None,
        scope: str | None = None,
        most: int | None = None,
    ) -> list[Row]:
        """List measurements, oldest first: only what matches; a device by name or uuid.

        Where more than ``most`` match, about so many are listed, spread over all of them.
        """
        conditions: list[sa.ColumnElement[bool]] = []
        if kernel is not None or device is not None:
            matching = [last.scope for last in self.newest_of_scopes(kernel, device)]
            conditions.append(_table.scope.in_(matching))
        if run is not None:
            conditions.append(_table.run_id == run)
        if scope is not None:
            conditions.append(_table.scope == scope)
        with self.reading() as connection:
            if most is not None:
                count = connection.scalar(sa.select(sa.func.count(_table.id)).where(*conditions))
                scattered = sa.cast(_table.id, sa.BigInteger) * _MULTIPLIER % _MODULUS
                conditions.append(scattered * (count or 0) < most * _MODULUS)
            found = connection.execute(_ROWS.where(*conditions).order_by(_table.id)).mappings()
            listed = [self._row(row) for row in found]
        return [row for row in listed if problem is None or row.problem == problem]

    def runs(
        self, kernel: str | None = None, device: str | None = None, most: int | None = None
    ) -> list[PastRun]:
        """List runs, oldest first: the newest of those that match; a device by name.

        A run that did not end in good order is ``killed`` where its process is gone, and ``killed or
        elsewhere`` where that cannot be seen from here: after a restart, or from another machine.
        """
        wanted = [(kernel, runs.c.kernel == kernel), (device, runs.c.device_name == device)]
        matching = [condition for value, condition in wanted if value is not None]
        chosen = sa.select(runs).where(*matching).order_by(runs.c.id.desc()).limit(most).subquery()
        count, last = sa.func.count(_table.id), sa.func.max(_table.created)
        query = (
            sa.select(*chosen.c, count.label("rows"), last.label("last_row"))
            .outerjoin_from(chosen, measurements, _table.run_id == chosen.c.id)
            .group_by(*chosen.c)
            .order_by(chosen.c.id)
        )
        with self.reading() as connection:
            found = connection.execute(query).mappings().all()
        return [_past_run(run) for run in found]

    def newest_of_scopes(self, kernel: str | None = None, device: str | None = None) -> list[Row]:
        """The newest row of every scope, oldest first; a device by name or uuid."""
        wanted = [
            (kernel, _table.kernel == kernel),
            (device, sa.or_(_table.device_name == device, _table.device_uuid == device)),
        ]
        matching = [condition for value, condition in wanted if value is not None]
        with self.reading() as connection:
            newest = _table.id.in_(list(_newest_of_scopes(connection)))
            found = connection.execute(_ROWS.where(newest, *matching).order_by(_table.id))
            return [self._row(row) for row in found.mappings()]

    def count(self, scope: str) -> int:
        """How many rows a scope has."""
        query = sa.select(sa.func.count(_table.id)).where(_table.scope == scope)
        with self.reading() as connection:
            return connection.scalar(query) or 0

    def fastest(self, scope: str, count: int) -> list[Row]:
        """The right rows of a scope with the smallest medians, best first."""
        right = _table.scope == scope, _table.status == Status.OK, _table.median_ms.is_not(None)
        query = _ROWS.where(*right).order_by(_table.median_ms, _table.id).limit(count)
        with self.reading() as connection:
            return [self._row(row) for row in connection.execute(query).mappings()]

    def _row(self, found: sa.RowMapping) -> Row:
        number = found["id"]
        return Row(
            **{
                **found,
                "problem": self.decoded(number, found["problem"], Problem),
                "measurement": self.decoded(number, found["measurement"], Measurement),
                "seed": int(found["seed"]),
            }
        )

    def decoded(self, number: int, text: str, kind: type[Value]) -> Value:
        """What is in a row; StoreError where it is damaged."""
        try:
            return decode(text, kind)
        except ValueError as error:
            raise StoreError(
                f"results store {self._address}: measurement {number} is damaged ({error}); delete "
                "its row, or name another store by AUTOTUNE_STORE"
            ) from None

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that reads; for this package."""
        with self._explaining(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with self._explaining(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            raise explained(error, self._address) from None


class Remembered(Mapping[Configuration, Measurement]):
    """The newest row of every configuration measured in a scope; read when it is asked for.

    Which there are is known from the beginning by the hashes of their texts: of a million, 60 MB.
    """

    def __init__(self, store: Store, scope: str) -> None:
        self._store, self._in_scope = store, _table.scope == scope
        self._read: dict[Configuration, Measurement] = {}
        self._hashes = {hash(text) for text in self._texts()}

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[Configuration]:
        return (decode(text, Configuration) for text in dict.fromkeys(self._texts()))

    def __getitem__(self, configuration: Configuration) -> Measurement:
        self.read([configuration])
        return self._read[configuration]

    def read(self, configurations: Iterable[Configuration]) -> None:
        """Read those of these configurations that are there and were not read yet, at once."""
        unread = (c.canonical_json() for c in configurations if c not in self._read)
        texts = [text for text in unread if hash(text) in self._hashes]
        for begin in range(0, len(texts), _AT_ONCE):
            some = _table.configuration.in_(texts[begin : begin + _AT_ONCE])
            newest = sa.select(sa.func.max(_table.id)).where(self._in_scope, some)
            query = sa.select(_table.id, _table.measurement).where(
                _table.id.in_(newest.group_by(_table.configuration))
            )
            with self._store.reading() as connection:
                found = connection.execute(query).all()
            for number, text in found:
                measurement = self._store.decoded(number, text, Measurement)
                self._read[measurement.configuration] = measurement

    def by_time(self, status: Status) -> Iterator[Configuration]:
        """Configurations whose newest row has this status and a median, smallest first."""
        newer = measurements.alias()
        later = newer.c.configuration == _table.configuration, newer.c.id > _table.id
        query = (
            sa.select(_table.median_ms, _table.id, _table.configuration)
            .where(self._in_scope, _table.status == status, _table.median_ms.is_not(None))
            .where(~sa.exists().where(newer.c.scope == _table.scope, *later))
            .order_by(_table.median_ms, _table.id)
            .limit(_AT_ONCE)
        )
        page = query
        while True:
            with self._store.reading() as connection:
                found = connection.execute(page).all()
            for _, _, text in found:
                yield decode(text, Configuration)
            if len(found) < _AT_ONCE:
                return
            page = query.where(sa.tuple_(_table.median_ms, _table.id) > tuple(found[-1][:2]))

    def _texts(self) -> Iterator[str]:
        query = sa.select(_table.configuration).where(self._in_scope, _table.configuration != "")
        with self._store.reading() as connection:
            yield from connection.execute(query.execution_options(yield_per=10_000)).scalars()


def _past_run(run: sa.RowMapping) -> PastRun:
    about = {field.name: run[field.name] for field in fields(PastRun) if field.name in run}
    return PastRun(**{**about, "seed": int(run["seed"]), "ended": _ending(run)})


def _ending(run: sa.RowMapping) -> RunEnding:
    if run["state"] != "running":
        state: RunState = run["state"]
        return "finished" if state == "done" else state
    if _is_alive(run["process"]):
        return "running"
    boot = run["process"].partition(" ")[0]
    return "killed" if boot and boot == _text(_BOOT) else "killed or elsewhere"


def _columns(scope: Scope, measurement: Measurement) -> dict[str, object]:
    """One row of the table, but for who adds it and when."""
    return {
        **{field.name: getattr(scope, field.name) for field in fields(scope)},
        "scope": scope.fingerprint,
        "problem": encode(scope.problem),
        "status": measurement.status,
        "median_ms": measurement.median_ms,
        "measurement": encode(measurement),
        "configuration": measurement.configuration.canonical_json(),
    }


def _newest_of_scopes(connection: sa.Connection) -> Iterator[int]:
    """Which row is the newest of each scope: one look into the index for each, of which there are few."""
    query = sa.select(_table.scope, _table.id)
    query = query.order_by(_table.scope.desc(), _table.id.desc()).limit(1)
    found = connection.execute(query).first()
    while found is not None:
        yield found.id
        found = connection.execute(query.where(_table.scope < found.scope)).first()


_CLOSE = (
    attempts.update()
    .where(
        attempts.c.scope == sa.bindparam("of_scope"),
        attempts.c.configuration == sa.bindparam("of_configuration"),
        attempts.c.closed.is_(None),
    )
    .values(closed=sa.bindparam("now"))
)


def identity(pid: int) -> str:
    """Name a process as no other, later or elsewhere, is named; empty when it is not running."""
    # The name, in parentheses, may hold anything; state and start time are fields 3 and 22.
    about = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(about) < 20 or about[0] in "ZX":
        return ""
    return f"{_text(_BOOT)} {about[19]} {pid}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_alive(process: str) -> bool:
    pid = process.rpartition(" ")[2]
    return pid.isdigit() and identity(int(pid)) == process


def _use_wal(engine: sa.Engine, wait_s: float) -> None:
    """Switch the file to WAL, once in its life; SQLite does not wait for others by itself here."""
    deadline = time.monotonic() + wait_s
    with engine.execution_options(**NO_TRANSACTION).connect() as connection:
        while True:
            try:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL").close()
                return
            except sa.exc.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""`Store`: begins runs, opens attempts, adds measurements and remembers them.

Knows neither devices nor what makes a measurement good. Every method is one transaction: after it
returns its effect outlives the process, and where it fails it has none. What a run writes while a
server is away goes to a file (`spool`), and counts as written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from autotune.errors import StoreError
from autotune.measure.measurement import Measurement, Status
from autotune.store.address import Address
from autotune.store.database import WAIT_S, Database
from autotune.store.faults import ServerAway
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
from autotune.store.schema import attempts, measurements, runs, scopes
from autotune.store.spool import Spool
from autotune.values import Configuration, Problem

Value = TypeVar("Value")

#: Numbers of rows times one prime, modulo another, are spread evenly, and as no habit of a search is:
#: every 96th row might be what it tried first in each batch.
_MULTIPLIER, _MODULUS = 7919, 10007
#: Names one start of this machine's system.
_BOOT = "/proc/sys/kernel/random/boot_id"
#: Rows whose configurations are told apart to be counted: a second for each million.
_COUNTED = 100_000
#: Configurations that one statement names.
_AT_ONCE = 500

_table = measurements.c
_columns_of_row = {**runs.c, **scopes.c, **_table, "scope": scopes.c.fingerprint}
_ROWS = (
    sa.select(*(_columns_of_row[field.name].label(field.name) for field in fields(Row)))
    .join_from(measurements, runs)
    .join(scopes)
)


class Store(Database):
    """The results store behind one address; made by `Store.open`. Use it as a context manager."""

    def __init__(self, address: Address, engine: sa.Engine) -> None:
        super().__init__(address, engine)
        self._spool = None if address.path else Spool(self)
        #: By their texts, which thousands of rows share.
        self._problems: dict[str, Problem] = {}

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        wait_s: float = WAIT_S,
        may_convert: bool = False,
        must_exist: bool = False,
    ) -> Self:
        """Open the store as `Database.open` does, and send what an earlier run could not send to it."""
        store = super().open(url, wait_s=wait_s, may_convert=may_convert, must_exist=must_exist)
        if store._spool:
            store._spool.send_left()
        return store

    def close(self) -> None:
        """Let go of the database; warns where something could not be sent to it."""
        if self._spool:
            self._spool.close()
        super().close()

    def begin_run(self, info: RunInfo) -> int:
        """Open a run, written by this process; returns its id."""
        about = {**vars(info), "seed": str(info.seed), "process": identity(os.getpid())}
        about |= {"state": "running", "started": now()}
        run_id = self.insert_run(about)
        if self._spool:
            self._spool.begun(run_id, about)
        return run_id

    def finish_run(self, run_id: int, state: RunState) -> None:
        """End a run in good order: its open attempts killed nobody, and so do not count."""
        finished = now()

        def end(store: Database, run: int) -> None:
            with store.writing() as connection:
                change = runs.update().where(runs.c.id == run)
                connection.execute(change.values(state=state, finished=finished))
                connection.execute(attempts.delete().where(attempts.c.run_id == run))

        self._append(run_id, end)

    def open_attempts(
        self, run_id: int, scope: Scope, configurations: Iterable[Configuration]
    ) -> None:
        """Note that these configurations are about to be tried."""
        attempt = {"scope": scope.fingerprint, "opened": now()}
        opened = [
            {**attempt, "configuration": configuration.canonical_json()}
            for configuration in configurations
        ]

        def note(store: Database, run: int) -> None:
            with store.writing() as connection:
                connection.execute(attempts.insert(), [{**row, "run_id": run} for row in opened])

        if opened:
            self._append(run_id, note)

    def interrupted_attempts(self, scope: Scope) -> dict[Configuration, int]:
        """Count the attempts that a dead run left open, since the configuration's last row.

        A run is dead when its process is: killed, crashed, or gone with its machine. A process that
        cannot be seen from here, in another container or on another machine, passes for dead.
        """
        query = (
            sa.select(attempts.c.configuration, runs.c.process)
            .join(runs)
            .where(attempts.c.scope == scope.fingerprint)
        )
        found = self.asked(query)
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
        created, listed = now(), list(added)
        if not listed:
            return
        others = {row.device_uuid for row in listed} - {"", scope.device_uuid}
        of_device = {uuid: replace(scope, device_uuid=uuid) for uuid in others}
        of_device |= {"": scope, scope.device_uuid: scope}
        rows = [
            (of_device[row.device_uuid].fingerprint, {"created": created, **_columns(row)})
            for row in listed
        ]
        tried = {scope.fingerprint, *(fingerprint for fingerprint, _ in rows)}
        texts = [row["configuration"] for _, row in rows]

        def insert(store: Database, run: int) -> None:
            with store.writing() as connection:
                known = store.scope_ids(connection, map(_columns_of_scope, of_device.values()))
                values = [
                    {"run_id": run, "scope_id": known[fingerprint], **row}
                    for fingerprint, row in rows
                ]
                connection.execute(measurements.insert(), values)
                for begin in range(0, len(texts), _AT_ONCE):
                    some = attempts.c.configuration.in_(texts[begin : begin + _AT_ONCE])
                    closed = attempts.delete().where(attempts.c.scope.in_(tried), some)
                    connection.execute(closed)
            store.learn_scopes(known)

        self._append(run_id, insert)

    def _append(self, run_id: int, write: Callable[[Database, int], None]) -> None:
        """Let a run write, here or while the server is away to a file."""
        if self._spool:
            self._spool.append(run_id, write)
        else:
            write(self, run_id)

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
        if run is not None:
            conditions.append(_table.run_id == run)
        if chosen := _chosen(kernel, device, scope):
            conditions.append(_table.scope_id.in_(sa.select(scopes.c.id).where(*chosen)))
        with self.reading() as connection:
            if most is not None:
                count = connection.scalar(sa.select(sa.func.count(_table.id)).where(*conditions))
                scattered = sa.cast(sa.func.abs(_table.id), sa.BigInteger) * _MULTIPLIER % _MODULUS
                conditions.append(scattered * (count or 0) < most * _MODULUS)
                numbers = connection.scalars(sa.select(_table.id).where(*conditions)).all()
                pages = [
                    _ROWS.where(_table.id.in_(numbers[begin : begin + _AT_ONCE]))
                    for begin in range(0, len(numbers), _AT_ONCE)
                ]
            else:
                pages = [_ROWS.where(*conditions)]
            found = [row for page in pages for row in connection.execute(page).mappings()]
            listed = [self._row(row) for row in sorted(found, key=itemgetter("id"))]
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
        rows = sa.select(sa.func.count(_table.id)).where(_table.run_id == chosen.c.id)
        of_run = measurements.alias().c
        newest = sa.select(sa.func.max(of_run.id)).where(of_run.run_id == chosen.c.id)
        last = sa.select(_table.created).where(
            _table.id == newest.correlate(chosen).scalar_subquery()
        )
        counted = rows.scalar_subquery().label("rows"), last.scalar_subquery().label("last_row")
        query = sa.select(*chosen.c, *counted).order_by(chosen.c.id)
        with self.reading() as connection:
            found = connection.execute(query).mappings().all()
        return [_past_run(run) for run in found]

    def newest_of_scopes(self, kernel: str | None = None, device: str | None = None) -> list[Row]:
        """The newest row of every scope, oldest first; a device by name or uuid."""
        newest = sa.select(sa.func.max(_table.id)).where(_table.scope_id == scopes.c.id)
        numbers = sa.select(newest.scalar_subquery()).select_from(scopes)
        chosen = _table.id.in_(numbers.where(*_chosen(kernel, device)))
        with self.reading() as connection:
            found = connection.execute(_ROWS.where(chosen).order_by(_table.id))
            return [self._row(row) for row in found.mappings()]

    def count(self, scope: str) -> int:
        """How many rows a scope has."""
        query = sa.select(sa.func.count(_table.id)).where(_table.scope_id == _number_of(scope))
        with self.reading() as connection:
            return connection.scalar(query) or 0

    def fastest(self, scope: str, count: int) -> list[Row]:
        """The right rows of a scope with the smallest medians, best first."""
        right = _table.status == Status.OK, _table.median_ms.is_not(None)
        query = _ROWS.where(_table.scope_id == _number_of(scope), *right)
        query = query.order_by(_table.median_ms, _table.id).limit(count)
        with self.reading() as connection:
            return [self._row(row) for row in connection.execute(query).mappings()]

    def _row(self, found: sa.RowMapping) -> Row:
        number, problem = found["id"], found["problem"]
        if problem not in self._problems:
            self._problems[problem] = self.decoded(number, problem, Problem)
        return Row(
            **{
                **found,
                "problem": self._problems[problem],
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
                f"results store {self.address}: measurement {number} is damaged ({error}); delete "
                "its row, or name another store by AUTOTUNE_STORE"
            ) from None

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """As `Database.reading`; where the server is known to be away, nobody waits for it."""
        if self._spool:
            self._spool.require_server()
        with super().reading() as connection:
            yield connection

    def asked(self, query: sa.Select[Any]) -> Sequence[Any]:
        """What a run asks while it goes on; nothing while its server is away."""
        try:
            with self.reading() as connection:
                return connection.execute(query).all()
        except ServerAway:
            if self._spool is None or not self._spool.has_run:
                raise
            return []


class Remembered(Mapping[Configuration, Measurement]):
    """The newest row of every configuration measured in a scope before now; read when asked for.

    A run that goes on while its server is away remembers nothing then. Of more than `_COUNTED` rows the
    length is theirs, with a configuration that was measured twice counted twice.
    """

    def __init__(self, store: Store, scope: str) -> None:
        self._store = store
        self._read: dict[Configuration, Measurement | None] = {}
        last = sa.select(_table.scope_id, _table.id).where(_table.scope_id == _number_of(scope))
        found = self._store.asked(last.order_by(_table.scope_id.desc(), _table.id.desc()).limit(1))
        #: Number of the scope and of its newest row; None where it has none, and nothing is asked.
        self._known = found[0] if found else None

    @cached_property
    def _rows(self) -> list[sa.ColumnElement[bool]]:
        assert self._known is not None
        scope_id, last = self._known
        return [_table.scope_id == scope_id, _table.id <= last]

    @cached_property
    def _count(self) -> int:
        if self._known is None:
            return 0
        rows = sa.select(sa.func.count(_table.id)).where(_table.scope_id == self._known[0])
        named = sa.select(_table.configuration).where(_table.configuration != "").distinct()
        different = named.where(_table.scope_id == self._known[0]).subquery()
        ((count,),) = self._store.asked(rows) or ((0,),)
        if count < _COUNTED:
            exact = sa.select(sa.func.count()).select_from(different)
            ((count,),) = self._store.asked(exact) or ((0,),)
        return int(count)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Configuration]:
        if self._known is None:
            return
        query = sa.select(_table.configuration).where(*self._rows, _table.configuration != "")
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
        """Read those of these configurations that were not asked for yet, at once."""
        unread = {c.canonical_json(): c for c in configurations if c not in self._read}
        texts = list(unread) if self._known else []
        for begin in range(0, len(texts), _AT_ONCE):
            some = texts[begin : begin + _AT_ONCE]
            newest = sa.select(sa.func.max(_table.id)).where(
                *self._rows, _table.configuration.in_(some)
            )
            query = sa.select(_table.id, _table.configuration, _table.measurement).where(
                _table.id.in_(newest.group_by(_table.configuration))
            )
            self._read |= {unread[text]: None for text in some}
            for number, text, measurement in self._store.asked(query):
                self._read[unread[text]] = self._store.decoded(number, measurement, Measurement)

    def by_time(self, status: Status) -> Iterator[Configuration]:
        """Configurations whose newest row has this status and a median, smallest first."""
        if self._known is None:
            return
        newer = measurements.alias()
        later = newer.c.configuration == _table.configuration, newer.c.id > _table.id
        query = (
            sa.select(_table.median_ms, _table.id, _table.configuration)
            .where(_table.scope_id == self._known[0], _table.status == status)
            .where(_table.median_ms.is_not(None))
            .where(~sa.exists().where(newer.c.scope_id == self._known[0], *later))
            .order_by(_table.median_ms, _table.id)
            .limit(_AT_ONCE)
        )
        page = query
        while True:
            found = self._store.asked(page)
            for _, _, text in found:
                yield decode(text, Configuration)
            if len(found) < _AT_ONCE:
                return
            page = query.where(sa.tuple_(_table.median_ms, _table.id) > tuple(found[-1][:2]))


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


def _columns(measurement: Measurement) -> dict[str, object]:
    """One row of the table, but for whose it is and when it was added."""
    return {
        "status": measurement.status,
        "median_ms": measurement.median_ms,
        "measurement": encode(measurement),
        "configuration": measurement.configuration.canonical_json(),
    }


def _columns_of_scope(scope: Scope) -> dict[str, object]:
    named = {field.name: getattr(scope, field.name) for field in fields(scope)}
    return {**named, "fingerprint": scope.fingerprint, "problem": encode(scope.problem)}


def _number_of(scope: str) -> sa.ScalarSelect[int]:
    return sa.select(scopes.c.id).where(scopes.c.fingerprint == scope).scalar_subquery()


def _chosen(
    kernel: str | None, device: str | None, scope: str | None = None
) -> list[sa.ColumnElement[bool]]:
    """What holds of the scopes of a kernel, of a device by name or uuid, or of one by fingerprint."""
    wanted = [
        (kernel, scopes.c.kernel == kernel),
        (device, sa.or_(scopes.c.device_name == device, scopes.c.device_uuid == device)),
        (scope, scopes.c.fingerprint == scope),
    ]
    return [condition for value, condition in wanted if value is not None]


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


def now() -> str:
    """This moment, as rows say it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

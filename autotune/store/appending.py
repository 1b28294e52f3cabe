"""A thread that appends the rows of a search, so that its devices do not wait for the database."""

from __future__ import annotations

from threading import Condition, Thread

from autotune.errors import AutotuneError
from autotune.measure.measurement import Measurement
from autotune.store.access import Store
from autotune.store.rows import Scope

#: Most rows that wait; a process that is killed loses these.
WAITING = 8


class Appender:
    """A thread that appends rows in their order, all that wait in one transaction; a context manager.

    A row that waits when the process is killed is lost: its attempt is open, and it is measured again.
    """

    def __init__(self, store: Store, run_id: int, scope: Scope) -> None:
        self._store, self._run_id, self._scope = store, run_id, scope
        self._changed = Condition()
        self._waiting: list[Measurement] = []
        self._error: AutotuneError | None = None
        self._is_over = False
        self._thread = Thread(target=self._append, daemon=True)

    def add(self, measurement: Measurement) -> None:
        """Append a row soon; raise the StoreError of an earlier row."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < WAITING or self._error)
            if self._error:
                raise self._error
            self._waiting.append(measurement)
            self._changed.notify_all()

    def _append(self) -> None:
        while rows := self._next():
            try:
                self._store.add_many(self._run_id, self._scope, rows)
            except AutotuneError as error:
                with self._changed:
                    self._waiting, self._error = [*rows, *self._waiting], error
                    self._changed.notify_all()
                return

    def _next(self) -> list[Measurement]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            rows, self._waiting = self._waiting, []
            self._changed.notify_all()
        return rows

    def __enter__(self) -> Appender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        # Once more, where that failed: the lock that another process had may be free again.
        self._store.add_many(self._run_id, self._scope, self._waiting)

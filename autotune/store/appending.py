"""Appends the rows of a search beside it, so that neither it nor its devices wait for the database."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from autotune.measure.measurement import Measurement
from autotune.store.access import Store
from autotune.store.rows import Scope


class Appender:
    """A thread that appends rows in the order in which they come, all that wait in one transaction.

    A context manager, which at its end has appended all. What is begun after a row was given and
    killed before it was appended has lost that row: its attempt is open, and it is measured again.
    """

    def __init__(self, store: Store, run_id: int, scope: Scope) -> None:
        self._store, self._run_id, self._scope = store, run_id, scope
        self._thread = ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._waiting: list[Measurement] = []
        self._is_at_it = False
        self._appended: Future[None] | None = None

    def add(self, measurement: Measurement) -> None:
        """Have a row appended soon.

        Raises
        ------
        StoreError
            If one before it could not be.
        """
        if self._appended is not None and self._appended.done():
            self._appended.result()
        with self._lock:
            self._waiting.append(measurement)
            if not self._is_at_it:
                self._is_at_it = True
                self._appended = self._thread.submit(self._append)

    def _append(self) -> None:
        while True:
            with self._lock:
                rows, self._waiting = self._waiting, []
                if not rows:
                    self._is_at_it = False
                    return
            self._store.add_many(self._run_id, self._scope, rows)

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        if self._appended is not None:
            self._appended.result()

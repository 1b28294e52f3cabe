"""The store of runs: a local SQLite file, whose rows a shared server gets by merges.

A run waits for the server when it begins, and never for it to write. What the server did not get
stays in the file; the next run with this server, or `autotune doctor merge`, sends it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from autotune.errors import StoreError
from autotune.files import data_folder
from autotune.store.access import Remembered, Store, number_of
from autotune.store.merging import merge
from autotune.store.rows import Row, Scope
from autotune.store.schema import measurements

Answer = TypeVar("Answer")

#: Seconds between two merges into the server while a run lasts.
PUSH_S = 5.0
#: Longest wait for the last merge, and where the run was interrupted or failed.
_LAST_PUSH_S, _BROKEN_OFF_S = 60.0, 1.0


@contextmanager
def open_for_runs(url: str) -> Iterator[Store]:
    """Open the store that runs write to: the file of the URL, or the local file of its server."""
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
    #: Why the server could not be reached last; empty while it answers.
    _fault = ""

    @contextmanager
    def shared_with(self, server: Store) -> Iterator[None]:
        """Merge with a server: now, every few seconds, and at the end."""
        self._server, ended = server, threading.Event()
        self.push()  # a run does not begin without its server
        pushing = threading.Thread(
            target=self._push_often, args=[ended], name="store merges", daemon=True
        )
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
                    "next run with this store sends them, or: autotune doctor merge "
                    f"{self.address} {server.address}",
                    stacklevel=1,
                )

    def push(self) -> None:
        """Send the rows that the server lacks."""
        with self.reading() as connection:  # SQLite's own field for a number of the application
            sent = connection.exec_driver_sql("PRAGMA user_version").scalar() or 0
        merged = merge(self, self._server, measurements.c.id > sent)
        if merged.last > sent:
            with self.writing() as connection:
                connection.exec_driver_sql(f"PRAGMA user_version = {merged.last}")

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
            warnings.warn(f"{error}; rows are kept in {self.address} meanwhile", stacklevel=1)
        self._fault = str(error)

    # ------------------------------------------------------------------ rows of the server

    def remembered(self, scope: Scope) -> Remembered:
        """Return the newest row of every configuration of a scope, the server's included."""
        self._ask(lambda: self._pull(scope.fingerprint))
        return super().remembered(scope)

    def _pull(self, scope: str) -> None:
        if self._server.count(scope) > self.count(scope):
            rows = measurements.c.scope_id == number_of(scope)
            merge(self._server, self, rows, with_runs=False)

    def newest_of_scopes(self, kernel: str | None = None, device: str | None = None) -> list[Row]:
        """Return the newest row of every scope of the server, oldest first."""
        found = self._ask(lambda: self._server.newest_of_scopes(kernel, device))
        return super().newest_of_scopes(kernel, device) if found is None else found

    def fastest(self, scope: str, count: int) -> list[Row]:
        """Return the correct rows of a scope of the server with the smallest medians, best first."""
        found = self._ask(lambda: self._server.fastest(scope, count))
        return super().fastest(scope, count) if found is None else found

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Return the server's answer; None while it cannot be reached."""
        if self._fault:
            return None
        try:
            return question()
        except StoreError as error:
            self._note(error)
            return None

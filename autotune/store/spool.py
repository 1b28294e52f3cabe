"""Where runs write while their server is away: a file of their own, sent when it is back.

The file is a store like any other and sending it is a merge, so that nothing is lost or there twice,
whenever a process or a connection ends. It lies beside the user's results: a cache may be cleared.
"""

from __future__ import annotations

import fcntl
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from threading import RLock
from typing import TextIO

from autotune.errors import StoreError
from autotune.files import data_folder, data_path
from autotune.store.database import Database
from autotune.store.faults import ServerAway
from autotune.store.merging import merge

#: A server is asked again after so long, or after so many times what asking it took.
_AGAIN_S, _AGAIN_TIMES = 2.0, 10.0


@dataclass
class _Kept:
    """What is not sent yet: a store in a folder, held by this process."""

    folder: Path
    store: Database
    lock: TextIO

    def drop(self) -> None:
        """Remove what has been sent."""
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()


class Spool:
    """What a server's store keeps for its runs while the server is away."""

    def __init__(self, store: Database) -> None:
        self._store = store
        self._one_at_a_time = RLock()
        #: The server's rows of the runs that this process began.
        self._runs: dict[int, Mapping[str, object]] = {}
        #: Numbers of these runs in the file.
        self._numbers: dict[int, int] = {}
        self._kept: _Kept | None = None
        self._next_try_s = 0.0

    @property
    def is_used(self) -> bool:
        """Whether the server is away for a run in progress."""
        return self._kept is not None

    @property
    def has_run(self) -> bool:
        """Whether somebody here measures, and goes on without what the server knows."""
        return bool(self._runs)

    def begun(self, run_id: int, about: Mapping[str, object]) -> None:
        """Learn of a run that may have to write here."""
        self._runs[run_id] = about

    def require_server(self) -> None:
        """Let nobody wait for a server that is known to be away.

        Raises
        ------
        ServerAway
            If it is.
        """
        if self.is_used:
            raise ServerAway(f"results store {self._store.address}: the server is away")

    def append(self, run_id: int, write: Callable[[Database, int], None]) -> None:
        """Let a run write: to the server, or while it is away to the file."""
        if not self.is_used:
            try:
                return write(self._store, run_id)
            except ServerAway as error:
                if run_id not in self._runs:
                    raise
                self._begin(error)
        with self._one_at_a_time:
            if time.monotonic() >= self._next_try_s:
                self._send()
            if self._kept is None:
                return self.append(run_id, write)
            store = self._kept.store
            if run_id not in self._numbers:
                self._numbers[run_id] = store.insert_run(self._runs[run_id])
            write(store, self._numbers[run_id])

    def close(self) -> None:
        """Send what was kept; warns where that cannot be."""
        with self._one_at_a_time:
            if self._kept and not self._send():
                kept = self._kept
                warnings.warn(
                    f"results store {self._store.address}: still away; what was measured meanwhile "
                    f"is in {kept.folder}, and the next command that uses this store sends it",
                    stacklevel=3,
                )
                kept.store.close()
                kept.lock.close()
                self._kept = None

    def send_left(self) -> None:
        """Send what runs that are gone have left; warns where that cannot be."""
        for folder in sorted(Path(data_path("spool")).glob(f"{self._store.address.key}-*")):
            try:
                if kept := self._held(folder):
                    merge(kept.store, self._store)
                    kept.drop()
            except (OSError, StoreError) as error:
                warnings.warn(f"{folder} was not sent: {error}", stacklevel=3)

    def _begin(self, error: ServerAway) -> None:
        with self._one_at_a_time:
            if self._kept is None:
                folder = mkdtemp(prefix=f"{self._store.address.key}-", dir=data_folder("spool"))
                self._kept, self._numbers = self._held(Path(folder)), {}
                self._next_try_s = time.monotonic() + _AGAIN_S
                warnings.warn(
                    f"{error}; rows are kept in {folder} until the server is back", stacklevel=4
                )

    def _held(self, folder: Path) -> _Kept | None:
        """A folder's store, locked; None where a process that lives holds it."""
        lock = (folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _Kept(folder, Database.open(folder / "store.sqlite"), lock)
        except BaseException as error:
            lock.close()
            if isinstance(error, BlockingIOError):
                return None
            raise

    def _send(self) -> bool:
        """Send what was kept, if the server is back."""
        if self._kept is None:
            return True
        begun_s = time.monotonic()
        try:
            merge(self._kept.store, self._store)
        except ServerAway:
            now_s = time.monotonic()
            self._next_try_s = now_s + max(_AGAIN_S, _AGAIN_TIMES * (now_s - begun_s))
            return False
        self._kept.drop()
        self._kept = None
        warnings.warn(
            f"results store {self._store.address}: back; what was kept meanwhile is in it",
            stacklevel=4,
        )
        return True

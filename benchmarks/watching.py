"""Watches a command from outside: its memory, the rows that it stores, and the record that it writes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Seconds between two looks.
_EVERY_S = 0.05


@dataclass
class Watched:
    """A command that ended or was killed; times are seconds from its start."""

    #: None if it was killed.
    code: int | None = None
    seconds: float = 0.0
    #: Time of the first row of the store, and of its last.
    first_row_s: float | None = None
    last_row_s: float | None = None
    rows: int = 0
    #: Time at which the file of the record was there.
    record_s: float | None = None
    #: Largest sum over the command's processes, in bytes: memory of their own, and with mapped files.
    host_bytes: int = 0
    host_bytes_with_files: int = 0
    #: Largest use of the device above that before the command, in bytes; None without an NVIDIA GPU.
    device_bytes: int | None = None
    output: list[str] = field(default_factory=list)


def watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    store: Path,
    record: Callable[[], bool],
    log: Path,
) -> Watched:
    """Run a command in a session of its own, and look at it until it ends; kill its processes at the limit.

    ``record()`` returns whether the record was written.
    """
    found, used = Watched(), device_memory()
    idle = used() if used else 0
    with log.open("wb") as output:
        begun = time.monotonic()
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        while process.poll() is None and time.monotonic() < begun + limit_s:
            now = time.monotonic() - begun
            rows = _rows_in(store)
            if rows > found.rows:
                found.first_row_s = now if found.first_row_s is None else found.first_row_s
                found.rows, found.last_row_s = rows, now
            if found.record_s is None and record():
                found.record_s = now
            own, files = _memory_of(process.pid)
            found.host_bytes = max(found.host_bytes, own)
            found.host_bytes_with_files = max(found.host_bytes_with_files, own + files)
            if used:
                found.device_bytes = max(found.device_bytes or 0, used() - idle)
            time.sleep(_EVERY_S)
        found.seconds, found.code = time.monotonic() - begun, process.poll()
    for stat in _session(process.pid):
        with suppress(ProcessLookupError):
            os.kill(int(stat.parent.name), signal.SIGKILL)
    process.wait()
    found.rows = max(found.rows, _rows_in(store))
    if found.record_s is None and found.code == 0 and record():
        found.record_s = found.seconds
    found.output = log.read_text(errors="replace").splitlines()
    return found


def _rows_in(store: Path) -> int:
    """Return the number of measurements in a store; 0 while there is no such file or table."""
    if not store.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=1)) as connection:
            return int(connection.execute("select count(*) from measurements").fetchone()[0])
    except sqlite3.Error:
        return 0


def _session(leader: int) -> list[Path]:
    """Return the `stat` files of the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(stat)
    return found


def _memory_of(session: int) -> tuple[int, int]:
    """Return the bytes of all processes of a session: their own, and of mapped files."""
    own = files = 0
    for stat in _session(session):
        with suppress(OSError):
            lines = stat.with_name("status").read_text().splitlines()
            sizes = {line.partition(":")[0]: line.split()[1] for line in lines if "kB" in line}
            own += 1024 * int(sizes.get("RssAnon", 0))
            files += 1024 * (int(sizes.get("RssFile", 0)) + int(sizes.get("RssShmem", 0)))
    return own, files


def device_memory() -> Callable[[], int] | None:
    """Return a function that reads the used bytes of the first NVIDIA GPU; None without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no package, no driver or no GPU
        return None
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

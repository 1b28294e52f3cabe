"""One re-tuning per device at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.devices.device import Device
from autotune.files import data_folder


@contextmanager
def device_lock(device: Device, waiting: Callable[[str], None] | None = None) -> Iterator[str]:
    """Hold the lock of a device model's records; yield its other holder, empty where it is ours.

    The system releases it however its process ends. It lies with the tuned records, so machines that
    share those share it, where the file system can. With ``waiting`` it waits for another holder, after
    it called ``waiting`` with a message.
    """
    with open(data_folder("locks") / f"{device.folder}.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held_by = os.pread(file.fileno(), 200, 0).decode(errors="replace").strip()
            holder = held_by or "another process"
            if waiting is None:
                yield holder
                return
            waiting(f"{device.name}: waiting for {holder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: records are replaced whole either way
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield ""

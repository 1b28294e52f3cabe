"""Keeps computations on a GPU out of the times that another process measures on it, by a locked file.

Samples of one process exclude computations, and not samples of other processes. A lock takes about 2 µs.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from autotune.files import cache_folder

_COMPUTING = threading.Lock()


@cache
def _descriptor(uuid: str) -> int:
    return os.open(cache_folder("locks") / f"{uuid}.lock", os.O_RDWR | os.O_CREAT, 0o600)


@contextmanager
def sampling(uuid: str) -> Iterator[None]:
    """Wait until no process computes on a GPU, and let none begin while the context lasts."""
    yield from _locked(uuid, fcntl.LOCK_SH)


@contextmanager
def computing(uuid: str) -> Iterator[None]:
    """Wait until no process samples on a GPU, and let none begin while the context lasts.

    One thread of a process computes at a time: a locked file excludes other processes only.
    """
    with _COMPUTING:
        yield from _locked(uuid, fcntl.LOCK_EX)


def _locked(uuid: str, operation: int) -> Iterator[None]:
    descriptor = _descriptor(uuid)
    fcntl.flock(descriptor, operation)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

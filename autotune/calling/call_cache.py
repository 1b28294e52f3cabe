"""Keeps prepared calls by what is equal of calls that are treated alike; for `load` and the Triton decorator."""

from __future__ import annotations

from threading import RLock
from typing import Any

from autotune.calling.first_call import is_busy

#: Calls that a cache keeps: ways in which arrays lie, and sizes.
MAX_CALLS = 1024


class CallCache:
    """The prepared calls of a function.

    Attributes
    ----------
    settled : dict
        Calls that stay. Read it without a lock: it is asked at each call.
    making : RLock
        Held while a call is made that only one thread should make.
    """

    def __init__(self) -> None:
        self.settled: dict[object, Any] = {}
        #: Calls whose sizes are being tuned, or will be.
        self._unsettled: dict[object, Any] = {}
        self.making = RLock()

    def get(self, key: object) -> Any:
        """Return a call, one that is not settled only while a size is tuned; None: make it."""
        call = self.settled.get(key)
        if call is None and is_busy():
            call = self._unsettled.get(key)
        return call

    def keep(self, key: object, call: Any, is_settled: bool = True) -> None:
        """Keep a call that was made."""
        with self.making:
            if is_settled:
                self._unsettled.pop(key, None)
            put(self.settled if is_settled else self._unsettled, key, call, MAX_CALLS)


def put(calls: dict[Any, Any], key: object, call: Any, most: int) -> None:
    """Put a call into a dictionary, in place of the oldest if it holds ``most`` others."""
    if key not in calls and len(calls) >= most:
        calls.pop(next(iter(calls)), None)
    calls[key] = call

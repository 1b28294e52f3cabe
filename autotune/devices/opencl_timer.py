"""Times launch sequences of OpenCL, and baselines' calls on buffers in the host's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotune.devices.base import LaunchError, batch_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Maps all buffers of a call to arrays by name.
Mapped = Callable[[], AbstractContextManager[Mapping[str, "NDArray[Any]"]]]


class OpenclTimer:
    """See `autotune.devices.base.Timer`.

    A hot sample is the time from the start of the first call to the end of the last call, divided by their
    number.

    Parameters
    ----------
    batch_ms : callable
        Calls back to back, and returns the milliseconds of a call: by the queue's profile, without launch gaps,
        or of a baseline by the host's clock.
    flush : callable
        Writes more than the device's cache; if its argument is true, no cache line is left to write back.
    cold : bool
        Whether samples are cold.
    """

    launched_by = "stream"
    overhead_ms = 0.0

    def __init__(
        self, batch_ms: Callable[[int], float], flush: Callable[[bool], None], cold: bool
    ) -> None:
        self._batch_ms, self._flush, self._cold = batch_ms, flush, cold

    def __call__(self, count: int) -> list[float]:
        return self.singly(count) if self._cold else self.hot(count)

    def singly(self, count: int) -> list[float]:
        return [self._flushed_ms() if self._cold else self._batch_ms(1) for _ in range(count)]

    def clean(self, count: int) -> list[float]:
        return [self._flushed_ms(clean=True) for _ in range(count)]

    def hot(self, count: int) -> list[float]:
        if not count:
            return []
        return [self._batch_ms(self._calls) for _ in range(count)]

    @cached_property
    def _calls(self) -> int:
        """Calls of a hot sample."""
        return batch_size(self._batch_ms(1))

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        done = 0
        while not is_enough(done):
            self._batch_ms(self._calls)
            done += self._calls

    def by_stream(self) -> None:
        pass  # OpenCL has no graphs

    def _flushed_ms(self, clean: bool = False) -> float:
        self._flush(clean)
        return self._batch_ms(1)


@dataclass(frozen=True, eq=False)
class MappedCall:
    """A prepared call whose buffers are mapped while it runs.

    The device may read a buffer only while it is not mapped. A CPU maps a buffer to the same address each time,
    without a copy, so the call is prepared once.
    """

    _call: Callable[[], object]
    _mapped: Mapped
    _addresses: Sequence[int]

    @classmethod
    def of(
        cls, prepare: Callable[..., Any], mapped: Mapped, scalars: Mapping[str, Any]
    ) -> MappedCall | None:
        """Prepare a call of a `Baseline`; return None if the baseline does not support the problem."""
        with mapped() as arrays:
            call = prepare(**arrays, **scalars)
            return None if call is None else cls(call, mapped, _addresses(arrays))

    @property
    def pins(self) -> str:
        """Return what decides the results of the call; see `Baseline`."""
        return str(getattr(self._call, "pins", ""))

    def __call__(self) -> None:
        """Call once."""
        self.timed_ms(1)

    def timed_ms(self, calls: int) -> float:
        """Call back to back; return the milliseconds of a call, without those of mapping."""
        with self._mapped() as arrays:
            if _addresses(arrays) != self._addresses:
                raise LaunchError("the device maps a buffer to changing addresses")
            begun_ns = time.perf_counter_ns()
            try:
                for _ in range(calls):
                    self._call()
            except Exception as error:  # libraries raise errors of their own types
                raise LaunchError(f"{type(error).__name__}: {error}") from error
            # At least the clock's unit, so that no call takes 0 ms.
            return max(1, time.perf_counter_ns() - begun_ns) / 1e6 / calls


def _addresses(arrays: Mapping[str, NDArray[Any]]) -> list[int]:
    return [array.ctypes.data for array in arrays.values()]

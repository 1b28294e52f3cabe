"""A device's energy counter over a window of calls back to back -> what one call takes.

Knows neither configurations nor how a counter is read. docs/timing.md says why it is done so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from autotune.devices.base import Executor, LaunchError, Timer
from autotune.measure.measurement import Energy

#: A window of a search, and of finals: so long at least, from one update of the counter to another.
SEARCH_S, FINALS_S = 0.3, 0.4
#: Load before a window: clocks settle, and the counter lags, by one of its steps at most.
WARM_UP_S = 0.15
#: Updates of the counter in a window, with those at its ends, and of how many calls are done.
_LEAST_UPDATES, _LEAST_BATCHES = 4, 3
#: A window is given up after so long: the counter stands still, or one call takes seconds.
_MOST_S = 10.0


class Reading(NamedTuple):
    """A look at a device under load."""

    #: Of `time.monotonic`.
    at_s: float
    #: Calls done by then.
    calls: int
    #: Of the counter.
    taken_mj: int


def measure(executor: Executor, timer: Timer, seconds: float) -> Energy:
    """What a call takes, from a window of at least so many seconds.

    Raises
    ------
    LaunchError
        If the counter stands still, or the calls take too long.
    DeviceError
        If the device has no counter.
    """
    taken = of_readings(read_window(executor, timer, seconds))
    return replace(taken, limit_w=executor.power().limit_w, clocks=executor.clocks())


def read_window(executor: Executor, timer: Timer, seconds: float) -> list[Reading]:
    """The looks at a device of which `measure` makes what a call takes; raises the same."""
    readings: list[Reading] = []
    begun_s = time.monotonic()

    def is_enough(calls: int) -> bool:
        now_s = time.monotonic()
        if now_s - begun_s > WARM_UP_S:
            readings.append(Reading(now_s, calls, executor.energy_mj()))
        return now_s - begun_s > _MOST_S or _is_window(readings, seconds)

    timer.sustained(is_enough)
    if not _is_window(readings, seconds):
        raise LaunchError(
            f"no energy: in {_MOST_S:g} s the counter moved {len(_steps(readings, 'taken_mj'))} "
            f"times, and calls ended {len(_steps(readings, 'calls'))} times"
        )
    return readings


def of_readings(readings: Sequence[Reading]) -> Energy:
    """Power times time of one call, of a window as `measure` takes it.

    A counter moves in steps, of some tens of milliseconds, and calls end in steps too; what is
    between the first and the last step of each is known as well as the moments of the looks.
    """
    power_w = _per_second(readings, "taken_mj") / 1e3
    steps = _steps(readings, "calls")
    return Energy(
        call_mj=power_w * 1e3 / _per_second(readings, "calls"),
        power_w=power_w,
        calls=steps[-1].calls - steps[0].calls,
        window_s=readings[-1].at_s - readings[0].at_s,
    )


def _is_window(readings: Sequence[Reading], seconds: float) -> bool:
    """Whether the last look is at an update, and the window from the first one long enough."""
    if len(readings) < 2 or readings[-1].taken_mj == readings[-2].taken_mj:
        return False
    updates = _steps(readings, "taken_mj")
    return (
        updates[-1].at_s - updates[0].at_s >= seconds
        and len(updates) >= _LEAST_UPDATES
        and len(_steps(readings, "calls")) >= _LEAST_BATCHES
    )


def _per_second(readings: Sequence[Reading], name: str) -> float:
    """How fast a count grows, between its first step and its last."""
    first, *_, last = _steps(readings, name)
    grown = getattr(last, name) - getattr(first, name)
    return float(grown / (last.at_s - first.at_s))


def _steps(readings: Sequence[Reading], name: str) -> list[Reading]:
    """The readings at which a count has grown."""
    return [
        after
        for before, after in pairwise(readings)
        if getattr(after, name) > getattr(before, name)
    ]

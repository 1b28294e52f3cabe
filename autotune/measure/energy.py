"""Measures the energy of one call, from a device's counter over a window of calls back to back.

docs/timing.md has the reasons.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from autotune.devices.base import Executor, LaunchError, Timer
from autotune.measure.measurement import Energy

#: Least length of a window in a search and in finals, from one update of the counter to another.
SEARCH_S, FINALS_S = 0.3, 0.4
#: Load before a window: clocks settle, and the counter lags by at most one of its steps.
WARM_UP_S = 0.15
#: Updates of the counter in a window, those at its ends included, and ends of batches of calls.
_LEAST_UPDATES, _LEAST_BATCHES = 4, 3
#: A longer window is given up: the counter stands still, or one call takes seconds.
_MOST_S = 10.0


class Reading(NamedTuple):
    """A reading of a device under load."""

    #: Of `time.monotonic`.
    at_s: float
    #: Calls done by then.
    calls: int
    #: Of the counter.
    taken_mj: int


def measure(executor: Executor, timer: Timer, seconds: float) -> Energy:
    """Measure the energy of a call in a window of at least these seconds.

    LaunchError if the counter stands still or calls take too long, DeviceError if there is no counter.
    """
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
    taken = of_readings(readings)
    return replace(taken, limit_w=executor.power().limit_w, clocks=executor.clocks())


def of_readings(readings: Sequence[Reading]) -> Energy:
    """Return the energy of one call from the readings of a window.

    The counter moves in steps of some tens of milliseconds, and calls end in steps, too. The amount
    between the first and the last step of each is as exact as the times of the readings.
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
    """Return whether the last reading is an update, and the window from the first one long enough."""
    if len(readings) < 2 or readings[-1].taken_mj == readings[-2].taken_mj:
        return False
    updates = _steps(readings, "taken_mj")
    return (
        updates[-1].at_s - updates[0].at_s >= seconds
        and len(updates) >= _LEAST_UPDATES
        and len(_steps(readings, "calls")) >= _LEAST_BATCHES
    )


def _per_second(readings: Sequence[Reading], name: str) -> float:
    """Return the growth of a count per second, between its first step and its last."""
    first, *_, last = _steps(readings, name)
    grown = getattr(last, name) - getattr(first, name)
    return float(grown / (last.at_s - first.at_s))


def _steps(readings: Sequence[Reading], name: str) -> list[Reading]:
    """Return the readings at which a count has grown."""
    return [
        after
        for before, after in pairwise(readings)
        if getattr(after, name) > getattr(before, name)
    ]

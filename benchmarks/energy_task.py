"""What `energy.py` has done in the process that holds the device."""

from __future__ import annotations

import time
from collections.abc import Sequence

from autotune.measure import energy, tasks
from autotune.measure.measurement import Energy
from autotune.measure.tasks import Contender, Job


def idle(seconds: float) -> list[energy.Reading]:
    """The counter of the device while nothing runs on it."""
    executor, _ = tasks.current()
    readings: list[energy.Reading] = []
    begun_s = time.monotonic()
    while (now_s := time.monotonic()) - begun_s < seconds:
        readings.append(energy.Reading(now_s, 0, executor.energy_mj()))
        time.sleep(0.0005)
    return readings


def windows(job: Job, contenders: Sequence[Contender], seconds: float) -> list[Energy]:
    """One window of each contender, one after another."""
    taken = [tasks.take(job, contender) for contender in contenders]
    executor, _ = tasks.current()
    return [energy.measure(executor, each.timer, seconds) for each in taken if each is not None]


def trace(job: Job, contender: Contender, seconds: float) -> list[energy.Reading]:
    """The looks at the device of one window."""
    taken = tasks.take(job, contender)
    assert taken is not None
    return energy.read_window(tasks.current()[0], taken.timer, seconds)

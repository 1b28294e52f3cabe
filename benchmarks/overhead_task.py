"""What overhead.py runs in the device's process: what a comparison after timing takes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from autotune.devices.binary import Binary
from autotune.measure import tasks
from autotune.measure.timing import StoppingRule
from autotune.values import Configuration


def after_timing(
    job: tasks.Job, asked: Sequence[tuple[Configuration, Binary]]
) -> list[tuple[float, float]]:
    """Measure configurations as a search does.

    Returns
    -------
    list of tuple of float
        Of each: seconds in all, and those of looking at what its last timed launch left.
    """
    tasks.prepare(job)
    tasks.measure(job, *asked[0], StoppingRule(), ())  # modules of the checks are loaded now
    checked_s, real, found = [0.0], tasks.verify_timed, []
    best: tuple[float, ...] = ()

    def timed(*given: object, **named: object) -> None:
        start = time.perf_counter()
        real(*given, **named)  # type: ignore[arg-type]
        checked_s[-1] += time.perf_counter() - start

    tasks.verify_timed = timed
    try:
        for configuration, binary in asked:
            checked_s.append(0.0)
            start = time.perf_counter()
            measurement = tasks.measure(job, configuration, binary, StoppingRule(), best)
            found.append((time.perf_counter() - start, checked_s[-1]))
            samples_ms = measurement.samples_ms
            if samples_ms and (not best or median(samples_ms) < median(best)):
                best = samples_ms
    finally:
        tasks.verify_timed = real
    return found

"""Races of given samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from autotune.devices.device import Clocks
from autotune.measure.measurement import Measurement
from autotune.measure.race import Contender, ContenderSamples, Race
from autotune.measure.timing import Timing

Entered: TypeAlias = tuple[Contender, ContenderSamples]


def entered(
    row: Measurement, times_ms: Sequence[float], deterministic: bool = False, **others: Any
) -> Entered:
    """A configuration with its times and what else was measured of it."""
    contender = Contender(row.configuration, row=row, deterministic=deterministic)
    return contender, ContenderSamples(tuple(map(float, times_ms)), **others)


def race(
    finalists: Sequence[Entered],
    vendors: Mapping[str, Sequence[float]] | None = None,
    throttled: tuple[str, ...] = (),
    **others: Any,
) -> Race:
    """A race of configurations with vendor calls, by their times."""
    calls = [
        (Contender(vendor=name), ContenderSamples(tuple(map(float, times_ms)), **others))
        for name, times_ms in (vendors or {}).items()
    ]
    everyone = [*finalists, *calls]
    return Race(
        tuple(contender for contender, _ in everyone),
        tuple(samples for _, samples in everyone),
        Timing.COLD_GRAPH,
        Clocks(throttle_reasons=throttled),
    )

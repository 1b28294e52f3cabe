"""What is known beside a search: where other sizes lie, what is recorded, and what is best on other devices.

Other devices are those of the tuned records and of the store. Makes points of problems and devices,
which are what the search's model compares sizes by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from autotune.devices.device import Device
from autotune.measure.measurement import Measurement, Status
from autotune.search.base import Elsewhere
from autotune.store import Store
from autotune.tuned.reading import read_layers
from autotune.tuned.table import unlikeness
from autotune.values import Configuration, Problem, Value

#: Octaves of a size that make two problems as far apart as two devices that differ by one octave of
#: one property, and powers of two that a size is divisible by.
_OCTAVES, _TWOS = 4, 4
#: How unlike a device of the store is, whose properties are not kept.
_UNKNOWN = 1.0
#: Of another device's problem so many of the best are looked at.
_OF_EACH = 2


@dataclass(frozen=True)
class _Tuned:
    """A problem that another device was measured at, and what gives its rows."""

    problem: Problem
    #: Of the device; see `unlikeness`.
    apart: float
    rows: Callable[[], list[Measurement]]


@dataclass(frozen=True)
class OtherDevices:
    """What other devices measured of a kernel, by the records and the store."""

    kernel: str
    device: Device
    store: Store | None

    def best(self, problem: Problem, count: int) -> list[Configuration]:
        """Their best at the problems nearest to this one, of the devices most like this first."""
        here = point_of(problem, problem)
        nearest = sorted(
            self._tuned,
            key=lambda other: math.dist(point_of(other.problem, problem, other.apart), here),
        )
        found: dict[Configuration, None] = {}
        for other in nearest:
            if len(found) >= count:
                break
            rows = sorted(other.rows(), key=lambda row: row.median_ms or math.inf)
            found |= dict.fromkeys(row.configuration for row in rows[:_OF_EACH])
        return list(found)[:count]

    @cached_property
    def _tuned(self) -> list[_Tuned]:
        return [*self._of_records(), *self._of_store()]

    def _of_records(self) -> Iterator[_Tuned]:
        for loaded in read_layers(self.kernel):
            apart = unlikeness(self.device, loaded.record.device)
            if apart is None or loaded.record.device.name == self.device.name:
                continue
            portfolio = loaded.record.portfolio
            for entry in loaded.record.entries:
                winner = _timed(entry.configuration, entry.median_ms)
                yield _Tuned(Problem(dict(entry.problem)), apart, [winner].copy)
            for column, sizes in enumerate(portfolio.problems):
                rows = [
                    _timed(configuration, times[column] or 0.0)
                    for configuration, times in zip(
                        portfolio.configurations, portfolio.median_ms, strict=True
                    )
                    if times[column] is not None
                ]
                yield _Tuned(Problem(dict(sizes)), apart, rows.copy)

    def _of_store(self) -> Iterator[_Tuned]:
        if self.store is None:
            return
        for newest in self.store.newest_of_scopes(self.kernel):
            if newest.device_name != self.device.name:
                rows = partial(self._fastest, self.store, newest.scope)
                yield _Tuned(newest.problem, _UNKNOWN, rows)

    @staticmethod
    def _fastest(store: Store, scope: str) -> list[Measurement]:
        return [row.measurement for row in store.fastest(scope, _OF_EACH)]


def recorded_winners(kernel: str, device: Device) -> dict[Problem, list[Configuration]]:
    """What won on a device by its tuned records, the nearest layer's first."""
    found: dict[Problem, list[Configuration]] = {}
    for loaded in read_layers(kernel):
        if loaded.record.device.name == device.name:
            for entry in loaded.record.entries:
                winners = found.setdefault(Problem(dict(entry.problem)), [])
                winners.append(Configuration(dict(entry.configuration)))
    return found


def _timed(configuration: Mapping[str, Value], median_ms: float) -> Measurement:
    return Measurement(Configuration(dict(configuration)), Status.OK, samples_ms=(median_ms,))


def told_apart(
    place: tuple[float, ...], elsewhere: Sequence[Elsewhere]
) -> tuple[tuple[float, ...], list[Elsewhere]]:
    """Both without the coordinates that no place differs in: they would only cost time."""
    kept = [i for i, here in enumerate(place) if any(other.place[i] != here for other in elsewhere)]

    def shorter(place: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(place[i] for i in kept)

    return shorter(place), [replace(other, place=shorter(other.place)) for other in elsewhere]


def point_of(problem: Problem, here: Problem, apart: float = 0.0) -> tuple[float, ...]:
    """Coordinates of a problem on a device that is so unlike: see `Elsewhere.place`."""
    coordinates = [apart]
    for name, value in here.items():
        other = problem.get(name)
        if isinstance(value, str) or isinstance(other, str) or other is None:
            coordinates += [float(other != value)]
        else:
            size = max(1, abs(int(other)))
            twos = (size & -size).bit_length() - 1
            coordinates += [math.log2(size) / _OCTAVES, min(twos, _TWOS) / _TWOS]
    return tuple(coordinates)

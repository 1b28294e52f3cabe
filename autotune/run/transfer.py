"""Results of other problem sizes and other devices that help on a problem.

Other devices are those of the tuned records and of the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from autotune.devices.device import Device
from autotune.search.base import RelatedProblem
from autotune.store import Store
from autotune.tuned.reading import read_layers
from autotune.tuned.record import Portfolio
from autotune.tuned.table import unlikeness
from autotune.values import Configuration, Problem

#: Octaves of a size that make two problems as far apart as two devices that differ by one octave of
#: one property, and powers of two that a size is divisible by.
_OCTAVES, _TWOS = 4, 4
#: Distance of a device of the store, whose properties are not kept.
_UNKNOWN = 1.0
#: Configurations taken of each problem of another device.
_OF_EACH = 2


@dataclass(frozen=True)
class _OtherProblem:
    """A problem that another device was measured at."""

    problem: Problem
    #: Distance of the device; see `unlikeness`.
    device_distance: float
    #: Reads its fastest configurations, best first.
    fastest: Callable[[], list[Configuration]]


@dataclass(frozen=True)
class OtherDevices:
    """Measurements of a kernel on other devices, by the records and the store."""

    kernel: str
    device: Device
    store: Store | None

    def best(self, problem: Problem, count: int) -> list[Configuration]:
        """Return the best at the nearest problems on the most similar devices."""
        here = problem_features(problem, problem)

        def distance(tuned: _OtherProblem) -> float:
            there = problem_features(tuned.problem, problem, tuned.device_distance)
            return math.dist(there, here)

        found: dict[Configuration, None] = {}
        for tuned in sorted(self._tuned, key=distance):
            if len(found) >= count:
                break
            found |= dict.fromkeys(tuned.fastest())
        return list(found)[:count]

    @cached_property
    def _tuned(self) -> list[_OtherProblem]:
        return [*self._of_records(), *self._of_store()]

    def _of_records(self) -> Iterator[_OtherProblem]:
        for loaded in read_layers(self.kernel):
            apart = unlikeness(self.device, loaded.record.device)
            if apart is None or loaded.record.device.name == self.device.name:
                continue
            for entry in loaded.record.problems:
                winner = [Configuration(dict(entry.configuration))]
                yield _OtherProblem(Problem(dict(entry.problem)), apart, winner.copy)
            portfolio = loaded.record.portfolio
            for column, sizes in enumerate(portfolio.problems):
                fastest = partial(_fastest, portfolio, column)
                yield _OtherProblem(Problem(dict(sizes)), apart, fastest)

    def _of_store(self) -> Iterator[_OtherProblem]:
        if self.store is None:
            return
        for newest in self.store.newest_of_scopes(self.kernel):
            if newest.device_name != self.device.name:
                fastest = partial(_stored, self.store, newest.scope)
                yield _OtherProblem(newest.problem, _UNKNOWN, fastest)


def _fastest(portfolio: Portfolio, column: int) -> list[Configuration]:
    times = ((row[column], number) for number, row in enumerate(portfolio.median_ms))
    timed = sorted((ms, number) for ms, number in times if ms is not None)
    return [Configuration(portfolio.configurations[number]) for _, number in timed[:_OF_EACH]]


def _stored(store: Store, scope: str) -> list[Configuration]:
    return [row.measurement.configuration for row in store.fastest(scope, _OF_EACH)]


def recorded_winners(kernel: str, device: Device) -> dict[Problem, list[Configuration]]:
    """Return the winners on a device by its tuned records, the nearest layer's first."""
    found: dict[Problem, list[Configuration]] = {}
    for loaded in read_layers(kernel):
        if loaded.record.device.name == device.name:
            for entry in loaded.record.problems:
                winners = found.setdefault(Problem(dict(entry.problem)), [])
                winners.append(Configuration(dict(entry.configuration)))
    return found


def drop_constant_features(
    here: tuple[float, ...], related: Sequence[RelatedProblem]
) -> tuple[tuple[float, ...], list[RelatedProblem]]:
    """Drop the coordinates that are the same for all problems: they would only cost time."""
    kept = [i for i, own in enumerate(here) if any(other.features[i] != own for other in related)]

    def shorter(features: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(features[i] for i in kept)

    return shorter(here), [replace(other, features=shorter(other.features)) for other in related]


def problem_features(
    problem: Problem, here: Problem, device_distance: float = 0.0
) -> tuple[float, ...]:
    """Return coordinates of a problem, on a device at a distance: see `RelatedProblem.features`."""
    coordinates = [device_distance]
    for name, value in here.items():
        other = problem.get(name)
        if isinstance(value, str) or isinstance(other, str) or other is None:
            coordinates += [float(other != value)]
        else:
            size = max(1, abs(int(other)))
            twos = (size & -size).bit_length() - 1
            coordinates += [math.log2(size) / _OCTAVES, min(twos, _TWOS) / _TWOS]
    return tuple(coordinates)

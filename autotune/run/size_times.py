"""Times of configurations on problem sizes, and the choice of configurations for the next size."""

from __future__ import annotations

import random
from collections.abc import Iterable

from autotune.answers.formula import MULTIPLE, Formulas
from autotune.answers.table import Cost, Plan, Portfolio, predicted_ms
from autotune.devices.device import Device
from autotune.kernel.spec import Kernel
from autotune.run.plans import plan_of
from autotune.store import SizeTimes
from autotune.values import Configuration, Problem

#: Number of sizes on which every configuration is timed; on later sizes a fit chooses.
_COMPLETE_SIZES = 200
#: Number of sizes on which a configuration that was added later is timed before the next fit.
_NEW_SIZES = 48
#: Number of configurations for a later size that the fit predicts to be fastest.
_PROMISING = 16
#: Number of random configurations for a later size, in addition.
_RANDOM = 4


class TimeMatrix:
    """Median times of configurations on problem sizes, in the order of measuring."""

    def __init__(
        self, configurations: Iterable[Configuration] = (), rows: Iterable[SizeTimes] = ()
    ) -> None:
        #: Position of each configuration.
        self._numbers: dict[Configuration, int] = {}
        #: For each size, times in ms by position of the configuration.
        self._times_ms: dict[Problem, dict[int, float]] = {}
        for configuration in configurations:
            self._number(configuration)
        for row in rows:
            self.add(row)

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        return tuple(self._numbers)

    def __len__(self) -> int:
        """Return the number of sizes."""
        return len(self._times_ms)

    def __contains__(self, problem: Problem) -> bool:
        return problem in self._times_ms

    def add(self, row: SizeTimes) -> None:
        """Add the times on one size; newer times of a configuration replace older ones."""
        times_ms = self._times_ms.setdefault(row.problem, {})
        times_ms.update({self._number(c): ms for c, ms in row.times_ms.items()})

    def portfolio(self) -> Portfolio:
        """Return the times as a matrix without answers; sizes without times are left out."""
        timed = {problem: times for problem, times in self._times_ms.items() if times}
        return Portfolio(
            configurations=tuple(map(dict, self._numbers)),
            problems=tuple(map(dict, timed)),
            median_ms=tuple(
                tuple(times.get(number) for times in timed.values())
                for number in self._numbers.values()
            ),
        )

    def _number(self, configuration: Configuration) -> int:
        return self._numbers.setdefault(configuration, len(self._numbers))


class Chooser:
    """Chooses the configurations to time on a size: at first all, later the most promising by a fit."""

    def __init__(self, matrix: TimeMatrix, kernel: Kernel, device: Device, seed: int) -> None:
        self._matrix, self._kernel, self._device = matrix, kernel, device
        self._rng = random.Random(seed)
        self._fitted_at = _COMPLETE_SIZES
        #: The fitted time of each configuration.
        self._costs: dict[Configuration, Cost | None] = {}
        #: Chosen configurations without a fitted time.
        self._new = set[Configuration]()

    def chosen(self, problem: Problem) -> tuple[Configuration, ...]:
        """Return the configurations to time on a problem."""
        allowed = [
            configuration
            for configuration in self._matrix.configurations
            if self._kernel.allows(configuration, problem)
        ]
        known = len(self._matrix)
        is_of_sizes = all(isinstance(value, int) for value in problem.values())
        if known < _COMPLETE_SIZES or len(allowed) <= _PROMISING + _RANDOM or not is_of_sizes:
            return tuple(allowed)
        grown = known - self._fitted_at
        if not self._costs or grown >= self._fitted_at or (grown >= _NEW_SIZES and self._new):
            self._costs, self._fitted_at, self._new = self._fitted(), known, set()
        fields = self._kernel.filled(problem)
        times = {
            configuration: predicted_ms(cost, MULTIPLE, fields)
            for configuration in allowed
            if (cost := self._costs.get(configuration))
        }
        new = [configuration for configuration in allowed if configuration not in times]
        self._new.update(new)
        ranked = sorted(times, key=times.__getitem__)
        rest = ranked[_PROMISING:]
        some = self._rng.sample(rest, min(_RANDOM, len(rest)))
        return (*new, *ranked[:_PROMISING], *some)

    def _fitted(self) -> dict[Configuration, Cost | None]:
        """Return the fitted time of each configuration; None for a configuration without times."""
        measured = self._matrix.portfolio()
        plans = _plans(measured, self._kernel, self._device)
        fits = Formulas(measured, plans, self._device.sm_count)
        every_size = range(len(measured.problems))
        curves = [fits.curve(number, every_size) for number in range(len(plans))]
        return {
            configuration: fits.cost(plan, curve) if plan and curve else None
            for configuration, plan, curve in zip(
                self._matrix.configurations, plans, curves, strict=True
            )
        }


def _plans(matrix: Portfolio, kernel: Kernel, device: Device) -> list[Plan | None]:
    """Return the launch plan of each configuration; None for a configuration without times."""
    plans = list[Plan | None]()
    for values, times in zip(matrix.configurations, matrix.median_ms, strict=True):
        timed = next((p for p, ms in zip(matrix.problems, times, strict=True) if ms), None)
        configuration = Configuration(dict(values))
        plan = plan_of(kernel, configuration, Problem(dict(timed)), device) if timed else None
        plans.append(plan)
    return plans

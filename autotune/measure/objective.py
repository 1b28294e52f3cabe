"""Turns measurements into costs: by time, energy, their product, or a metric of the kernel.

A search minimises the cost. It is the objective's value where lower is better, else its reciprocal,
so that ratios of costs are ratios of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import ClassVar

from autotune.devices.device import Device
from autotune.errors import DeviceError, SpecError, UsageError, unknown
from autotune.kernel.declaration import OBJECTIVES
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.timing import StoppingRule
from autotune.values import Problem


@dataclass(frozen=True)
class Objective:
    """A value of a measurement, and which direction is better; by itself a metric of the kernel."""

    #: ``time``, ``energy``, ``edp``, or a metric of the kernel.
    name: str
    higher_is_better: bool = False
    #: Energy must be measured for it.
    needs_energy: bool = False
    #: Unit of the values; empty for a metric.
    unit: str = ""
    #: Whether times are costs, so that a portfolio and other devices' records, which are of times, help.
    uses_times: ClassVar[bool] = False
    #: Whether a vendor's call has a value too.
    is_of_vendors: ClassVar[bool] = False

    @property
    def finals_share(self) -> float:
        """Share of a run's time that is kept for the finals: windows of energy take half a second each."""
        return 0.4 if self.needs_energy else 0.15

    @property
    def label(self) -> str:
        """Name where it must be told; empty for the time, which is meant where nothing is said."""
        return self.name

    def folder(self, out: Path) -> Path:
        """Return where a run's files go by default: records of one folder have one objective."""
        return Path(f"{out}-{self.name}")

    def stopping_rule(self, rule: StoppingRule) -> StoppingRule:
        """Return how long to time: in full, as a slower configuration may be better."""
        return replace(rule, false_stop=0.0)

    def windows(self, effort: int) -> int:
        """Return the rounds of energy windows in finals."""
        return effort if self.needs_energy else 0

    def of(self, time_ms: float, energy: Energy | None) -> float | None:
        """Return the value; None for a metric, and where energy is missing."""
        return None

    def is_beyond(self, time_ms: float, least: Energy, best: float) -> bool:
        """Return whether the value at a lower bound of the energy is above the best."""
        value = self.of(time_ms, least)
        return value is not None and value > best


class TimeObjective(Objective):
    """The time of a call."""

    uses_times = is_of_vendors = True
    label = ""

    def folder(self, out: Path) -> Path:
        return out

    def stopping_rule(self, rule: StoppingRule) -> StoppingRule:
        return rule

    def of(self, time_ms: float, energy: Energy | None) -> float:
        return time_ms


class EnergyObjective(Objective):
    """The energy of a call, or its product with the time."""

    is_of_vendors = True

    def of(self, time_ms: float, energy: Energy | None) -> float | None:
        factor = time_ms if self.name == "edp" else 1.0
        return energy.call_mj * factor if energy else None


TIME = TimeObjective("time", unit="ms")
ENERGY = EnergyObjective("energy", needs_energy=True, unit="mJ")
EDP = EnergyObjective("edp", needs_energy=True, unit="mJ ms")


def find(kernel: Kernel, name: str) -> Objective:
    """Return an objective by its name; UsageError for an unknown name, or a metric without direction."""
    common = {objective.name: objective for objective in (TIME, ENERGY, EDP)}
    if name in common:
        return common[name]
    if name not in kernel.metrics:
        raise UsageError(unknown("objective", name, (*OBJECTIVES, *kernel.metrics)))
    metric = kernel.metrics[name]
    if not metric.better:
        raise UsageError(
            f"{kernel.name}: the metric {name} does not say which way is better; declare it with "
            f'@{kernel.name}.metric(better="higher"), or "lower"'
        )
    return Objective(name, metric.better == "higher", metric.needs_energy)


def require(objective: Objective, device: Device, why_no_energy: str) -> None:
    """Raise DeviceError if an objective needs energy and the device has no counter."""
    if objective.needs_energy and why_no_energy:
        raise DeviceError(
            f"the objective {objective.name} needs the energy of {device.name} "
            f"({device.selector}): {why_no_energy}; tune for time there"
        )


@dataclass(frozen=True)
class Scoring:
    """The costs of measurements by one objective, on one kernel, problem and device."""

    objective: Objective
    kernel: Kernel
    problem: Problem
    device: Device

    def with_metrics(self, measurement: Measurement) -> Measurement:
        """Return a measurement with the kernel's metrics."""
        if not self.kernel.metrics or measurement.median_ms is None:
            return measurement
        known = quantities(measurement)
        found = {
            name: self.kernel.metric_of(
                metric, measurement.configuration, self.problem, self.device, known
            )
            for name, metric in self.kernel.metrics.items()
        }
        return replace(
            measurement, metrics={n: value for n, value in found.items() if value is not None}
        )

    def cost(self, measurement: Measurement) -> float | None:
        """Return the cost, None where unknown; SpecError for a metric of 0 or less, as ratios need more."""
        value = self.value(measurement)
        if value is None:
            return None
        if not value > 0 or value == math.inf:
            raise SpecError(
                f"{self.kernel.name}: the objective {self.objective.name} is {value:g} for "
                f"{measurement.configuration}; it must be above 0"
            )
        return 1 / value if self.objective.higher_is_better else value

    def value(self, measurement: Measurement) -> float | None:
        """Return the objective's value; None where unknown."""
        time_ms, name = measurement.median_ms, self.objective.name
        if time_ms is None:
            return None
        if name in OBJECTIVES:
            return self.objective.of(time_ms, measurement.energy)
        return self.with_metrics(measurement).metrics.get(name)

    def scored(self, measurement: Measurement) -> Measurement:
        """Return a measurement with its cost for a search; see `Measurement.cost`."""
        score = None if self.objective.uses_times else self.cost(measurement)
        return replace(measurement, score=score)

    def costs(
        self, measurement: Measurement, samples_ms: Sequence[float], energies: Sequence[Energy]
    ) -> tuple[float, ...]:
        """Return the cost of every round of a race: of its time, or of its energy at the median time."""
        if self.objective.needs_energy:
            of_all = (median(samples_ms),)
            rounds = [replace(measurement, samples_ms=of_all, energy=each) for each in energies]
        else:
            rounds = [replace(measurement, samples_ms=(time_ms,)) for time_ms in samples_ms]
        found = (self.cost(each) for each in rounds)
        return tuple(cost for cost in found if cost is not None)


def quantities(measurement: Measurement) -> dict[str, float]:
    """Return the known quantities of a measurement by the names that metrics take."""
    function, energy = measurement.largest_function, measurement.energy
    found = {
        "time_ms": measurement.median_ms,
        "energy_mj": measurement.energy_mj,
        "power_w": energy.power_w if energy and energy.calls else None,
        "registers": function.registers,
        "spill_bytes": function.spill_bytes,
        "shared_bytes": measurement.shared_bytes,
    }
    return {name: number for name, number in found.items() if number is not None}


def front(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the Pareto front of time and energy, fastest first, of measurements in full."""
    known = [
        (row.median_ms, row.energy_mj, row)
        for row in measured
        if row.status is Status.OK and row.median_ms is not None and row.energy_mj is not None
    ]
    best: list[Measurement] = []
    least_mj = math.inf
    for _, energy_mj, row in sorted(known, key=lambda each: each[:2]):
        if energy_mj < least_mj:
            best.append(row)
            least_mj = energy_mj
    return best

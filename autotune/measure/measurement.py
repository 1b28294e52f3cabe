"""The measurement of one configuration: status, resources, errors, times, and cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import median

from autotune.devices.base import CompiledFunction
from autotune.devices.device import UNKNOWN_CLOCKS, Clocks, Device
from autotune.errors import DeviceError, UsageError, unknown
from autotune.kernel.declaration import OBJECTIVES
from autotune.kernel.spec import Kernel
from autotune.values import Configuration, Problem


class Status(StrEnum):
    """The result of trying one configuration. All but `OK` and a timed `PENDING` have a message."""

    OK = "ok"
    #: Timed while no reference was evaluated; the outputs were compared with those of another configuration.
    #: Not timed if they differ.
    PENDING = "pending"
    #: Timed only until it was clearly slower than the best.
    STOPPED_EARLY = "stopped_early"
    #: Needs more of a resource than the device has; nothing was launched.
    PRUNED = "pruned"
    COMPILE_FAILED = "compile_failed"
    LAUNCH_FAILED = "launch_failed"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    #: The worker process died, or the device context was lost.
    CRASHED = "crashed"
    #: Faster than the device can move the bytes or do the arithmetic.
    IMPLAUSIBLE = "implausible"
    #: Correct, but compute-sanitizer found a fault: an access, a race, a barrier.
    UNSAFE = "unsafe"
    #: Correct and declared deterministic, but a second run on the same data gave other bits.
    NOT_DETERMINISTIC = "not_deterministic"

    @property
    def is_timed(self) -> bool:
        """True if a time of this status can be compared with others."""
        return self in (Status.OK, Status.STOPPED_EARLY)


@dataclass(frozen=True)
class CheckResult:
    """The error of one output on one data set, against the float64 reference."""

    output: str
    #: ``exact`` (compared bit for bit) or ``random`` (compared with a bound).
    dataset: str
    max_error: float
    rms_error: float
    bound: float
    #: Flat index of the first wrong element; None if the output is correct.
    first_wrong: int | None = None

    @property
    def is_correct(self) -> bool:
        return self.first_wrong is None


@dataclass(frozen=True)
class Energy:
    """The energy of one call: mean power times time, over a window of calls back to back.

    See docs/timing.md. ``calls`` is 0 if no window was measured. The energy is then a lower bound,
    from the power of the idle device.
    """

    #: Millijoules per call, including the draw of the idle device.
    call_mj: float
    #: Mean power of the whole board over the window.
    power_w: float
    calls: int = 0
    window_s: float = 0.0
    #: Power limit of the device in watts; None if unknown.
    limit_w: float | None = None
    #: Clocks at the end of the window, under load.
    clocks: Clocks = UNKNOWN_CLOCKS


@dataclass(frozen=True)
class Measurement:
    """The measurement of one configuration on one problem and one device."""

    configuration: Configuration
    status: Status
    #: One line for the user; empty if there is nothing to report.
    message: str = ""
    #: Milliseconds of each launch sequence, without the first, which is discarded.
    samples_ms: tuple[float, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    entries: tuple[CompiledFunction, ...] = ()
    #: Dynamic shared memory per block, the largest of all launches.
    dynamic_shared_bytes: int = 0
    #: Key of the binary. Configurations of equal binary and launch share one measurement.
    binary_key: str = ""
    compile_s: float = 0.0
    verify_s: float = 0.0
    measure_s: float = 0.0
    clocks: Clocks = UNKNOWN_CLOCKS
    #: Empty in a replay.
    device_uuid: str = ""
    #: How the samples were launched: ``graph`` or ``stream``; empty if nothing was timed.
    launched_by: str = ""
    #: Energy of one call; None if not measured.
    energy: Energy | None = None
    #: The kernel's own metrics by name.
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    #: Cost by an `Objective` other than the time; see `cost`.
    score: float | None = None

    def verified(self, found: Measurement) -> Measurement:
        """Return a pending measurement with the result of a later verification."""
        return replace(self, status=found.status, message=found.message, checks=found.checks)

    @property
    def median_ms(self) -> float | None:
        """Median of the samples; None if nothing comparable was timed."""
        return median(self.samples_ms) if self.samples_ms and self.status.is_timed else None

    @property
    def cost(self) -> float | None:
        """Number that a search minimises: the median time, or the cost by an `Objective`.

        None if nothing comparable was timed. Only a search uses the cost of a pending measurement.
        """
        if self.status is Status.PENDING:
            return median(self.samples_ms) if self.samples_ms else None
        if self.score is None:
            return self.median_ms
        return self.score if self.status.is_timed else None

    @property
    def energy_mj(self) -> float | None:
        """Energy of one call in millijoules; None if not measured."""
        return self.energy.call_mj if self.energy and self.energy.calls else None

    @property
    def max_error(self) -> float | None:
        """Largest absolute error over outputs and data sets; None if nothing was checked."""
        return max((check.max_error for check in self.checks), default=None)

    @property
    def largest_function(self) -> CompiledFunction:
        """Function with the most registers; one without data if nothing was compiled."""
        return max(
            self.entries,
            key=lambda function: function.registers or 0,
            default=CompiledFunction(""),
        )

    @property
    def shared_bytes(self) -> int | None:
        """Static and dynamic shared memory of one block; None if unknown."""
        static, dynamic = self.largest_function.shared_bytes, self.dynamic_shared_bytes
        return None if static is None and not dynamic else (static or 0) + dynamic


@dataclass(frozen=True)
class Objective:
    """The quantity that a search minimises: ``time``, ``energy``, or their product ``edp``."""

    name: str
    unit: str

    @property
    def needs_energy(self) -> bool:
        """True if energy must be measured. Portfolios and records of other devices, which have times, do not help."""
        return self.name != "time"

    @property
    def finals_share(self) -> float:
        """Share of a run's time that is reserved for the finals: an energy window takes half a second."""
        return 0.4 if self.needs_energy else 0.15

    @property
    def label(self) -> str:
        """Name to print; empty for time, the default."""
        return self.name if self.needs_energy else ""

    def folder(self, out: Path) -> Path:
        """Return the default folder of a run's files: all records of a folder have the same objective."""
        return Path(f"{out}-{self.name}") if self.needs_energy else out

    def of(self, time_ms: float, energy: Energy | None) -> float | None:
        """Return the cost; None if energy is missing."""
        if not self.needs_energy:
            return time_ms
        return energy.call_mj * (time_ms if self.name == "edp" else 1.0) if energy else None

    def cost(self, measurement: Measurement) -> float | None:
        """Return the cost of a measurement, None if unknown."""
        time_ms = measurement.median_ms
        return None if time_ms is None else self.of(time_ms, measurement.energy)

    def scored(self, measurement: Measurement) -> Measurement:
        """Return a measurement with its cost for a search; see `Measurement.cost`."""
        return (
            replace(measurement, score=self.cost(measurement)) if self.needs_energy else measurement
        )

    def costs(self, times_ms: Sequence[float], energies: Sequence[Energy]) -> Sequence[float]:
        """Return the cost of each round of a race, from its time, or from its energy and the median time."""
        if not self.needs_energy:
            return times_ms
        found = (self.of(median(times_ms), energy) for energy in energies)
        return tuple(cost for cost in found if cost is not None)


TIME = Objective("time", "ms")
ENERGY = Objective("energy", "mJ")
EDP = Objective("edp", "mJ ms")


def find_objective(name: str) -> Objective:
    """Return an objective by its name; UsageError for an unknown name."""
    known = {objective.name: objective for objective in (TIME, ENERGY, EDP)}
    if name not in known:
        raise UsageError(unknown("objective", name, OBJECTIVES))
    return known[name]


def require(objective: Objective, device: Device, why_no_energy: str) -> None:
    """Raise DeviceError if an objective needs energy and the device has no counter."""
    if objective.needs_energy and why_no_energy:
        raise DeviceError(
            f"the objective {objective.name} needs the energy of {device.name} "
            f"({device.selector}): {why_no_energy}; tune for time there"
        )


def with_metrics(
    measurement: Measurement, kernel: Kernel, problem: Problem, device: Device
) -> Measurement:
    """Return a measurement with the kernel's metrics, computed from the known quantities."""
    if not kernel.metrics or measurement.median_ms is None:
        return measurement
    function, energy = measurement.largest_function, measurement.energy
    quantities = {
        "time_ms": measurement.median_ms,
        "energy_mj": measurement.energy_mj,
        "power_w": energy.power_w if energy and energy.calls else None,
        "registers": function.registers,
        "spill_bytes": function.spill_bytes,
        "shared_bytes": measurement.shared_bytes,
    }
    known = {name: number for name, number in quantities.items() if number is not None}
    found = {
        name: kernel.metric_of(name, measurement.configuration, problem, device, known)
        for name in kernel.metrics
    }
    return replace(
        measurement, metrics={n: value for n, value in found.items() if value is not None}
    )


def front(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the Pareto front of time and energy among complete measurements, fastest first."""
    known = [
        (row.median_ms, row.energy_mj, row)
        for row in measured
        if row.status is Status.OK and row.median_ms is not None and row.energy_mj is not None
    ]
    best: list[Measurement] = []
    least_mj = math.inf
    for _, energy_mj, row in sorted(known, key=lambda entry: entry[:2]):
        if energy_mj < least_mj:
            best.append(row)
            least_mj = energy_mj
    return best

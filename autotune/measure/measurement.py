"""The measurement of one configuration: status, resources, errors and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from autotune.devices.base import CompiledFunction
from autotune.devices.device import UNKNOWN_CLOCKS, Clocks
from autotune.values import Configuration


class Status(StrEnum):
    """The result of trying one configuration. All but `OK` carry a message."""

    OK = "ok"
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
    #: Right, but compute-sanitizer found a fault: an access, a race, a barrier.
    UNSAFE = "unsafe"
    #: Right, but other bits in another run on the same data, though declared deterministic.
    NOT_DETERMINISTIC = "not_deterministic"

    @property
    def is_timed(self) -> bool:
        """A time of this status can be compared with others."""
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
    #: Flat index of the first wrong element; None where the output is right.
    first_wrong: int | None = None

    @property
    def is_right(self) -> bool:
        return self.first_wrong is None


@dataclass(frozen=True)
class Energy:
    """The energy of one call: mean power times time, over a window of calls back to back.

    See docs/timing.md. ``calls`` is 0 where no window was measured. The energy is then a lower bound,
    from the power of the idle device.
    """

    #: Per call, in millijoules, the draw of the idle device included.
    call_mj: float
    #: Mean over the window, of the whole board.
    power_w: float
    calls: int = 0
    window_s: float = 0.0
    #: Power limit of the device; None where unknown.
    limit_w: float | None = None
    #: Read at the end of the window, under load.
    clocks: Clocks = UNKNOWN_CLOCKS


@dataclass(frozen=True)
class Measurement:
    """The measurement of one configuration on one problem and one device."""

    configuration: Configuration
    status: Status
    #: One line for a person; empty when all is well.
    message: str = ""
    #: Time of each launch sequence in milliseconds, without the first, discarded one.
    samples_ms: tuple[float, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    entries: tuple[CompiledFunction, ...] = ()
    #: Dynamic shared memory of the main launch, per block.
    dynamic_shared_bytes: int = 0
    #: Key of the binary it ran; equal binary and launch share one measurement.
    binary_key: str = ""
    compile_s: float = 0.0
    verify_s: float = 0.0
    measure_s: float = 0.0
    clocks: Clocks = UNKNOWN_CLOCKS
    #: Empty in a replay.
    device_uuid: str = ""
    #: Milliseconds per call of calls back to back, from warm caches. For information; empty where not
    #: taken.
    hot_samples_ms: tuple[float, ...] = ()
    #: Launching of the samples, ``graph`` or ``stream``; empty where nothing was timed.
    launched_by: str = ""
    #: Milliseconds that timing itself adds to a sample; samples are without it.
    overhead_ms: float = 0.0
    #: None where not measured.
    energy: Energy | None = None
    #: The kernel's own metrics by name.
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    #: The cost where that is not the median; see `cost`.
    score: float | None = None

    @property
    def median_ms(self) -> float | None:
        """Median of the samples; None where nothing comparable was timed."""
        return median(self.samples_ms) if self.samples_ms and self.status.is_timed else None

    @property
    def cost(self) -> float | None:
        """Number that a search minimises; None where nothing comparable was timed.

        The median, or the cost by the objective; see `autotune.measure.objective`.
        """
        if self.score is None:
            return self.median_ms
        return self.score if self.status.is_timed else None

    @property
    def energy_mj(self) -> float | None:
        """Energy of one call in millijoules; None where not measured."""
        return self.energy.call_mj if self.energy and self.energy.calls else None

    @property
    def hot_median_ms(self) -> float | None:
        """Median of the hot samples; None where there are none."""
        return median(self.hot_samples_ms) if self.hot_samples_ms else None

    @property
    def max_error(self) -> float | None:
        """Largest absolute error over outputs and data sets; None where nothing was checked."""
        return max((check.max_error for check in self.checks), default=None)

    @property
    def largest_function(self) -> CompiledFunction:
        """Function with most registers; an empty one where nothing was compiled."""
        return max(
            self.entries,
            key=lambda function: function.registers or 0,
            default=CompiledFunction(""),
        )

    @property
    def shared_bytes(self) -> int | None:
        """Static and dynamic shared memory of one block; None where unknown."""
        static, dynamic = self.largest_function.shared_bytes, self.dynamic_shared_bytes
        return None if static is None and not dynamic else (static or 0) + dynamic

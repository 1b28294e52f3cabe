"""What a device can do at best, and whether a time is possible at all.

Knows formulas, not how anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.devices.device import Device
from autotune.kernel.spec import Work

#: A time this far below the bound is a broken measurement rather than a rounding of the peak.
_MARGIN = 0.97
#: Below this share of the peak something else used or slowed the device. Known devices reach 0.85.
_LEAST_OF_PEAK = 0.5
#: The names of the limits, and of their rates.
FIELDS = {"read": "read_gb_per_s", "copy": "copy_gb_per_s", "ffma": "ffma_gflop_per_s"}


@dataclass(frozen=True)
class Limits:
    """What a device was measured to reach; None where that is not known."""

    read_gb_per_s: float | None = None
    #: Bytes read plus bytes written.
    copy_gb_per_s: float | None = None
    ffma_gflop_per_s: float | None = None
    #: By name of the limit: the configuration that reached it, and the record that says so.
    reached_by: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, float | None]:
        """The rates by name of the limit."""
        return {name: getattr(self, rate) for name, rate in FIELDS.items()}


def least_ms(work: Work, device: Device) -> float:
    """Time below which no implementation can do the work from a cold L2 cache, in milliseconds.

    The larger of arithmetic at the peak of its pipe and traffic at the peak of the memory, where
    what stays in L2 need not have reached memory yet (roofline: Williams, Waterman & Patterson,
    CACM 52(4), 2009). 0 where the device does not know its peaks.
    """
    times = [0.0]
    if device.peak_gflop_per_s and work.pipe == "fp32":
        times.append(work.flops / device.peak_gflop_per_s / 1e6)
    if device.peak_gb_per_s:
        written = max(0.0, work.bytes_written - device.l2_bytes)
        times.append((work.bytes_read + written) / device.peak_gb_per_s / 1e6)
    return max(times)


def fits_cache(work: Work | None, device: Device) -> bool:
    """Whether a GPU's L2 cache has room for all that a call reads and writes, as far as that is known."""
    if work is None or not device.leaves_host_free:
        return False
    return work.bytes_read + work.bytes_written <= device.l2_bytes


def implausible(median_ms: float, work: Work, device: Device, cold: bool) -> str:
    """Why a time cannot be true; empty where it can.

    Times that are not of flushed caches may beat the memory: inputs can be in L2.
    """
    bound = _MARGIN * least_ms(work, device)
    if not cold or median_ms >= bound:
        return ""
    return (
        f"{median_ms:.4g} ms is below the device's bound of {bound:.4g} ms for this work; "
        "the kernel skips work, or the work function overstates it"
    )


def share(
    work: Work, median_ms: float, measured: Limits | None, device: Device
) -> tuple[float | None, str | None]:
    """Share of the device's measured limit that a time reaches, and the limit that binds.

    The limit is the longer of moving the bytes at the measured rate and doing the arithmetic at
    the measured FFMA rate. Work that only reads is held against the read rate. None where the limit
    that binds is not known; where only the FFMA rate is not, the device's peak says whether it binds.
    """
    rates = (measured or Limits()).rates
    only_reads = work.bytes_written < work.bytes_read / 100
    name = "read" if only_reads else "copy"
    memory, arithmetic = rates[name], rates["ffma"]
    if memory is None:
        return None, None
    times = {name: (work.bytes_read + work.bytes_written) / memory / 1e6}
    if work.pipe == "fp32" and work.flops:
        least = _LEAST_OF_PEAK * device.peak_gflop_per_s
        if arithmetic is None and (not least or work.flops / least / 1e6 > times[name]):
            return None, None
        if arithmetic is not None:
            times["ffma"] = work.flops / arithmetic / 1e6
    binding = max(times, key=lambda limit: times[limit])
    return times[binding] / median_ms, binding


def credible(limits: Limits, device: Device) -> tuple[Limits, tuple[str, ...]]:
    """Limits without the rates that cannot be true or were not the device's best, and why each went.

    Above the peak a kernel skips work, or the driver reports wrong clocks; far below it, something
    else used or slowed the device. A device that does not know its peaks is believed.
    """
    peaks = {"read": device.peak_gb_per_s, "copy": device.peak_gb_per_s}
    peaks["ffma"] = device.peak_gflop_per_s
    doubts = {}
    for name, rate in limits.rates.items():
        if rate is None or not peaks[name]:
            continue
        reached = rate / peaks[name]
        if reached > 1 / _MARGIN:
            doubts[name] = (
                f"the {name} limit is recorded at {reached:.2f} times the device's peak; the driver "
                "reports wrong clocks, or the kernel skips work; run: nvidia-smi -q -d CLOCK"
            )
        elif reached < _LEAST_OF_PEAK:
            doubts[name] = (
                f"the {name} limit is recorded at {reached:.0%} of the device's peak: something else "
                "used or slowed it; run: autotune doctor, then autotune doctor --limits"
            )
    gone: dict[str, Any] = {FIELDS[name]: None for name in doubts}
    return replace(limits, **gone), tuple(
        f"{device.name}: {doubt}; not used" for doubt in doubts.values()
    )

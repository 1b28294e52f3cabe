"""Computes the limit of a device for some work, the least time, and whether a measured time is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from autotune.devices.device import Device
from autotune.kernel.spec import Work
from autotune.measure.timing import Caches

#: A time below this share of the bound is a wrong measurement, not a rounding of the peak.
_MARGIN = 0.97
#: FLOP per byte below which memory limits a kernel, if no rates are known; the peaks of a V100 have 17.
_MEMORY_BOUND = 8.0
#: A smaller share of the peak means that another program used or slowed the device. Known devices reach 0.85.
_LEAST_OF_PEAK = 0.5
#: Measured rates of a device: ``read`` and ``copy`` (read plus written) in GB/s, arithmetic in GFLOP/s.
Limits: TypeAlias = Mapping[str, float]
#: Name of the rate that limits the arithmetic of a pipe; other pipes have no measured rate.
_RATE_OF_PIPE = {"fp32": "ffma", "tensor": "tensor"}
#: Names of arithmetic rates; all other rates are of memory.
ARITHMETIC = tuple(_RATE_OF_PIPE.values())
#: Name of the limit of work that reads more than it writes, but writes too.
READ_AND_COPY = "read+copy"
#: Names of all limits; see `device_limit`.
LIMITS = ("read", "copy", READ_AND_COPY, *ARITHMETIC)
#: Work whose copied bytes, or whose bytes that are only read, are less than this share counts as pure.
_PURE = 0.02


@dataclass(frozen=True)
class DeviceLimit:
    """The measured limit of a device for some work: a name of `LIMITS`, and the least milliseconds."""

    name: str
    least_ms: float

    def share(self, median_ms: float) -> float:
        """Return the share of the limit that a time reaches."""
        return self.least_ms / median_ms


def least_ms(work: Work, device: Device) -> float:
    """Return the least milliseconds of any implementation with a cold L2 cache.

    This is the larger of arithmetic at the peak of its pipe and traffic at the peak of the memory;
    written bytes may stay in L2 (roofline: Williams, Waterman & Patterson, CACM 52(4), 2009).
    It is 0 if the device's peaks are unknown.
    """
    times = [0.0]
    if device.peak_gflop_per_s and work.pipe == "fp32":
        times.append(work.flops / device.peak_gflop_per_s / 1e6)
    if device.peak_gb_per_s:
        written = max(0.0, work.bytes_written - device.l2_bytes)
        times.append((work.bytes_read + written) / device.peak_gb_per_s / 1e6)
    return max(times)


def deciding_caches(work: Work | None, device: Device) -> Caches:
    """Return the contents of the caches before the calls that decide the winner.

    Mixed if a GPU's L2 cache has room for all bytes that a call reads and writes, else cold.
    """
    if work is None or not device.is_cuda:
        return Caches.COLD
    fits = work.bytes_read + work.bytes_written <= device.l2_bytes
    return Caches.MIXED if fits else Caches.COLD


def implausible(median_ms: float, work: Work, device: Device, cold: bool) -> str:
    """Return why a time is impossible; empty if it is possible.

    Only times with cold caches are judged, because otherwise inputs may be in L2.
    """
    bound = _MARGIN * least_ms(work, device)
    if not cold or median_ms >= bound:
        return ""
    return (
        f"{median_ms:.4g} ms is below the device's bound of {bound:.4g} ms for this work; "
        "the kernel skips work, or the work function overstates it"
    )


def device_limit(work: Work, limits: Limits, caches: Caches) -> DeviceLimit | None:
    """Return the limit that every table, figure and page compares a time with; None if it is unknown.

    It is the longer of the times to move the bytes (`memory_limit`) and to do the arithmetic, at measured
    rates, without the launch. It is unknown if one of the rates is. A memory limit applies to cold times
    only, because otherwise inputs may be in L2.
    """
    memory, rate = memory_limit(work, limits), _RATE_OF_PIPE.get(work.pipe, "")
    if memory is None or (work.flops and rate not in limits):
        return None
    arithmetic = DeviceLimit(rate, work.flops / limits[rate] / 1e6) if work.flops else memory
    binding = max(memory, arithmetic, key=lambda limit: limit.least_ms)
    return binding if binding.name in ARITHMETIC or caches is Caches.COLD else None


def memory_limit(work: Work, limits: Limits) -> DeviceLimit | None:
    """Return the limit of the memory for this mix of reads and writes; None if it is unknown.

    Reads alone are faster than a copy (4628 and 4275 GB/s on an H200), so neither rate is the limit of all
    kernels: a reduction exceeds the rate of a copy, and a copy never reaches that of reads. Written bytes and
    as many read bytes move at the rate of a copy, further read bytes at the rate of reads, further written
    bytes at the rate of a copy. Work that only writes has no limit, because that rate is not measured.
    """
    moved, copied = (
        work.bytes_read + work.bytes_written,
        2 * min(work.bytes_read, work.bytes_written),
    )
    if work.bytes_written >= work.bytes_read or moved - copied < _PURE * moved:
        name, amounts = "copy", {"copy": moved}
    elif copied < _PURE * moved:
        name, amounts = "read", {"read": moved}
    else:
        name, amounts = READ_AND_COPY, {"copy": copied, "read": moved - copied}
    if (moved and not work.bytes_read) or not amounts.keys() <= limits.keys():
        return None
    return DeviceLimit(name, sum(amounts[rate] / limits[rate] for rate in amounts) / 1e6)


def is_memory_bound(work: Work, limits: Limits) -> bool:
    """Return whether moving the bytes takes longer than the arithmetic, at measured rates if known."""
    if work.flops and work.pipe != "fp32" and _RATE_OF_PIPE.get(work.pipe) not in limits:
        return False  # the peak of this pipe is unknown, too
    moved = work.bytes_read + work.bytes_written
    if limit := device_limit(work, limits, Caches.COLD):
        return limit.name not in ARITHMETIC
    return bool(moved) and work.flops / moved < _MEMORY_BOUND


def credible(limits: Limits, device: Device) -> tuple[Limits, tuple[str, ...]]:
    """Return the limits without rates that are too high or too low, and why each was removed."""
    memory, arithmetic = device.peak_gb_per_s, device.peak_gflop_per_s
    peaks = {"read": memory, "copy": memory, "ffma": arithmetic}
    # Drivers do not report the peak of tensor cores.
    shares = {name: rate / peaks[name] for name, rate in limits.items() if peaks.get(name)}
    doubts = {
        name: f"{device.name}: the {name} limit is recorded at {reached:.2f} times the device's peak "
        "and not used; the driver reports wrong clocks, or another program used the device; run: "
        "autotune doctor, then autotune doctor --limits"
        for name, reached in shares.items()
        if not _LEAST_OF_PEAK <= reached <= 1 / _MARGIN
    }
    kept = {name: rate for name, rate in limits.items() if name not in doubts}
    return kept, tuple(doubts.values())

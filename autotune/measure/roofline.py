"""Computes the least time of a device for some work, and whether a measured time is possible."""

from __future__ import annotations

from collections.abc import Mapping
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


def share(work: Work, median_ms: float, limits: Limits) -> tuple[float | None, str | None]:
    """Return the share of the device's measured limit that a time reaches, and the name of the limit.

    The limit is the longer of the times to move the bytes and to do the arithmetic, at measured rates.
    Work that only reads is compared with the read rate. Both results are None if a rate is unknown.
    Arithmetic of pipes other than FP32 is left out if its rate is unknown.
    """
    only_reads = work.bytes_written < work.bytes_read / 100
    amounts = {"read" if only_reads else "copy": work.bytes_read + work.bytes_written}
    if work.flops and (work.pipe == "fp32" or _RATE_OF_PIPE.get(work.pipe) in limits):
        amounts[_RATE_OF_PIPE[work.pipe]] = work.flops
    if not amounts.keys() <= limits.keys():
        return None, None
    times = {name: amount / limits[name] / 1e6 for name, amount in amounts.items()}
    binding = max(times, key=lambda limit: times[limit])
    return times[binding] / median_ms, binding


def is_memory_bound(work: Work, limits: Limits) -> bool:
    """Return whether moving the bytes takes longer than the arithmetic, at measured rates if known."""
    if work.flops and work.pipe != "fp32" and _RATE_OF_PIPE.get(work.pipe) not in limits:
        return False  # the peak of this pipe is unknown, too
    moved = work.bytes_read + work.bytes_written
    _, binding = share(work, 1.0, limits)
    if binding:
        return binding not in ARITHMETIC
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

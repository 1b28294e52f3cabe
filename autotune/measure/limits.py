"""What a device can do at best, and whether a time is possible at all.

Knows formulas, not how anything is measured.
"""

from __future__ import annotations

from autotune.devices.device import Device
from autotune.kernel.spec import Work
from autotune.measure.probe import MeasuredLimits

#: A time this far below the bound is a broken measurement rather than a rounding of the peak.
_MARGIN = 0.97


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


def implausible(median_ms: float, work: Work, device: Device, cold: bool) -> str:
    """Why a time cannot be true; empty where it can.

    Hot times may beat the memory: their inputs can be in L2.
    """
    bound = _MARGIN * least_ms(work, device)
    if not cold or median_ms >= bound:
        return ""
    return (
        f"{median_ms:.4g} ms is below the device's bound of {bound:.4g} ms for this work; "
        "the kernel skips work, or the work function overstates it"
    )


def share(
    work: Work, median_ms: float, measured: MeasuredLimits | None
) -> tuple[float | None, str | None]:
    """Share of the device's measured limit that a time reaches, and the limit that binds.

    The limit is the longer of moving the bytes at the measured rate and doing the arithmetic at
    the measured FFMA rate. Work that only reads is held against the read rate.
    """
    if measured is None:
        return None, None
    only_reads = work.bytes_written < work.bytes_read / 100
    name, rate = (
        ("read", measured.read_gb_per_s) if only_reads else ("copy", measured.copy_gb_per_s)
    )
    times = {name: (work.bytes_read + work.bytes_written) / rate / 1e6}
    if work.pipe == "fp32":
        times["ffma"] = work.flops / measured.ffma_gflop_per_s / 1e6
    binding = max(times, key=lambda one: times[one])
    return times[binding] / median_ms, binding

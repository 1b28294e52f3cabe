"""Computes how fast a device can be at best, and whether a measured time is possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.devices.device import Device
from autotune.kernel.spec import Work

#: A time below this share of the bound is a wrong measurement, not a rounding of the peak.
_MARGIN = 0.97
#: Below this share of the peak something else used or slowed the device. Known devices reach 0.85.
_LEAST_OF_PEAK = 0.5
#: The names of the limits, and of their rates.
FIELDS = {"read": "read_gb_per_s", "copy": "copy_gb_per_s", "ffma": "ffma_gflop_per_s"}


@dataclass(frozen=True)
class Limits:
    """The measured limits of a device; None where unknown."""

    read_gb_per_s: float | None = None
    #: Bytes read plus bytes written.
    copy_gb_per_s: float | None = None
    ffma_gflop_per_s: float | None = None
    #: By name of the limit: the configuration that reached it, and the record that holds it.
    reached_by: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, float | None]:
        """Rates by name of the limit."""
        return {name: getattr(self, rate) for name, rate in FIELDS.items()}


def least_ms(work: Work, device: Device) -> float:
    """Return the least milliseconds that any implementation needs from a cold L2 cache.

    This is the larger of arithmetic at the peak of its pipe and traffic at the peak of the memory;
    written bytes may stay in L2 (roofline: Williams, Waterman & Patterson, CACM 52(4), 2009).
    It is 0 where the device's peaks are unknown.
    """
    times = [0.0]
    if device.peak_gflop_per_s and work.pipe == "fp32":
        times.append(work.flops / device.peak_gflop_per_s / 1e6)
    if device.peak_gb_per_s:
        written = max(0.0, work.bytes_written - device.l2_bytes)
        times.append((work.bytes_read + written) / device.peak_gb_per_s / 1e6)
    return max(times)


def fits_cache(work: Work | None, device: Device) -> bool:
    """Return whether a GPU's L2 cache has room for all bytes of a call; False where unknown."""
    if work is None or not device.leaves_host_free:
        return False
    return work.bytes_read + work.bytes_written <= device.l2_bytes


def implausible(median_ms: float, work: Work, device: Device, cold: bool) -> str:
    """Return why a time cannot be true, or an empty text.

    Only times from flushed caches can be judged: otherwise inputs may be in L2.
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
    """Return the share of the device's measured limit that a time reaches, and the name of the limit.

    The limit is the longer time of moving the bytes and of doing the arithmetic, at measured rates.
    Work that only reads is compared with the read rate. Both results are None where the limit is
    unknown. Where only the FFMA rate is, the device's peak shows whether arithmetic is the limit.
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
    """Return the limits without the rates that are too high or too low, and why each was removed.

    A rate above the peak means that the kernel skips work or the driver reports wrong clocks. A rate
    far below the peak means that something else used or slowed the device.
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

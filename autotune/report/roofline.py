"""Where each problem lies below what the device can do. Numbers only.

Knows records; lays nothing out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.report.content import ReportContent
from autotune.tuned.record import TunedProblem
from autotune.values import Problem


@dataclass(frozen=True)
class Roof:
    """A rate that the device cannot pass."""

    #: GB/s of a bandwidth, GFLOP/s of arithmetic.
    rate: float
    #: Name of the measured limit: ``read``, ``copy`` or ``ffma``; empty for a peak by clocks.
    limit_name: str = ""


@dataclass(frozen=True)
class Point:
    """One problem's winner: its work per launch sequence, and its time."""

    problem: Problem
    #: Bytes read and written.
    moved_bytes: float
    #: Operations; 0 of a kernel that only moves data.
    operations: float
    median_ms: float
    #: None where there is none.
    vendor: str | None = None
    vendor_ms: float | None = None


@dataclass(frozen=True)
class Roofline:
    """All problems of one kernel below the roofs of one device."""

    points: tuple[Point, ...]
    bandwidth: Roof | None
    arithmetic: Roof | None

    @property
    def is_of_bytes(self) -> bool:
        """Return whether a problem does no arithmetic: then rates lie over bytes, not over intensity."""
        return not all(point.operations for point in self.points)


def roofline(content: ReportContent) -> Roofline | None:
    """The roofline of all problems; None where nothing is known to be below a roof.

    A roof is the largest of the measured limits that entries were held against, else the peak by
    clocks; a peak that an entry passes is not that kernel's, as FP32's is not where tensor cores
    multiply, and is left out.
    """
    entries = [problem.entry for problem in content.problems if problem.entry]
    points = tuple(_point(entry) for entry in entries if entry.gb_per_s)
    limits, device = measured_limits(entries), content.device
    bandwidth = _roof(
        {name: limits[name] for name in ("read", "copy") if name in limits},
        device.peak_gb_per_s,
        (entry.gb_per_s or 0 for entry in entries),
    )
    arithmetic = _roof(
        {name: limits[name] for name in ("ffma",) if name in limits},
        device.peak_gflop_per_s,
        (entry.gflop_per_s or 0 for entry in entries),
    )
    return Roofline(points, bandwidth, arithmetic) if points and (bandwidth or arithmetic) else None


def measured_limits(entries: Iterable[TunedProblem]) -> dict[str, list[float]]:
    """The limits of the device that entries were held against, by name: GB/s or GFLOP/s, ascending.

    A limit is an entry's rate over its share of that limit; entries of several runs or cards may
    have been held against several measurements of it.
    """
    reached: dict[str, list[float]] = {}
    for entry in entries:
        rate = entry.gflop_per_s if entry.limit_name == "ffma" else entry.gb_per_s
        if entry.limit_name and entry.limit_fraction and rate:
            reached.setdefault(entry.limit_name, []).append(rate / entry.limit_fraction)
    return {name: sorted(rates) for name, rates in reached.items()}


def _point(entry: TunedProblem) -> Point:
    seconds = entry.median_ms / 1e3
    return Point(
        Problem(dict(entry.problem)),
        moved_bytes=(entry.gb_per_s or 0) * 1e9 * seconds,
        operations=(entry.gflop_per_s or 0) * 1e9 * seconds,
        median_ms=entry.median_ms,
        vendor=entry.race.vendor_name if entry.race.speedup else None,
        vendor_ms=entry.median_ms * entry.race.speedup.value if entry.race.speedup else None,
    )


def _roof(measured: dict[str, list[float]], peak: float, rates: Iterable[float]) -> Roof | None:
    found = max(
        (Roof(rates[-1], name) for name, rates in measured.items()), key=_rate, default=None
    )
    return found or (Roof(peak) if peak and peak >= max(rates, default=0) else None)


def _rate(roof: Roof) -> float:
    return roof.rate

"""Measurements as flat rows, and the best of them, for `autotune results` and pandas frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autotune.measure.measurement import Measurement
from autotune.values import Problem

if TYPE_CHECKING:
    from autotune.store import Row, Store


def row_of(kernel: str, problem: Problem, measurement: Measurement, device: str) -> dict[str, Any]:
    """Return a measurement as plain values; a missing value is None.

    The keys are documented in ``docs/formats.md``.
    """
    error = measurement.max_error
    energy = measurement.energy if measurement.energy_mj is not None else None
    return {
        "kernel": kernel,
        "problem": dict(problem),
        "config": dict(measurement.configuration),
        "status": str(measurement.status),
        "median_ms": measurement.median_ms,
        "samples_ms": list(measurement.samples_ms),
        "launched_by": measurement.launched_by,
        "device": device,
        "message": measurement.message,
        # JSON has neither infinity nor NaN: both become None.
        "max_error": error if error is not None and error < float("inf") else None,
        "registers": measurement.largest_function.registers,
        "spill_bytes": measurement.largest_function.spill_bytes,
        "shared_bytes": (measurement.shared_bytes or 0) if measurement.entries else None,
        "compile_s": measurement.compile_s,
        "verify_s": measurement.verify_s,
        "measure_s": measurement.measure_s,
        "sm_mhz": measurement.clocks.sm_mhz,
        "energy_mj": measurement.energy_mj,
        "power_w": energy.power_w if energy else None,
        "power_limit_w": energy.limit_w if energy else None,
        "metrics": dict(measurement.metrics),
    }


def stored_row(row: Row) -> dict[str, Any]:
    """Return a row of the store as plain values, with its provenance."""
    return {
        **row_of(row.kernel, row.problem, row.measurement, row.device_name),
        "device_uuid": row.device_uuid,
        "arch": row.arch,
        "driver": row.driver,
        "toolchain": row.toolchain,
        "timing": row.timing,
        "strategy": row.strategy,
        "seed": row.seed,
        "run": row.run_id,
        "created": row.created,
        "source": row.source,
    }


def last_rows(rows: Iterable[Row]) -> list[Row]:
    """Return a run's last row of each configuration, in the order of the first rows.

    A configuration that the finals disqualified has two rows in a run: its time, then its failure.
    """
    return list(
        {(row.run_id, row.scope, row.measurement.configuration): row for row in rows}.values()
    )


def best_rows(store: Store, count: int, kernel: str | None, device: str | None) -> list[Row]:
    """Return the fastest correct rows of each problem, kernel, device and timing, in groups."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for last in store.newest_of_scopes(kernel, device):
        names = frozenset(last.measurement.configuration)  # two kernels may have the same name
        key = last.kernel, names, last.device_name, last.timing, last.problem
        groups.setdefault(key, []).extend(store.fastest(last.scope, count))
    return [
        row
        for group in groups.values()
        for row in sorted(group, key=lambda row: row.measurement.median_ms or 0.0)[:count]
    ]

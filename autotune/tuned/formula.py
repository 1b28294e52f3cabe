"""Predicts the time of a configuration for a problem, or on a device, that was never measured.

`autotune.tuned.prediction` fits the costs. Only operations that the exported header does bit for bit
alike: sums and products of doubles in one order, and integers of 64 bits. On another device blocks
come in other waves, as many at a time as its multiprocessors hold, and the times of a round and of
a wave stay. Scaling them by the devices' rates chose worse (docs/winners.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from autotune.kernel.expression import Json, value_of
from autotune.tuned.record import Cost, Grid, Plan, RecordedDevice, Term

if TYPE_CHECKING:
    from autotune.devices.device import Device

#: A cost of one device as that of another.
Move: TypeAlias = Callable[[Cost], Cost]
#: Shared memory that every block takes besides its own, since compute capability 8.0.
SYSTEM_SHARED_BYTES = 1024


def time_ms(cost: Cost, multiple: int, fields: Mapping[str, Any]) -> float:
    """Return the time for a problem whose integers have at most 64 bits.

    It raises `ValueError` if the grid is not known.
    """
    total = _sum_of(cost.fixed, fields)
    blocks = value_of(_blocks_of(cost.plan.grid), fields) if cost.waves else 0
    for slots, terms in cost.waves:
        total += -(-blocks // slots) * _sum_of(terms, fields)
    for name, factor in cost.misaligned.items():
        if fields[name] % multiple:
            total *= factor
    return total


def move_between(here: RecordedDevice, there: Any) -> Move | None:
    """Return what turns costs of one device into those of another; None where the devices are alike.

    Alike are devices with the same number of multiprocessors, and those of which too little is known.
    """
    there = there.planned_for() if isinstance(there, RecordedDevice) else there
    # A device of a table of architectures says that it has one multiprocessor.
    if min(here.sm_count, getattr(there, "sm_count", 1)) < 2 or here.sm_count == there.sm_count:
        return None
    return lambda cost: _rescheduled(cost, here.sm_count, there)


def _rescheduled(cost: Cost, sm_count: int, there: Device) -> Cost:
    """Return a cost in the rounds and waves of another device."""
    most = _resident_blocks(cost.plan, there)
    waves = tuple(
        (there.sm_count * max(1, min(slots // sm_count, most)), terms)
        for slots, terms in cost.waves
    )
    grid = cost.plan.grid and tuple(_with_tail_of(axis, sm_count, there) for axis in cost.plan.grid)
    plan = msgspec.structs.replace(cost.plan, grid=grid)
    return msgspec.structs.replace(cost, plan=plan, waves=waves)


def _with_tail_of(axis: Json, sm_count: int, there: Device) -> Json:
    """Return the blocks of a grid whose last wave has second blocks, for the last wave of another device."""
    match axis:
        case ["+", tiles, ["%", rest, int(wave)]] if tiles == rest and wave % sm_count == 0:
            return ["+", tiles, ["%", rest, wave // sm_count * there.sm_count]]
        case _:
            return axis


def _resident_blocks(plan: Plan, device: Device) -> int:
    """Return how many blocks of a plan a multiprocessor has threads and shared memory for."""
    by_threads = device.max_threads_per_sm // prod(plan.block)
    return min(by_threads, device.shared_bytes_per_sm // (plan.shared_bytes + SYSTEM_SHARED_BYTES))


def _sum_of(terms: Sequence[Term], fields: Mapping[str, Any]) -> float:
    total = 0.0
    for product, names in terms:
        for name in names:
            product *= fields[name]
        total += product
    return total


def waves_of(grid: Grid | None, slots: int) -> Json:
    """Return the stored expression of the waves that a grid takes where ``slots`` blocks run at a time."""
    return ["-", 0, ["//", ["-", 0, _blocks_of(grid)], slots]]


def _blocks_of(grid: Grid | None) -> Json:
    if grid is None:
        raise ValueError("a cost without grid")
    blocks: Json = 1
    for axis in grid:
        blocks = axis if blocks == 1 else blocks if axis == 1 else ["*", blocks, axis]
    return blocks

"""Computes the occupancy of a multiprocessor and the resources that limit it, without a device.

The formula and the numbers are from NVIDIA's ``cuda_occupancy.h`` (CUDA 13.0); the tests compare with it.
Named barriers are left out, because they limit only blocks that use more than two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.devices.device import Device

#: Maximum number of blocks of a multiprocessor by compute capability.
_MAX_BLOCKS = {75: 16, 80: 32, 86: 16, 87: 16, 89: 24, 90: 32, 100: 32, 103: 32, 120: 24, 121: 24}
#: Parts of a multiprocessor, each with its own registers and scheduler.
PARTS = 4
#: Registers are allocated to warps in multiples of this number.
_REGISTER_PIECE = 256


@dataclass(frozen=True)
class Occupancy:
    """The blocks and warps that are resident on one multiprocessor."""

    blocks: int
    warps: int
    max_warps: int
    #: Number of blocks that each resource allows.
    limits: Mapping[str, int]

    @property
    def share(self) -> float:
        """Resident warps as a share of the most warps of a multiprocessor."""
        return self.warps / self.max_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow no further block."""
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(device: Device, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """Return the theoretical occupancy of a block; None for an architecture without published limits."""
    most = _MAX_BLOCKS.get(device.compute_capability)
    if most is None or threads < 1:
        return None
    warps = _rounded_up(threads, device.warp_size) // device.warp_size
    max_warps = device.max_threads_per_sm // device.warp_size
    per_warp = _rounded_up(registers * device.warp_size, _REGISTER_PIECE)
    warps_by_registers = (
        PARTS * (device.registers_per_sm // PARTS // per_warp) if per_warp else max_warps
    )
    is_new = device.compute_capability >= 80
    # The driver keeps 1 KB of each block for itself from compute capability 8.0 on.
    shared = _rounded_up(shared_bytes + (1024 if is_new else 0), 128 if is_new else 256)
    limits = {
        "registers": warps_by_registers // warps,
        "shared memory": device.shared_bytes_per_sm // shared if shared else most,
        "threads": max_warps // warps,
        "blocks": most,
    }
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, max_warps, limits)


def bytes_to_fill(device: Device) -> int:
    """Return CUB's target for the bytes of loads in flight per multiprocessor: 64 KB on a B200, 32 KB on an H100."""
    least = {100: 64, 90: 32, 80: 16, 0: 12}
    return 1024 * next(kb for cc, kb in least.items() if device.compute_capability >= cc)


def attainable(share: float, device: Device) -> float:
    """Return the share of the FP32 peak that is possible with a share of FFMA instructions.

    Compute capability 7.5 and 8.0 have 64 lanes for four schedulers, so that every second clock is free
    for other instructions. Later devices have 128 lanes.
    """
    return min(1.0, share * (2 if device.compute_capability in (75, 80) else 1))


def _rounded_up(number: int, piece: int) -> int:
    return -(-number // piece) * piece

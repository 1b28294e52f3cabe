"""A device: its identity, its clocks, and the limits that decide which configurations can run.

Backends read these values from a live device. `for_arch` reads them from a table, to compile and plan without
a device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from autotune.errors import UsageError, unknown

#: Names of the backends.
BACKENDS = ("cuda", "opencl")
#: Architectures of OpenCL devices.
OPENCL_ARCHS = ("opencl_cpu", "opencl_gpu")
#: Maximum number of blocks of a grid in x, y and z. Source: CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability".
MAX_GRID = (2**31 - 1, 65535, 65535)
#: Maximum number of blocks of a cluster on every device that has clusters. Source: CUDA C++ Programming Guide,
#: "Thread Block Clusters".
MAX_CLUSTER = 8
#: Largest difference of the memory sizes of one chip, as a share. NVML counts memory that CUDA reserves, and ECC
#: takes a sixteenth of some memories. Models with less memory have at least a sixth less (H100 with 94 and 80 GB).
MEMORY_TOLERANCE = 0.1
#: Largest difference of the maximum clocks of one chip, as a share: manufacturers raise the clock of a chip by
#: a few per cent. The boards of another power class are slower by a tenth (H100 SXM 1980 MHz, PCIe 1755 MHz).
CLOCK_TOLERANCE = 0.05


class Chip(NamedTuple):
    """The key of a GPU: devices of one chip share records, whatever the driver calls them."""

    arch: str
    #: 1: unknown.
    multiprocessors: int = 1
    #: 0: unknown.
    memory_bytes: int = 0
    #: Maximum clock of a multiprocessor in MHz; 0: unknown.
    max_mhz: float = 0.0

    def difference(self, other: Chip) -> str:
        """Return how this chip differs from another one of the same name; empty if nothing known differs.

        The clock does not count: CUDA and NVML report different maximum clocks of some GPUs.
        """
        if "" not in (self.arch, other.arch) and self.arch != other.arch:
            return f"{self.arch}, not {other.arch}"
        counts = self.multiprocessors, other.multiprocessors
        if min(counts) > 1 and len(set(counts)) > 1:
            return "{} multiprocessors, not {}".format(*counts)
        if not _is_near(self.memory_bytes, other.memory_bytes, MEMORY_TOLERANCE):
            sizes = (round(chip.memory_bytes / 1e9) for chip in (self, other))
            return "{} GB of memory, not {}".format(*sizes)
        return ""

    def is_same(self, other: Chip) -> bool:
        """Return whether another device is known to have this chip, even if its name differs."""
        return (
            all((*self, *other))
            and min(self.multiprocessors, other.multiprocessors) > 1
            and not self.difference(other)
            and _is_near(self.max_mhz, other.max_mhz, CLOCK_TOLERANCE)
        )


def _is_near(a: float, b: float, tolerance: float) -> bool:
    """Return whether two values differ by at most a share of the larger one; true if one is unknown (0)."""
    return not a or not b or abs(a - b) <= tolerance * max(a, b)


@dataclass(frozen=True)
class Device:
    """One device, or one architecture if ``uuid`` is empty.

    Sizes are bytes, per block unless the name says otherwise.
    """

    #: ``cuda`` or ``opencl``.
    backend: str
    #: The driver's name, for example ``NVIDIA H100 80GB HBM3``.
    name: str
    #: ``sm_90`` for CUDA; ``opencl_cpu`` or ``opencl_gpu`` for OpenCL.
    arch: str
    uuid: str = ""
    #: Position among the backend's devices.
    index: int = 0
    driver: str = ""
    warp_size: int = 32
    sm_count: int = 1
    max_threads_per_block: int = 1024
    max_threads_per_sm: int = 2048
    registers_per_sm: int = 65536
    #: Largest shared memory of one block (CUDA: after opting in).
    shared_bytes_per_block: int = 49152
    shared_bytes_per_sm: int = 49152
    l2_bytes: int = 0
    memory_bytes: int = 0
    #: Peak by the data sheet's formula from the device's own clocks; 0 if unknown.
    peak_gb_per_s: float = 0.0
    #: Peak of FP32 arithmetic by the same formula; 0 if unknown.
    peak_gflop_per_s: float = 0.0

    @property
    def folder(self) -> str:
        """Name of the device's folder: ``_`` replaces characters other than letters and digits."""
        named = "" if self.backend == "cuda" else self.backend
        words = [_plain(named), _plain(self.name) or _plain(self.arch) or "device"]
        return "_".join(filter(None, words))

    @property
    def chip(self) -> Chip:
        """The key of the device; of an OpenCL device only the architecture is known."""
        return chip_of(self.arch, self.sm_count, self.memory_bytes, self.peak_gflop_per_s)

    @property
    def compute_capability(self) -> int:
        """Compute capability as one number, 90 for ``sm_90``; 0 for OpenCL."""
        return _compute_capability(self.arch)

    @property
    def is_cuda(self) -> bool:
        """True for a GPU of NVIDIA.

        Binaries are for an architecture, launch sequences can be graphs, arrays may begin at any element, and
        NVIDIA's tools work. The host is free during timing, so that equal launches take equal times. An OpenCL
        binary is for one device, buffers begin aligned, and the caches of a CPU hold whole problems.
        """
        return self.backend == "cuda"

    @property
    def selector(self) -> str:
        """Name on the command line, for example ``cuda:0``."""
        return f"{self.backend}:{self.index}"


@dataclass(frozen=True)
class Clocks:
    """The state of the device around a measurement; None if unknown."""

    sm_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] = ()

    def worst(self, other: Clocks) -> Clocks:
        """Combine two readings: the slower clock, the higher temperature, the reasons of both."""
        clocks = [mhz for mhz in (self.sm_mhz, other.sm_mhz) if mhz is not None]
        degrees = [heat for heat in (self.temperature_c, other.temperature_c) if heat is not None]
        reasons = dict.fromkeys((*self.throttle_reasons, *other.throttle_reasons))
        return Clocks(min(clocks, default=None), max(degrees, default=None), tuple(reasons))

    @property
    def is_throttled(self) -> bool:
        """True if heat or power delivery slows the device.

        A power cap does not count: a kernel that reaches it reaches it in production, too.
        """
        return any(reason != "power cap" for reason in self.throttle_reasons)


#: Clocks of a device without readings.
UNKNOWN_CLOCKS = Clocks()


@dataclass(frozen=True)
class Power:
    """The power of the whole board in watts; None if unknown."""

    #: Power now, or its mean over the last second, depending on the device.
    draw_w: float | None = None
    #: Power limit.
    limit_w: float | None = None


#: Limits per compute capability: shared bytes per block (opt-in), shared bytes per SM, threads per
#: SM. Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability".
_CUDA_LIMITS: dict[int, tuple[int, int, int]] = {
    75: (65536, 65536, 1024),
    80: (166912, 167936, 2048),
    86: (101376, 102400, 1536),
    87: (166912, 167936, 1536),
    89: (101376, 102400, 1536),
    90: (232448, 233472, 2048),
    100: (232448, 233472, 2048),
    103: (232448, 233472, 2048),
    120: (101376, 102400, 1536),
    121: (101376, 102400, 1536),
}
#: Architectures of `for_arch`.
CUDA_ARCHS = tuple(f"sm_{number}" for number in _CUDA_LIMITS)


def for_arch(arch: str) -> Device:
    """Return the device of a CUDA architecture, from the published limits."""
    limits = _CUDA_LIMITS.get(_compute_capability(arch))
    if limits is None:
        raise UsageError(unknown("architecture", arch, CUDA_ARCHS))
    shared, shared_sm, threads_sm = limits
    return Device(
        backend="cuda",
        name=arch,
        arch=arch,
        max_threads_per_sm=threads_sm,
        shared_bytes_per_block=shared,
        shared_bytes_per_sm=shared_sm,
    )


#: Lanes of FP32 arithmetic of a multiprocessor; 128 of other architectures. Source: CUDA C++ Programming Guide
#: 13.0, "Arithmetic Instructions".
_FP32_LANES = {75: 64, 80: 64}


def fp32_lanes(arch: str) -> int:
    """Return the lanes of FP32 arithmetic of a multiprocessor of CUDA."""
    return _FP32_LANES.get(_compute_capability(arch), 128)


def chip_of(arch: str, sm_count: int, memory_bytes: int, peak_gflop_per_s: float) -> Chip:
    """Return the chip with recorded properties; its clock follows from the peak of FP32 arithmetic."""
    if not _compute_capability(arch):
        return Chip(arch)
    lanes = fp32_lanes(arch) * max(1, sm_count)
    return Chip(arch, sm_count, memory_bytes, 1e3 * peak_gflop_per_s / (2 * lanes))


#: Architectures of GPUs by a word of the driver's name, for example A100 in ``NVIDIA A100-SXM4-80GB``.
_MODELS = {
    **dict.fromkeys(("T4",), "sm_75"),
    **dict.fromkeys(("A100", "A800", "A30"), "sm_80"),
    **dict.fromkeys(("A10", "A10G", "A16", "A2", "A40"), "sm_86"),
    **dict.fromkeys(("L4", "L40", "L40S"), "sm_89"),
    **dict.fromkeys(("H100", "H200", "H800", "H20", "GH200"), "sm_90"),
    **dict.fromkeys(("B100", "B200", "GB200"), "sm_100"),
    **dict.fromkeys(("B300", "GB300"), "sm_103"),
}
#: Architectures of GeForce RTX GPUs by the first two digits of their number.
_GEFORCE = {"20": "sm_75", "30": "sm_86", "40": "sm_89", "50": "sm_120"}


def arch_of_model(name: str) -> str | None:
    """Return the architecture of a common NVIDIA GPU, by the driver's name; None for other names."""
    if found := re.search(r"GeForce RTX (\d\d)\d\d\b", name):
        return _GEFORCE.get(found[1])
    return next((_MODELS[word] for word in re.split(r"[ -]", name) if word in _MODELS), None)


def _compute_capability(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)a?", arch)
    return int(match[1]) if match else 0


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")

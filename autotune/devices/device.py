"""A device: its identity, the limits that decide which configurations can run, its clocks.

Backends make these values from a live device. `for_arch` and `for_model` make them from tables, for
compiling and planning without a device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autotune.errors import UsageError, unknown

#: Names of the backends.
BACKENDS = ("cuda", "opencl")


@dataclass(frozen=True)
class Device:
    """One device, or one architecture when ``uuid`` is empty.

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
    #: Peaks by the data sheet's formula from the device's own clocks; 0 where unknown.
    peak_gb_per_s: float = 0.0
    peak_gflop_per_s: float = 0.0

    @property
    def folder(self) -> str:
        """Name as one folder: each run of characters other than letters and digits is ``_``."""
        named = "" if self.backend == "cuda" else self.backend
        words = [_plain(named), _plain(self.name) or _plain(self.arch) or "device"]
        return "_".join(filter(None, words))

    @property
    def compute_capability(self) -> int:
        """Both digits as one number, 90 for ``sm_90``; 0 for OpenCL."""
        return _compute_capability(self.arch)

    @property
    def is_cuda(self) -> bool:
        """A GPU of NVIDIA.

        Binaries are for an architecture, launch sequences can be graphs, arrays may begin at any element,
        NVIDIA's tools work, and the host is free during timing: equal launches take equal times. An OpenCL
        device is compiled for itself, its buffers begin aligned, and a CPU's caches hold whole problems.
        """
        return self.backend == "cuda"

    @property
    def selector(self) -> str:
        """Name on the command line, for example ``cuda:0``."""
        return f"{self.backend}:{self.index}"


@dataclass(frozen=True)
class Clocks:
    """The state of the device around a measurement; None where unknown."""

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
        """The device is slowed by heat or power delivery.

        A power cap does not count: a kernel that meets it meets it in production, too.
        """
        return any(reason != "power cap" for reason in self.throttle_reasons)


#: Clocks of a device without readings.
UNKNOWN_CLOCKS = Clocks()


@dataclass(frozen=True)
class Power:
    """The power of the whole board in watts; None where unknown."""

    #: Now, or the mean of the last second: devices differ.
    draw_w: float | None = None
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


#: GPUs by the driver's name: architecture, multiprocessors, MiB of L2 cache, GB/s of memory, and
#: TFLOP/s of float32 by boost clock. Source: NVIDIA's architecture papers for Turing (TU102, T4),
#: A100, GA102, Ada, H100 and RTX Blackwell, and the data sheets of A10, L4, L40S, A100 80GB and HGX
#: B200; of B200 multiprocessors and L2 cache as its driver reports them.
_MODELS: dict[str, tuple[str, int, int, float, float]] = {
    "Tesla T4": ("sm_75", 40, 4, 320, 8.1),
    "NVIDIA A100-PCIE-40GB": ("sm_80", 108, 40, 1555, 19.5),
    "NVIDIA A100-SXM4-40GB": ("sm_80", 108, 40, 1555, 19.5),
    "NVIDIA A100 80GB PCIe": ("sm_80", 108, 40, 1935, 19.5),
    "NVIDIA A100-SXM4-80GB": ("sm_80", 108, 40, 2039, 19.5),
    "NVIDIA A10": ("sm_86", 72, 6, 600, 31.2),
    "NVIDIA GeForce RTX 3090": ("sm_86", 82, 6, 936, 35.6),
    "NVIDIA L4": ("sm_89", 58, 48, 300, 30.3),
    "NVIDIA L40S": ("sm_89", 142, 96, 864, 91.6),
    "NVIDIA GeForce RTX 4090": ("sm_89", 128, 72, 1008, 82.6),
    "NVIDIA H100 PCIe": ("sm_90", 114, 50, 2000, 51.2),
    "NVIDIA B200": ("sm_100", 148, 126, 8000, 80),
    "NVIDIA GeForce RTX 5090": ("sm_120", 170, 96, 1792, 104.8),
}


def for_model(name: str) -> Device | None:
    """Return the device of a common GPU, from published figures; None for other names."""
    if name not in _MODELS:
        return None
    arch, sm_count, l2_mib, gb_per_s, tflop_per_s = _MODELS[name]
    return replace(
        for_arch(arch),
        name=name,
        sm_count=sm_count,
        l2_bytes=l2_mib << 20,
        peak_gb_per_s=gb_per_s,
        peak_gflop_per_s=1000 * tflop_per_s,
    )


def _compute_capability(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)a?", arch)
    return int(match[1]) if match else 0


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")

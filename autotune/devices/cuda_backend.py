"""The CUDA backend: devices from the driver, binaries from NVRTC.

Listing and compiling make no context. Only `CudaExecutor` makes one, in the worker process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from autotune.devices import cubin, nvrtc
from autotune.devices.base import Binary, CompileError, with_defines
from autotune.devices.compiler_options import foreign_option
from autotune.devices.cuda_checks import checks_code
from autotune.devices.cuda_executor import CudaExecutor
from autotune.devices.cuda_stream import is_out_of_memory
from autotune.devices.device import Device, fp32_lanes
from autotune.devices.nvml import driver_version, energy_mj
from autotune.errors import DeviceError, MissingDependencyError

#: The library of NVIDIA's driver.
_DRIVER = "libcuda.so.1"


class CudaBackend:
    """See `autotune.devices.base.Backend`."""

    name = "cuda"

    def devices(self) -> list[Device]:
        try:
            return list(_devices())
        except (ImportError, RuntimeError):
            return []

    def why_unavailable(self) -> str:
        try:
            from cuda.bindings import driver  # noqa: F401
        except ImportError:
            return str(MissingDependencyError("cuda.bindings", "cuda13", "an NVIDIA GPU"))
        try:
            return "" if _devices() else "the driver lists no device; run: nvidia-smi -L"
        except RuntimeError as error:
            return f"no NVIDIA driver answers ({error}); run: nvidia-smi"

    def why_no_energy(self, device: Device) -> str:
        try:
            energy_mj(device.uuid)
        except DeviceError as error:
            return str(error)
        return ""

    def toolchain(self) -> str:
        return nvrtc.nvrtc_version()

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        if foreign := foreign_option(options, is_cuda=True):
            raise CompileError(foreign)
        chosen = [option for option in options if option.startswith("sm_")]
        flags = [option for option in options if not option.startswith("sm_")]
        if not any("std=" in flag for flag in flags):
            flags.append("-std=c++17")
        arch = chosen[-1] if chosen else device.arch
        done = nvrtc.compile_cubin(
            with_defines(source, defines),
            [f"-arch={arch}", *flags],
            nvrtc.expressions(source, entries),
        )
        expression = {symbol: name for name, symbol in done.symbols.items()}
        reported = tuple(
            replace(
                entry,
                name=expression.get(entry.name, entry.name),
                symbol=entry.name,
                parameter_bytes=cubin.parameter_bytes(done.code, entry.name),
            )
            for entry in nvrtc.compiled_functions(done.log)
        )
        return Binary(done.code, reported, nvrtc.log_warnings(done.log), key="")

    def load_compiler(self) -> None:
        self.toolchain()

    def get_ready(self, device: Device) -> None:
        with suppress(ImportError), ThreadPoolExecutor() as pool:  # `open` reports the error
            made = pool.map(partial(checks_code, device.arch, "float32"), ("float", "double"))
            import cupy  # noqa: F401 - while the compiler works

            list(made)

    def open(self, device: Device) -> CudaExecutor:
        try:
            import cupy
        except ImportError as error:
            raise MissingDependencyError("cupy", "cuda13", "measuring on a GPU") from error
        try:
            return CudaExecutor(cupy, device)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if is_out_of_memory(error):
                raise MemoryError(f"{device.name} ({device.selector}): {error}") from error
            raise DeviceError(f"{device.name} ({device.selector}): {error}") from error


@cache
def _devices() -> tuple[Device, ...]:
    try:
        # Before NVIDIA's packages, whose import starts a process (ldconfig).
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise RuntimeError(str(error)) from error
    from cuda.bindings import driver as cu

    def ask(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(str(result[0]).rpartition(".")[2])
        return result[1] if len(result) == 2 else result[1:]

    if int(cu.cuInit(0)[0]) != 0:
        raise RuntimeError("cuInit failed")
    driver = driver_version()
    found = []
    for index in range(ask(cu.cuDeviceGetCount())):
        handle = ask(cu.cuDeviceGet(index))
        raw = bytes(ask(cu.cuDeviceGetUuid(handle)).bytes).hex()
        uuid = f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        name = ask(cu.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
        memory = ask(cu.cuDeviceTotalMem(handle))

        def attribute(key: str, handle: Any = handle) -> int:
            kind = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{key}")
            return int(ask(cu.cuDeviceGetAttribute(kind, handle)))

        found.append(_device(index, name, uuid, memory, attribute, driver))
    return tuple(found)


def _device(
    index: int, name: str, uuid: str, memory: int, attribute: Callable[[str], int], driver: str
) -> Device:
    capability = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    arch, sm_count = f"sm_{capability}", attribute("MULTIPROCESSOR_COUNT")
    return Device(
        backend="cuda",
        name=name,
        arch=arch,
        uuid=uuid,
        index=index,
        driver=driver,
        warp_size=attribute("WARP_SIZE"),
        sm_count=sm_count,
        max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
        max_threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=memory,
        # Two transfers a clock (double data rate); clocks come in kHz, the bus width in bits.
        peak_gb_per_s=2
        * attribute("MEMORY_CLOCK_RATE")
        * attribute("GLOBAL_MEMORY_BUS_WIDTH")
        / 8e6,
        peak_gflop_per_s=2 * fp32_lanes(arch) * sm_count * attribute("CLOCK_RATE") / 1e6,
    )

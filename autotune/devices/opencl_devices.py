"""Lists OpenCL devices, and makes their contexts."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from autotune.devices.device import Device
from autotune.errors import MissingDependencyError

#: Libraries of Intel's run-time outside the loader's path, in load order.
_INTEL_LIBRARIES = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so")
#: Warp size of a CPU; a kernel may choose its sub-group width.
_CPU_WARP = 16
#: Environment variable of pyopencl that turns its cache off.
_NO_CACHE = "PYOPENCL_NO_CACHE"


@cache
def pyopencl_module() -> Any:
    """Import pyopencl, after the loader of OpenCL gets the path of Intel's CPU run-time in a Python package.

    Pyopencl's own cache on the disk is off: it saves no time, and fails in a home folder that is read-only.
    """
    _show_intel_runtime(Path(sys.prefix) / "lib")
    given = os.environ.get(_NO_CACHE)
    os.environ[_NO_CACHE] = "1"  # read at the import
    try:
        import pyopencl
    except ImportError as error:
        raise MissingDependencyError("pyopencl", "cpu", "a CPU or another OpenCL device") from error
    finally:
        if given is None:
            del os.environ[_NO_CACHE]
        else:
            os.environ[_NO_CACHE] = given
    return pyopencl


def _show_intel_runtime(lib: Path) -> None:
    if "OCL_ICD_VENDORS" in os.environ or not (lib / "libintelocl.so").exists():
        return
    try:
        for name in _INTEL_LIBRARIES:
            ctypes.CDLL(str(lib / name), ctypes.RTLD_GLOBAL)
    except OSError:
        return
    # Pyopencl's ocl-icd reads the library's path from the first variable, Khronos' loader from the second.
    for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"):
        os.environ[name] = str(lib / "libintelocl.so")


@cache
def live_devices() -> tuple[Any, ...]:
    """Return PyOpenCL's devices, GPUs first."""
    cl = pyopencl_module()
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        return ()
    found = [device for platform in platforms for device in platform.get_devices()]
    return tuple(sorted(found, key=lambda device: bool(device.type & cl.device_type.CPU)))


@cache
def context_of(index: int) -> Any:
    """Return the context of a device; this process makes it once."""
    return pyopencl_module().Context([live_devices()[index]])


def device_of(index: int, live: Any) -> Device:
    """Return identity and limits of one of PyOpenCL's devices."""
    cl = pyopencl_module()
    is_cpu = bool(live.type & cl.device_type.CPU)
    name = " ".join(live.name.split())
    return Device(
        backend="opencl",
        name=name,
        arch="opencl_cpu" if is_cpu else "opencl_gpu",
        uuid=f"opencl-{name}-{live.max_compute_units}",
        index=index,
        driver=live.driver_version,
        warp_size=_CPU_WARP if is_cpu else _wavefront(live),
        sm_count=live.max_compute_units,
        max_threads_per_block=live.max_work_group_size,
        max_threads_per_sm=live.max_work_group_size,
        shared_bytes_per_block=live.local_mem_size,
        shared_bytes_per_sm=live.local_mem_size,
        l2_bytes=live.global_mem_cache_size,
        memory_bytes=live.global_mem_size,
    )


def _wavefront(live: Any) -> int:
    """Return the warp size of a GPU: reported by AMD's driver, otherwise NVIDIA's 32."""
    is_amd = "cl_amd_device_attribute_query" in live.extensions.split()
    return int(live.wavefront_width_amd) if is_amd else 32

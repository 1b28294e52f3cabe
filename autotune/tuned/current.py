"""Finds the device that a launch would use now, without starting CUDA. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

#: Name and architecture; None where not known.
Found = tuple[str | None, str | None]

#: CUresult: this thread has no context yet.
_NO_CONTEXT = 201
#: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76
#: How long to believe that nobody has loaded the driver, in seconds.
_RECHECK_S = 1.0

_by_visible: dict[str | None, Found] = {}
_by_ordinal: dict[int, Found] = {}
#: The driver library once somebody loaded it, and when it was last looked for.
_driver: list[Any] = [None, -_RECHECK_S]


def current_device() -> Found:
    """Return name and architecture of the device that a launch would use now.

    That is this thread's device where cupy or torch has initialised CUDA, else the first visible GPU.
    """
    if "cupy" in sys.modules or "torch" in sys.modules:
        ordinal = _current_ordinal(_loaded_driver())
        if ordinal is not None:
            return _by_ordinal[ordinal]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible not in _by_visible:
        _by_visible[visible] = _first_visible(visible)
    return _by_visible[visible]


def forget() -> None:
    """Forget the devices that were found."""
    _by_visible.clear()
    _by_ordinal.clear()
    _driver[:] = [None, -_RECHECK_S]


def _loaded_driver() -> Any:
    """Return the driver library if some library loaded it."""
    if _driver[0] is None and time.monotonic() - _driver[1] >= _RECHECK_S:
        import ctypes

        _driver[1] = time.monotonic()
        with contextlib.suppress(OSError):
            _driver[0] = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return _driver[0]


def _current_ordinal(cuda: Any) -> int | None:
    """Return the number of this thread's current device; None where CUDA is not initialised.

    It asks only what works without initialising: a process that means to fork must not find CUDA
    initialised by a lookup.
    """
    if cuda is None:
        return None
    import ctypes

    ordinal = ctypes.c_int(0)
    status = cuda.cuCtxGetDevice(ctypes.byref(ordinal))
    if status not in (0, _NO_CONTEXT):
        return None
    # A thread without a context would get the run-time's default, device 0.
    number = ordinal.value if status == 0 else 0
    if number not in _by_ordinal:
        _by_ordinal[number] = _describe(cuda, number)
    return number


def _describe(cuda: Any, number: int) -> Found:
    import ctypes

    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(handle), number)
    cuda.cuDeviceGetName(name, 256, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    return name.value.decode("utf-8", "replace"), f"sm_{10 * major.value + minor.value}"


def _first_visible(visible: str | None) -> Found:
    """Return the first visible GPU by the management library, which starts no CUDA.

    Its order is that of the bus; where GPUs of one host differ, ``CUDA_DEVICE_ORDER=PCI_BUS_ID``
    makes CUDA count the same way.
    """
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, None
    if nvml.nvmlInit_v2() != 0:
        return None, None
    try:
        return _ask_nvml(nvml, "0" if visible is None else visible.split(",")[0].strip())
    finally:
        nvml.nvmlShutdown()


def _ask_nvml(nvml: Any, first: str) -> Found:
    """Find a device by its number or uuid, a MIG slice by its uuid."""
    import ctypes

    handle, whole = ctypes.c_void_p(), ctypes.c_void_p()
    if first.isdigit():
        status = nvml.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(handle))
    else:
        status = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
    if status != 0:
        return None, None
    buffer = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(handle, buffer, 96)
    name = buffer.value.decode("utf-8", "replace")
    # A slice does not tell its compute capability; the device it is cut from does.
    if nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, ctypes.byref(whole)) == 0:
        handle = whole
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)):
        return name, None
    return name, f"sm_{10 * major.value + minor.value}"

"""Arrays of CuPy that take the place of NumPy's in a function; see `autotune.data.device_reference`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.devices.cuda_memory import LARGE_UPLOAD_BYTES, Uploader
from autotune.devices.device import Device
from autotune.devices.gpu_lock import computing
from autotune.errors import MissingDependencyError

#: Largest share of the device's free memory: another process measures there.
_MEMORY_SHARE = 0.5


class CupyArrays:
    """The arrays of one GPU; see `autotune.data.reference.ArrayLibrary`."""

    def __init__(self, device: Device) -> None:
        try:
            import cupy
        except ImportError as error:
            raise MissingDependencyError("cupy", "cuda13", "references on a GPU") from error
        self._cupy, self._device = cupy, device
        self.name = f"{device.name} (CuPy)"
        self.version = f"{cupy.__version__} {device.driver}"

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Return a context in which nobody samples; its memory is free again at the end."""
        cupy = self._cupy
        pool = cupy.get_default_memory_pool()
        with computing(self._device.uuid), cupy.cuda.Device(self._device.index):
            free, _ = cupy.cuda.runtime.memGetInfo()
            pool.set_limit(size=int(_MEMORY_SHARE * free))
            try:
                yield
            finally:
                cupy.cuda.Device().synchronize()
                cupy.fft.config.get_plan_cache().clear()
                if pool.used_bytes():
                    gc.collect()  # arrays in cycles, such as those of a traceback
                pool.free_all_blocks()

    def from_host(self, array: NDArray[Any], dtype: np.dtype[Any]) -> Any:
        """Copy an array to the device, in the narrower of two types, and convert it there."""
        cupy = self._cupy
        if array.nbytes < LARGE_UPLOAD_BYTES or not array.flags.c_contiguous:
            return cupy.asarray(array).astype(dtype, copy=False)
        found = cupy.empty(array.shape, array.dtype)
        cupy.cuda.Device().synchronize()  # its memory may still be in use
        self._uploader.copy(found.data.ptr, array.reshape(-1).view(np.uint8))
        return found.astype(dtype, copy=False)

    @cached_property
    def _uploader(self) -> Uploader:
        return Uploader(self._cupy, self._device.index)

    def to_host(self, array: Any) -> NDArray[Any]:
        """Copy an array of the device, or a number, to the host."""
        cupy = self._cupy
        if not isinstance(array, cupy.ndarray):
            return np.asarray(array)
        if array.nbytes < LARGE_UPLOAD_BYTES:
            return np.asarray(cupy.asnumpy(array))
        found, contiguous = np.empty(array.shape, array.dtype), cupy.ascontiguousarray(array)
        cupy.cuda.Device().synchronize()
        self._uploader.fetch(contiguous.data.ptr, found.reshape(-1).view(np.uint8))
        return found

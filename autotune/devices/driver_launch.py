"""Launches with attributes (clusters, cooperative grids, programmatic dependence), through the CUDA driver.

CuPy's launches have no attributes, so these go through ``cuLaunchKernelEx`` of cuda-bindings.
"""

from __future__ import annotations

from typing import Any

from autotune.devices.base import LaunchAttributes


class DriverLaunch:
    """A launch of fixed geometry and attributes. Only one thread may use it at a time.

    Parameters
    ----------
    grid, block : tuple of int
        Blocks and threads in x, y, z.
    shared_bytes : int
        Dynamic shared memory per block.
    attributes : LaunchAttributes
        What the driver gets in addition.
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared_bytes: int,
        attributes: LaunchAttributes,
    ) -> None:
        from cuda.bindings import driver

        #: The driver that launches: the module of cuda-bindings.
        self.driver: Any = driver
        self._config = config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = shared_bytes
        config.attrs = found = _driver_attributes(driver, attributes)
        config.numAttrs = len(found)
        #: Stream of the configuration; None before the first launch.
        self._stream: int | None = None

    @property
    def address(self) -> int:
        """Return the address of the ``CUlaunchConfig``."""
        return int(self._config.getPtr())

    def __call__(self, function: int, stream: int, parameters: int) -> None:
        """Enqueue a function; ``parameters`` is the address of the addresses of its parameters.

        Raises CuPy's ``CUDADriverError``, as CuPy's own launches do.
        """
        if stream != self._stream:
            self._config.hStream, self._stream = self.driver.CUstream(stream), stream
        (status,) = self.driver.cuLaunchKernelEx(self._config, function, parameters, 0)
        if int(status) != 0:
            import cupy

            cupy.cuda.driver.check_status(int(status))


def _driver_attributes(driver: Any, attributes: LaunchAttributes) -> list[Any]:
    """Return the ``CUlaunchAttribute`` values of a launch."""
    ids, found = driver.CUlaunchAttributeID, []

    def added(kind: Any) -> Any:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kind
        found.append(attribute)
        return attribute.value

    if attributes.cluster:
        size = added(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
        size.x, size.y, size.z = attributes.cluster
    if attributes.cooperative:
        added(ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1
    if attributes.programmatic:
        value = added(ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        value.programmaticStreamSerializationAllowed = 1
    return found

"""A call on arrays in the host's memory: copied to a device, launched, and copied back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from autotune.calling.binding import Bound
from autotune.calling.libraries import Library, Numpy
from autotune.calling.prepared import Prepared
from autotune.devices.base import Executor
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.launches import bound as bound_steps
from autotune.kernel.operand import NewArray, Operand


class HostCall:
    """A call on host arrays that lie in one way; see `autotune.calling.gpu.GpuCall`."""

    def __init__(
        self,
        bound: Bound,
        prepared: Prepared,
        values: Sequence[Any],
        libraries: Sequence[Library | None],
    ) -> None:
        self._bound, self._prepared = bound, prepared
        self._libraries = libraries
        self._library = next((library for library in libraries if library), Numpy())
        self._executor = _executor(prepared.device)
        #: Scalars are as they were when this was made.
        self.is_by_value = True

    def __call__(self, values: Sequence[Any], pointers: Sequence[Any]) -> Any:
        """Run; results are in what was passed, or new."""
        bound, prepared, executor = self._bound, self._prepared, self._executor
        made: dict[NewArray, Any] = {}
        host = {
            name: self._array(name, passed.operand, values, made)
            for name, passed in bound.arrays.items()
        }
        for name in bound.outputs:
            if not host[name].flags.writeable:
                raise UsageError(f"{bound.kernel.name}: the output {name} is read-only")
        arrays = {**prepared.arguments, **prepared.scratch}
        buffers = {
            name: executor.allocate(max(1, argument.nbytes))
            for name, argument in arrays.items()
            if argument.kind not in ("scalar", "constant")
        }
        for name in set(host) & set(buffers):
            executor.write(buffers[name], np.ascontiguousarray(host[name]))
        constants = {name: array for name, array in host.items() if name not in buffers}
        module = executor.load(prepared.binary, constants)
        dtypes = {name: argument.dtype for name, argument in arrays.items()}
        scalars = {
            name: prepared.scalar(name, bound.scalars)
            for name, argument in prepared.arguments.items()
            if argument.kind == "scalar"
        }
        steps = bound_steps(prepared.sequence, prepared.names, buffers, scalars, dtypes)
        executor.run(module, steps)
        for name in bound.outputs:
            dtype, shape = np.dtype(arrays[name].dtype), arrays[name].shape
            host[name][...] = executor.read(buffers[name], dtype, shape)
        return self._returned(values, made)

    def _array(
        self, name: str, operand: Operand, values: Sequence[Any], made: dict[NewArray, Any]
    ) -> Any:
        """The view of a value, or of a new array, that an argument is passed in its declared shape."""
        if operand.shape != self._bound.arguments[name].shape:
            operand = operand.memory
        source = operand.source
        if isinstance(source, NewArray):
            if source not in made:
                made[source] = np.empty(source.shape, source.dtype)
            return Numpy().view(made[source], operand)
        library = self._libraries[source]
        assert library is not None
        return Numpy().view(library.through(values[source]), operand)

    def _returned(self, values: Sequence[Any], made: dict[NewArray, Any]) -> Any:
        results = [
            self._library.handed_over(made[operand.source])
            if isinstance(operand.source, NewArray)
            else values[operand.source]
            for operand in self._bound.results
        ]
        return results[0] if len(results) == 1 else tuple(results)


@cache
def _executor(device: Device) -> Executor:
    """One device context per process."""
    return backend(device.backend).open(device)

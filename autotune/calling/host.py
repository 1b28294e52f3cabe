"""Run a call on arrays in host memory: copy to a device, launch, copy back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from autotune.calling.binding import ResolvedCall
from autotune.calling.choice import LaunchPlan
from autotune.calling.libraries import Library, Numpy
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
        resolved: ResolvedCall,
        plan: LaunchPlan,
        values: Sequence[Any],
        libraries: Sequence[Library | None],
    ) -> None:
        self._resolved, self._plan = resolved, plan
        self._libraries = libraries
        self._library = next((library for library in libraries if library), Numpy())
        self._executor = _executor(plan.device)
        #: Scalars are as they were when this was made.
        self.is_by_value = True

    def __call__(self, values: Sequence[Any], pointers: Sequence[Any]) -> Any:
        """Run; results are in the passed outputs, or new."""
        resolved, plan, executor = self._resolved, self._plan, self._executor
        made: dict[NewArray, Any] = {}
        host = {
            name: self._array(name, passed.operand, values, made)
            for name, passed in resolved.arrays.items()
        }
        for name in resolved.outputs:
            if not host[name].flags.writeable:
                raise UsageError(f"{resolved.kernel.name}: the output {name} is read-only")
        arrays = {**plan.arguments, **plan.scratch}
        buffers = {
            name: executor.allocate(max(1, argument.nbytes))
            for name, argument in arrays.items()
            if argument.kind not in ("scalar", "constant")
        }
        for name in set(host) & set(buffers):
            executor.write(buffers[name], np.ascontiguousarray(host[name]))
        constants = {name: array for name, array in host.items() if name not in buffers}
        module = executor.load(plan.binary, constants)
        dtypes = {name: argument.dtype for name, argument in arrays.items()}
        scalars = {
            name: plan.scalar(name, resolved.scalars)
            for name, argument in plan.arguments.items()
            if argument.kind == "scalar"
        }
        steps = bound_steps(plan.sequence, plan.names, buffers, scalars, dtypes)
        executor.run(module, steps)
        for name in resolved.outputs:
            dtype, shape = np.dtype(arrays[name].dtype), arrays[name].shape
            host[name][...] = executor.read(buffers[name], dtype, shape)
        return self._returned(values, made)

    def _array(
        self, name: str, operand: Operand, values: Sequence[Any], made: dict[NewArray, Any]
    ) -> Any:
        """Return the view of a value, or a new array, in the declared shape of an argument."""
        if operand.shape != self._resolved.arguments[name].shape:
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
            for operand in self._resolved.results
        ]
        return results[0] if len(results) == 1 else tuple(results)


@cache
def _executor(device: Device) -> Executor:
    """Open the device once per process."""
    return backend(device.backend).open(device)

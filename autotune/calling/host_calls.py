"""Calls on host arrays, which run on a device with copies; and calls that launch nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from autotune.calling.binding import CallArguments, ResolvedCall
from autotune.calling.choice import LaunchPlan
from autotune.calling.libraries import Library, Numpy
from autotune.calling.rivals import answered
from autotune.devices.base import Executor
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.encoding import dtype_of
from autotune.errors import UsageError
from autotune.kernel.operand import NewArray, NothingToDo, Operand


class EmptyCall:
    """A call that launches nothing and returns its results."""

    def __init__(self, resolved: NothingToDo, arguments: CallArguments) -> None:
        self._results, self._index = resolved.results, arguments.index
        self._library = arguments.library

    def __call__(self, values: Sequence[Any], pointers: Sequence[Any]) -> Any:
        return _returned(self._results, values, self._library, self._made)

    def _made(self, new: NewArray) -> Any:
        if self._index is None:
            return np.empty(new.shape, dtype_of(new.dtype))
        return self._library.empty(new.shape, new.dtype, self._index)


class HostCall:
    """A call on host arrays of one layout; see `autotune.calling.gpu.GpuCall`."""

    def __init__(self, resolved: ResolvedCall, plan: LaunchPlan, arguments: CallArguments) -> None:
        self._resolved, self._plan = resolved, plan
        self._libraries, self._library = arguments.libraries, arguments.library
        self._executor = _executor(plan.device)

    def __call__(self, values: Sequence[Any], pointers: Sequence[Any]) -> Any:
        """Run on copies of the arrays; return the passed outputs, or new arrays."""
        resolved, plan, executor = self._resolved, self._plan, self._executor
        made: dict[NewArray, Any] = {}
        host = {
            name: self._array(resolved.memory_of(name), values, made) for name in resolved.arrays
        }
        for name in resolved.outputs:
            if not host[name].flags.writeable:
                raise UsageError(f"{resolved.kernel.name}: the output {name} is read-only")
        if answered(resolved, plan, host):
            return _returned(resolved.results, values, self._library, made.__getitem__)
        arrays = {**plan.arguments, **plan.scratch}
        buffers = {
            name: executor.allocate(max(1, argument.nbytes))
            for name, argument in arrays.items()
            if argument.kind not in ("scalar", "constant")
        }
        for name in set(host) & set(buffers):
            executor.write(buffers[name], np.ascontiguousarray(host[name]))
        constants = {
            plan.arguments[name].variable: array
            for name, array in host.items()
            if name not in buffers
        }
        module = executor.load(plan.binary, constants)
        executor.run(module, plan.steps(buffers, resolved.scalars))
        for name in resolved.outputs:
            array, argument = host[name], arrays[name]
            stored = executor.read(buffers[name], np.dtype(argument.dtype), argument.stored_shape)
            array[...] = stored.view(array.dtype) if argument.bits_of else stored
        return _returned(resolved.results, values, self._library, made.__getitem__)

    def _array(self, operand: Operand, values: Sequence[Any], made: dict[NewArray, Any]) -> Any:
        source = operand.source
        if isinstance(source, NewArray):
            if source not in made:
                made[source] = np.empty(source.shape, dtype_of(source.dtype))
            return Numpy().view(made[source], operand)
        library = self._libraries[source]
        assert library is not None
        return Numpy().view(library.readable(values[source]), operand)


def _returned(
    results: Sequence[Operand],
    values: Sequence[Any],
    library: Library,
    made: Callable[[NewArray], Any],
) -> Any:
    """Return the results of a call: passed arrays, or new arrays of the caller's type."""
    found = [
        library.for_caller(made(operand.source))
        if isinstance(operand.source, NewArray)
        else values[operand.source]
        for operand in results
    ]
    return found[0] if len(found) == 1 else tuple(found)


@cache
def _executor(device: Device) -> Executor:
    return backend(device.backend).open(device)

"""Launch on the caller's device arrays and stream, through the CUDA driver.

A `GpuCall` serves arrays of one layout. Its constructor prepares everything, so that a call only writes
addresses and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import numpy as np

from autotune.calling.binding import OUTPUTS, ResolvedCall
from autotune.calling.choice import LaunchPlan
from autotune.calling.libraries import DeviceLibrary, Library, cupy
from autotune.calling.loaded import (
    PER_THREAD,
    Arena,
    LoadedModule,
    LoadedPlan,
    arena_at,
    arenas,
    is_capturing,
    kept_by_graphs,
    on_device,
    on_stream,
)
from autotune.calling.rivals import RivalStep, takes_rival
from autotune.calling.steps import (
    CODES,
    CODES_OF_INTEGERS,
    BufferFill,
    Parameter,
    Step,
    launch_step,
)
from autotune.devices.graph import capture_of, everything_allowed
from autotune.errors import SpecError, UsageError
from autotune.kernel.operand import NewArray, Operand, itemsize_of
from autotune.kernel.spec import Fill
from autotune.kernel.view_layout import layout_of
from autotune.kernel.views import View

#: CUresult: this thread has no context yet.
_NO_CONTEXT = 201
#: Alignment of workspaces in bytes, as of cudaMalloc.
_ALIGNMENT = 256


# ---------------------------------------------------------------------- calls


@dataclass(frozen=True)
class _Copy:
    """A contiguous copy of an array during a call."""

    source: int
    operand: Operand
    is_read: bool
    is_written: bool


class GpuCall:
    """A call on arrays of one layout, on one device.

    Parameters
    ----------
    resolved : ResolvedCall
        The call; the sources of its operands are positions among the values.
    loaded : LoadedPlan
        The compiled plan, with modules on the device.
    values : sequence
        Values of the first call; later calls have values of the same types and layouts.
    libraries : sequence
        Library of each value; None for a scalar.

    Attributes
    ----------
    is_by_value : bool
        Whether the call holds for these floats only: they decide more than the scalars of a launch.
    """

    def __init__(
        self,
        resolved: ResolvedCall,
        loaded: LoadedPlan,
        values: Sequence[Any],
        libraries: Sequence[Library | None],
    ) -> None:
        self._loaded, self._index = loaded, loaded.index
        self._libraries = libraries
        self._library = next(
            library
            for library, value in zip(libraries, values, strict=True)
            if isinstance(library, DeviceLibrary) and library.device_index(value) is not None
        )
        self._stream_of = self._library.stream_getter()
        self._runtime = cupy().cuda.runtime
        self._several = self._runtime.getDeviceCount() > 1
        #: First index of new arrays; copies, workspaces and views follow.
        self._count = len(values)
        self._made: list[NewArray] = []
        self._copies: list[_Copy] = []
        self._derived: list[tuple[int, int]] = []
        self._constants: list[tuple[str, int]] = []
        self._workspaces: list[int] = []
        self._workspace_bytes = 0
        self._passed_on = resolved.passed_on
        self.is_by_value = resolved.is_by_value
        self._steps: list[Step] = self._laid_out(resolved)
        self._makers = [
            self._library.maker(new.shape, new.dtype, self._index) for new in self._made
        ]
        self._results = [self._result(operand) for operand in resolved.results]
        #: Position of the value that is the only result; None if there are several or new results.
        self._only = next(
            (number for is_new, number in self._results if not is_new and len(self._results) == 1),
            None,
        )
        is_exclusive = loaded.plan.exclusive
        self._functions = () if is_exclusive else loaded.functions(None)
        self._has_state = bool(is_exclusive or self._workspaces)
        self._is_direct = not (self._copies or self._constants)

    def __call__(self, values: Sequence[Any], pointers: list[Any]) -> Any:
        """Launch; append the addresses of further arrays to ``pointers``, those of ``values``."""
        stream = self._stream_of(self._index)
        if (
            not self._is_direct
            or (self._has_state and is_capturing(stream))
            or (self._several and self._runtime.getDevice() != self._index)
        ):
            return self._with_all(values, pointers, stream)
        made = self._make(pointers) if self._made else ()
        try:
            if self._has_state:
                self._launch_with_state(pointers, stream, self._place(stream))
            else:
                self._launch(pointers, stream, self._functions)
        except Exception as error:
            return self._again(error, values, pointers)
        if self._only is not None:
            return values[self._only]
        return self._returned(values, made)

    @property
    def shortest(self) -> Callable[[Sequence[Any], list[Any]], Any]:
        """Return the shortest function that does the same as the call.

        It is shorter if the call has one launch, and its result is a passed array.
        """
        is_short = self._is_direct and not (self._has_state or self._several or self._derived)
        if not (is_short and len(self._steps) == 1 and self._only is not None):
            return self
        (step,), functions, only = self._steps, self._functions, self._only
        stream_of, index, again = self._stream_of, self._index, self._again

        def call(values: Sequence[Any], pointers: list[Any]) -> Any:
            try:
                step(pointers, stream_of(index), functions)
            except Exception as error:
                return again(error, values, pointers)
            return values[only]

        return call

    def _again(self, error: Exception, values: Sequence[Any], pointers: list[Any]) -> Any:
        """Launch again on the device if this is the thread's first CUDA call; else raise the error."""
        if isinstance(error, OverflowError):
            name = self._loaded.plan.choice.kernel
            raise UsageError(f"{name}: a number does not fit its type: {error}") from error
        if getattr(error, "status", None) != _NO_CONTEXT:
            raise error
        self._runtime.setDevice(self._index)
        return self(values, pointers[: self._count])

    # ------------------------------------------------------------------ laying out

    def _laid_out(self, resolved: ResolvedCall) -> list[Step]:
        """Return the steps; note the new arrays, copies, workspaces and views that they need."""
        plan = self._loaded.plan
        arrays = {**plan.arguments, **plan.scratch}
        places = self._places(resolved, plan)
        steps: list[Step] = []
        number = 0
        for step in plan.sequence.steps:
            if isinstance(step, Fill):
                steps.append(BufferFill(places[step.name], arrays[step.name], step.value))
                continue
            names = plan.names if step.args is None else step.args
            parameters = [self._parameter(name, resolved, places) for name in names]
            steps.append(launch_step(number, step, parameters))
            number += 1
        if plan.choice.rival and takes_rival(resolved, plan.device.is_cuda, self._index):
            return [RivalStep(resolved, plan, self._index, places, steps)]
        return steps

    def _places(self, resolved: ResolvedCall, plan: LaunchPlan) -> dict[str, int]:
        """Return the index of each array argument among the pointers of a call.

        The order is: values, new arrays, copies, workspaces, views of these.
        """
        copied = {name for name, passed in resolved.arrays.items() if passed.is_copied}
        for name, passed in resolved.arrays.items():
            kind, source = plan.arguments[name].kind, passed.operand.source
            if kind == "constant":
                self._constants.append((plan.arguments[name].variable, source))
            elif isinstance(source, NewArray) and source not in self._made:
                self._made.append(source)
        begin = self._count + len(self._made)
        places: dict[str, int] = {}
        for name in copied:
            kind, passed = plan.arguments[name].kind, resolved.arrays[name]
            is_read = kind != "out" or passed.has_gaps
            places[name] = begin + len(self._copies)
            copy = _Copy(passed.operand.source, passed.operand, is_read, kind in OUTPUTS)
            self._copies.append(copy)
        begin += len(self._copies)
        for number, (name, argument) in enumerate(plan.scratch.items()):
            places[name] = begin + number
            self._workspaces.append(self._workspace_bytes)
            self._workspace_bytes += -(-argument.nbytes // _ALIGNMENT) * _ALIGNMENT
        begin += len(self._workspaces)
        for name, passed in resolved.arrays.items():
            if name in copied or plan.arguments[name].kind == "constant":
                continue
            source = passed.operand.source
            is_new = isinstance(source, NewArray)
            place = self._count + self._made.index(source) if is_new else int(source)
            if passed.operand.begin:
                nbytes = passed.operand.begin * itemsize_of(passed.operand.dtype)
                self._derived.append((place, nbytes))
                place = begin + len(self._derived) - 1
            places[name] = place
        return places

    def _parameter(self, name: Any, resolved: ResolvedCall, places: Mapping[str, int]) -> Parameter:
        plan = self._loaded.plan
        if isinstance(name, View):
            layout = layout_of(name, {**plan.arguments, **plan.scratch}[name.array])
            return Parameter(index=places[name.array], layout=layout)
        if not isinstance(name, str):
            return Parameter(name if isinstance(name, np.generic) else np.int32(name))
        if name in places:
            return Parameter(index=places[name])
        argument = plan.arguments.get(name)
        if argument is None:
            raise SpecError(f"{resolved.kernel.name}: launch: no argument {name!r}")
        if argument.kind != "scalar":
            return Parameter(np.uint64(0))  # an input without elements
        scalar = plan.scalar(name, resolved.scalars)
        is_whole = isinstance(resolved.scalars.get(name), int)
        code = (CODES_OF_INTEGERS if is_whole else CODES).get(scalar.dtype.name)
        if name in self._passed_on and code:
            return Parameter(index=self._passed_on[name], code=code)
        self.is_by_value |= name in self._passed_on
        return Parameter(scalar)

    def _result(self, operand: Operand) -> tuple[bool, int]:
        source = operand.source
        if isinstance(source, NewArray):
            return True, self._made.index(source)
        return False, int(source)

    # ------------------------------------------------------------------ at every call

    def _launch(self, pointers: list[Any], stream: int, functions: tuple[int, ...]) -> None:
        if self._derived:
            pointers.extend([pointers[index] + nbytes for index, nbytes in self._derived])
        for step in self._steps:
            step(pointers, stream, functions)

    def _launch_with_state(
        self, pointers: list[Any], stream: int, place: object, is_captured: bool = False
    ) -> None:
        """Launch with the modules and workspaces of a place."""
        functions = self._functions or self._loaded.functions(place)
        arena = self._arena_at(place)
        with arena.lock:
            if arena.nbytes < self._workspace_bytes:
                if is_captured:
                    arena.lend(self._library, self._workspace_bytes, self._index)
                else:
                    arena.grow(self._workspace_bytes)
            pointers.extend([arena.begin + offset for offset in self._workspaces])
            self._launch(pointers, stream, functions)

    def _arena_at(self, place: object) -> Arena:
        return arena_at((self._index, self._library, place))

    def _make(self, pointers: list[Any]) -> list[Any]:
        library = self._library
        made = [make() for make in self._makers]
        pointers.extend(map(library.pointer, made))
        return made

    def _place(self, stream: int) -> object:
        """Return the key of a queue whose launches run in order."""
        return (stream, get_ident()) if stream == PER_THREAD else stream

    def _returned(self, values: Sequence[Any], made: Sequence[Any]) -> Any:
        results = [
            self._library.for_caller(made[number]) if is_new else values[number]
            for is_new, number in self._results
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _with_all(self, values: Sequence[Any], pointers: list[Any], stream: int) -> Any:
        """Run a call that needs copies, constants, memory of a capture, or another device."""
        with ExitStack() as stack:
            if self._runtime.getDevice() != self._index:
                stack.enter_context(on_device(self._index))
            is_captured, place = is_capturing(stream), self._place(stream)
            if is_captured:
                stack.enter_context(everything_allowed())
                place = stream, capture_of(stream)
            if self._copies or self._constants:
                stack.enter_context(on_stream(stream))
            made = self._make(pointers)
            copies = [self._copy(copy, values) for copy in self._copies]
            pointers.extend(library.pointer(array) for library, array in copies)
            if self._constants:  # no other thread may set them before this thread launches
                stack.enter_context(self._arena_at(place).lock)
            for name, source in self._constants:
                self._set_constant(self._loaded.module(place), name, source, values, is_captured)
            if self._has_state:
                self._launch_with_state(pointers, stream, place, is_captured)
            else:
                self._launch(pointers, stream, self._functions)
            for copy, (library, array) in zip(self._copies, copies, strict=True):
                if copy.is_written:
                    library.assign(self._view(copy, values), array)
            if is_captured:
                kept_by_graphs.extend(
                    array for library, array in copies if not library.knows_graphs
                )
                if self._library.knows_graphs:
                    arenas.pop((self._index, self._library, place), None)  # the graph owns it
        return self._returned(values, made)

    def _view(self, copy: _Copy, values: Sequence[Any]) -> Any:
        library = self._libraries[copy.source]
        assert library is not None
        return library.view(library.readable(values[copy.source]), copy.operand)

    def _copy(self, copy: _Copy, values: Sequence[Any]) -> tuple[DeviceLibrary, Any]:
        library = self._libraries[copy.source]
        assert isinstance(library, DeviceLibrary)
        if copy.is_read:
            return library, library.copied(self._view(copy, values))
        return library, library.empty(copy.operand.shape, copy.operand.dtype, self._index)

    def _set_constant(
        self, loaded: LoadedModule, name: str, source: int, values: Sequence[Any], is_captured: bool
    ) -> None:
        runtime, library = self._runtime, self._libraries[source]
        assert library is not None
        array = cupy().ascontiguousarray(cupy().asarray(library.readable(values[source])))
        if is_captured:
            kept_by_graphs.append(array)
        target = loaded.variable(name, array.nbytes)
        stream = cupy().cuda.get_current_stream().ptr
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(target, array.data.ptr, array.nbytes, kind, stream)


def device_index(values: Sequence[Any], libraries: Sequence[Library | None]) -> int | None:
    """Return the one device of a call's arrays; None if all are in host memory."""
    found = {
        position: library.device_index(value)
        for position, (value, library) in enumerate(zip(values, libraries, strict=True))
        if library is not None
    }
    indices = {index for index in found.values() if index is not None}
    if len(indices) > 1:
        raise UsageError(f"arrays are on several devices: {sorted(indices)}")
    return next(iter(indices), None)

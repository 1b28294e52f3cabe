"""Calls of other libraries in place of launches: on device arrays as a step, on host arrays at once.

A rival takes the arrays of a call as they are, so calls that need copies launch the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from threading import RLock, get_ident
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.calling.binding import ResolvedCall
from autotune.calling.choice import LaunchPlan
from autotune.calling.libraries import cupy
from autotune.calling.loaded import PER_THREAD, is_capturing, kept_by_graphs, on_device, on_stream
from autotune.calling.steps import Step
from autotune.data.arguments import Argument
from autotune.devices.graph import capture_of, everything_allowed
from autotune.kernel.declaration import pins_of
from autotune.tuned.reading import warn

#: Maximum number of prepared calls of a layout of arrays; the addresses of a serving process repeat.
_MAX_PREPARED = 64


def takes_rival(resolved: ResolvedCall, is_cuda: bool, index: int | None) -> bool:
    """Return whether a rival can take the arrays of a call: they are on its device, and need no copy."""
    is_copied = any(passed.is_copied for passed in resolved.arrays.values())
    has_symbols = any(argument.kind == "constant" for argument in resolved.arguments.values())
    return is_cuda == (index is not None) and not is_copied and not has_symbols


def prepared(
    resolved: ResolvedCall, plan: LaunchPlan, arrays: Mapping[str, Any], scalars: Mapping[str, Any]
) -> Callable[[], object] | None:
    """Prepare the rival of a plan; None if it refuses, or is not the call that was verified."""
    tuned, kernel = plan.choice.rival, resolved.kernel
    rival = kernel.rival(tuned.name, plan.device.backend) if tuned else None
    if tuned is None or rival is None:
        return None
    call: Callable[[], object] | None = kernel.guarded(
        f"baseline {rival.name}", rival.prepare, **arrays, **scalars
    )
    if call is not None and pins_of(call) != tuned.pins:
        warn(
            f"{kernel.name}({resolved.problem}): {rival.name} is now {pins_of(call)!r}, and {tuned.pins!r} was "
            f"verified; the configuration is launched; run: autotune run {kernel.name}"
        )
        return None
    return call


def answered(resolved: ResolvedCall, plan: LaunchPlan, host: Mapping[str, NDArray[Any]]) -> bool:
    """Let the rival of a plan answer a call on host arrays; return whether it did."""
    if plan.choice.rival is None or not takes_rival(resolved, plan.device.is_cuda, None):
        return False
    arrays = {
        name: array.view(plan.arguments[name].dtype).reshape(plan.arguments[name].stored_shape)
        for name, array in host.items()
    }
    scalars = {
        name: plan.scalar(name, resolved.scalars)
        for name, argument in plan.arguments.items()
        if argument.kind == "scalar"
    }
    call = prepared(resolved, plan, arrays, scalars)
    if call is not None:
        call()
    return call is not None


class _Prepared(NamedTuple):
    #: None: the configuration is launched.
    call: Callable[[], object] | None
    #: The caller's stream as a stream of CuPy.
    stream: Any


@dataclass(eq=False)
class RivalStep:
    """A step that makes the call of a rival in place of the steps of a configuration.

    A call is prepared for its addresses, floats and stream, and once more in each capture: a graph may run while
    the stream makes other calls, so the memory of its calls is its own. Preparing takes longer than a call.
    """

    resolved: ResolvedCall
    plan: LaunchPlan
    #: CUDA device of the arrays.
    index: int
    #: Index of each array among the pointers of a call.
    places: Mapping[str, int]
    #: The steps of the configuration.
    own: Sequence[Step]
    _prepared: dict[object, _Prepared] = field(default_factory=dict, init=False)
    _lock: RLock = field(default_factory=RLock, init=False)

    def __post_init__(self) -> None:
        arguments = self.plan.arguments
        self._arrays = {name: self.places[name] for name in arguments if name in self.places}
        floats = self.resolved.passed_on
        self._pick = itemgetter(*self._arrays.values(), *floats.values())
        self._current = cupy().cuda.get_current_stream

    def __call__(self, pointers: Sequence[Any], stream: int, functions: Sequence[int]) -> None:
        """Enqueue on a stream; see `autotune.calling.steps.Step`."""
        is_captured, place = is_capturing(stream), 0
        if is_captured:
            place = capture_of(stream)
        elif stream == PER_THREAD:
            place = get_ident()
        key = stream, is_captured, place, self._pick(pointers)
        found = self._prepared.get(key) or self._prepare(key, pointers, stream)
        if found.call is None:
            for step in self.own:
                step(pointers, stream, functions)
            return
        if self._current(self.index).ptr == stream:
            found.call()
            return
        with found.stream:
            found.call()

    def _prepare(self, key: object, pointers: Sequence[Any], stream: int) -> _Prepared:
        arguments, resolved = self.plan.arguments, self.resolved
        with self._lock, on_device(self.index), everything_allowed():
            of_cupy = on_stream(stream)
            arrays = {
                name: _array(arguments[name], pointers[place], self.index)
                for name, place in self._arrays.items()
            }
            passed = {name: pointers[place] for name, place in resolved.passed_on.items()}
            scalars = {
                name: self.plan.scalar(name, {**resolved.scalars, **passed})
                for name, argument in arguments.items()
                if argument.kind == "scalar"
            }
            with of_cupy:
                found = _Prepared(prepared(resolved, self.plan, arrays, scalars), of_cupy)
            if len(self._prepared) >= _MAX_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[key] = found
            if is_capturing(stream):
                kept_by_graphs.append(found.call)
        return found


def _array(argument: Argument, pointer: int, index: int) -> Any:
    """Return an array of CuPy on memory of the caller."""
    memory = cupy().cuda.UnownedMemory(pointer, argument.nbytes, owner=None, device_id=index)
    begin = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(argument.stored_shape, np.dtype(argument.dtype), begin)

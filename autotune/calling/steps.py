"""The steps of a call on a GPU: its launches and fills, whose parameters change from call to call."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from autotune.calling.libraries import cupy
from autotune.calling.loaded import on_stream
from autotune.data.arguments import Argument
from autotune.devices.base import PLAIN, ViewLayout
from autotune.devices.driver_launch import DriverLaunch
from autotune.encoding import element_of
from autotune.kernel.attributes import attributes_of
from autotune.kernel.spec import Launch

#: Bytes of a changing parameter: an address or a number of at most 64 bits.
_SLOT_BYTES = 8


@dataclass(frozen=True)
class Parameter:
    """A parameter of a launch: a fixed value, or the index of a call's value with its `struct` code.

    With a layout it is the view of the array with that index.
    """

    value: np.generic | None = None
    index: int | None = None
    code: str = "Q"
    layout: ViewLayout | None = None


#: `struct` codes of floating-point scalars that change from call to call, by type.
CODES = {"float32": "f4x", "float64": "d", "float16": "e6x"}
#: `struct` codes of integer scalars that change from call to call, by type.
CODES_OF_INTEGERS = {"int32": "i4x", "int64": "q"}

#: Enqueues a step. Arguments: addresses and numbers of a call, a stream, handles of functions.
Step: TypeAlias = Callable[[Sequence[Any], int, Sequence[int]], None]


def launch_step(number: int, launch: Launch, parameters: Sequence[Parameter]) -> Step:
    """Return the step of the ``number``-th launch; a closure, because calls are many and short."""
    changing = [found for found in parameters if found.index is not None and not found.layout]
    indices = [parameter.index or 0 for parameter in changing]
    pick: Callable[[Sequence[Any]], Any] = (
        itemgetter(*indices) if len(indices) > 1 else lambda found: [found[i] for i in indices]
    )
    pack_into = struct.Struct("".join(found.code for found in changing)).pack_into
    fixed = [None if found.value is None else np.array([found.value]) for found in parameters]
    layouts = [found.layout for found in parameters]
    moves, offset = [], _SLOT_BYTES * len(changing)
    for found in parameters:
        if found.layout:
            moves.append(_mover(found.layout, found.index or 0, offset))
            offset += found.layout.nbytes
    if attributes_of(launch) != PLAIN:

        def write(memory: Any, pointers: Sequence[Any]) -> None:
            pack_into(memory, 0, *pick(pointers))
            for move in moves:
                move(memory, pointers)

        return _step_with_attributes(number, launch, partial(_buffer, fixed, layouts), write)
    #: Unused buffers. Several threads may launch at the same time.
    free: list[tuple[Any, int, Any]] = []
    take, give, enqueue = free.pop, free.append, cupy().cuda.driver.launchKernel
    (x, y, z), (width, height, depth) = launch.grid, launch.block
    shared_bytes = launch.shared_bytes

    def step(pointers: Sequence[Any], stream: int, functions: Sequence[int]) -> None:
        try:
            buffer = take()
        except IndexError:
            buffer = _buffer(fixed, layouts)
        memory, address, _ = buffer
        pack_into(memory, 0, *pick(pointers))
        for move in moves:
            move(memory, pointers)
        # The driver copies the parameters before it returns.
        enqueue(functions[number], x, y, z, width, height, depth, shared_bytes, stream, address, 0)
        give(buffer)

    return step


def _step_with_attributes(
    number: int,
    launch: Launch,
    make: Callable[[], tuple[Any, int, Any]],
    write: Callable[[Any, Sequence[Any]], None],
) -> Step:
    """Return the step of a launch with attributes, whose buffers have a launch of the driver each.

    ``make`` returns a buffer, and ``write`` writes the parameters of a call into its memory.
    """
    free: list[tuple[tuple[Any, int, Any], DriverLaunch]] = []

    def step(pointers: Sequence[Any], stream: int, functions: Sequence[int]) -> None:
        try:
            buffer, enqueue = free.pop()
        except IndexError:
            buffer = make()
            enqueue = DriverLaunch(
                launch.grid, launch.block, launch.shared_bytes, attributes_of(launch)
            )
        memory, address, _ = buffer
        write(memory, pointers)
        enqueue(functions[number], stream, address)
        free.append((buffer, enqueue))

    return step


def _mover(layout: ViewLayout, index: int, offset: int) -> Callable[[Any, Sequence[Any]], None]:
    """Return a function that moves the view at an offset of the parameters to the array of a call."""
    if layout.has_address_first:  # no call of the driver
        write = struct.Struct("Q").pack_into
        return lambda memory, pointers: write(memory, offset, pointers[index])

    def encode(memory: Any, pointers: Sequence[Any]) -> None:
        memory[offset : offset + layout.nbytes] = layout.encoded(pointers[index])

    return encode


def _buffer(fixed: Sequence[Any], layouts: Sequence[ViewLayout | None]) -> tuple[Any, int, Any]:
    """Return memory for the parameters of a launch: changing values, then views of arrays."""
    slots = sum(value is None and not layout for value, layout in zip(fixed, layouts, strict=True))
    views = b"".join(layout.unplaced() for layout in layouts if layout)
    memory = (ctypes.c_char * max(1, _SLOT_BYTES * slots + len(views)))()
    begin = ctypes.addressof(memory)
    ctypes.memmove(begin + _SLOT_BYTES * slots, views, len(views))
    of_slot, of_view = itertools.count(begin, _SLOT_BYTES), begin + _SLOT_BYTES * slots
    addresses = []
    for value, layout in zip(fixed, layouts, strict=True):
        if layout:
            addresses.append(of_view)
            of_view += layout.nbytes
        else:
            addresses.append(next(of_slot) if value is None else value.ctypes.data)
    pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
    return memory, ctypes.addressof(pointers), pointers


class BufferFill:
    """A step that sets a buffer to one value."""

    def __init__(self, index: int, argument: Argument, value: float) -> None:
        self._index, self._nbytes = index, argument.nbytes
        element = element_of(argument.type_name, value)
        octets = set(element.tobytes())
        self._byte = octets.pop() if len(octets) == 1 else None
        self._element, self._shape = element, argument.stored_shape

    def __call__(self, pointers: Sequence[Any], stream: int, functions: Sequence[int]) -> None:
        pointer, runtime = pointers[self._index], cupy().cuda.runtime
        if self._byte is not None:
            runtime.memsetAsync(pointer, self._byte, self._nbytes, stream)
            return
        memory = cupy().cuda.UnownedMemory(pointer, self._nbytes, owner=None)
        begin = cupy().cuda.MemoryPointer(memory, 0)
        with on_stream(stream):
            cupy().ndarray(self._shape, self._element.dtype, begin).fill(self._element)

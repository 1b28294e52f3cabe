"""Modules on a device by stream and captured graph, memory for workspaces, contexts of the CUDA runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from autotune.calling.choice import LaunchPlan
from autotune.calling.libraries import DeviceLibrary, cupy
from autotune.devices.base import Binary
from autotune.devices.cubin import constant
from autotune.devices.graph import everything_allowed
from autotune.kernel.spec import Launch

#: CU_STREAM_PER_THREAD of the driver API: the default stream of the calling thread.
PER_THREAD = 2
#: CUfunction_attribute of the driver API: dynamic shared memory that a function may use.
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


# ---------------------------------------------------------------------- modules


class LoadedModule:
    """A binary on the device. It is never unloaded, because a captured graph may launch it."""

    def __init__(self, binary: Binary) -> None:
        self._binary = binary
        self._module = cupy().cuda.function.Module()
        self._module.load(binary.code)
        #: Addresses of variables by name and bytes.
        self._addresses: dict[tuple[str, int], int] = {}

    def function(self, launch: Launch) -> int:
        """Return the driver's handle of a launch's function, with its shared memory allowed."""
        function = self._module.get_function(self._binary.symbol(str(launch.entry)))
        if launch.shared_bytes > 48 * 1024:
            # CUDA C++ Programming Guide, "Shared Memory" (9.x): more than 48 KiB is opt-in.
            attribute = _MAX_DYNAMIC_SHARED_SIZE_BYTES
            cupy().cuda.driver.funcSetAttribute(function.ptr, attribute, launch.shared_bytes)
        return int(function.ptr)

    def variable(self, name: str, nbytes: int) -> int:
        """Return the address of a variable in constant memory for this many bytes, by its C++ name."""
        if (name, nbytes) not in self._addresses:
            symbol = constant(self._binary.code, name, nbytes)
            self._addresses[name, nbytes] = int(self._module.get_global_var(symbol))
        return self._addresses[name, nbytes]


#: Modules by device, binary and place; problems with the same binary share the module.
_modules: dict[object, LoadedModule] = {}


class LoadedPlan:
    """A launch plan with its modules on the device.

    Launches of an exclusive configuration must not overlap, so it has a module for each stream and for each
    stream of a capture.
    """

    def __init__(self, plan: LaunchPlan, index: int) -> None:
        self.plan = plan
        self.index = index
        self._functions: dict[object, tuple[int, ...]] = {}
        if not plan.exclusive:
            with on_device(index):
                self.functions(None)

    def module(self, place: object) -> LoadedModule:
        """Return the module for a place: a stream, or a stream and a capture."""
        binary = self.plan.binary
        key = self.index, binary.key, place if self.plan.exclusive else None
        # If two threads load for one stream, both launch the module of the first.
        return _modules.get(key) or _modules.setdefault(key, LoadedModule(binary))

    def functions(self, place: object) -> tuple[int, ...]:
        """Return the handles of the functions for a place, in the order of the launches."""
        found = self._functions.get(place)
        if found is None:
            module = self.module(place)
            found = tuple(map(module.function, self.plan.sequence.launches))
            self._functions[place] = found
        return found


#: Arrays that captured graphs read or write; their library would free them too early.
kept_by_graphs: list[Any] = []


def on_device(index: int) -> Any:
    """Return a context in which a device is this thread's current device."""
    return cupy().cuda.Device(index)


def is_capturing(stream: int) -> bool:
    """Return whether a graph captures a stream."""
    # The default stream cannot be captured; a query during another capture is an error.
    return bool(stream and cupy().cuda.runtime.streamIsCapturing(stream))


def on_stream(stream: int) -> Any:
    """Return a context in which CuPy uses a stream."""
    return cupy().cuda.Stream.from_external(_Stream(stream))


@dataclass(frozen=True)
class _Stream:
    """A stream of another library, for the CUDA stream protocol."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer  # protocol version, stream


# ---------------------------------------------------------------------- workspaces


@dataclass(eq=False)
class Arena:
    """Memory for the workspaces of one stream. Launches on a stream run in order, so they share it."""

    #: Held while a thread enqueues steps that share a workspace or a module's state.
    lock: RLock = field(default_factory=RLock)
    buffer: Any = None
    nbytes: int = 0
    begin: int = 0

    def grow(self, nbytes: int) -> None:
        """Allocate memory of a size from the driver, because a library may reclaim its own memory.

        The driver frees the old memory after the launches that use it.
        """
        with everything_allowed():  # a graph may capture another stream
            memory = cupy().cuda.memory.Memory(nbytes)
        self.buffer, self.begin, self.nbytes = memory, int(memory.ptr), nbytes

    def lend(self, library: DeviceLibrary, nbytes: int, index: int) -> None:
        """Allocate memory from the library that owns the captured graph."""
        self.buffer = library.empty((nbytes,), "uint8", index)
        self.begin, self.nbytes = library.pointer(self.buffer), nbytes


#: Arenas by device, library and place.
arenas: dict[object, Arena] = {}


def arena_at(place: object) -> Arena:
    """Return the arena of a place; a new arena is empty."""
    return arenas.get(place) or arenas.setdefault(place, Arena())

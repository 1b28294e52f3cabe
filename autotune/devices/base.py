"""The contract of a backend: list devices, compile, and execute launch sequences on one device.

A backend knows nothing of search or storage. `Backend` can be used in any process; an `Executor`
holds a device context, so only the worker process makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from autotune.devices.binary import Binary
from autotune.devices.device import Clocks, Device, Power

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes before and after every buffer that no kernel may touch: where a matrix is small, a whole tile
#: or row beyond its end is in them.
GUARD_BYTES = 1 << 20
#: Value of every guard byte: none of `Poison`. Large, or NaN, in every type (8.4e37 as float, 2.1e9 as
#: integer), so that what is read beyond a buffer shows in a sum; a small number would be rounded away.
GUARD_VALUE = 0x7E
#: A batch of hot calls lasts so long, or holds so many.
_BATCH_MS, _BATCH_CALLS = 0.1, 32


#: What to do about a kernel of others that has them; references to textures went with CUDA 12.
NO_TEXTURES = (
    "textures are not supported: pass the array as an argument, and read it through a "
    "const __restrict__ pointer"
)


class Poison(IntEnum):
    """Every byte of an output before a launch.

    An output that nobody wrote passes where its poison is what is expected, so there are two.
    """

    #: As floating-point number; -1 as integer, true as bool.
    NAN = 0xFF
    #: Far from most results: 1.3e36 as float, 61,280 as half, 2,071,690,107 as 32-bit integer; no bool.
    FINITE = 0x7B


class CompileError(Exception):
    """The compiler rejected the source; ``str(error)`` is its log."""


class ResourceError(CompileError):
    """The source needs more of a resource than the architecture has."""


class LaunchError(Exception):
    """The device refused a launch; the context is still usable."""


class ContextLostError(Exception):
    """The device context is broken for good (an illegal address, say): the process must go."""


@dataclass(frozen=True)
class BoundLaunch:
    """One launch with everything decided: geometry as three integers, arguments as values."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    #: Buffers of this executor, or numpy scalars; None is a null pointer.
    args: tuple[Any, ...]


@dataclass(frozen=True)
class BoundFill:
    """Set every element of a buffer."""

    buffer: Any
    value: np.generic


@dataclass(frozen=True)
class Comparison:
    """An output and what it must hold."""

    buffer: Any
    #: Of its elements: floating-point, integer or bool.
    dtype: np.dtype[Any]
    #: Buffer of as many elements: integers and bools of the same type; float64 for floating-point
    #: numbers, or float32 where it has four bytes for each.
    expected: Any
    count: int
    #: Largest absolute error allowed.
    bound: float


@dataclass(frozen=True)
class Side:
    """One of the sequences that run at the same time; see `Executor.at_once`."""

    #: Enqueues, by the same executor, what makes the side's buffers fresh for a run.
    renew: Callable[[], object]
    steps: Sequence[BoundLaunch | BoundFill]


@dataclass(frozen=True)
class Difference:
    """Size of an output's deviation from the expected values."""

    max_error: float
    rms_error: float
    #: Flat index of the first element over the bound, or NaN where none is expected.
    first_wrong: int | None


def with_defines(source: str, defines: Mapping[str, str]) -> str:
    """A source with macros in front.

    Not as options of a compiler, whose own headers they would reach: one called ``size`` breaks
    NVRTC's, and names in lower case are what kernels of others have.
    """
    return "\n".join([*(f"#define {name} {value}" for name, value in defines.items()), source])


class Timer(Protocol):
    """Takes samples of one launch sequence or vendor call; ``timer(count)`` is that many.

    All contenders of a race are launched the same way: `by_stream` brings those that could be
    captured down to what the others can do.
    """

    #: ``graph``: as one captured unit; ``stream``: launch by launch.
    launched_by: str
    #: What taking a sample would add to it, in milliseconds; samples are without it.
    overhead_ms: float

    def __call__(self, count: int) -> list[float]:
        """Milliseconds per call, ``count`` samples: cold or hot, as it was made."""

    def singly(self, count: int) -> list[float]:
        """Milliseconds of so many calls, one by one also where hot samples are batches."""

    def hot(self, count: int) -> list[float]:
        """Milliseconds per call of calls back to back, ``count`` batches of them."""

    def clean(self, count: int) -> list[float]:
        """Milliseconds of calls, one by one, each after a flush that left no line to be written back."""

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        """Calls back to back, so that the device never waits, until somebody says that it is enough.

        ``is_enough`` is told how many are done, about every millisecond or after every batch.
        """

    def by_stream(self) -> None:
        """Launch by launch from now on."""


class Executor(Protocol):
    """One device context. Buffers are opaque; every one lies between guard bands.

    What launches may raise `LaunchError` and `ContextLostError`.
    """

    device: Device

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> Any:
        """Make a buffer with intact guard bands; contents undefined.

        It begins so many bytes past a boundary of 256; see `Device.places_arrays`.

        Raises
        ------
        MemoryError
            If the device has not enough memory.
        DeviceError
            If it cannot begin there.
        """

    def write(self, buffer: Any, array: NDArray[Any]) -> None:
        """Copy host data into a buffer of the same size."""

    def read(self, buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Copy a buffer to the host."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy one buffer's contents to another of the same size, on the device."""

    def poison(self, buffer: Any, poison: Poison = Poison.NAN) -> None:
        """Enqueue that every byte is set."""

    def mend_guards(self, buffer: Any) -> None:
        """Write the guard bands again."""

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[Any] = (),
        pairs: Sequence[tuple[Any, Any]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        """Compare outputs, and check guard bands and bytes, waiting for the device once.

        Integers are compared as they are, floating-point numbers as float64: NaN is right only where
        NaN is expected, and so are infinities.

        Returns the difference of each output; whether both guard bands are intact, for each buffer;
        and whether both hold the same bytes, for each pair of buffers of equal size and offset.
        """

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        """Make a binary launchable and set its module symbols."""

    def calibrate(self) -> None:
        """Find out now what the first timer would need to know."""

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        """Enqueue a sequence once and wait for it.

        Returns
        -------
        float
            Milliseconds on the device, what launching costs between the steps included.
        """

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        """Make sequences that have run before ready to run at the same time.

        What is returned runs each of them so many times, on a queue of its own, and waits for all.
        """

    def timer(self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool) -> Timer:
        """Make a sequence that has run before ready to be timed often."""

    def timer_of(self, call: Callable[[], object], cold: bool) -> Timer:
        """Make anything that enqueues on this executor's stream ready to be timed often.

        It has been called before: what a library makes at its first call is there by now.
        """

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> Any:
        """Bind a vendor call to device arrays; see `Baseline`."""

    def memory_held_elsewhere(self) -> int:
        """Bytes of the device's memory that other processes hold; 0 where that is not known."""

    def clocks(self) -> Clocks:
        """State of the device now."""

    def energy_mj(self) -> int:
        """What the device has taken so far, from some moment on, in millijoules.

        Raises
        ------
        DeviceError
            Where it has no such counter; see `Backend.why_no_energy`.
        """

    def power(self) -> Power:
        """What the device draws now, and what it may."""


class Backend(Protocol):
    """What any process may ask."""

    name: str

    def devices(self) -> list[Device]:
        """Usable devices, in selector order; empty where there is none."""

    def why_unavailable(self) -> str:
        """What is missing, and the command that installs it; empty where devices are usable."""

    def why_no_energy(self, device: Device) -> str:
        """Why a device does not tell the energy it takes; empty where it does. Makes no context."""

    def toolchain(self) -> str:
        """Name and version of the compiler, part of every binary's key."""

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        """Compile for a device or an architecture; needs no device context (CUDA: no device).

        ``entries`` are the functions that will be launched. CUDA instantiates those that are
        templates (``scale<128>``) and finds those without C linkage; OpenCL needs no telling.

        Raises
        ------
        CompileError
            With the compiler's log.
        """

    def load_compiler(self) -> None:
        """Do in this process what the first compile would take longer for than the next."""

    def get_ready(self, device: Device) -> None:
        """Do in this process what `open` and the first checks need and what takes no context."""

    def open(self, device: Device) -> Executor:
        """Make the context of a device in this process.

        Raises
        ------
        DeviceError
        """


def batch_size(call_ms: float) -> int:
    """Calls back to back that make one hot sample: one where a call is long by itself."""
    return max(1, min(_BATCH_CALLS, round(_BATCH_MS / max(call_ms, 1e-6))))

"""The contract of a backend: list devices, compile, and execute launch sequences on one device.

Any process can use a `Backend`. An `Executor` holds a device context, so only the worker process
makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from autotune.devices.device import Clocks, Device, Power

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes before and after every buffer that no kernel may touch. A whole tile or row beyond the end of a
#: small matrix lies in them.
GUARD_BYTES = 1 << 20
#: Value of every guard byte: none of `Poison`. It is large, or NaN, in every type (8.4e37 as float, 2.1e9
#: as integer), so that a read beyond a buffer shows in a sum; a small number would be rounded away.
GUARD_VALUE = 0x7E
#: Length of a batch of hot calls, and its most calls.
_BATCH_MS, _BATCH_CALLS = 0.1, 32


class Poison(IntEnum):
    """The value of every byte of an output before a launch.

    An output that was not written looks correct if its poison is expected, so there are two poisons.
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
    """The device context is broken for good, for example by an illegal address: the process must end."""


@dataclass(frozen=True)
class BoundLaunch:
    """One launch with its geometry as three integers, and its arguments as values."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    #: Buffers of this executor, or numpy scalars; None is a null pointer.
    args: tuple[Any, ...]


@dataclass(frozen=True)
class BoundFill:
    """The step that sets every element of a buffer."""

    buffer: Any
    value: np.generic


@dataclass(frozen=True)
class Comparison:
    """An output and its expected values."""

    buffer: Any
    #: Type of the elements: floating-point, integer or bool.
    dtype: np.dtype[Any]
    #: Buffer of as many elements: integers and bools of the same type; float64 for floating-point
    #: numbers, or float32 if it has four bytes for each.
    expected: Any
    count: int
    #: Largest absolute error allowed.
    bound: float
    #: Buffer of such a bound for each element, float32 or of a float64 output float64, or None.
    bounds: Any = None
    #: The elements are bits of bfloat16, in uint16; expected values are floating-point numbers.
    is_bfloat16: bool = False


@dataclass(frozen=True)
class Side:
    """One of the sequences that run at the same time; see `Executor.at_once`."""

    #: Enqueues, on the same executor, the reset of the side's buffers before a run.
    renew: Callable[[], object]
    steps: Sequence[BoundLaunch | BoundFill]


@dataclass(frozen=True)
class Difference:
    """The deviation of an output from its expected values."""

    max_error: float
    rms_error: float
    #: Flat index of the first element over the bound, or NaN where none is expected.
    first_wrong: int | None


def with_defines(source: str, defines: Mapping[str, str]) -> str:
    """Return a source with macros in front.

    As options of the compiler they would reach its own headers: a macro ``size`` breaks NVRTC's.
    """
    return "\n".join([*(f"#define {name} {value}" for name, value in defines.items()), source])


@dataclass(frozen=True)
class Convention:
    """The part of a launch that a compiler decides in place of the launch function."""

    #: Threads of a block.
    block: int
    #: Dynamic shared memory per block.
    shared_bytes: int
    #: Positions of the arguments that are passed on; None is a null pointer.
    passed: tuple[int | None, ...]
    #: Blocks in x for each block of the grid.
    blocks: int = 1


@dataclass(frozen=True)
class CompiledFunction:
    """The resources of one compiled kernel function; None if the compiler does not report them."""

    name: str
    registers: int | None = None
    spill_bytes: int | None = None
    #: Static shared memory per block.
    shared_bytes: int | None = None
    #: Name in the binary if it differs: C++ functions are mangled.
    symbol: str = ""
    #: None if the launch function decides all.
    convention: Convention | None = None


@dataclass(frozen=True)
class Binary:
    """A compiled source that a backend can load."""

    code: bytes
    entries: tuple[CompiledFunction, ...]
    log: str
    #: sha256 of everything that decides the code; see `autotune.compiling.job`.
    key: str

    def entry(self, name: str) -> CompiledFunction | None:
        """Return a function by name, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def symbol(self, name: str) -> str:
        """Return the name of a function in the code."""
        entry = self.entry(name)
        return entry.symbol if entry and entry.symbol else name


class Timer(Protocol):
    """The timer of one launch sequence or vendor call.

    All contenders of a race are launched the same way: if one cannot be captured, `by_stream` is called
    for all others.
    """

    #: ``graph``: as one captured graph; ``stream``: launch by launch.
    launched_by: str
    #: Milliseconds that timing adds to a sample; samples are without it.
    overhead_ms: float

    def __call__(self, count: int) -> list[float]:
        """Take samples, cold or hot as the timer was made, in milliseconds per call."""

    def singly(self, count: int) -> list[float]:
        """Take samples of single calls; a hot timer's too, whose other samples are batches."""

    def hot(self, count: int) -> list[float]:
        """Take samples of batches of calls back to back, in milliseconds per call."""

    def clean(self, count: int) -> list[float]:
        """Take samples of single calls, each after a flush that leaves no cache line to be written back."""

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        """Call back to back, so that the device never waits, until ``is_enough(calls)`` is true.

        It is asked about every millisecond or after every batch.
        """

    def by_stream(self) -> None:
        """Launch one by one from now on."""


class Executor(Protocol):
    """One device context. Every buffer is opaque and lies between guard bands.

    Methods that launch may raise `LaunchError` and `ContextLostError`.
    """

    device: Device

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> Any:
        """Make a buffer with intact guard bands and undefined contents; MemoryError if there is no room.

        It begins ``offset_bytes`` past a boundary of 256; DeviceError if it cannot, see
        `Device.is_cuda`.
        """

    def write(self, buffer: Any, array: NDArray[Any]) -> None:
        """Copy host data into a buffer of the same size."""

    def read(self, buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Copy a buffer to the host."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy one buffer's contents to another of the same size, on the device."""

    def poison(self, buffer: Any, poison: Poison = Poison.NAN) -> None:
        """Enqueue a write of every byte."""

    def restore_guards(self, buffer: Any) -> None:
        """Restore the guard bands."""

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[Any] = (),
        pairs: Sequence[tuple[Any, Any]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        """Compare outputs, and check guard bands and bytes, in one wait for the device.

        Integers are compared in their type, floating-point numbers as float64. NaN and infinities are
        correct only where they are expected. The result is the difference of each output, whether both
        guard bands of each buffer are intact, and whether each pair of buffers, of equal size and
        offset, holds the same bytes.
        """

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        """Load a binary and set its module symbols."""

    def calibrate(self) -> None:
        """Measure now what the first timer needs."""

    def skip_calibration(self) -> None:
        """Leave what timing adds to a sample in it: for comparisons, which begin at once."""

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        """Enqueue a sequence once, wait, and return its milliseconds, launching between steps included."""

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        """Return a function that runs each sequence ``times`` times on a queue of its own, and waits.

        The sequences have run before.
        """

    def timer(self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool) -> Timer:
        """Return the timer of a sequence that has run before."""

    def timer_of(self, call: Callable[[], object], cold: bool) -> Timer:
        """Return the timer of a call that enqueues on this executor's stream, and was made before."""

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> Any:
        """Bind a vendor call to device arrays; see `Baseline`."""

    def clocks(self) -> Clocks:
        """Read the clocks of the device."""

    def energy_mj(self) -> int:
        """Read the energy counter in millijoules; DeviceError without one, see `Backend.why_no_energy`."""

    def power(self) -> Power:
        """Read draw and limit of the device."""


class Compiler(Protocol):
    """The compiler of a source language: source text to binary, in any process and without a context."""

    def toolchain(self) -> str:
        """Return name and version of the compiler, part of every binary's key."""

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        """Compile for a device or an architecture; `CompileError` with the log. CUDA needs no device.

        ``entries`` are the functions to launch. CUDA instantiates templates among them
        (``scale<128>``) and finds functions without C linkage; OpenCL ignores them.
        """

    def load_compiler(self) -> None:
        """Load the compiler in this process, so that the first compile is as fast as others."""


class Backend(Compiler, Protocol):
    """The devices of one kind, without a context, and the compiler of their dialect of C."""

    name: str

    def devices(self) -> list[Device]:
        """Return the usable devices, in selector order."""

    def why_unavailable(self) -> str:
        """Return the missing part and the command that installs it; empty if devices are usable."""

    def why_no_energy(self, device: Device) -> str:
        """Return why the energy of a device cannot be read; empty if it can."""

    def get_ready(self, device: Device) -> None:
        """Import and compile in this process what `open` and the first checks need, without a context."""

    def open(self, device: Device) -> Executor:
        """Make the context of a device in this process; DeviceError if that fails."""


def batch_size(call_ms: float) -> int:
    """Return the calls back to back of one hot sample: one where a single call is long."""
    return max(1, min(_BATCH_CALLS, round(_BATCH_MS / max(call_ms, 1e-6))))

"""The contract of a backend: list devices, compile, and execute launch sequences on one device.

Any process can use a `Backend`. Only the worker process makes an `Executor`, which holds a device context.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from autotune.devices.device import Clocks, Device, Power
from autotune.element_types import ENCODED_TYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes before and after every buffer that no kernel may touch. They cover a whole tile or row beyond the end of
#: a small matrix.
GUARD_BYTES = 1 << 20
#: Value of every guard byte, different from `Poison`. It is large or NaN in every type (8.4e37 as float, 2.1e9
#: as integer), so that a read beyond a buffer shows in a sum. A small number would be rounded away.
GUARD_VALUE = 0x7E
#: Length of a batch of hot calls.
_BATCH_MS = 0.1
#: Maximum number of calls of a batch.
_MAX_BATCH_CALLS = 32


class Poison(IntEnum):
    """The value of every byte of an output before a launch.

    An unwritten output looks correct if its expected value is the poison. Therefore there are two poisons.
    """

    #: NaN as floating-point number, -1 as integer, true as bool.
    NAN = 0xFF
    #: Far from most results: 1.3e36 as float, 61,280 as half, 2,071,690,107 as 32-bit integer; not a bool.
    FINITE = 0x7B
    #: No poison: zero, from which differences are sizes.
    ZERO = 0x00


class CompileError(Exception):
    """The compiler rejected the source; ``str(error)`` is its log."""


class ResourceError(CompileError):
    """The source needs more of a resource than the architecture has."""


class LaunchError(Exception):
    """The device refused a launch; the context is still usable."""


class ContextLostError(Exception):
    """The device context is lost, for example by an illegal address: the process must end."""


@dataclass(frozen=True)
class LaunchAttributes:
    """Attributes of a CUDA launch, which the driver gets in addition to its geometry; see `autotune.Launch`."""

    #: Blocks of a cluster in x, y, z; empty: no clusters.
    cluster: tuple[int, ...] = ()
    cooperative: bool = False
    programmatic: bool = False


#: Attributes of a launch without any.
PLAIN = LaunchAttributes()


@dataclass(frozen=True)
class BoundLaunch:
    """One launch with its geometry as three integers, and its arguments as values."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    #: Buffers of this executor, or numpy scalars; None is a null pointer.
    args: tuple[Any, ...]
    #: Only on CUDA devices other than `PLAIN`.
    attributes: LaunchAttributes = PLAIN


@dataclass(frozen=True)
class BoundFill:
    """A step that sets every element of a buffer."""

    buffer: Any
    value: np.generic


@dataclass(frozen=True)
class Comparison:
    """An output and its expected values."""

    buffer: Any
    #: Type of the elements: floating-point, integer or bool.
    dtype: np.dtype[Any]
    #: Buffer of ``count`` elements. Integers and bools have the output's type; floating-point numbers are
    #: float64, or float32 if the buffer has four bytes for each.
    expected: Any
    count: int
    #: Largest absolute error allowed, if all elements have the same bound.
    bound: float
    #: Buffer with the bound of each element, float64 for a float64 output and otherwise float32; or None.
    bounds: Any = None
    #: Name of the elements' type if NumPy lacks it, which ``dtype`` then stores as bits; else empty.
    bits_of: str = ""

    @property
    def stored_count(self) -> int:
        """Stored numbers of the output: half of ``count`` if two elements share a byte."""
        return self.count // (ENCODED_TYPES[self.bits_of].per_stored if self.bits_of else 1)

    @property
    def is_real(self) -> bool:
        """True if expected values are floating-point numbers."""
        if self.bits_of:
            return ENCODED_TYPES[self.bits_of].values == "float32"
        return bool(self.dtype.kind == "f")


@dataclass(frozen=True)
class Side:
    """One of the launch sequences that run at the same time; see `Executor.at_once`."""

    #: Function that enqueues the reset of the side's buffers before a run, on the same executor.
    renew: Callable[[], object]
    steps: Sequence[BoundLaunch | BoundFill]


@dataclass(frozen=True)
class Difference:
    """The deviation of an output from its expected values."""

    max_error: float
    rms_error: float
    #: Flat index of the first element that exceeds its bound, or is NaN unexpectedly; None if all are correct.
    first_wrong: int | None


def with_defines(source: str, defines: Mapping[str, str]) -> str:
    """Return a source with macros in front.

    Macros in the options of the compiler would reach its own headers: a macro ``size`` breaks NVRTC's headers.
    """
    return "\n".join([*(f"#define {name} {value}" for name, value in defines.items()), source])


class ViewLayout(Protocol):
    """A view of an array that the driver makes, without the array's address."""

    @property
    def nbytes(self) -> int:
        """Bytes of the kernel's parameter."""

    @property
    def has_address_first(self) -> bool:
        """True if a view at another address differs in its first 8 bytes only, which are the address."""

    def encoded(self, address: int) -> bytes:
        """Return the parameter for an array at an address; `DeviceError` if the driver refuses it."""

    def unplaced(self) -> bytes:
        """Return a parameter without an array, to be moved before a launch."""


@dataclass(frozen=True)
class ViewedBuffer:
    """A view of a buffer, as an argument of a launch."""

    layout: ViewLayout
    buffer: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the parameter."""
        return self.layout.nbytes


#: Workspace of a function in device memory that its compiler needs, not the space file.
GLOBAL_SCRATCH = "(global scratch)"


@dataclass(frozen=True)
class Convention:
    """The part of a launch that a compiler decides instead of the launch function."""

    #: Threads of a block.
    block: int
    #: Dynamic shared memory per block.
    shared_bytes: int
    #: Positions of the arguments that are passed on, or `GLOBAL_SCRATCH`; None is a null pointer.
    passed: tuple[int | str | None, ...]
    #: Blocks in x for each block of the grid.
    blocks: int = 1
    #: Bytes of `GLOBAL_SCRATCH` for each block that runs.
    scratch_bytes: int = 0
    #: Further attributes of the launch; see `autotune.Launch`.
    cooperative: bool = False
    programmatic: bool = False


@dataclass(frozen=True)
class CompiledFunction:
    """The resources of one compiled kernel function; None if the compiler does not report them."""

    name: str
    registers: int | None = None
    spill_bytes: int | None = None
    #: Static shared memory per block.
    shared_bytes: int | None = None
    #: Name in the binary if it differs, because names of C++ functions are mangled.
    symbol: str = ""
    #: None if the launch function decides the whole launch.
    convention: Convention | None = None
    #: Bytes of each parameter, 0 if its type is unknown; None if the compiler does not report parameters.
    parameter_bytes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Binary:
    """A compiled source that a backend can load."""

    code: bytes
    entries: tuple[CompiledFunction, ...]
    log: str
    #: sha256 of the inputs of the compile; see `autotune.compiling.job`.
    key: str

    def entry(self, name: str) -> CompiledFunction | None:
        """Return a function by name, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def launched(self, names: Collection[str]) -> tuple[CompiledFunction, ...]:
        """Return the functions of these names; all functions if the binary has none of them.

        A source with several kernels may have a larger one that this configuration does not launch.
        """
        return tuple(entry for entry in self.entries if entry.name in names) or self.entries

    def symbol(self, name: str) -> str:
        """Return the name of a function in the code."""
        entry = self.entry(name)
        return entry.symbol if entry and entry.symbol else name


class Timer(Protocol):
    """The timer of one launch sequence or vendor call.

    All contenders of a race are launched in the same way. If one cannot be captured as a graph, `by_stream`
    is called for all others.
    """

    #: ``graph``: as one captured graph; ``stream``: launch by launch.
    launched_by: str
    #: Milliseconds that timing adds to a sample, already subtracted from samples.
    overhead_ms: float

    def __call__(self, count: int) -> list[float]:
        """Take samples in milliseconds per call, cold or hot as chosen for the timer."""

    def singly(self, count: int) -> list[float]:
        """Take samples of single calls, also with a hot timer, whose other samples are batches."""

    def hot(self, count: int) -> list[float]:
        """Take samples of batches of calls back to back, in milliseconds per call."""

    def clean(self, count: int) -> list[float]:
        """Take samples of single calls, each after a flush that leaves no cache line to write back."""

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        """Call back to back, so that the device never waits, until ``is_enough(calls)`` is true.

        ``is_enough`` is called about every millisecond, or after every batch.
        """

    def by_stream(self) -> None:
        """Launch on the stream, without a graph, from now on."""


class Executor(Protocol):
    """One device context. Buffers are opaque and lie between guard bands.

    Methods that launch may raise `LaunchError` and `ContextLostError`.
    """

    device: Device

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> Any:
        """Make a buffer; MemoryError if there is no room.

        Its contents are undefined, and its guard bands until `restore_guards`: most buffers need none, and
        writing them takes longer than the allocation.
        It begins ``offset_bytes`` after a 256-byte boundary; DeviceError if the device does not allow that,
        see `Device.is_cuda`.
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
        """Write the guard bands."""

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[Any] = (),
        pairs: Sequence[tuple[Any, Any]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        """Compare outputs, and check guard bands and bytes, in one wait for the device.

        Integers are compared in their type, floating-point numbers as float64. NaN and infinities are
        correct only if the expected value is the same. The result has three lists: the difference of each
        output, whether both guard bands of each buffer are intact, and whether each pair of buffers, of
        equal size and offset, holds the same bytes.
        """

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        """Load a binary and set its variables in constant memory, by their C++ names."""

    def calibrate(self) -> None:
        """Measure the cost of timing before the first timer needs it."""

    def skip_calibration(self) -> None:
        """Do not subtract the cost of timing from samples: comparisons do not need that and begin at once."""

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        """Enqueue a sequence once, wait, and return its milliseconds, including launches between steps."""

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        """Return a function that runs each sequence ``times`` times on its own queue, and waits.

        The sequences have already run once.
        """

    def timer(self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool) -> Timer:
        """Return the timer of a sequence that has already run once."""

    def timer_of(self, call: Callable[[], object], cold: bool) -> Timer:
        """Return the timer of a call that `time_calls` returned, and that has already run once."""

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> Any:
        """Bind a baseline's call to buffers, which are given with type and shape; see `Baseline`."""

    def clocks(self) -> Clocks:
        """Read the clocks of the device."""

    def energy_mj(self) -> int:
        """Read the energy counter in millijoules; DeviceError if there is none, see `Backend.why_no_energy`."""

    def power(self) -> Power:
        """Read the power of the device and its limit."""


class Compiler(Protocol):
    """The compiler of a source language. It runs in any process, without a context."""

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
        """Compile for a device or, with CUDA, an architecture; raise `CompileError` with the log.

        ``entries`` are the functions to launch. CUDA instantiates templates among them
        (``scale<128>``) and finds functions without C linkage; OpenCL ignores them.
        """

    def load_compiler(self) -> None:
        """Load the compiler in this process, so that the first compile is as fast as others."""


class Backend(Compiler, Protocol):
    """The devices of one kind, and the compiler of their dialect of C; without a context."""

    name: str

    def devices(self) -> list[Device]:
        """Return the usable devices, in selector order."""

    def why_unavailable(self) -> str:
        """Return the missing part and the command that installs it; empty if devices are usable."""

    def why_no_energy(self, device: Device) -> str:
        """Return why the energy of a device cannot be read; empty if it can."""

    def get_ready(self, device: Device) -> None:
        """Import and compile in this process, without a context, the parts for `open` and the first checks."""

    def open(self, device: Device) -> Executor:
        """Make the context of a device in this process; DeviceError if that fails."""


def batch_size(call_ms: float) -> int:
    """Return the number of calls back to back in one hot sample; 1 if a call is long."""
    return max(1, min(_MAX_BATCH_CALLS, round(_BATCH_MS / max(call_ms, 1e-6))))

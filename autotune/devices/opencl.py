"""The OpenCL backend: any OpenCL device, and the default on a machine without a GPU.

Outputs and guard bands are checked in mapped buffers. A CPU maps them to the host's memory, where NumPy uses
all cores and copies nothing.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.arrays import in_pieces
from autotune.devices.base import (
    GUARD_BYTES,
    GUARD_VALUE,
    Binary,
    BoundFill,
    BoundLaunch,
    Comparison,
    CompiledFunction,
    CompileError,
    ContextLostError,
    Difference,
    LaunchError,
    Poison,
    Side,
    with_defines,
)
from autotune.devices.compiler_options import foreign_option, opencl_options
from autotune.devices.device import Clocks, Device, Power
from autotune.devices.host import (
    expected_type,
    found_type,
    found_values,
    host_difference,
)
from autotune.devices.opencl_devices import (
    context_of,
    device_of,
    live_devices,
    pyopencl_module,
)
from autotune.devices.opencl_timer import MappedCall, OpenclTimer
from autotune.errors import DeviceError, MissingDependencyError, install

#: Prefix of the option for the version of OpenCL C.
_LANGUAGE_OPTION = "-cl-std="
#: A flush writes this multiple of the device's cache.
_FLUSH_FACTOR = 4
#: Message if energy is requested. A CPU's counter covers all cores of a package and every program on them, and
#: in Linux only root can read it (CVE-2020-8694).
_NO_ENERGY = "energy is measured on NVIDIA GPUs only; RAPL, the counter of a CPU, is not supported"
#: Errors of a launch that leave the context usable, by their names in the OpenCL specification.
_HARMLESS = (
    "INVALID_WORK_GROUP_SIZE",
    "INVALID_WORK_ITEM_SIZE",
    "INVALID_GLOBAL_WORK_SIZE",
    "INVALID_KERNEL_ARGS",
    "INVALID_ARG_SIZE",
    "INVALID_ARG_VALUE",
    "INVALID_KERNEL_NAME",
    "OUT_OF_RESOURCES",
)
#: Bytes of a pointer on a device of 64 bits.
_POINTER_BYTES = 8
#: Bytes of the largest vector of OpenCL C.
_MOST_BYTES = 128
#: Held by a thread that ignores warnings.
_ignoring = threading.RLock()


class OpenclBackend:
    """See `autotune.devices.base.Backend`."""

    name = "opencl"

    def devices(self) -> list[Device]:
        try:
            return [device_of(index, live) for index, live in enumerate(live_devices())]
        except MissingDependencyError:
            return []

    def why_unavailable(self) -> str:
        try:
            found = live_devices()
        except MissingDependencyError as error:
            return str(error)
        return "" if found else f"no OpenCL platform is installed; run: {install('cpu')}"

    def why_no_energy(self, device: Device) -> str:
        return _NO_ENERGY

    def toolchain(self) -> str:
        live = live_devices()
        return f"opencl {live[0].platform.version} {live[0].driver_version}" if live else "opencl"

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        cl = pyopencl_module()
        live, context = live_devices()[device.index], context_of(device.index)
        if foreign := foreign_option(options, is_cuda=False):
            raise CompileError(foreign)
        flags, macros = opencl_options(options)
        if not any(option.startswith(_LANGUAGE_OPTION) for option in options):
            flags.insert(0, f"{_LANGUAGE_OPTION}CL3.0")
        program = cl.Program(context, with_defines(source, {**macros, **defines}))
        try:
            with _no_warnings():
                program.build(options=flags, devices=[live], cache_dir=False)
        except cl.RuntimeError as error:
            # PyOpenCL saves the source of a failed build in a file, and never removes it.
            if saved := re.search(r"\(source saved as (.*)\)", str(error)):
                Path(saved[1]).unlink(missing_ok=True)
            if "INVALID_BUILD_OPTIONS" in str(error):
                raise CompileError(
                    f"error: {device.name} refuses one of the options {' '.join(options)}; an option for "
                    "some devices alone needs def options(c, device)"
                ) from error
            raise CompileError(_build_log(program, live) or str(error)) from error
        (code,) = program.get_info(cl.program_info.BINARIES)
        local_bytes = cl.kernel_work_group_info.LOCAL_MEM_SIZE
        found = tuple(
            CompiledFunction(
                kernel.function_name,
                shared_bytes=int(kernel.get_work_group_info(local_bytes, live)),
                parameter_bytes=_parameter_bytes(kernel),
            )
            for kernel in program.all_kernels()
        )
        return Binary(bytes(code), found, _build_log(program, live), key="")

    def load_compiler(self) -> None:
        for device in self.devices()[:1]:
            self.compile("__kernel void nothing() {}", {}, (), device)

    def get_ready(self, device: Device) -> None:
        with suppress(MissingDependencyError):  # `open` reports the error
            live_devices()

    def open(self, device: Device) -> OpenclExecutor:
        if device.index >= len(live_devices()):
            raise DeviceError(
                f"{device.name} ({device.selector}) is no longer there; run: autotune doctor"
            )
        return OpenclExecutor(device)


def _parameter_bytes(kernel: Any) -> tuple[int, ...] | None:
    """Return the bytes of each parameter of a function; None if the platform does not report types."""
    cl = pyopencl_module()
    try:
        types = [
            kernel.get_arg_info(place, cl.kernel_arg_info.TYPE_NAME)
            for place in range(kernel.num_args)
        ]
    except cl.Error:
        return None
    return tuple(
        _POINTER_BYTES if name.endswith("*") else _value_bytes(kernel, place)
        for place, name in enumerate(types)
    )


def _value_bytes(kernel: Any, place: int) -> int:
    """Return the bytes of a parameter that is no pointer: the platform refuses others; 0 if it takes none."""
    nbytes = 1
    while nbytes <= _MOST_BYTES:
        with suppress(pyopencl_module().Error):
            kernel.set_arg(place, np.zeros(nbytes, np.uint8))
            return nbytes
        nbytes *= 2
    return 0


class OpenclBuffer:
    """A guarded allocation: ``inner`` is a sub-buffer between two guard bands."""

    def __init__(self, cl: Any, context: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = cl.mem_flags.READ_WRITE
        self.whole = cl.Buffer(context, flags, GUARD_BYTES + nbytes + GUARD_BYTES)
        self.inner = self.whole.get_sub_region(GUARD_BYTES, nbytes)


class OpenclExecutor:
    """See `autotune.devices.base.Executor`. It uses one in-order queue with profiling."""

    def __init__(self, device: Device) -> None:
        self.cl = pyopencl_module()
        self.device = device
        self.live = live_devices()[device.index]
        self.context = context_of(device.index)
        properties = self.cl.command_queue_properties.PROFILING_ENABLE
        self.queue = self.cl.CommandQueue(self.context, self.live, properties)
        self._flush: Any = None

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> OpenclBuffer:
        if offset_bytes:
            raise DeviceError(
                f"{self.device.name}: OpenCL buffers begin aligned, without an offset of {offset_bytes} bytes"
            )
        if nbytes > self.live.max_mem_alloc_size:
            raise MemoryError(
                f"{self.device.name} allows at most {self.live.max_mem_alloc_size} bytes in a buffer, not {nbytes}"
            )
        try:
            return OpenclBuffer(self.cl, self.context, nbytes)
        except self.cl.Error as error:
            raise MemoryError(
                f"{self.device.name} has no room for a buffer of {nbytes} bytes"
            ) from error

    def write(self, buffer: OpenclBuffer, array: NDArray[Any]) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.cl.enqueue_copy(self.queue, buffer.inner, flat)
        self.queue.finish()

    def read(
        self, buffer: OpenclBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        host = np.empty(shape, dtype)
        self.cl.enqueue_copy(self.queue, host, buffer.inner)
        self.queue.finish()
        return host

    def copy(self, target: OpenclBuffer, source: OpenclBuffer) -> None:
        self.cl.enqueue_copy(self.queue, target.inner, source.inner, byte_count=source.nbytes)

    def poison(self, buffer: OpenclBuffer, poison: Poison = Poison.NAN) -> None:
        self._fill(buffer.inner, np.uint8(poison), 0, buffer.nbytes)

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[OpenclBuffer] = (),
        pairs: Sequence[tuple[OpenclBuffer, OpenclBuffer]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        return (
            [self._compare(comparison) for comparison in comparisons],
            [self._guards_intact(buffer) for buffer in buffers],
            [self._same_bytes(buffer, other) for buffer, other in pairs],
        )

    def _same_bytes(self, buffer: OpenclBuffer, other: OpenclBuffer) -> bool:
        word = np.uint64 if buffer.nbytes % 8 == 0 else np.uint8
        count = buffer.nbytes // np.dtype(word).itemsize
        with (
            self._mapped(buffer.inner, word, count) as found,
            self._mapped(other.inner, word, count) as wanted,
        ):
            return all(in_pieces(lambda _, i, j: np.array_equal(found[i:j], wanted[i:j]), count))

    def _guards_intact(self, buffer: OpenclBuffer) -> bool:
        with self._mapped(buffer.whole, np.uint8, buffer.nbytes + 2 * GUARD_BYTES) as whole:
            head, tail = whole[:GUARD_BYTES], whole[-GUARD_BYTES:]
            return bool(np.all(head == GUARD_VALUE) and np.all(tail == GUARD_VALUE))

    def restore_guards(self, buffer: OpenclBuffer) -> None:
        nbytes = buffer.nbytes + 2 * GUARD_BYTES
        with self._mapped(buffer.whole, np.uint8, nbytes, write=True) as whole:
            whole[:GUARD_BYTES] = whole[-GUARD_BYTES:] = GUARD_VALUE

    @contextmanager
    def _mapped(
        self, buffer: Any, dtype: DTypeLike, count: int, write: bool = False
    ) -> Iterator[NDArray[Any]]:
        """Map the first elements of a buffer into the host's memory, after the work in the queue."""
        flag = self.cl.map_flags.WRITE if write else self.cl.map_flags.READ
        mapped, _ = self.cl.enqueue_map_buffer(self.queue, buffer, flag, 0, (count,), dtype)
        try:
            yield mapped
        finally:
            mapped.base.release(self.queue)

    def _compare(self, comparison: Comparison) -> Difference:
        expected, count = comparison.expected, comparison.count
        with (
            self._mapped(
                comparison.buffer.inner, found_type(comparison), comparison.stored_count
            ) as got,
            self._mapped(expected.inner, expected_type(comparison), count) as want,
            self._bounds(comparison) as bounds,
        ):
            return host_difference(found_values(comparison, got), want, bounds)

    @contextmanager
    def _bounds(self, comparison: Comparison) -> Iterator[float | NDArray[Any]]:
        bounds, count = comparison.bounds, comparison.count
        if bounds is None:
            yield comparison.bound
        else:
            kind = np.float32 if bounds.nbytes == 4 * count else np.float64
            with self._mapped(bounds.inner, kind, count) as mapped:
                yield mapped

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        if constants:
            raise LaunchError("OpenCL has no module symbols; pass constants as inputs")
        try:
            with _no_warnings():
                return self.cl.Program(self.context, [self.live], [binary.code]).build()
        except self.cl.Error as error:
            raise LaunchError(f"the device rejects the binary: {error}") from error

    def calibrate(self) -> None:
        pass  # events cover only the kernel

    def skip_calibration(self) -> None:
        pass

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        return self.timer(module, steps, cold=False).singly(1)[0]

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        queues = [self.cl.CommandQueue(self.context, self.live) for _ in sides]
        calls = [[side.renew, *(self._call(module, step) for step in side.steps)] for side in sides]

        def run() -> None:
            own = self.queue
            own.finish()  # earlier work on the same buffers
            try:
                for _ in range(times):
                    for self.queue, sequence in zip(queues, calls, strict=True):
                        for call in sequence:
                            self._guarded(call)
                        self.queue.flush()
            finally:
                self.queue = own
            for queue in queues:
                self._guarded(queue.finish)

        return run

    def timer(
        self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool
    ) -> OpenclTimer:
        sequence = [self._call(module, step) for step in steps]
        return OpenclTimer(partial(self._profiled_ms, sequence), self._flush_cache, cold)

    def _profiled_ms(self, sequence: Sequence[Callable[[], Any]], calls: int) -> float:
        """Enqueue a sequence back to back; return the milliseconds of a call by the queue's profile."""
        events = [self._guarded(enqueue) for _ in range(calls) for enqueue in sequence]
        self._guarded(self.queue.finish)
        # At least the clock's unit, so that no call takes 0 ms.
        taken_ns = max(1, events[-1].profile.end - events[0].profile.start)
        return float(taken_ns) / 1e6 / calls

    def timer_of(self, call: Callable[[], object], cold: bool) -> OpenclTimer:
        assert isinstance(call, MappedCall)
        return OpenclTimer(call.timed_ms, self._flush_cache, cold)

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> MappedCall | None:
        if not self.live.type & self.cl.device_type.CPU:
            raise LaunchError(
                f"baselines run on OpenCL devices that share the host's memory; {self.device.name} does not"
            )
        buffers = {name: value for name, value in arrays.items() if isinstance(value, tuple)}
        scalars = {name: value for name, value in arrays.items() if name not in buffers}
        return MappedCall.of(prepare, partial(self._all_mapped, buffers), scalars)

    @contextmanager
    def _all_mapped(
        self, buffers: Mapping[str, tuple[OpenclBuffer, np.dtype[Any], tuple[int, ...]]]
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Map whole buffers into the host's memory, as arrays of a type and shape."""
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(
                    self._mapped(buffer.inner, np.uint8, buffer.nbytes, write=True)
                )
                .view(dtype)
                .reshape(shape)
                for name, (buffer, dtype, shape) in buffers.items()
            }

    def clocks(self) -> Clocks:
        return Clocks()

    def energy_mj(self) -> int:
        raise DeviceError(_NO_ENERGY)

    def power(self) -> Power:
        return Power()

    def _call(self, module: Any, step: BoundLaunch | BoundFill) -> Callable[[], Any]:
        if isinstance(step, BoundFill):
            return partial(self._fill, step.buffer.inner, step.value, 0, step.buffer.nbytes)
        if step.shared_bytes:
            raise LaunchError("the OpenCL dialect has no dynamic shared memory")
        try:
            kernel = self.cl.Kernel(module, step.entry)
            kernel.set_args(*map(_kernel_argument, step.args))
        except (self.cl.Error, TypeError, ValueError) as error:
            raise LaunchError(f"{step.entry}: {error}") from error
        size = tuple(map(mul, step.grid, step.block))

        def enqueue() -> (
            Any
        ):  # keeps the step alive, because a kernel object does not keep its buffers alive
            return self.cl.enqueue_nd_range_kernel(self.queue, kernel, size, step.block)

        return enqueue

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self.cl.Error as error:
            harmless = any(name in str(error) for name in _HARMLESS)
            raise (LaunchError if harmless else ContextLostError)(str(error)) from error

    def _fill(self, buffer: Any, value: np.generic, offset: int, size: int) -> Any:
        return self.cl.enqueue_fill_buffer(self.queue, buffer, value, offset, size)

    def _flush_cache(self, clean: bool = False) -> None:
        """Write enough memory to flush the cache; if ``clean``, then read its first half."""
        if self._flush is None:
            size = max(self.live.global_mem_cache_size, 1 << 20) * _FLUSH_FACTOR
            self._flush = self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)
        self._fill(self._flush, np.uint8(0), 0, self._flush.size)
        self.queue.finish()
        if clean:
            with self._mapped(self._flush, np.uint64, self._flush.size // 16) as words:
                words.max()


def _kernel_argument(argument: Any) -> Any:
    return argument.inner if isinstance(argument, OpenclBuffer) else argument


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Ignore warnings, in one thread at a time: overlapping threads could leave them ignored for ever."""
    with _ignoring, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _build_log(program: Any, live: Any) -> str:
    cl = pyopencl_module()
    try:
        with _no_warnings():  # pyopencl warns about its cache, which is not used
            return str(program.get_build_info(live, cl.program_build_info.LOG)).strip()
    except cl.Error:
        return ""

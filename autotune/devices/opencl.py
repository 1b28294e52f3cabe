"""The OpenCL backend: any OpenCL device, and the default on a machine without a GPU.

Checks and guard bands use mapped buffers. A CPU maps them to the host's memory, where NumPy works on
all cores and nothing is copied.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.arrays import in_pieces, widened_bfloat16
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
    batch_size,
    with_defines,
)
from autotune.devices.device import Clocks, Device, Power
from autotune.devices.host import host_difference
from autotune.errors import DeviceError, MissingDependencyError, install

#: Libraries of Intel's run-time that are not on the loader's path, in load order.
_INTEL_NEEDS = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so")
#: The option that chooses a version of OpenCL C.
_LANGUAGE = "-cl-std="
#: Sub-group width of a CPU, where a kernel may choose one.
_CPU_WARP = 16
_FLUSH_FACTOR = 4
#: Why no energy is measured: the counter covers all cores of a package and every program on them, and
#: only root can read it in Linux (CVE-2020-8694).
_NO_ENERGY = "energy is measured on NVIDIA GPUs only; RAPL, the counter of a CPU, is not supported"
#: Status codes of a launch that leave the context usable: the OpenCL specification's names.
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
#: Held while warnings are ignored.
_ignoring = threading.RLock()


class OpenclBackend:
    """See `autotune.devices.base.Backend`."""

    name = "opencl"

    def devices(self) -> list[Device]:
        try:
            return [_device(index, live) for index, live in enumerate(_live_devices())]
        except MissingDependencyError:
            return []

    def why_unavailable(self) -> str:
        try:
            found = _live_devices()
        except MissingDependencyError as error:
            return str(error)
        return "" if found else f"no OpenCL platform is installed; run: {install('cpu')}"

    def why_no_energy(self, device: Device) -> str:
        return _NO_ENERGY

    def toolchain(self) -> str:
        live = _live_devices()
        return f"opencl {live[0].platform.version} {live[0].driver_version}" if live else "opencl"

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        cl = _pyopencl()
        live = _live_devices()[device.index]
        context = _context(device.index)
        has_language = any(option.startswith(_LANGUAGE) for option in options)
        flags = [*options] if has_language else [f"{_LANGUAGE}CL3.0", *options]
        program = cl.Program(context, with_defines(source, defines))
        try:
            with _no_warnings():
                program.build(options=flags, devices=[live], cache_dir=False)
        except cl.RuntimeError as error:
            if saved := re.search(r"\(source saved as (.*)\)", str(error)):  # by PyOpenCL, for good
                Path(saved[1]).unlink(missing_ok=True)
            raise CompileError(_build_log(program, live) or str(error)) from error
        (code,) = program.get_info(cl.program_info.BINARIES)
        local_bytes = cl.kernel_work_group_info.LOCAL_MEM_SIZE
        found = tuple(
            CompiledFunction(
                kernel.function_name,
                shared_bytes=int(kernel.get_work_group_info(local_bytes, live)),
            )
            for kernel in program.all_kernels()
        )
        return Binary(bytes(code), found, _build_log(program, live), key="")

    def load_compiler(self) -> None:
        for device in self.devices()[:1]:
            self.compile("__kernel void nothing() {}", {}, (), device)

    def get_ready(self, device: Device) -> None:
        with suppress(MissingDependencyError):  # which `open` reports
            _live_devices()

    def open(self, device: Device) -> OpenclExecutor:
        if device.index >= len(_live_devices()):
            raise DeviceError(f"{device.name} ({device.selector}): not there any more")
        return OpenclExecutor(device)


class OpenclBuffer:
    """A guarded allocation: ``inner`` is a sub-buffer between two guard bands."""

    def __init__(self, cl: Any, context: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = cl.mem_flags.READ_WRITE
        self.whole = cl.Buffer(context, flags, GUARD_BYTES + nbytes + GUARD_BYTES)
        self.inner = self.whole.get_sub_region(GUARD_BYTES, nbytes)


class OpenclExecutor:
    """See `autotune.devices.base.Executor`. One in-order queue with profiling."""

    def __init__(self, device: Device) -> None:
        self.cl = _pyopencl()
        self.device = device
        self.live = _live_devices()[device.index]
        self.context = _context(device.index)
        properties = self.cl.command_queue_properties.PROFILING_ENABLE
        self.queue = self.cl.CommandQueue(self.context, self.live, properties)
        self._flush: Any = None

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> OpenclBuffer:
        if offset_bytes:
            raise DeviceError(
                f"{self.device.name}: buffers begin aligned, not {offset_bytes} bytes on"
            )
        if nbytes > self.live.max_mem_alloc_size:
            raise MemoryError(f"{self.device.name} allows no buffer of {nbytes} bytes")
        try:
            buffer = OpenclBuffer(self.cl, self.context, nbytes)
        except self.cl.Error as error:
            raise MemoryError(f"{self.device.name} has no room for {nbytes} bytes") from error
        self.restore_guards(buffer)
        return buffer

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
        """Map the first elements of a buffer into the host's memory, once the queue is done."""
        flag = self.cl.map_flags.WRITE if write else self.cl.map_flags.READ
        mapped, _ = self.cl.enqueue_map_buffer(self.queue, buffer, flag, 0, (count,), dtype)
        try:
            yield mapped
        finally:
            mapped.base.release(self.queue)

    def _compare(self, comparison: Comparison) -> Difference:
        dtype, expected, count = comparison.dtype, comparison.expected, comparison.count
        raw = np.dtype(np.uint8) if dtype.kind == "b" else dtype  # true is the byte 1 alone
        floats = np.dtype(np.float32 if expected.nbytes == 4 * count else np.float64)
        stored = floats if dtype.kind == "f" or comparison.is_bfloat16 else raw
        with (
            self._mapped(comparison.buffer.inner, raw, count) as got,
            self._mapped(expected.inner, stored, count) as want,
            self._bounds(comparison) as bounds,
        ):
            return host_difference(
                widened_bfloat16(got) if comparison.is_bfloat16 else got, want, bounds
            )

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
        pass  # events cover the kernel alone

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
                    for self.queue, mine in zip(queues, calls, strict=True):
                        for call in mine:
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
        return OpenclTimer(self, [self._call(module, step) for step in steps], cold)

    def timer_of(self, call: Callable[[], object], cold: bool) -> OpenclTimer:
        raise LaunchError("no vendor baselines on OpenCL")

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> Any:
        raise LaunchError("no vendor baselines on OpenCL")

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
            kernel.set_args(*(a.inner if isinstance(a, OpenclBuffer) else a for a in step.args))
        except (self.cl.Error, TypeError, ValueError) as error:
            raise LaunchError(f"{step.entry}: {error}") from error
        size = tuple(g * b for g, b in zip(step.grid, step.block, strict=True))

        def enqueue() -> Any:  # holds the step: a kernel object does not hold its buffers
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
        """Write enough memory to flush the cache; ``clean``: then read its first half."""
        if self._flush is None:
            size = max(self.live.global_mem_cache_size, 1 << 20) * _FLUSH_FACTOR
            self._flush = self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)
        self._fill(self._flush, np.uint8(0), 0, self._flush.size)
        self.queue.finish()
        if clean:
            with self._mapped(self._flush, np.uint64, self._flush.size // 16) as words:
                words.max()


class OpenclTimer:
    """See `autotune.devices.base.Timer`. Times come from the queue's profile, without launch gaps.

    Cold: four times the device's cache is written before each call. Hot: a sample is the time from
    the start of the first call to the end of the last one, over their number.
    """

    launched_by = "stream"
    overhead_ms = 0.0

    def __init__(
        self, executor: OpenclExecutor, sequence: Sequence[Callable[[], Any]], cold: bool
    ) -> None:
        self._executor, self._sequence, self._cold = executor, sequence, cold
        self._calls = 0  # of a hot sample, once it is known

    def __call__(self, count: int) -> list[float]:
        return self.singly(count) if self._cold else self.hot(count)

    def singly(self, count: int) -> list[float]:
        return [self._flushed_ms() if self._cold else self._batch_ms(1) for _ in range(count)]

    def clean(self, count: int) -> list[float]:
        return [self._flushed_ms(clean=True) for _ in range(count)]

    def hot(self, count: int) -> list[float]:
        if not count:
            return []
        self._calls = self._calls or batch_size(self._batch_ms(1))
        return [self._batch_ms(self._calls) for _ in range(count)]

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        self._calls = self._calls or batch_size(self._batch_ms(1))
        done = 0
        while not is_enough(done):
            self._batch_ms(self._calls)
            done += self._calls

    def by_stream(self) -> None:
        pass  # there is no other way here

    def _flushed_ms(self, clean: bool = False) -> float:
        self._executor._flush_cache(clean)
        return self._batch_ms(1)

    def _batch_ms(self, calls: int) -> float:
        guarded = self._executor._guarded
        events = [guarded(enqueue) for _ in range(calls) for enqueue in self._sequence]
        guarded(self._executor.queue.finish)
        # At least the clock's unit: no call takes no time.
        taken_ns = max(1, events[-1].profile.end - events[0].profile.start)
        return float(taken_ns) / 1e6 / calls


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Ignore warnings; one thread at a time, since another's would be ignored for ever."""
    with _ignoring, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _pyopencl() -> Any:
    """Import pyopencl. Intel's CPU run-time as a Python package is made visible to its loader first."""
    _show_intel_runtime(Path(sys.prefix) / "lib")
    try:
        import pyopencl
    except ImportError as error:
        raise MissingDependencyError("pyopencl", "cpu", "a CPU or another OpenCL device") from error
    return pyopencl


def _show_intel_runtime(lib: Path) -> None:
    if "OCL_ICD_VENDORS" in os.environ or not (lib / "libintelocl.so").exists():
        return
    try:
        for name in _INTEL_NEEDS:
            ctypes.CDLL(str(lib / name), ctypes.RTLD_GLOBAL)
    except OSError:
        return
    # ocl-icd, which comes with pyopencl, takes the library itself; Khronos' loader by the other name.
    for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"):
        os.environ[name] = str(lib / "libintelocl.so")


@cache
def _live_devices() -> tuple[Any, ...]:
    cl = _pyopencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        return ()
    found = [device for platform in platforms for device in platform.get_devices()]
    return tuple(sorted(found, key=lambda device: bool(device.type & cl.device_type.CPU)))


@cache
def _context(index: int) -> Any:
    return _pyopencl().Context([_live_devices()[index]])


def _device(index: int, live: Any) -> Device:
    cl = _pyopencl()
    is_cpu = bool(live.type & cl.device_type.CPU)
    name = " ".join(live.name.split())
    return Device(
        backend="opencl",
        name=name,
        arch="opencl_cpu" if is_cpu else "opencl_gpu",
        uuid=f"opencl-{name}-{live.max_compute_units}",
        index=index,
        driver=live.driver_version,
        warp_size=_CPU_WARP if is_cpu else _wavefront(live),
        sm_count=live.max_compute_units,
        max_threads_per_block=live.max_work_group_size,
        max_threads_per_sm=live.max_work_group_size,
        shared_bytes_per_block=live.local_mem_size,
        shared_bytes_per_sm=live.local_mem_size,
        l2_bytes=live.global_mem_cache_size,
        memory_bytes=live.global_mem_size,
    )


def _wavefront(live: Any) -> int:
    """Return the threads of a GPU that run in step: AMD's driver reports them, others have NVIDIA's 32."""
    is_amd = "cl_amd_device_attribute_query" in live.extensions.split()
    return int(live.wavefront_width_amd) if is_amd else 32


def _build_log(program: Any, live: Any) -> str:
    cl = _pyopencl()
    try:
        with _no_warnings():  # pyopencl warns that its cache, unused, is bypassed
            return str(program.get_build_info(live, cl.program_build_info.LOG)).strip()
    except cl.Error:
        return ""

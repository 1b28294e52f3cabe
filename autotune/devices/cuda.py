"""The CUDA backend: devices from the driver, binaries from NVRTC, execution by CuPy.

Listing and compiling make no context; only `CudaExecutor` does, in the worker process.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import usable_cores
from autotune.devices import nvrtc
from autotune.devices.base import (
    GUARD_BYTES,
    GUARD_VALUE,
    Binary,
    BoundFill,
    BoundLaunch,
    Comparison,
    ContextLostError,
    Difference,
    LaunchError,
    Poison,
    Side,
    batch_size,
    with_defines,
)
from autotune.devices.device import Clocks, Device, Power
from autotune.devices.graph import CaptureError, Graph, GraphError, record
from autotune.devices.nvml import clocks_of, driver_version, energy_mj, power_of
from autotune.errors import DeviceError, MissingDependencyError

#: fp32 lanes per SM by compute capability. Source: CUDA C++ Programming Guide 13.0, "Arithmetic
#: Instructions".
_FP32_LANES = {75: 64, 80: 64}
#: Where a library's call on the stream takes less than this share of its time in a graph, it and its
#: rivals are launched on the stream: the vendor gets its faster way. On an H100 a graph's copy of 1 GiB
#: takes 0.88 ms, `cudaMemcpyAsync` on the stream 0.71 ms.
_GRAPH_SLOWS = 0.97
#: Samples of each way to find that out.
_TRIED = 3
#: A cold sample starts after a write of this multiple of the L2 cache.
_FLUSH_FACTOR = 4
#: Seconds for which empty kernels are timed to measure the cost of timing, and the last pairs that count:
#: a GPU leaves its idle clock after some 0.1 s of work.
_CALIBRATION_S, _CALIBRATION_PAIRS = 0.3, 50
#: Least time between two events that differ: 32 ns on an H100.
_TICK_MS = 0.000032
#: Work that is enqueued ahead in a sustained load, and the host's sleep between two looks at the device.
_AHEAD_MS, _LOOK_S = 20.0, 0.0005
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the driver API.
_MAX_DYNAMIC_SHARED = 8
#: Errors of too little memory; the context is still usable.
_NO_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
#: Errors of a launch that leave the context usable.
_HARMLESS = (
    "cudaErrorInvalidValue",
    "cudaErrorInvalidConfiguration",
    "cudaErrorLaunchOutOfResources",
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_PTX",
)
#: From this size on threads and page-locked memory are worth their start.
_LEAST_UPLOAD_BYTES = 32 << 20
#: Size of a piece, and how many are on their way at once: more of either was not faster on 16 cores.
_PIECE_BYTES, _THREADS = 16 << 20, 8


class CudaBackend:
    """See `autotune.devices.base.Backend`."""

    name = "cuda"

    def devices(self) -> list[Device]:
        try:
            return list(_devices())
        except (ImportError, RuntimeError):
            return []

    def why_unavailable(self) -> str:
        try:
            from cuda.bindings import driver  # noqa: F401
        except ImportError:
            return str(MissingDependencyError("cuda.bindings", "cuda13", "an NVIDIA GPU"))
        try:
            return "" if _devices() else "the driver lists no device; run: nvidia-smi -L"
        except RuntimeError as error:
            return f"no NVIDIA driver answers ({error}); run: nvidia-smi"

    def why_no_energy(self, device: Device) -> str:
        try:
            energy_mj(device.uuid)
        except DeviceError as error:
            return str(error)
        return ""

    def toolchain(self) -> str:
        return nvrtc.version()

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        chosen = [option for option in options if option.startswith("sm_")]
        flags = [option for option in options if not option.startswith("sm_")]
        if not any("std=" in flag for flag in flags):
            flags.append("-std=c++17")
        arch = chosen[-1] if chosen else device.arch
        done = nvrtc.compile_cubin(
            with_defines(source, defines),
            [f"-arch={arch}", *flags],
            nvrtc.expressions(source, entries),
        )
        expression = {symbol: name for name, symbol in done.symbols.items()}
        reported = tuple(
            replace(entry, name=expression.get(entry.name, entry.name), symbol=entry.name)
            for entry in nvrtc.entries(done.log)
        )
        return Binary(done.code, reported, nvrtc.warnings(done.log), key="")

    def load_compiler(self) -> None:
        self.toolchain()

    def get_ready(self, device: Device) -> None:
        with suppress(ImportError):  # which `open` reports
            import cupy  # noqa: F401

            with ThreadPoolExecutor() as pool:
                list(pool.map(partial(_checks_code, device.arch, "float"), ("float", "double")))

    def open(self, device: Device) -> CudaExecutor:
        try:
            import cupy
        except ImportError as error:
            raise MissingDependencyError("cupy", "cuda13", "measuring on a GPU") from error
        try:
            return CudaExecutor(cupy, device)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if any(name in str(error) for name in _NO_MEMORY):
                raise MemoryError(f"{device.name} ({device.selector}): {error}") from error
            raise DeviceError(f"{device.name} ({device.selector}): {error}") from error


class CudaBuffer:
    """A guarded allocation: ``whole`` with its guard bands, ``inner`` without."""

    def __init__(self, cupy: Any, nbytes: int, offset_bytes: int) -> None:
        padded = -(-(offset_bytes + nbytes) // 256) * 256
        begin = GUARD_BYTES + offset_bytes
        self.nbytes = nbytes
        self.whole = cupy.empty(GUARD_BYTES + padded + GUARD_BYTES, cupy.uint8)
        self.inner = self.whole[begin : begin + nbytes]
        self.guards = (self.whole[:begin], self.whole[begin + nbytes :])


class CudaExecutor:
    """See `autotune.devices.base.Executor`. One stream; events around each sample."""

    def __init__(self, cupy: Any, device: Device) -> None:
        self.cupy = cupy
        self.device = device
        cupy.cuda.Device(device.index).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        #: Events before and after what `run` launches.
        self._around = cupy.cuda.Event(), cupy.cuda.Event()

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> CudaBuffer:
        try:
            buffer = CudaBuffer(self.cupy, nbytes, offset_bytes)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(
                f"{self.device.name} has no room for a buffer of {nbytes} bytes ({error})"
            ) from error
        self.restore_guards(buffer)
        return buffer

    def write(self, buffer: CudaBuffer, array: NDArray[Any]) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if flat.nbytes >= _LEAST_UPLOAD_BYTES:
            self.stream.synchronize()  # it may still work on what lay there before
            self._upload(buffer.inner.data.ptr, flat)
            return
        buffer.inner.set(flat, stream=self.stream)
        self.stream.synchronize()

    def _upload(self, target: int, raw: NDArray[np.uint8]) -> None:
        """Copy bytes to a device address, in page-locked pieces that several threads fill, and wait.

        The driver copies ordinary memory through one staging buffer and one thread, several times slower
        than the bus. Pages of a mapped file are read by the first thread that touches them, here by all.
        """
        threads, runtime = len(self._lanes), self.cupy.cuda.runtime

        def copy(lane: int) -> None:
            piece, stream = self._lanes[lane]
            self.cupy.cuda.Device(self.device.index).use()  # of this thread
            for begin in range(lane * _PIECE_BYTES, raw.size, threads * _PIECE_BYTES):
                part = raw[begin : begin + _PIECE_BYTES]
                np.copyto(piece[: part.size], part)
                source, kind = piece.ctypes.data, runtime.memcpyHostToDevice
                runtime.memcpyAsync(target + begin, source, part.size, kind, stream.ptr)
                stream.synchronize()

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(copy, range(threads)))

    @cached_property
    def _lanes(self) -> list[tuple[NDArray[np.uint8], Any]]:
        cuda = self.cupy.cuda
        memory = [
            cuda.alloc_pinned_memory(_PIECE_BYTES) for _ in range(min(_THREADS, usable_cores()))
        ]
        return [
            (np.frombuffer(each, np.uint8, _PIECE_BYTES), cuda.Stream(non_blocking=True))
            for each in memory
        ]

    def read(
        self, buffer: CudaBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        host: NDArray[Any] = buffer.inner.get(stream=self.stream)
        return host.view(dtype).reshape(shape)

    def copy(self, target: CudaBuffer, source: CudaBuffer) -> None:
        self.cupy.cuda.runtime.memcpyAsync(
            target.inner.data.ptr,
            source.inner.data.ptr,
            source.nbytes,
            self.cupy.cuda.runtime.memcpyDeviceToDevice,
            self.stream.ptr,
        )

    def poison(self, buffer: CudaBuffer, poison: Poison = Poison.NAN) -> None:
        self._memset(buffer.inner, poison)

    def restore_guards(self, buffer: CudaBuffer) -> None:
        for guard in buffer.guards:
            self._memset(guard, GUARD_VALUE)

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[CudaBuffer] = (),
        pairs: Sequence[tuple[CudaBuffer, CudaBuffer]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        # First wrong index, then largest error and sum of squares, of each comparison; then a flag for
        # each buffer and pair.
        begin, end = 8 * len(comparisons), 24 * len(comparisons)
        results = self.cupy.empty(end + 4 * (len(buffers) + len(pairs)), np.uint8)
        if not results.nbytes:
            return [], [], []

        def check() -> None:
            self._memset(results, 0)
            for index, comparison in enumerate(comparisons):
                self._compare(comparison, results[8 * index :], results[begin + 16 * index :])
            module = _checks(self.cupy, self.device.arch, "float")
            not_all, differ = (module.get_function(name) for name in ("not_all", "differ"))
            flags = results[end:]
            for index, buffer in enumerate(buffers):
                (head, tail), value = buffer.guards, np.uint32(GUARD_VALUE)
                bands = (head, np.uint64(head.nbytes), tail, np.uint64(tail.nbytes))
                not_all(self._grid(tail.nbytes), (256,), (*bands, value, flags[4 * index :]))
            for index, (buffer, other) in enumerate(pairs, len(buffers)):
                size = np.uint64(buffer.nbytes)
                grid = self._grid(buffer.nbytes // 16)
                differ(grid, (256,), (buffer.inner, other.inner, size, flags[4 * index :]))

        self._guarded(check)
        found = self._guarded(lambda: results.get(stream=self.stream))
        first, sizes = found[:begin].view(np.uint64), found[begin:end].view(np.float64)
        differences = [
            Difference(
                max_error=float(sizes[2 * i]),
                rms_error=float(np.sqrt(sizes[2 * i + 1] / max(comparison.count, 1))),
                first_wrong=None if first[i] == np.iinfo(np.uint64).max else int(first[i]),
            )
            for i, comparison in enumerate(comparisons)
        ]
        right = (found[end:].view(np.uint32) == 0).tolist()
        return differences, right[: len(buffers)], right[len(buffers) :]

    def _compare(self, comparison: Comparison, first: Any, sizes: Any) -> None:
        """Enqueue a comparison, which writes the first wrong index and the errors."""
        self._memset(first[:8], 0xFF)
        dtype, count = comparison.dtype, comparison.count
        wanted = "float" if comparison.expected.nbytes == 4 * count else "double"
        c_type = "bfloat16" if comparison.is_bfloat16 else _c_type(dtype)
        is_real = dtype.kind == "f" or comparison.is_bfloat16
        module = _checks(self.cupy, self.device.arch, c_type, wanted if is_real else c_type)
        args = (
            comparison.buffer.inner,
            comparison.expected.inner,
            np.uint64(count),
            np.float64(comparison.bound),
            np.uintp(0) if comparison.bounds is None else comparison.bounds.inner,
            sizes,
            sizes[8:],
            first,
        )
        module.get_function("compare")(self._grid(count), (256,), args)

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        module = self.cupy.cuda.function.Module()
        self._guarded(lambda: module.load(binary.code))
        for name, array in constants.items():
            pointer = self._guarded(partial(module.get_global_var, name))
            flat = np.ascontiguousarray(array)
            self.cupy.cuda.runtime.memcpy(
                int(pointer),
                flat.ctypes.data,
                flat.nbytes,
                self.cupy.cuda.runtime.memcpyHostToDevice,
            )
        return module

    def calibrate(self) -> None:
        _ = self.graph_overhead_ms
        self.clocks()  # NVML takes 70 ms to begin

    def skip_calibration(self) -> None:
        self.graph_overhead_ms = 0.0

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        sequence, (before, after) = self._sequence(module, steps), self._around

        def enqueue() -> None:
            before.record(self.stream)
            sequence()
            after.record(self.stream)

        self._guarded(enqueue)
        self._guarded(self.stream.synchronize)
        return float(self.cupy.cuda.get_elapsed_time(before, after))

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        # As graphs: launches one by one from this thread would hardly meet on the device.
        streams = [self.cupy.cuda.Stream(non_blocking=True) for _ in sides]
        graphs, own = [], self.stream
        try:
            for self.stream, side in zip(streams, sides, strict=True):
                calls = (side.renew, self._sequence(module, side.steps))
                graphs.append(Graph(self.stream.ptr, partial(_repeat, partial(_all, calls), times)))
        except CaptureError as error:
            raise LaunchError(f"launches cannot be captured: {error}") from error
        finally:
            self.stream = own

        def run() -> None:
            self._guarded(own.synchronize)  # earlier work on the same buffers
            for graph in graphs:
                self._guarded(graph.launch)
            for stream in streams:
                self._guarded(stream.synchronize)

        return run

    def timer(self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool) -> CudaTimer:
        return CudaTimer(self, self._sequence(module, steps), cold)

    def timer_of(self, call: Callable[[], object], cold: bool) -> CudaTimer:
        timer = CudaTimer(self, call, cold)
        if timer.launched_by == "graph":
            in_graph_ms = timer.singly(_TRIED)
            by_stream_ms = self.samples_ms(call, _TRIED, self.flush if cold else None)
            if max(by_stream_ms) < _GRAPH_SLOWS * min(in_graph_ms):
                timer.by_stream()
        return timer

    def samples_ms(
        self,
        call: Callable[[], object],
        count: int,
        flush: Callable[[], object] | None,
        calls: int = 1,
    ) -> list[float]:
        """Return milliseconds per call, between two events around ``calls`` calls.

        The flush before a cold sample keeps the device busy while the host enqueues events and
        launches, so that launch latency is not between the events.
        """
        cp = self.cupy
        pairs = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(count)]
        for start, stop in pairs:
            if flush is not None:
                flush()
            start.record(self.stream)
            self._guarded(call)
            stop.record(self.stream)
        self._guarded(self.stream.synchronize)
        # Events have a resolution of half a microsecond (CUDA runtime API, cudaEventElapsedTime)
        # and come as float32: further digits mean nothing.
        return [round(float(cp.cuda.get_elapsed_time(a, b)) / calls, 6) for a, b in pairs]

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> Any:
        cp = self.cupy
        views = {
            name: value[0].inner.view(value[1]).reshape(value[2])
            if isinstance(value, tuple)
            else value
            for name, value in arrays.items()
        }
        with cp.cuda.Device(self.device.index):
            return prepare(**views)

    def clocks(self) -> Clocks:
        return clocks_of(self.device.uuid)

    def energy_mj(self) -> int:
        return energy_mj(self.device.uuid)

    def power(self) -> Power:
        return power_of(self.device.uuid)

    @cached_property
    def graph_overhead_ms(self) -> float:
        """Milliseconds that the two events of a graph, and the launch after the first, add to a sample.

        It is the intercept of the times of one and of nine empty kernels, so that the time of a kernel
        and of a further launch is not in it. On an H100 it is 2.1 µs. Without it, medians of 19 calls
        of 1 to 76 µs (kernels, CUB, cuBLAS, a copy) differ from CUPTI's by -0.04 to +0.41 µs, +0.2 µs
        in the middle. It is measured while the clock rises from idle; only the last samples count.
        """
        empty = _checks(self.cupy, self.device.arch, "float").get_function("empty")
        launch = partial(empty, (1,), (32,), (), stream=self.stream)
        launch()
        alone, nine = (_Sample(self, partial(_repeat, launch, n), self.flush) for n in (1, 9))
        pairs: list[tuple[float, float]] = []
        start = time.perf_counter()
        while time.perf_counter() - start < _CALIBRATION_S or len(pairs) < _CALIBRATION_PAIRS:
            pairs.append((alone.take_ms(), nine.take_ms()))
        last = pairs[-_CALIBRATION_PAIRS:]
        single, many = (median(pair[place] for pair in last) for place in (0, 1))
        return max(0.0, single - (many - single) / 8)

    @cached_property
    def flush(self) -> Callable[[], None]:
        """Function that enqueues a write of enough memory to flush the L2 cache."""
        return partial(self._memset, self._flush_buffer, 0)

    @cached_property
    def flush_clean(self) -> Callable[[], None]:
        """Function that enqueues a flush and a read of other memory, which need not be written back."""
        halves = self._flush_buffer
        half = halves.nbytes // 2
        differ = _checks(self.cupy, self.device.arch, "float").get_function("differ")
        args = (halves, halves[half:], np.uint64(half), self.cupy.empty(1, np.uint32))
        read = partial(differ, self._grid(half // 16), (256,), args, stream=self.stream)
        return partial(_all, (self.flush, read))

    @cached_property
    def _flush_buffer(self) -> Any:
        size = max(self.device.l2_bytes, 32 << 20) * _FLUSH_FACTOR
        return self.cupy.empty(size, self.cupy.uint8)

    def _sequence(
        self, module: Any, steps: Sequence[BoundLaunch | BoundFill]
    ) -> Callable[[], object]:
        calls = [self._call(module, step) for step in steps]
        return calls[0] if len(calls) == 1 else partial(_all, calls)

    def _call(self, module: Any, step: BoundLaunch | BoundFill) -> Callable[[], None]:
        """Prepare one step, so that enqueueing it takes little host time."""
        if isinstance(step, BoundFill):
            return self._fill_call(step)
        function = self._guarded(lambda: module.get_function(step.entry))
        if step.shared_bytes > 48 * 1024:
            # CUDA C++ Programming Guide, "Shared Memory" (9.x): more than 48 KiB is opt-in.
            self._guarded(
                lambda: self.cupy.cuda.driver.funcSetAttribute(
                    function.ptr, _MAX_DYNAMIC_SHARED, step.shared_bytes
                )
            )
        args = tuple(map(_kernel_argument, step.args))
        return partial(
            function, step.grid, step.block, args, shared_mem=step.shared_bytes, stream=self.stream
        )

    def _fill_call(self, step: BoundFill) -> Callable[[], None]:
        raw = step.value.tobytes()
        if len(set(raw)) == 1:
            return partial(self._memset, step.buffer.inner, raw[0])
        kernel = _checks(self.cupy, self.device.arch, "float").get_function("fill")
        count, pattern = step.buffer.nbytes // len(raw), int.from_bytes(raw, "little")
        args = (step.buffer.inner, np.uint64(count), np.uint64(pattern), np.uint32(len(raw)))
        return partial(kernel, self._grid(count), (256,), args, stream=self.stream)

    def _grid(self, count: int) -> tuple[int]:
        return (max(1, min(-(-count // 256), 8 * self.device.sm_count)),)

    def _memset(self, array: Any, value: int) -> None:
        self.cupy.cuda.runtime.memsetAsync(array.data.ptr, value, array.nbytes, self.stream.ptr)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        errors = (
            self.cupy.cuda.runtime.CUDARuntimeError,
            self.cupy.cuda.driver.CUDADriverError,
            GraphError,
        )
        try:
            return call()
        except errors as error:
            if any(name in str(error) for name in _NO_MEMORY):
                raise MemoryError(str(error)) from error
            if any(name in str(error) for name in _HARMLESS):
                raise LaunchError(str(error)) from error
            raise ContextLostError(str(error)) from error


class CudaTimer:
    """See `autotune.devices.base.Timer`.

    A sample is one launch of a graph of the flush, an event, the call and another event. The time of
    the events is measured once per process (`CudaExecutor.graph_overhead_ms`) and subtracted.
    docs/timing.md compares this with CUPTI and with other ways.
    """

    def __init__(self, executor: CudaExecutor, call: Callable[[], object], cold: bool) -> None:
        self._executor, self._call, self._cold = executor, call, cold
        self._calls = 0  # of a hot sample, once it is known
        self._once = self._captured(executor.flush if cold else None)
        self._clean: _Sample | None = None
        self._batch: _Sample | None = None
        self.launched_by = "graph" if self._once else "stream"
        self.overhead_ms = executor.graph_overhead_ms if self._once else 0.0

    def __call__(self, count: int) -> list[float]:
        return self.singly(count) if self._cold else self.hot(count)

    def hot(self, count: int) -> list[float]:
        if not count:
            return []
        if not self._calls:
            self._calls = batch_size(min(self.singly(3)))
            self._batch = self._captured(None, self._calls) if self._once else None
        if self._batch:
            return [self._net(self._batch.take_ms()) / self._calls for _ in range(count)]
        many = partial(_repeat, self._call, self._calls)
        return self._executor.samples_ms(many, count, None, calls=self._calls)

    def clean(self, count: int) -> list[float]:
        flush = self._executor.flush_clean
        if self._once and not self._clean:
            self._clean = self._captured(flush)
        if not self._clean:
            return self._executor.samples_ms(self._call, count, flush)
        return [self._net(self._clean.take_ms()) for _ in range(count)]

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        (call_ms,) = self.hot(1)  # finds how many calls a batch is
        launch = self._batch.launch if self._batch else partial(_repeat, self._call, self._calls)
        ahead = max(2, math.ceil(_AHEAD_MS / (call_ms * self._calls)))
        executor, running, done = self._executor, deque[Any](), 0
        try:
            while not is_enough(done):
                while len(running) < ahead:
                    executor._guarded(launch)
                    running.append(executor.stream.record())
                time.sleep(_LOOK_S)
                while running and executor._guarded(lambda: running[0].done):
                    running.popleft()
                    done += self._calls
        finally:
            executor._guarded(executor.stream.synchronize)

    def by_stream(self) -> None:
        self._once, self._clean, self._batch = None, None, None
        self.launched_by, self.overhead_ms = "stream", 0.0

    def singly(self, count: int) -> list[float]:
        if self._once:
            return [self._net(self._once.take_ms()) for _ in range(count)]
        flush = self._executor.flush if self._cold else None
        return self._executor.samples_ms(self._call, count, flush)

    def _net(self, taken_ms: float) -> float:
        return max(round(taken_ms - self.overhead_ms, 6), _TICK_MS)

    def _captured(self, flush: Callable[[], object] | None, calls: int = 1) -> _Sample | None:
        """Capture a sample as a graph; None where the call cannot be captured."""
        try:
            return _Sample(self._executor, partial(_repeat, self._call, calls), flush)
        except CaptureError:
            return None


class _Sample:
    """One graph of a flush (unless hot), an event, the timed call, and another event."""

    def __init__(
        self,
        executor: CudaExecutor,
        call: Callable[[], object],
        flush: Callable[[], object] | None,
    ) -> None:
        event = executor.cupy.cuda.Event
        self._executor, self._events = executor, (event(), event())
        stream = executor.stream.ptr

        def enqueue() -> None:
            if flush is not None:
                flush()
            record(self._events[0].ptr, stream)
            call()
            record(self._events[1].ptr, stream)

        # No memory pool: its blocks may be reused once the call has returned.
        with executor.cupy.cuda.using_allocator(_no_allocation):
            self._graph = Graph(stream, enqueue)

    def launch(self) -> None:
        """Enqueue the graph."""
        self._graph.launch()

    def take_ms(self) -> float:
        """Launch once, wait, and return the time between the events."""
        self._executor._guarded(self.launch)
        self._executor._guarded(self._executor.stream.synchronize)
        return float(self._executor.cupy.cuda.get_elapsed_time(*self._events))


def _kernel_argument(argument: Any) -> Any:
    if argument is None:
        return np.uintp(0)
    return argument.inner if isinstance(argument, CudaBuffer) else argument


def _all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def _no_allocation(nbytes: int) -> Any:
    raise CaptureError(f"it allocates {nbytes} bytes at every call")


def _c_type(dtype: np.dtype[Any]) -> str:
    """Return the CUDA C++ name of an element type; LaunchError if it has none."""
    types = {
        "float16": "__half", "float32": "float", "float64": "double", "int8": "signed char",
        "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int",
        "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long",
        "bool": "unsigned char",
    }  # fmt: skip
    if dtype.name not in types:
        raise LaunchError(f"outputs of type {dtype} cannot be compared (known: {', '.join(types)})")
    return types[dtype.name]


@cache
def _checks_code(arch: str, c_type: str, expected: str) -> bytes:
    source = Path(__file__).with_name("checks.cu").read_text(encoding="utf-8")
    kinds = {
        "__half": ["-DTYPE_IS_HALF"],
        "bfloat16": ["-DTYPE_IS_BFLOAT16"],
        "float": [],
        "double": [],
    }
    kind = kinds.get(c_type, ["-DTYPE_IS_INTEGER"])
    # A #define, because an option cannot hold a type of two words.
    bound = "double" if c_type == "double" else "float"
    text = f"#define TYPE {c_type}\n#define EXPECTED {expected}\n#define BOUND {bound}\n{source}"
    return nvrtc.compile_cubin(text, [f"-arch={arch}", "-std=c++17", *kind]).code


@cache
def _checks(cp: Any, arch: str, c_type: str, expected: str = "double") -> Any:
    module = cp.cuda.function.Module()
    module.load(_checks_code(arch, c_type, expected))
    return module


@cache
def _devices() -> tuple[Device, ...]:
    from cuda.bindings import driver as cu

    def ask(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(str(result[0]).rpartition(".")[2])
        return result[1] if len(result) == 2 else result[1:]

    if int(cu.cuInit(0)[0]) != 0:
        raise RuntimeError("cuInit failed")
    driver = driver_version()
    found = []
    for index in range(ask(cu.cuDeviceGetCount())):
        handle = ask(cu.cuDeviceGet(index))
        raw = bytes(ask(cu.cuDeviceGetUuid(handle)).bytes).hex()
        uuid = f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        name = ask(cu.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
        memory = ask(cu.cuDeviceTotalMem(handle))

        def attribute(key: str, handle: Any = handle) -> int:
            kind = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{key}")
            return int(ask(cu.cuDeviceGetAttribute(kind, handle)))

        found.append(_device(index, name, uuid, memory, attribute, driver))
    return tuple(found)


def _device(
    index: int, name: str, uuid: str, memory: int, attribute: Callable[[str], int], driver: str
) -> Device:
    capability = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    sm_count = attribute("MULTIPROCESSOR_COUNT")
    lanes = _FP32_LANES.get(capability, 128)
    return Device(
        backend="cuda",
        name=name,
        arch=f"sm_{capability}",
        uuid=uuid,
        index=index,
        driver=driver,
        warp_size=attribute("WARP_SIZE"),
        sm_count=sm_count,
        max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
        max_threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=memory,
        # Two transfers a clock (double data rate); clocks come in kHz, the bus width in bits.
        peak_gb_per_s=2
        * attribute("MEMORY_CLOCK_RATE")
        * attribute("GLOBAL_MEMORY_BUS_WIDTH")
        / 8e6,
        peak_gflop_per_s=2 * lanes * sm_count * attribute("CLOCK_RATE") / 1e6,
    )

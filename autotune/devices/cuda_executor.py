"""Executes launch sequences on a CUDA device with CuPy, and compares their outputs there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.devices import cubin
from autotune.devices.base import (
    GUARD_VALUE,
    PLAIN,
    Binary,
    BoundFill,
    BoundLaunch,
    Comparison,
    Difference,
    LaunchError,
    Poison,
    Side,
    ViewedBuffer,
)
from autotune.devices.cuda_checks import checks_module, element_type
from autotune.devices.cuda_memory import LARGE_UPLOAD_BYTES, CudaBuffer, Uploader
from autotune.devices.cuda_stream import CudaStream, repeat, run_all
from autotune.devices.cuda_timer import CudaTimer, graph_overhead_ms
from autotune.devices.device import Clocks, Device, Power
from autotune.devices.driver_launch import DriverLaunch
from autotune.devices.graph import CaptureError, Graph
from autotune.devices.host import expected_type
from autotune.devices.nvml import clocks_of, energy_mj, power_of
from autotune.element_types import ELEMENT_TYPES

#: If a vendor's call on the stream takes less than this share of its time in a graph, all contenders are launched
#: on the stream, so that the vendor is timed in its faster way. On an H100 a copy of 1 GiB takes 0.88 ms in a
#: graph, and 0.71 ms with `cudaMemcpyAsync` on the stream.
_STREAM_SHARE = 0.97
#: Samples in a graph, and samples on the stream, for this decision.
_SAMPLES = 3
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the driver API.
_MAX_DYNAMIC_SHARED = 8


class CudaExecutor(CudaStream):
    """See `autotune.devices.base.Executor`. It uses one stream, and events around each sample."""

    def __init__(self, cupy: Any, device: Device) -> None:
        super().__init__(cupy, device)
        #: Events before and after the launches of `run`.
        self._around = cupy.cuda.Event(), cupy.cuda.Event()

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> CudaBuffer:
        try:
            return CudaBuffer(self.cupy, nbytes, offset_bytes)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(
                f"{self.device.name} has no room for a buffer of {nbytes} bytes ({error})"
            ) from error

    def write(self, buffer: CudaBuffer, array: NDArray[Any]) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if flat.nbytes >= LARGE_UPLOAD_BYTES:
            self.stream.synchronize()  # earlier work may still use the buffer
            self._uploader.copy(buffer.inner.data.ptr, flat)
            return
        buffer.inner.set(flat, stream=self.stream)
        self.stream.synchronize()

    @cached_property
    def _uploader(self) -> Uploader:
        return Uploader(self.cupy, self.device.index)

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
        self.memset(buffer.inner, poison)

    def restore_guards(self, buffer: CudaBuffer) -> None:
        for guard in buffer.guards:
            self.memset(guard, GUARD_VALUE)

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[CudaBuffer] = (),
        pairs: Sequence[tuple[CudaBuffer, CudaBuffer]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        # The first wrong index of each comparison; then its largest error and sum of squares; then a flag for
        # each buffer and each pair.
        begin, end = 8 * len(comparisons), 24 * len(comparisons)
        results = self.cupy.empty(end + 4 * (len(buffers) + len(pairs)), np.uint8)
        if not results.nbytes:
            return [], [], []

        def check() -> None:
            self.memset(results, 0)
            for index, comparison in enumerate(comparisons):
                self._compare(comparison, results[8 * index :], results[begin + 16 * index :])
            module = checks_module(self.cupy, self.device.arch, "float32")
            not_all, differ = (module.get_function(name) for name in ("not_all", "differ"))
            flags = results[end:]
            for index, buffer in enumerate(buffers):
                (head, tail), value = buffer.guards, np.uint32(GUARD_VALUE)
                bands = (head, np.uint64(head.nbytes), tail, np.uint64(tail.nbytes))
                checked = (*bands, value, flags[4 * index :])
                not_all(self.grid(tail.nbytes), (256,), checked, stream=self.stream)
            for index, (buffer, other) in enumerate(pairs, len(buffers)):
                size = np.uint64(buffer.nbytes)
                compared = (buffer.inner, other.inner, size, flags[4 * index :])
                differ(self.grid(buffer.nbytes // 16), (256,), compared, stream=self.stream)

        self.guarded(check)
        found = self.guarded(lambda: results.get(stream=self.stream))
        first, sizes = found[:begin].view(np.uint64), found[begin:end].view(np.float64)
        differences = [
            Difference(
                max_error=float(sizes[2 * i]),
                rms_error=float(np.sqrt(sizes[2 * i + 1] / max(comparison.count, 1))),
                first_wrong=None if first[i] == np.iinfo(np.uint64).max else int(first[i]),
            )
            for i, comparison in enumerate(comparisons)
        ]
        intact = (found[end:].view(np.uint32) == 0).tolist()
        return differences, intact[: len(buffers)], intact[len(buffers) :]

    def _compare(self, comparison: Comparison, first: Any, sizes: Any) -> None:
        """Enqueue a comparison, which writes the first wrong index and the errors."""
        self.memset(first[:8], 0xFF)
        name, count = element_type(comparison), comparison.count
        wanted = ELEMENT_TYPES[expected_type(comparison).name].cuda
        module = checks_module(self.cupy, self.device.arch, name, wanted)
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
        module.get_function("compare")(self.grid(count), (256,), args, stream=self.stream)

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        module = self.cupy.cuda.function.Module()
        self.guarded(lambda: module.load(binary.code))
        for name, array in constants.items():
            flat = np.ascontiguousarray(array)
            symbol = cubin.constant(binary.code, name, flat.nbytes)
            pointer = self.guarded(partial(module.get_global_var, symbol))
            self.cupy.cuda.runtime.memcpy(
                int(pointer),
                flat.ctypes.data,
                flat.nbytes,
                self.cupy.cuda.runtime.memcpyHostToDevice,
            )
        return module

    def calibrate(self) -> None:
        graph_overhead_ms(self)
        self.clocks()  # NVML takes 70 ms to begin

    def skip_calibration(self) -> None:
        self.graph_overhead_ms = 0.0

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        sequence, (before, after) = self._sequence(module, steps), self._around

        def enqueue() -> None:
            before.record(self.stream)
            sequence()
            after.record(self.stream)

        self.guarded(enqueue)
        self.guarded(self.stream.synchronize)
        return float(self.cupy.cuda.get_elapsed_time(before, after))

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        # As graphs, because single launches from this thread would hardly overlap on the device.
        streams = [self.cupy.cuda.Stream(non_blocking=True) for _ in sides]
        graphs, own = [], self.stream
        try:
            for self.stream, side in zip(streams, sides, strict=True):
                calls = (side.renew, self._sequence(module, side.steps))
                graphs.append(
                    Graph(self.stream.ptr, partial(repeat, partial(run_all, calls), times))
                )
        except CaptureError as error:
            raise LaunchError(f"launches cannot be captured: {error}") from error
        finally:
            self.stream = own

        def run() -> None:
            self.guarded(own.synchronize)  # earlier work on the same buffers
            for graph in graphs:
                self.guarded(graph.launch)
            for stream in streams:
                self.guarded(stream.synchronize)

        return run

    def timer(self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool) -> CudaTimer:
        return CudaTimer(self, self._sequence(module, steps), cold)

    def timer_of(self, call: Callable[[], object], cold: bool) -> CudaTimer:
        timer = CudaTimer(self, call, cold)
        if timer.launched_by == "graph":
            in_graph_ms = timer.singly(_SAMPLES)
            by_stream_ms = self.samples_ms(call, _SAMPLES, self.flush if cold else None)
            if max(by_stream_ms) < _STREAM_SHARE * min(in_graph_ms):
                timer.by_stream()
        return timer

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

    def _sequence(
        self, module: Any, steps: Sequence[BoundLaunch | BoundFill]
    ) -> Callable[[], object]:
        calls = [self._call(module, step) for step in steps]
        return calls[0] if len(calls) == 1 else partial(run_all, calls)

    def _call(self, module: Any, step: BoundLaunch | BoundFill) -> Callable[[], None]:
        """Prepare one step, so that its launch takes little host time."""
        if isinstance(step, BoundFill):
            return self._fill_call(step)
        function = self.guarded(lambda: module.get_function(step.entry))
        if step.shared_bytes > 48 * 1024:
            # CUDA C++ Programming Guide, "Shared Memory" (9.x): more than 48 KiB is opt-in.
            self.guarded(
                lambda: self.cupy.cuda.driver.funcSetAttribute(
                    function.ptr, _MAX_DYNAMIC_SHARED, step.shared_bytes
                )
            )
        parameters = PackedParameters(step.args)
        if step.attributes != PLAIN:
            return self._call_with_attributes(function, step, parameters)
        launch, stream = self.cupy.cuda.driver.launchKernel, self.stream.ptr
        geometry = *step.grid, *step.block, step.shared_bytes

        def call() -> None:
            launch(function.ptr, *geometry, stream, parameters.address, 0)

        return call

    def _call_with_attributes(
        self, function: Any, step: BoundLaunch, parameters: PackedParameters
    ) -> Callable[[], None]:
        launch = DriverLaunch(step.grid, step.block, step.shared_bytes, step.attributes)
        stream = self.stream.ptr

        def call() -> None:
            launch(function.ptr, stream, parameters.address)

        return call

    def _fill_call(self, step: BoundFill) -> Callable[[], None]:
        raw = step.value.tobytes()
        if len(set(raw)) == 1:
            return partial(self.memset, step.buffer.inner, raw[0])
        kernel = checks_module(self.cupy, self.device.arch, "float32").get_function("fill")
        count, pattern = step.buffer.nbytes // len(raw), int.from_bytes(raw, "little")
        args = (step.buffer.inner, np.uint64(count), np.uint64(pattern), np.uint32(len(raw)))
        return partial(kernel, self.grid(count), (256,), args, stream=self.stream)


class PackedParameters:
    """The parameters of a launch in memory: ``address`` is that of an array of pointers to them."""

    def __init__(self, args: Sequence[Any]) -> None:
        self._args = args  # keeps their buffers
        self._values = [ctypes.create_string_buffer(raw, len(raw)) for raw in map(_raw, args)]
        self._pointers = (ctypes.c_void_p * max(1, len(args)))(*map(ctypes.addressof, self._values))
        self.address = ctypes.addressof(self._pointers)


def _raw(argument: Any) -> bytes:
    if isinstance(argument, np.generic):
        return argument.tobytes()
    if isinstance(argument, ViewedBuffer):
        return argument.layout.encoded(int(argument.buffer.inner.data.ptr))
    return np.uint64(0 if argument is None else argument.inner.data.ptr).tobytes()

"""Runs Triton kernels on the host in Triton's interpreter, to verify them without a GPU.

Triton decides at its import whether it interprets. So the interpreter runs in processes of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.devices.base import (
    GUARD_BYTES,
    GUARD_VALUE,
    Binary,
    BoundFill,
    BoundLaunch,
    Comparison,
    CompiledFunction,
    Difference,
    LaunchError,
    Poison,
    Side,
    Timer,
)
from autotune.devices.device import UNKNOWN_CLOCKS, Clocks, Device, Power, for_arch
from autotune.devices.host import (
    expected_type,
    found_type,
    found_values,
    host_difference,
)
from autotune.errors import DeviceError, MissingDependencyError
from autotune.languages.triton import SIGNATURE, TYPES, TritonLanguage, constants_of, jit_function

#: `triton.jit` returns interpreted functions if this variable is set before Triton is imported.
_SETTING = "TRITON_INTERPRET"
#: Alignment of buffers in bytes, as on a GPU.
_BOUNDARY = 256
#: The interpreter of this version converts arrays to integers, which NumPy 2.4 refuses.
_OLD = "triton 3.6."
_NO_TIMES = "the interpreter does not measure times; use a GPU"
_NUMPY = {short: name for name, short in reversed(TYPES.items())}


class InterpreterBackend:
    """Triton's interpreter as a `Backend`; its binaries are sources with their symbols."""

    name = "interpreter"

    def devices(self) -> list[Device]:
        if self.why_unavailable():
            return []
        return [replace(for_arch("sm_90"), backend=self.name, name=self.name, arch=self.name)]

    def why_unavailable(self) -> str:
        try:
            toolchain = self.toolchain()
        except MissingDependencyError as error:
            return str(error)
        if toolchain.startswith(_OLD):
            return f"the interpreter of {toolchain} does not work with NumPy 2.4; run: pip install -U triton"
        return ""

    def why_no_energy(self, device: Device) -> str:
        return _NO_TIMES

    def toolchain(self) -> str:
        return TritonLanguage().toolchain()

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        code = json.dumps([source, list(entries), dict(defines)]).encode()
        return Binary(code, tuple(map(CompiledFunction, entries)), "", key="")

    def load_compiler(self) -> None:
        pass

    def get_ready(self, device: Device) -> None:
        os.environ[_SETTING] = "1"
        import triton  # noqa: F401

    def open(self, device: Device) -> HostExecutor:
        if _SETTING not in os.environ and "triton" in sys.modules:
            raise DeviceError(
                f"Triton was imported without its interpreter; set {_SETTING}=1 before the import"
            )
        os.environ[_SETTING] = "1"
        return HostExecutor(device)


class HostBuffer:
    """A guarded allocation: ``inner`` lies between two guard bands of ``whole``."""

    def __init__(self, nbytes: int, offset_bytes: int) -> None:
        raw = np.empty(nbytes + offset_bytes + 2 * GUARD_BYTES + _BOUNDARY, np.uint8)
        begin = -raw.ctypes.data % _BOUNDARY
        self.nbytes = nbytes
        self.whole = raw[begin : begin + nbytes + offset_bytes + 2 * GUARD_BYTES]
        self.inner = self.whole[GUARD_BYTES + offset_bytes :][:nbytes]
        self.guards = (self.whole[: GUARD_BYTES + offset_bytes], self.whole[-GUARD_BYTES:])


class Pointer:
    """An array argument with the methods of a tensor that the interpreter calls."""

    def __init__(self, address: int, dtype: str) -> None:
        self._address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self._address

    def _itself(self, *_: object, **__: object) -> Pointer:
        return self

    # The interpreter calls these to copy tensors between device and host; the data are on the host.
    untyped_storage = cpu = new_empty = set_ = copy_ = storage_offset = size = stride = _itself


class HostExecutor:
    """An `Executor` on the host that verifies and does not measure times."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> HostBuffer:
        return HostBuffer(nbytes, offset_bytes)

    def write(self, buffer: HostBuffer, array: NDArray[Any]) -> None:
        buffer.inner[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def read(
        self, buffer: HostBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        return buffer.inner.copy().view(dtype).reshape(shape)

    def copy(self, target: HostBuffer, source: HostBuffer) -> None:
        target.inner[:] = source.inner

    def poison(self, buffer: HostBuffer, poison: Poison = Poison.NAN) -> None:
        buffer.inner[:] = poison

    def restore_guards(self, buffer: HostBuffer) -> None:
        for guard in buffer.guards:
            guard[:] = GUARD_VALUE

    def inspect(
        self,
        comparisons: Sequence[Comparison],
        buffers: Sequence[HostBuffer] = (),
        pairs: Sequence[tuple[HostBuffer, HostBuffer]] = (),
    ) -> tuple[list[Difference], list[bool], list[bool]]:
        return (
            [_difference(comparison) for comparison in comparisons],
            [all(bool(np.all(g == GUARD_VALUE)) for g in buffer.guards) for buffer in buffers],
            [np.array_equal(buffer.inner, other.inner) for buffer, other in pairs],
        )

    def load(self, binary: Binary, constants: Mapping[str, NDArray[Any]]) -> Any:
        if constants:
            raise LaunchError("Triton has no module symbols; pass constants as inputs")
        source, names, defines = json.loads(binary.code)
        launchers = {name: _launcher(source, name, defines) for name in names}
        return lambda step: launchers[step.entry](step)

    def calibrate(self) -> None:
        pass

    def skip_calibration(self) -> None:
        pass

    def run(self, module: Any, steps: Sequence[BoundLaunch | BoundFill]) -> float:
        start = time.perf_counter()
        for step in steps:
            if isinstance(step, BoundFill):
                step.buffer.inner.view(step.value.dtype)[:] = step.value
                continue
            try:
                module(step)
            except Exception as error:
                raise LaunchError(f"the interpreter failed: {error.__cause__ or error}") from error
        return 1e3 * (time.perf_counter() - start)

    def at_once(self, module: Any, sides: Sequence[Side], times: int) -> Callable[[], None]:
        raise LaunchError(_NO_TIMES)

    def timer(self, module: Any, steps: Sequence[BoundLaunch | BoundFill], cold: bool) -> Timer:
        raise LaunchError(_NO_TIMES)

    def timer_of(self, call: Callable[[], object], cold: bool) -> Timer:
        raise LaunchError(_NO_TIMES)

    def time_calls(self, prepare: Any, arrays: Mapping[str, Any]) -> Any:
        raise LaunchError(_NO_TIMES)

    def clocks(self) -> Clocks:
        return UNKNOWN_CLOCKS

    def energy_mj(self) -> int:
        raise DeviceError(_NO_TIMES)

    def power(self) -> Power:
        return Power()


def _launcher(source: str, name: str, defines: Mapping[str, str]) -> Callable[[BoundLaunch], None]:
    """Return a function that interprets one launch of a function of the source."""
    function, given = jit_function(source, name), constants_of(source, name, defines)
    kinds = [
        text.lstrip("*").split("%")[0].split("=")[0]
        for text in defines[SIGNATURE.format(name)].split()
    ]

    def launch(step: BoundLaunch) -> None:
        passed = [_passed(value, kind) for value, kind in zip(step.args, kinds, strict=True)]
        runtime = (argument for argument in function.arg_names if argument not in given)
        named = dict(zip(runtime, passed, strict=False))
        function.run(**named, **given, grid=step.grid, warmup=False)

    return launch


def _passed(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, HostBuffer):
        return Pointer(value.inner.ctypes.data if value else 0, _NUMPY[kind])
    return value.item()


def _difference(comparison: Comparison) -> Difference:
    count, bounds = comparison.count, comparison.bound
    if (buffer := comparison.bounds) is not None:
        bounds = buffer.inner.view(np.float32 if buffer.nbytes == 4 * count else np.float64)
    want = comparison.expected.inner.view(expected_type(comparison))[:count]
    stored = comparison.buffer.inner.view(found_type(comparison))[: comparison.stored_count]
    return host_difference(found_values(comparison, stored), want, bounds)

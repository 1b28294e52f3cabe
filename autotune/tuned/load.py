"""`load`: a tuned kernel as a function on arrays; lookup, compile once, launch.

Knows lookup, compiler and CuPy; nothing of search or storage. Device arrays (CuPy, torch, anything
with DLPack) run where they are, on the caller's stream, and are never copied unless they have to be
made contiguous. Host arrays (NumPy) run on the first usable device and come back as host arrays.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from threading import get_ident
from typing import Any

import numpy as np

from autotune.devices.base import Executor
from autotune.devices.binary import Binary
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device
from autotune.devices.graph import capture_of, everything_allowed
from autotune.errors import MissingDependencyError, NothingValidError, UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import LaunchSequence, bound, launch_sequence
from autotune.kernel.membership import is_member
from autotune.kernel.spec import Constant, Fill, InOut, Kernel
from autotune.measure.compiler import compiled_for
from autotune.measure.data import Argument, argument_of
from autotune.measure.draw import Draw
from autotune.tuned.config import TunedConfig
from autotune.tuned.lookup import lookup
from autotune.tuned.reading import warn
from autotune.values import Configuration, Problem

#: Problems whose launch is kept ready; a serving process may see ever new sizes.
MAX_READY = 256
#: CU_STREAM_PER_THREAD of the driver API: the default stream of whichever thread says so.
_PER_THREAD = 2
#: CUfunction_attribute
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


def load(kernel: str | Kernel) -> TunedKernel:
    """Make a tuned kernel callable.

    Parameters
    ----------
    kernel : str or Kernel
        A name, the path of a space file, or the kernel that a space file declared.

    Returns
    -------
    TunedKernel
        Call it with arrays: ``load("sgemm")(a, b)``.

    Raises
    ------
    UsageError
        If there is no such kernel.
    SpecError
        If its space file has no ``call`` function, which says what it is called with.
    """
    declared = find_kernel(kernel) if isinstance(kernel, str) else kernel
    declared.hook("call")
    return TunedKernel(declared)


@dataclass(frozen=True)
class Choice:
    """The configuration to launch, and the answer of lookup it comes from."""

    configuration: Configuration
    #: None where nothing is recorded that may be used.
    tuned: TunedConfig | None


def choose(kernel: Kernel, problem: Problem, device: Device) -> Choice:
    """The recorded configuration where the declared space has it, else the kernel's default.

    Raises
    ------
    NothingValidError
        If neither is valid on this device.
    UsageError
        If the problem breaks what the configuration requires.
    """
    found = _recorded(kernel, problem, device)
    if found is not None and is_member(kernel, found, device):
        if not found.requires_met:
            raise UsageError(f"{kernel.name}: no configuration accepts the problem {problem}")
        return Choice(Configuration(dict(found)), found)
    if found is not None:
        warn(
            f"{kernel.name}: the recorded configuration {Configuration(dict(found))} is not in its "
            f"space on {device.name}; using a default, tune again with: autotune run {kernel.name}"
        )
    candidates = [kernel.default(), *(kernel.completed(seed) for seed in kernel.seeds)]
    for configuration in candidates:
        if is_member(kernel, configuration, device):
            return Choice(configuration, None)
    raise NothingValidError(
        f"{kernel.name}: neither default nor seeds are valid on {device.name}; "
        f"tune it there: autotune run {kernel.name}"
    )


def _recorded(kernel: Kernel, problem: Problem, device: Device) -> TunedConfig | None:
    try:
        return lookup(kernel.name, device=device, **problem)
    except UsageError as error:
        warn(f"{error}; until then {kernel.name} runs in its default configuration")
        return None


# ---------------------------------------------------------------------- calling


class TunedKernel:
    """A kernel as a function on arrays; made by `load`.

    What it takes is what the space file's ``call`` function takes. Outputs that are not passed are
    allocated, and returned: one as itself, several as a tuple, of the library the inputs are of.

    Calls on different streams, and captured graphs, may run at the same time. What a captured call
    refers to beside the caller's arrays lives as long as this object.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._ready: OrderedDict[object, _OnGpu | _OnHost] = OrderedDict()
        #: What graphs refer to, however many problems came after it.
        self._captured: set[_OnGpu] = set()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the tuned kernel.

        Raises
        ------
        UsageError
            If arrays do not fit the problem or each other.
        DeviceError, NothingValidError, SpecError
            If there is no device, no valid configuration, or it does not compile.
        """
        call = partial(self.kernel.hook("call"), *args, **named)
        problem, given = self.kernel.guarded("call", call)
        on_device = {name: value for name, value in given.items() if _is_device_array(value)}
        if not on_device:
            return self._prepared(problem, None)(given)
        cupy, first = _cupy(), next(iter(on_device.values()))
        index = _only_index(on_device.values())
        with cupy.cuda.Device(index), _stream_of(cupy, first):
            views = {name: _to_cupy(cupy, array) for name, array in on_device.items()}
            results = self._prepared(problem, index)({**given, **views})
            return _returned([_like(first, cupy, result) for result in results])

    def choice(self, problem: Mapping[str, Any], device: str | None = None) -> Choice:
        """What a call with this problem would launch."""
        chosen = choose_device(device, self.kernel.backends)
        return choose(self.kernel, Problem(dict(problem)), chosen)

    def __repr__(self) -> str:
        return f"TunedKernel({self.kernel.name!r})"

    def _prepared(self, problem: Problem, index: int | None) -> _OnGpu | _OnHost:
        key = (problem, index)
        if key in self._ready:
            self._ready.move_to_end(key)
            return self._ready[key]
        if index is None:
            device = choose_device(None, self.kernel.backends)
            made: _OnGpu | _OnHost = _OnHost(_Prepared.of(self.kernel, problem, device))
        else:
            device = backend("cuda").devices()[index]
            prepared = _Prepared.of(self.kernel, problem, device)
            made = _OnGpu(prepared, _cupy(), self._captured)
        self._ready[key] = made
        if len(self._ready) > MAX_READY:
            self._ready.popitem(last=False)
        return made


@dataclass(frozen=True)
class _Prepared:
    """All that does not change from call to call of one problem on one device."""

    kernel: Kernel
    problem: Problem
    device: Device
    binary: Binary
    sequence: LaunchSequence
    arguments: dict[str, Argument]
    scratch: dict[str, Argument]
    #: Whether launches of one loaded module must not overlap.
    exclusive: bool

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, device: Device) -> _Prepared:
        """Look up, check, compile and plan."""
        configuration = choose(kernel, problem, device).configuration
        scratch = kernel.workspaces(configuration, problem, device)
        arguments = declared_arguments(kernel, problem)
        # Module symbols are set before every launch, maybe to other values.
        has_symbols = any(argument.kind == "constant" for argument in arguments.values())
        return cls(
            kernel=kernel,
            problem=problem,
            device=device,
            binary=compiled_for(kernel, configuration, problem, device),
            sequence=launch_sequence(kernel, configuration, problem, device),
            arguments=arguments,
            scratch={name: _declared(kernel, name, out) for name, out in scratch.items()},
            exclusive=has_symbols or kernel.is_exclusive(configuration),
        )

    @cached_property
    def names(self) -> list[str]:
        """What a launch without ``args`` gets: arguments, then scratch; no constants."""
        used = [name for name, argument in self.arguments.items() if argument.kind != "constant"]
        return [*used, *self.scratch]

    @cached_property
    def outputs(self) -> list[str]:
        """Names of what a call returns."""
        arguments = self.arguments.items()
        return [name for name, argument in arguments if argument.kind in ("out", "inout")]

    @cached_property
    def declared_scalars(self) -> dict[str, np.generic]:
        """Scalars as the space file declares them for this problem."""
        arguments = self.arguments.items()
        return {name: argument.scalar for name, argument in arguments if argument.kind == "scalar"}

    def scalars(self, given: Mapping[str, Any]) -> dict[str, np.generic]:
        """Scalars in the kernel's types: as given, else as declared."""
        return {
            name: type(scalar)(given[name]) if name in given else scalar
            for name, scalar in self.declared_scalars.items()
        }

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse what would make the kernel read or write out of bounds.

        Raises
        ------
        UsageError
            Names the argument, and what it must be.
        """
        for name in given:
            if name not in self.arguments:
                known = ", ".join(self.arguments)
                raise UsageError(f"{self.kernel.name}: call gives {name!r} (arguments: {known})")
        for name, argument in self.arguments.items():
            if argument.kind == "scalar":
                continue
            if name not in given:
                if name in self.outputs:
                    continue
                raise UsageError(f"{self.kernel.name}: call gives no {name!r}")
            array = given[name]
            if array.shape != argument.shape or array.dtype != np.dtype(argument.dtype):
                raise UsageError(
                    f"{self.kernel.name}: {name} is {array.dtype}{array.shape}, the problem "
                    f"({self.problem}) needs {np.dtype(argument.dtype)}{argument.shape}"
                )
            if name in self.outputs and not array.flags.c_contiguous:
                raise UsageError(f"{self.kernel.name}: the output {name} must be C-contiguous")


class _Module:
    """A binary on the device: its functions by entry, ready to be launched."""

    def __init__(self, prepared: _Prepared, cupy: Any) -> None:
        self.module = cupy.cuda.function.Module()
        self.module.load(prepared.binary.code)
        self.functions = {}
        for launch in prepared.sequence.launches:
            function = self.module.get_function(prepared.binary.symbol(str(launch.entry)))
            if launch.shared_bytes > 48 * 1024:
                # CUDA C++ Programming Guide, "Shared Memory" (9.x): more than 48 KiB is opt-in.
                attribute = _MAX_DYNAMIC_SHARED_SIZE_BYTES
                cupy.cuda.driver.funcSetAttribute(function.ptr, attribute, launch.shared_bytes)
            self.functions[launch.entry] = function


class _OnGpu:
    """Launches on the caller's device arrays and stream, with nothing but CuPy between.

    Of an exclusive configuration there is a module for each stream that it is called on, since what
    is enqueued on one is done in order, and one for each stream of each capture.
    """

    def __init__(self, prepared: _Prepared, cupy: Any, captured: set[_OnGpu]) -> None:
        self.prepared = prepared
        self.cupy = cupy
        self._captured = captured
        #: By stream and capture where exclusive, else one.
        self._modules: dict[object, _Module] = {}
        #: By capture and name: a graph is launched long after the pool would have given them away.
        self._workspaces: dict[object, Any] = {}
        self._copies: list[Any] = []
        if not prepared.exclusive:
            self._module(None)

    def __call__(self, given: Mapping[str, Any]) -> list[Any]:
        self.prepared.check(given)
        stream = self.cupy.cuda.get_current_stream().ptr
        # The default stream cannot be captured, and must not be asked while another is.
        if stream and self.cupy.cuda.runtime.streamIsCapturing(stream):
            self._captured.add(self)
            with everything_allowed():
                return self._enqueue(given, (stream, capture_of(stream)), is_captured=True)
        return self._enqueue(given, (stream, get_ident()) if stream == _PER_THREAD else stream)

    def _enqueue(
        self, given: Mapping[str, Any], place: object, is_captured: bool = False
    ) -> list[Any]:
        """Launch on the current stream, which is ``place`` by a name of its own."""
        cupy, prepared = self.cupy, self.prepared
        loaded = self._module(place if prepared.exclusive else None)
        values: dict[str, Any] = {}
        for name, argument in prepared.arguments.items():
            if argument.kind == "constant":
                self._set_constant(loaded, name, given[name], is_captured)
            elif argument.kind != "scalar":
                array = given.get(name)
                values[name] = (
                    cupy.empty(argument.shape, argument.dtype)
                    if array is None
                    else self._contiguous(array, is_captured)
                )
        for name, argument in prepared.scratch.items():
            values[name] = self._workspaces.get((place, name))
            if values[name] is None:
                values[name] = cupy.empty(argument.shape, argument.dtype)
                if is_captured:
                    self._workspaces[place, name] = values[name]
        values |= prepared.scalars(given)
        for step in prepared.sequence.steps:
            if isinstance(step, Fill):
                values[step.name].fill(step.value)
                continue
            names = prepared.names if step.args is None else step.args
            args = tuple(
                values[value] if isinstance(value, str) else np.int32(value) for value in names
            )
            function = loaded.functions[step.entry]
            function(step.grid, step.block, args, shared_mem=step.shared_bytes)
        return [values[name] for name in prepared.outputs]

    def _module(self, key: object) -> _Module:
        found = self._modules.get(key)
        # Of two threads that load for one stream, both launch what was kept.
        return found or self._modules.setdefault(key, _Module(self.prepared, self.cupy))

    def _contiguous(self, array: Any, is_captured: bool) -> Any:
        made = self.cupy.ascontiguousarray(array)
        if is_captured and made is not array:
            self._copies.append(made)
        return made

    def _set_constant(self, loaded: _Module, name: str, array: Any, is_captured: bool) -> None:
        """Copy to a module symbol, in order with the launches of the current stream."""
        runtime = self.cupy.cuda.runtime
        source = self.cupy.asarray(array)
        if is_captured:
            self._copies.append(source)
        target = int(loaded.module.get_global_var(name))
        stream = self.cupy.cuda.get_current_stream().ptr
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(target, source.data.ptr, source.nbytes, kind, stream)


class _OnHost:
    """Copies host arrays to a device, launches, and copies the outputs back."""

    def __init__(self, prepared: _Prepared) -> None:
        self.prepared = prepared
        self.executor = _executor(prepared.device)

    def __call__(self, given: Mapping[str, Any]) -> Any:
        prepared, executor = self.prepared, self.executor
        host = {
            name: np.asarray(value)
            for name, value in given.items()
            if name in prepared.arguments and prepared.arguments[name].kind != "scalar"
        }
        prepared.check({**given, **host})
        arrays = {**prepared.arguments, **prepared.scratch}
        buffers = {
            name: executor.allocate(argument.nbytes)
            for name, argument in arrays.items()
            if argument.kind not in ("scalar", "constant")
        }
        for name in set(host) & set(buffers):
            executor.write(buffers[name], host[name])
        constants = {name: array for name, array in host.items() if name not in buffers}
        module = executor.load(prepared.binary, constants)
        dtypes = {name: argument.dtype for name, argument in arrays.items()}
        scalars = prepared.scalars(given)
        steps = bound(prepared.sequence, prepared.names, buffers, scalars, dtypes)
        executor.run(module, steps)
        results = []
        for name in prepared.outputs:
            argument = arrays[name]
            result = executor.read(buffers[name], np.dtype(argument.dtype), argument.shape)
            if name in host:
                host[name][...] = result
            results.append(host.get(name, result))
        return _returned(results)


# ---------------------------------------------------------------------- declared arguments


class _Shapes(Draw):
    """Arrays of the right shape and type that hold nothing: for asking what is declared."""

    def __init__(self) -> None:
        super().__init__(exact=False, key=0)

    def standard_normal(self, size: Any, dtype: Any = np.float32) -> Any:
        return np.broadcast_to(np.zeros((), dtype), size)

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: Any = (), dtype: Any = np.float32
    ) -> Any:
        return np.broadcast_to(np.zeros((), dtype), size)

    def integers(self, low: int, high: int, size: Any = (), dtype: Any = np.int32) -> Any:
        return np.broadcast_to(np.full((), low, dtype), size)


def declared_arguments(kernel: Kernel, problem: Problem) -> dict[str, Argument]:
    """Kind, type and shape of every argument of a problem, without drawing its inputs.

    A hook that writes into what it draws gets real arrays instead.
    """
    try:
        declared = kernel.hook("arguments")(kernel.filled(problem), _Shapes())
    except ValueError:  # "assignment destination is read-only"
        declared = kernel.call_hook("arguments", problem, Draw(exact=False, key=0))
    return {name: _declared(kernel, name, value) for name, value in declared.items()}


def _declared(kernel: Kernel, name: str, value: Any) -> Argument:
    for kind, wrapper in (("inout", InOut), ("constant", Constant)):
        if isinstance(value, wrapper):
            array = np.asarray(value.array)
            return Argument(name, kind, array.dtype.str, array.shape)
    if isinstance(value, np.ndarray) and value.shape != ():
        return Argument(name, "input", value.dtype.str, value.shape)
    return argument_of(kernel, name, value)[0]


# ---------------------------------------------------------------------- arrays of other libraries


def _is_device_array(value: Any) -> bool:
    """Whether an array lies on a CUDA device; asks nothing of libraries that are not loaded."""
    cuda, cuda_managed = 2, 13  # DLDeviceType
    ask = getattr(value, "__dlpack_device__", None)
    return ask is not None and ask()[0] in (cuda, cuda_managed)


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError("cupy", "cuda13", "launching on device arrays") from error
    return cupy


def _to_cupy(cupy: Any, value: Any) -> Any:
    """A view of a device array."""
    if isinstance(value, cupy.ndarray):
        return value
    return cupy.from_dlpack(value.detach() if hasattr(value, "detach") else value)


def _only_index(arrays: Iterable[Any]) -> int:
    """The one device that all device arrays are on."""
    found = {int(array.__dlpack_device__()[1]) for array in arrays}
    if len(found) > 1:
        raise UsageError(f"arrays are on several devices: {sorted(found)}")
    return found.pop()


def _stream_of(cupy: Any, value: Any) -> Any:
    """The stream that the caller's library works on now, as a context."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        pointer = torch.cuda.current_stream(value.device).cuda_stream
        return cupy.cuda.Stream.from_external(_ForeignStream(pointer))
    return nullcontext()


class _ForeignStream:
    """A stream of another library, by the CUDA stream protocol."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer  # version of the protocol, stream


def _like(kept: Any, cupy: Any, result: Any) -> Any:
    """A result as an array of the library that an input is of, sharing its memory."""
    if isinstance(kept, cupy.ndarray):
        return result
    library = sys.modules[type(kept).__module__.partition(".")[0]]
    convert = getattr(library, "from_dlpack", None)
    if convert is None:
        convert = getattr(getattr(library, "dlpack", None), "from_dlpack", None)
    return convert(result) if convert else result


def _returned(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


@cache
def _executor(device: Device) -> Executor:
    """One device context per process."""
    return backend(device.backend).open(device)

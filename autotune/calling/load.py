"""`load`: a tuned kernel as a function on arrays.

Device arrays (CuPy, torch, anything with DLPack or ``__cuda_array_interface__``) stay where they are
and run on the caller's stream. Host arrays run on the first usable device and come back.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from autotune.calling import first_call
from autotune.calling.binding import LOADED, ResolvedCall, bind, checked_problem
from autotune.calling.choice import (
    Choice,
    ChosenCall,
    LaunchPlan,
    choose,
    expected_ms_of,
    explained,
)
from autotune.calling.first_call import Tuning
from autotune.calling.gpu import GpuCall, LoadedPlan, device_index
from autotune.calling.libraries import KINDS, Library, Numpy, kind_of
from autotune.devices.base import Executor
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import NewArray, NothingToDo, Operand
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Problems whose launch is kept ready; a serving process may see ever new sizes.
MAX_READY = 256
#: Calls that are kept: ways in which arrays lie.
MAX_CALLS = 1024

#: In a key's place: this call depends on the values of its floats.
_BY_VALUE = object()


def load(
    kernel: str | Kernel,
    *,
    deterministic: bool = False,
    spaces: str | Path | None = None,
    tune: str | None = None,
    budget: str | float = "1s",
) -> TunedKernel:
    """Return a tuned kernel as a function on arrays.

    Parameters
    ----------
    kernel : str or Kernel
        A name, the path of a space file, or the kernel that a space file declared.
    deterministic : bool
        Launch only configurations declared to give the same bits in every run; refuse a call that
        has none.
    spaces : str or Path, optional
        Folder of space files to look for the name in first, as of `autotune.tune`.
    tune : {"first_call", "background", "off"}, optional
        At the first call of a size that was not tuned, measure the records' most promising
        configurations on copies of its arrays, and keep the fastest for later processes:
        ``first_call`` before the call answers, ``background`` meanwhile. Default: as a block of
        `autotune.tuned_on_first_call` says, else ``AUTOTUNE_TUNE``, else ``off``.
    budget : str or float
        Longest time to measure a size, in seconds: ``"1s"``, 0.3. Compiling takes 3 s more at most.

    Returns
    -------
    TunedKernel
        Call it with arrays: ``load("sgemm")(a, b)``.

    Raises
    ------
    UsageError
        If there is no such kernel; if ``tune`` or ``budget`` is none of these; if ``deterministic``
        would have to switch configurations in the background.
    SpecError
        If the space file has no ``call`` function.
    """
    if not isinstance(kernel, str | Kernel):
        raise UsageError(f"{kernel!r:.40} is neither a kernel's name nor a kernel")
    tuning = first_call.tuning(first_call.OFF if tune is None else tune, budget)
    if tuning.in_background and deterministic:
        raise UsageError(
            'deterministic=True and tune="background": a switch of configurations changes bits; '
            'pass tune="first_call"'
        )
    folder = Path(spaces) if spaces else None
    declared = find_kernel(kernel, folder) if isinstance(kernel, str) else kernel
    declared.hook("call")
    return TunedKernel(declared, deterministic, folder, tuning if tune is not None else None)


class TunedKernel:
    """A kernel as a function on arrays; made by `load`.

    It takes what the space file's ``call`` function takes. It makes and returns outputs that are not
    passed: one output as itself, several as a tuple, in the library of the first array.

    Calls from several threads, on several streams and in captured graphs may run at the same time.
    What a captured call needs lives as long as the graph, or longer.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    deterministic : bool
        Whether it launches only deterministic configurations.
    """

    def __init__(
        self,
        kernel: Kernel,
        deterministic: bool = False,
        spaces: Path | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.kernel, self.deterministic, self._tuning = kernel, deterministic, tuning
        self.find = partial(find_kernel, spaces=spaces)
        #: How operators of torch name it.
        self.key = f"{kernel.name} of {kernel.file}{', deterministic' if deterministic else ''}"
        self.key += f", tune={tuning.mode} in {tuning.seconds:g} s" if tuning else ""
        LOADED[self.key] = self
        #: Kept since torch, compiling a call, would read all of `sys.modules`, to which other threads add.
        self._torch = sys.modules.get("torch")
        self._calls: dict[object, Any] = {}
        #: Calls whose sizes are being tuned, or will be; good while anything is.
        self._meanwhile: dict[object, Any] = {}
        #: Of several threads one prepares, and forgets what is old.
        self._making = RLock()
        self._ready: OrderedDict[object, LoadedPlan | LaunchPlan] = OrderedDict()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the tuned kernel.

        Parameters
        ----------
        *args, **named
            What the space file's ``call`` function takes: arrays and numbers.

        Returns
        -------
        array or tuple of array
            The outputs: those that were passed, others new.

        Raises
        ------
        UsageError
            If arrays do not fit the problem or each other, or nothing ``deterministic`` is known.
        DeviceError, NothingValidError, SpecError
            If there is no device, no valid configuration, or it does not compile.
        """
        torch = self._torch or sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            from autotune.calling.compiled import traced

            return traced(self.key, args, named)
        values: tuple[Any, ...] = (*args, *named.values()) if named else args
        pointers: list[Any] = []
        try:
            seen = [
                (KINDS.get(type(value)) or kind_of(value)).seen(value, pointers) for value in values
            ]
        except Exception:
            self._described(args, named)  # says which of them it is
            raise
        key = (*seen, *named)
        call = self._calls.get(key)
        if call is None or call is _BY_VALUE:
            call = self._call_of(key, args, named, values)
        return call(values, pointers)

    def choice(self, *args: Any, device: str | None = None, **named: Any) -> Choice:
        """Return the configuration that a call would launch, and why.

        Parameters
        ----------
        *args, **named
            Arguments of a call; or the fields of a problem.
        device : str, optional
            ``cuda:0``, ``opencl:cpu``. Default: the device of the arrays, else the first usable one.

        Returns
        -------
        Choice
            Configuration, problem, and the answer of lookup behind it.

        Raises
        ------
        UsageError, DeviceError, NothingValidError
            As a call does.
        """
        if not args and named and set(named) <= {*self.kernel.fields, *self.kernel.layout}:
            chosen = choose_device(device, self.kernel.backends)
            problem = self.kernel.normal(_complete(self.kernel, named))
            return self._explained(self.kernel, problem, chosen)
        arguments = self._described(args, named)
        resolved = self._resolved(arguments)
        if isinstance(resolved, NothingToDo):
            raise UsageError(f"{self.kernel.name}: this call launches nothing")
        found = (
            _device(arguments.index, resolved.kernel) if device is None else choose_device(device)
        )
        return self._explained(resolved.kernel, resolved.problem, found)

    def __repr__(self) -> str:
        kept = ", deterministic" if self.deterministic else ""
        return f"TunedKernel({self.kernel.name!r}{kept})"

    def _explained(self, kernel: Kernel, problem: Problem, device: Device) -> Choice:
        return explained(choose(kernel, problem, device, self.deterministic), kernel)

    # ------------------------------------------------------------------ calls not made before

    def _call_of(
        self, key: object, args: tuple[Any, ...], named: dict[str, Any], values: Sequence[Any]
    ) -> Any:
        """Return the prepared call for a key; make it if it is new or depends on values of floats."""
        exact = key, tuple(value for value in values if type(value) is float)
        call = self._calls.get(exact)
        if call is None and first_call.is_busy():
            call = self._meanwhile.get(exact)
        if call is not None:
            return call
        arguments = self._described(args, named)
        how = first_call.wanted(self._tuning, self.deterministic)
        choice, is_settled = self._tuned_choice(arguments, how) if how else (None, True)
        with self._making:
            call = self._made(arguments, choice)
            short = getattr(call, "shortest", call)
            if not is_settled:
                keep(self._meanwhile, exact, short)
                return short
            self._meanwhile.pop(exact, None)
            if getattr(call, "is_by_value", False):
                keep(self._calls, key, _BY_VALUE)
                key = exact
            keep(self._calls, key, short)
        return short

    def _tuned_choice(self, arguments: _CallArguments, how: Tuning) -> tuple[Choice | None, bool]:
        """Tune the size of a call where that is due; return its configuration, and whether that stays."""
        resolved = self._resolved(arguments) if any(arguments.libraries) else None
        if not isinstance(resolved, ResolvedCall):
            return None, True
        kernel, index = resolved.kernel, arguments.index
        ready = self._ready.get(self._plan_key(resolved, index))
        if ready and _choice_of(ready).is_known:
            return None, True
        device = _device(index, kernel)
        choice = choose(kernel, resolved.problem, device, self.deterministic)
        if choice.is_known:
            return choice, True
        given = arguments.values, arguments.libraries, index
        call = ChosenCall(resolved, *given, device, choice, self.deterministic)
        is_settled = first_call.tune(call, how)
        if is_settled and choice.tuned is not None:
            choice = choose(kernel, resolved.problem, device, self.deterministic)
        return choice, is_settled

    def _made(self, arguments: _CallArguments, choice: Choice | None = None) -> Any:
        if not any(arguments.libraries):
            raise UsageError(f"{self.kernel.name}: called with no array")
        resolved = self._resolved(arguments)
        if isinstance(resolved, NothingToDo):
            return _NoCall(resolved, arguments)
        ready = self._plan_of(resolved, arguments.index, choice)
        if isinstance(ready, LaunchPlan):
            return HostCall(resolved, ready, arguments)
        passed_on = self._passed_on(resolved, arguments)
        return GpuCall(resolved, ready, arguments.values, arguments.libraries, passed_on)

    def _passed_on(
        self, resolved: ResolvedCall, arguments: _CallArguments
    ) -> dict[str, int] | None:
        """Return the position of the float behind each scalar; None if floats decide more than scalars.

        The call function is asked again with other floats, and the answers are compared.
        """
        operands = arguments.operands
        # Each float is another object, also where two are equal now. 0 and 1 are in the key.
        others = {
            i: 2.5 + 2 * i + (value == 2.5 + 2 * i)
            for i, value in enumerate(operands)
            if type(value) is float and value not in (0.0, 1.0)
        }
        if not others:
            return {}
        changed = [others.get(i, value) for i, value in enumerate(operands)]
        again = arguments.bound(self.kernel, changed, self.find, self._expected_ms(arguments.index))
        if not isinstance(again, ResolvedCall) or (again.kernel, again.problem, again.arrays) != (
            resolved.kernel,
            resolved.problem,
            resolved.arrays,
        ):
            return None
        scalars = resolved.scalars
        found = {
            name: i
            for name, value in again.scalars.items()
            for i, other in others.items()
            if value is other and scalars.get(name) is operands[i]
        }
        rest, before = (
            {name: (type(value), value) for name, value in each.items() if name not in found}
            for each in (again.scalars, scalars)
        )
        return found if rest == before else None

    def _described(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> _CallArguments:
        parameters = [*signature(self.kernel.hook("call")).parameters][: len(args)]
        unnamed = ["an argument"] * (len(args) - len(parameters))  # the call is refused for them
        values = (*args, *named.values())
        libraries: list[Library | None] = []
        operands: list[Any] = []
        for name, value in zip((*parameters, *unnamed, *named), values, strict=True):
            try:
                kind = kind_of(value)
                library = kind if isinstance(kind, Library) else None
                found = value if library is None else library.operand(value, len(operands))
            except UsageError as error:
                raise UsageError(f"{self.kernel.name}: {name} is {error}") from error
            libraries.append(library)
            operands.append(found)
        index = device_index(values, libraries)
        return _CallArguments(values, tuple(named), libraries, operands, index)

    def _resolved(self, arguments: _CallArguments) -> ResolvedCall | NothingToDo:
        """Return what the call is; refuse host arrays mixed with device arrays."""
        expected_ms = self._expected_ms(arguments.index)
        resolved = arguments.bound(self.kernel, arguments.operands, self.find, expected_ms)
        if isinstance(resolved, NothingToDo) or arguments.index is None:
            return resolved
        for name, passed in resolved.arrays.items():
            source = passed.operand.source
            if isinstance(source, NewArray) or resolved.arguments[name].kind == "constant":
                continue
            library = arguments.libraries[source]
            if library is not None and library.device_index(arguments.values[source]) is None:
                raise UsageError(
                    f"{self.kernel.name}: {name} is in the host's memory, other arrays are on "
                    f"cuda:{arguments.index}; move it there, or them to the host"
                )
        return resolved

    def _expected_ms(self, index: int | None) -> Callable[[ResolvedCall], float | None]:
        """Return the function of a call's expected time on a device, by its record there."""

        def expected_ms(resolved: ResolvedCall) -> float | None:
            kernel, device = resolved.kernel, _device(index, resolved.kernel)
            return expected_ms_of(kernel, resolved.problem, device, self.deterministic)

        return expected_ms

    def _plan_key(self, resolved: ResolvedCall, index: int | None) -> object:
        compiled_in = tuple(resolved.compiled_scalars.items())
        return resolved.kernel.name, resolved.problem, index, compiled_in

    def _plan_of(
        self, resolved: ResolvedCall, index: int | None, choice: Choice | None = None
    ) -> LoadedPlan | LaunchPlan:
        """Return the compiled plan of a problem, on a GPU loaded; recent plans are kept.

        Where a ``choice`` is given, a plan of another configuration is replaced.
        """
        key = self._plan_key(resolved, index)
        ready = self._ready.get(key)
        if ready and (choice is None or _choice_of(ready).configuration == choice.configuration):
            self._ready.move_to_end(key)
            return ready
        device = _device(index, resolved.kernel)
        if choice is None:
            choice = choose(resolved.kernel, resolved.problem, device, self.deterministic)
        plan = LaunchPlan.of(resolved, device, choice)
        made = plan if index is None else LoadedPlan(plan, index)
        self._ready[key] = made
        if len(self._ready) > MAX_READY:
            self._ready.popitem(last=False)
        return made


def keep(calls: dict[Any, Any], key: object, call: Any) -> None:
    """Keep a call, in place of the oldest where `MAX_CALLS` others are kept."""
    if key not in calls and len(calls) >= MAX_CALLS:
        calls.pop(next(iter(calls)), None)
    calls[key] = call


@dataclass(frozen=True)
class _CallArguments:
    values: tuple[Any, ...]
    names: tuple[str, ...]
    #: Library of each value; None for a scalar.
    libraries: list[Library | None]
    #: Operands in place of arrays.
    operands: list[Any]
    #: The CUDA device of the arrays; None if all are in host memory.
    index: int | None

    @property
    def library(self) -> Library:
        """Return the library of the first array, which makes new ones."""
        return next((library for library in self.libraries if library), Numpy())

    def bound(
        self,
        kernel: Kernel,
        operands: Sequence[Any],
        find: Callable[[str], Kernel],
        expected_ms: Callable[[ResolvedCall], float | None],
    ) -> ResolvedCall | NothingToDo:
        """Ask a kernel's ``call`` function what these operands are."""
        count = len(operands) - len(self.names)
        named = dict(zip(self.names, operands[count:], strict=True))
        has_addresses = self.index is not None
        return bind(kernel, tuple(operands[:count]), named, find, has_addresses, expected_ms)


class _NoCall:
    def __init__(self, resolved: NothingToDo, arguments: _CallArguments) -> None:
        self._results, self._index = resolved.results, arguments.index
        self._library = arguments.library

    def __call__(self, values: Sequence[Any], pointers: Sequence[Any]) -> Any:
        return _returned(self._results, values, self._library, self._made)

    def _made(self, new: NewArray) -> Any:
        if self._index is None:
            return np.empty(new.shape, new.dtype)
        return self._library.empty(new.shape, new.dtype, self._index)


class HostCall:
    """A call on host arrays that lie in one way; see `autotune.calling.gpu.GpuCall`."""

    def __init__(self, resolved: ResolvedCall, plan: LaunchPlan, arguments: _CallArguments) -> None:
        self._resolved, self._plan = resolved, plan
        self._libraries, self._library = arguments.libraries, arguments.library
        self._executor = _executor(plan.device)
        #: Scalars are as they were when this was made.
        self.is_by_value = True

    def __call__(self, values: Sequence[Any], pointers: Sequence[Any]) -> Any:
        """Run; results are in the passed outputs, or new."""
        resolved, plan, executor = self._resolved, self._plan, self._executor
        made: dict[NewArray, Any] = {}
        host = {
            name: self._array(resolved.memory_of(name), values, made) for name in resolved.arrays
        }
        for name in resolved.outputs:
            if not host[name].flags.writeable:
                raise UsageError(f"{resolved.kernel.name}: the output {name} is read-only")
        arrays = {**plan.arguments, **plan.scratch}
        buffers = {
            name: executor.allocate(max(1, argument.nbytes))
            for name, argument in arrays.items()
            if argument.kind not in ("scalar", "constant")
        }
        for name in set(host) & set(buffers):
            executor.write(buffers[name], np.ascontiguousarray(host[name]))
        constants = {name: array for name, array in host.items() if name not in buffers}
        module = executor.load(plan.binary, constants)
        executor.run(module, plan.steps(buffers, resolved.scalars))
        for name in resolved.outputs:
            dtype, shape = np.dtype(arrays[name].dtype), arrays[name].shape
            host[name][...] = executor.read(buffers[name], dtype, shape)
        return _returned(resolved.results, values, self._library, made.__getitem__)

    def _array(self, operand: Operand, values: Sequence[Any], made: dict[NewArray, Any]) -> Any:
        source = operand.source
        if isinstance(source, NewArray):
            if source not in made:
                made[source] = np.empty(source.shape, source.dtype)
            return Numpy().view(made[source], operand)
        library = self._libraries[source]
        assert library is not None
        return Numpy().view(library.through(values[source]), operand)


def _returned(
    results: Sequence[Operand],
    values: Sequence[Any],
    library: Library,
    made: Callable[[NewArray], Any],
) -> Any:
    """Return the results of a call: passed arrays, or new ones in the caller's type."""
    found = [
        library.handed_over(made(operand.source))
        if isinstance(operand.source, NewArray)
        else values[operand.source]
        for operand in results
    ]
    return found[0] if len(found) == 1 else tuple(found)


@cache
def _executor(device: Device) -> Executor:
    return backend(device.backend).open(device)


def _choice_of(ready: LoadedPlan | LaunchPlan) -> Choice:
    return (ready.plan if isinstance(ready, LoadedPlan) else ready).choice


def _device(index: int | None, kernel: Kernel) -> Device:
    if index is None:
        return choose_device(None, kernel.backends)
    return backend("cuda").devices()[index]


def _complete(kernel: Kernel, problem: Mapping[str, Any]) -> Problem:
    """Return a problem with all fields of a kernel, and perhaps some of its layout."""
    if set(kernel.fields) - set(problem):
        needed, given = ", ".join(kernel.fields), ", ".join(f"{n}={v}" for n, v in problem.items())
        raise UsageError(f"{kernel.name}: a problem of ({needed}) is needed, not ({given})")
    return checked_problem(kernel, problem)

"""`load`: a tuned kernel as a function on arrays.

Kernels run on device arrays (CuPy, torch, anything with DLPack or ``__cuda_array_interface__``) in place, on
the caller's stream. Host arrays are copied to the first usable device, and the results back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from autotune.calling import first_call
from autotune.calling.binding import LOADED, CallArguments, ResolvedCall, checked_problem
from autotune.calling.choice import (
    Choice,
    ChosenCall,
    LaunchPlan,
    expected_ms_of,
    with_changes,
)
from autotune.calling.first_call import OPEN_S, SETTLED_S, CallCache, Tuning, put
from autotune.calling.gpu import GpuCall, device_index
from autotune.calling.host_calls import EmptyCall, HostCall
from autotune.calling.libraries import KINDS, Library, kind_of
from autotune.calling.loaded import LoadedPlan
from autotune.calling.production import Frozen, ProductionRules, keep_cupy_in_memory
from autotune.calling.rivals import takes_rival
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import NewArray, NothingToDo
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Maximum number of cached compiled plans of a kernel; a serving process may call more and more sizes.
MAX_READY = 256

#: Cached in place of a call that depends on the values of its floats.
_BY_VALUE = object()


def load(
    kernel: str | Kernel,
    *,
    deterministic: bool = False,
    spaces: str | Path | None = None,
    tune: str | None = None,
    budget: str | float = "1s",
    verify: bool = False,
    frozen: Frozen = None,
    config: Mapping[str, Any] | None = None,
    rivals: bool = True,
) -> TunedKernel:
    """Return a tuned kernel as a function on arrays.

    Parameters
    ----------
    kernel : str or Kernel
        A name, the path of a space file, or the kernel that a space file declared.
    deterministic : bool
        Launch only configurations that are declared to give the same bits in every run; a call
        without such a configuration raises an error.
    spaces : str or Path, optional
        Folder of space files to search first, as in `autotune.tune`.
    tune : {"first_call", "background", "off"}, optional
        At the first call of a size that was not tuned, measure the most promising configurations of
        the records on copies of its arrays, and record the fastest. With ``first_call`` the call
        waits; with ``background`` it does not. Default: the mode of the innermost block of
        `autotune.tuned_on_first_call`, else ``AUTOTUNE_TUNE``, else ``off``.
    budget : str or float
        Longest time to measure a size, in seconds: ``"1s"``, 0.3. Compiling takes at most 3 s more.
    verify : bool
        Before the first call of a problem beyond the verified sizes, verify its configuration on a small
        problem with the same unusual fields, in a process of its own. A wrong configuration gives way to
        the next that is correct; without one the call raises an error.
    frozen : bool or {"exact", "nearest"}, optional
        Launch only recorded answers, tune nothing, write no file: True or ``exact`` needs an answer for
        the problem itself, ``nearest`` any tuned answer. Without one the call raises `NoAnswerError`.
        Default: ``AUTOTUNE_FROZEN`` (``0``, ``1``, ``exact``, ``nearest``), else False.
    config : mapping, optional
        Launch this configuration instead of the records' answer; parameters that are left out have the
        kernel's defaults. It does not hold for kernels that this one passes calls on to. Default: the entry
        of the kernel in ``AUTOTUNE_PIN`` (``sgemm:BM=64,BN=64;gemv:...``), which pins any kernel.
    rivals : bool
        Let a call of another library answer where it is the `TunedConfig.rival` of the answer. False: launch
        configurations of the kernel only.

    Returns
    -------
    TunedKernel
        Call it with arrays: ``load("sgemm")(a, b)``.

    Raises
    ------
    UsageError
        If there is no such kernel, an argument or one of its variables is invalid, ``deterministic`` is
        combined with ``background``, or ``verify`` with ``frozen``.
    SpecError
        If the space file has no ``call`` function.
    """
    if not isinstance(kernel, str | Kernel):
        raise UsageError(f"{kernel!r:.40} is neither the name of a kernel nor a Kernel")
    tuning = first_call.tuning(first_call.OFF if tune is None else tune, budget)
    if tuning.in_background and deterministic:
        raise UsageError(
            'deterministic=True does not go with tune="background", which switches configurations and '
            'so changes bits; pass tune="first_call"'
        )
    folder = Path(spaces) if spaces else None
    declared = find_kernel(kernel, folder) if isinstance(kernel, str) else kernel
    declared.hook("call")
    rules = ProductionRules.of(frozen, declared.name, config, rivals)
    rules.pinned(declared)  # raises an error now, not at the first call
    if rules.frozen and verify:
        raise UsageError(
            f"{declared.name}: verify=True starts a process, so frozen calls refuse it; verify before you "
            "freeze, or pass frozen=False"
        )
    own_tuning = tuning if tune is not None else None
    return TunedKernel(declared, deterministic, folder, own_tuning, verify, rules)


class TunedKernel:
    """A kernel as a function on arrays; `load` returns it.

    It takes the arguments of the space file's ``call`` function, and returns the outputs: one output as
    itself, several as a tuple. Outputs that are left out are new arrays of the first array's library.

    Calls from several threads, on several streams and in captured graphs may run at the same time.
    The memory and modules of a captured call live at least as long as the graph.

    Attributes
    ----------
    kernel : Kernel
        The kernel of the space file.
    deterministic : bool
        Whether it launches only deterministic configurations.
    """

    def __init__(
        self,
        kernel: Kernel,
        deterministic: bool = False,
        spaces: Path | None = None,
        tuning: Tuning | None = None,
        verify: bool = False,
        rules: ProductionRules | None = None,
    ) -> None:
        self.kernel, self.deterministic, self._tuning = kernel, deterministic, tuning
        self._verify, self._rules = verify, rules or ProductionRules()
        self.find = partial(find_kernel, spaces=spaces)
        #: Name of the function in operators of torch.
        self.key = f"{kernel.name} of {kernel.file}{', deterministic' if deterministic else ''}"
        self.key += f", tune={tuning.mode} in {tuning.seconds:g} s" if tuning else ""
        self.key += ", verify" if verify else ""
        self.key += self._rules.arguments
        LOADED[self.key] = self
        #: Read here, because `torch.compile` would trace a later read of `sys.modules`, which other threads change.
        self._torch = sys.modules.get("torch")
        self._calls = CallCache()
        #: Compiled plans by problem; calls that differ only in the layout of arrays share them.
        self._ready: dict[object, LoadedPlan | LaunchPlan] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the tuned kernel.

        Parameters
        ----------
        *args, **named
            Arrays and numbers: the arguments of the space file's ``call`` function.

        Returns
        -------
        array or tuple of array
            The outputs: passed arrays, or new arrays for outputs that are left out.

        Raises
        ------
        UsageError
            If arrays do not fit the problem or each other, no configuration is ``deterministic``, or a
            pinned configuration cannot run.
        DeviceError, NothingValidError, SpecError
            If there is no device, no configuration is valid, or the source does not compile.
        NoAnswerError
            If the call is frozen and the records have no answer for it.
        """
        torch = self._torch or sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            from autotune.calling.compiled import traced

            return traced(self.key, args, named)
        values: tuple[Any, ...] = (*args, *named.values()) if named else args
        pointers: list[Any] = []
        try:
            parts = [
                (KINDS.get(type(value)) or kind_of(value)).key_part(value, pointers)
                for value in values
            ]
        except Exception:
            self._described(args, named)  # its message names the argument
            raise
        key = (*parts, *named)
        call = self._calls.settled.get(key)
        if call is None or call is _BY_VALUE:
            call = self._call_of(key, args, named, values)
        return call(values, pointers)

    def choice(self, *args: Any, device: str | None = None, **named: Any) -> Choice:
        """Return the configuration that a call would launch, and the reason.

        Parameters
        ----------
        *args, **named
            Arguments of a call, or the fields of a problem.
        device : str, optional
            ``cuda:0``, ``opencl:cpu``. Default: the device of the arrays, else the first usable one.

        Returns
        -------
        Choice
            Configuration, problem, and the answer of lookup.

        Raises
        ------
        UsageError, DeviceError, NothingValidError, NoAnswerError
            In the same cases as a call.
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
        choice = self._explained(resolved.kernel, resolved.problem, found)
        takes = takes_rival(resolved, found.is_cuda, arguments.index)
        return choice if takes else replace(choice, rival=None)

    def __repr__(self) -> str:
        kept = ", deterministic" if self.deterministic else ""
        return f"TunedKernel({self.kernel.name!r}{kept})"

    def _explained(self, kernel: Kernel, problem: Problem, device: Device) -> Choice:
        choice = self._verified(kernel, self._choose(kernel, problem, device), device)
        return with_changes(choice, kernel)

    def _choose(self, kernel: Kernel, problem: Problem, device: Device) -> Choice:
        return self._rules.choose(kernel, problem, device, self.deterministic)

    def _verified(self, kernel: Kernel, choice: Choice, device: Device) -> Choice:
        if not self._verify or choice.pinned_by:
            return choice
        from autotune.calling.twin import verified_choice

        return verified_choice(kernel, choice, device, self.deterministic)

    # ------------------------------------------------------------------ new calls

    def _call_of(
        self, key: object, args: tuple[Any, ...], named: dict[str, Any], values: Sequence[Any]
    ) -> Any:
        """Return the prepared call for a key; prepare it if no cached call fits these floats."""
        exact = key, tuple(value for value in values if type(value) is float)
        call = self._calls.get(exact)
        if call is not None:
            return call
        arguments = self._described(args, named)
        if not any(arguments.libraries):
            raise UsageError(f"{self.kernel.name}: no argument is an array; pass at least one")
        call, is_by_value, seconds = self._made(arguments)
        is_settled = seconds == SETTLED_S
        if is_by_value and is_settled:
            self._calls.keep(key, _BY_VALUE)
        self._calls.keep(key if is_settled and not is_by_value else exact, call, seconds)
        return call

    def _made(self, arguments: CallArguments) -> tuple[Any, bool, float]:
        """Prepare a call; return it, whether it is for these floats only, and for how many seconds to keep it."""
        resolved = self._resolved(arguments)
        if isinstance(resolved, NothingToDo):
            return EmptyCall(resolved, arguments), False, SETTLED_S
        plan, seconds = self._plan_of(resolved, arguments)
        if isinstance(plan, LaunchPlan):
            return HostCall(resolved, plan, arguments), True, seconds
        call = GpuCall(resolved, plan, arguments.values, arguments.libraries)
        return call.shortest, call.is_by_value, seconds

    def _plan_of(
        self, resolved: ResolvedCall, arguments: CallArguments
    ) -> tuple[LoadedPlan | LaunchPlan, float]:
        """Return the compiled plan of a call, loaded if on a GPU, and for how many seconds to keep it."""
        kernel, problem, index = resolved.kernel, resolved.problem, arguments.index
        key = kernel.name, problem, index, tuple(resolved.compiled_scalars.items())
        is_frozen = bool(self._rules.frozen)
        settings = None if is_frozen else first_call.settings_of(self._tuning, self.deterministic)
        ready, seconds = self._ready.get(key), SETTLED_S
        if ready and not (settings and not _choice_of(ready).is_known):
            return ready, seconds
        device = _device(index, kernel)
        choice = self._choose(kernel, problem, device)
        if settings and not choice.is_known:
            given = arguments.values, arguments.libraries, index
            call = ChosenCall(resolved, *given, device, choice, self.deterministic)
            seconds = first_call.tune(call, settings)
            if seconds == OPEN_S:
                choice = self._choose(kernel, problem, device)
                seconds = SETTLED_S if choice.is_known else OPEN_S
        choice = self._verified(kernel, choice, device)
        if is_frozen and index is not None:
            keep_cupy_in_memory()
        with self._calls.making:
            ready = self._ready.get(key)
            if ready is None or _choice_of(ready).configuration != choice.configuration:
                plan = LaunchPlan.of(resolved, device, choice, writes=not is_frozen)
                ready = plan if index is None else LoadedPlan(plan, index)
                put(self._ready, key, ready, MAX_READY)
            return ready, seconds

    def _described(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> CallArguments:
        parameters = [*signature(self.kernel.hook("call")).parameters][: len(args)]
        unnamed = ["an argument"] * (
            len(args) - len(parameters)
        )  # too many: `bind` raises the error
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
        return CallArguments(values, tuple(named), libraries, operands, index)

    def _resolved(self, arguments: CallArguments) -> ResolvedCall | NothingToDo:
        """Return the call bound to a problem; raise `UsageError` if host and device arrays are mixed."""

        def expected_ms(call: ResolvedCall) -> float | None:
            device = _device(arguments.index, call.kernel)
            return expected_ms_of(call.kernel, call.problem, device, self.deterministic)

        resolved = arguments.bound(self.kernel, self.find, expected_ms)
        if isinstance(resolved, NothingToDo) or arguments.index is None:
            return resolved
        for name, passed in resolved.arrays.items():
            source = passed.operand.source
            if isinstance(source, NewArray) or resolved.arguments[name].kind == "constant":
                continue
            library = arguments.libraries[source]
            if library is not None and library.device_index(arguments.values[source]) is None:
                raise UsageError(
                    f"{self.kernel.name}: {name} is in host memory, other arrays are on "
                    f"cuda:{arguments.index}; move all arrays to one place"
                )
        return resolved


def _choice_of(ready: LoadedPlan | LaunchPlan) -> Choice:
    return (ready.plan if isinstance(ready, LoadedPlan) else ready).choice


def _device(index: int | None, kernel: Kernel) -> Device:
    if index is None:
        return choose_device(None, kernel.backends)
    return backend("cuda").devices()[index]


def _complete(kernel: Kernel, problem: Mapping[str, Any]) -> Problem:
    """Return a problem with all fields of a kernel; it may also have layout fields."""
    if set(kernel.fields) - set(problem):
        needed, given = ", ".join(kernel.fields), ", ".join(f"{n}={v}" for n, v in problem.items())
        raise UsageError(f"{kernel.name}: the problem ({given}) lacks fields; give ({needed})")
    return checked_problem(kernel, problem)

"""Chooses the configuration of a call from the records, after a search on copies of its arrays if necessary."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from autotune.calling.choice import Choice
from autotune.calling.first_call import OFF, VARIABLE, in_turn, tuning
from autotune.calling.libraries import DeviceLibrary, cupy, kind_of
from autotune.calling.loaded import is_capturing, on_device
from autotune.calling.production import ProductionRules
from autotune.devices.device import Device
from autotune.errors import AutotuneError, NoAnswerError, UsageError
from autotune.front import tune_call
from autotune.kernel.operand import Operand
from autotune.kernel.source import source_fingerprint
from autotune.measure.measurement import Status
from autotune.search.session import Budget
from autotune.triton.calls import RecordedCall, copy_of, memory_of, with_data
from autotune.triton.decorated_kernel import RECORD_CALLS, DecoratedKernel
from autotune.triton.function import NewCall, TritonFunction
from autotune.tuned.answer import TunedConfig
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.merged import EXACT, FIRST_CALL
from autotune.values import Configuration, Problem

#: Longest time to verify and time one configuration while a caller waits, in seconds.
_TIMEOUT_S = 5.0


def chosen(
    function: TritonFunction,
    kernel: DecoratedKernel,
    call: NewCall,
    device: Device,
    with_launches: Callable[[NewCall], RecordedCall],
) -> tuple[Choice, bool]:
    """Return the configuration of a call, and whether it is settled; a search in the background may change it.

    The problem of ``kernel`` is the call. ``with_launches`` adds the launch of each configuration to a call.
    Raise `AutotuneError` if tuning fails while the caller waits. Frozen calls do not tune.
    """
    rules = ProductionRules.of()
    if (pinned := rules.pinned(kernel)) is not None:
        return _pinned(kernel, call, pinned, rules), True
    found, is_settled = _found(kernel, call.problem, device), True
    if rules.frozen and len(call.kept) > 1:
        return _frozen(function, kernel, call, device, found, rules), True
    mode = os.environ.get(VARIABLE) or function.options.tune
    if mode != OFF and len(call.kept) > 1 and not _is_known(kernel, found):
        stream = _stream_of(call)
        is_settled = not is_capturing(stream)
        if is_settled and tuning(mode, name=VARIABLE).in_background:
            key = id(function), call.problem, device.selector
            begin = partial(_begun, function, kernel, call, device, stream, with_launches)
            is_settled = in_turn(key, f"{kernel.name} ({call.problem})", begin, True)
        elif is_settled and not _is_tuned(kernel, call, device):
            _tune(function, call, device, with_launches)
            if not _is_known(kernel, _found(kernel, call.problem, device)):
                raise AutotuneError(f"no configuration was verified for ({call.problem})")
        found = _found(kernel, call.problem, device)
    choice = _recorded(kernel, call, found)
    return choice or Choice(kernel.name, call.problem, next(iter(call.kept)), None), is_settled


def _recorded(kernel: DecoratedKernel, call: NewCall, found: TunedConfig | None) -> Choice | None:
    """Return an answer of lookup as a choice; None if the list or pruning leaves its configuration out."""
    if found is None or (configuration := Configuration(dict(found))) not in call.kept:
        return None
    return Choice(kernel.name, call.problem, configuration, found)


def _pinned(
    kernel: DecoratedKernel, call: NewCall, pinned: Configuration, rules: ProductionRules
) -> Choice:
    source = rules.pins[kernel.name].source
    if pinned not in call.kept:
        raise UsageError(
            f"{source}: {kernel.name} ({call.problem}): {pinned} is not in the decorator's list, or is "
            f"pruned; allowed: {' | '.join(map(str, call.kept))}"
        )
    return Choice(kernel.name, call.problem, pinned, None, pinned_by=source)


def _frozen(
    function: TritonFunction,
    kernel: DecoratedKernel,
    call: NewCall,
    device: Device,
    found: TunedConfig | None,
    rules: ProductionRules,
) -> Choice:
    """Return the recorded answer of a call; raise `NoAnswerError` if it is not accepted."""
    choice = _recorded(kernel, call, found)
    if choice is None or not rules.accepts(found):
        what = f"{kernel.name} ({call.problem}) on {device.name}"
        answer = found if choice else None
        raise rules.refusal(what, answer, f"{RECORD_CALLS}, then: {function.tuning_command}")
    return choice


def _tune(
    function: TritonFunction,
    call: NewCall,
    device: Device,
    with_launches: Callable[[NewCall], RecordedCall],
) -> None:
    """Tune while the caller waits; warn of wrong configurations."""
    for text in _search(function, with_launches(call), call.bound, call.operands, device):
        warnings.warn(f"{function.name}: {text}", stacklevel=6)


def _begun(
    function: TritonFunction,
    kernel: DecoratedKernel,
    call: NewCall,
    device: Device,
    stream: int,
    with_launches: Callable[[NewCall], RecordedCall],
) -> Callable[[], str] | None:
    """Copy a call's arrays on the device, ordered by its stream; return a function that tunes on the copies.

    Return None if another process has tuned the call.
    """
    if _is_tuned(kernel, call, device):
        return None
    recorded, copies, operands = with_launches(call), dict(call.bound), dict(call.operands)
    for name, operand in call.operands.items():
        copies[name] = copy_of(call.bound[name], operand)
        operands[name] = Operand.new(memory_of(operand).shape, operand.dtype)
    with on_device(device.index):
        copied = cupy().cuda.Event(disable_timing=True)
        cupy().cuda.runtime.eventRecord(copied.ptr, stream)

    def work() -> str:
        copied.synchronize()
        return "; ".join(_search(function, recorded, copies, operands, device))

    return work


def _search(
    function: TritonFunction,
    call: RecordedCall,
    bound: Mapping[str, Any],
    operands: Mapping[str, Operand],
    device: Device,
) -> list[str]:
    """Tune on copies of a call's arrays in other processes; return a line for each wrong configuration."""

    def kernel_with_data(folder: Path) -> DecoratedKernel:
        return function.kernel([with_data(call, bound, operands, folder)])

    result = tune_call(
        function.kernel([call]),
        device,
        Problem(call.problem),
        kernel_with_data,
        budget=Budget.parse(function.options.budget),
        timeout_s=_TIMEOUT_S,
        command="autotune.triton",
    )
    return [
        f"{row.configuration} is never chosen ({row.status}): {row.message}"
        for tried in result.problems
        for row in tried.measured
        if row.status in (Status.WRONG_RESULT, Status.CRASHED, Status.TIMED_OUT)
    ]


def _found(kernel: DecoratedKernel, problem: Problem, device: Device) -> TunedConfig | None:
    """Return the answer of lookup; None without a record."""
    try:
        return lookup(kernel.name, device=device, project=kernel.project, **problem)
    except (UsageError, NoAnswerError):
        return None


def _is_known(kernel: DecoratedKernel, found: TunedConfig | None) -> bool:
    """Return whether an answer is for this problem and the current source."""
    if found is None or found.quality not in (EXACT, FIRST_CALL) or found.origin is None:
        return False
    return found.origin.source == source_fingerprint(kernel)


def _is_tuned(kernel: DecoratedKernel, call: NewCall, device: Device) -> bool:
    """Return whether another process has tuned a call since its answer was looked up."""
    clear_cache()
    return _is_known(kernel, _found(kernel, call.problem, device))


def _stream_of(call: NewCall) -> int:
    """Return the caller's stream."""
    array = next(call.bound[name] for name in call.operands)
    library = kind_of(array)
    assert isinstance(library, DeviceLibrary)
    return library.stream_getter()(library.device_index(array) or 0)

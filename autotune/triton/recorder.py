"""Records calls of a decorated function, and builds a kernel with these calls as problems."""

from __future__ import annotations

import os
import warnings

from autotune.calling.production import ProductionRules
from autotune.triton.calls import (
    NotRecordedError,
    RecordedCall,
    calls_file,
    read_calls,
    write_calls,
)
from autotune.triton.decorated_kernel import RECORD_AGAIN, DecoratedKernel
from autotune.triton.function import TritonFunction, listed_in

#: Environment variable; with the value 1 calls are recorded for ``autotune run FILE:FUNCTION``.
_RECORD = "AUTOTUNE_RECORD_SIZES"


def is_recording() -> bool:
    """Return whether the environment asks for recording; frozen calls write no file."""
    return os.environ.get(_RECORD, "") not in ("", "0") and not ProductionRules.of().frozen


def kernel_of_recorded(function: TritonFunction) -> DecoratedKernel:
    """Return the kernel of all recorded calls; warn of calls that no longer fit the function."""
    name, count = function.name, len(function.configurations)
    own = [call for call in read_calls(function.project, name) if call.file in ("", function.file)]
    calls = list(filter(function.fits, own))
    file = calls_file(function.project, name)
    stale = (
        f"{name}: {len(own) - len(calls)} of {len(own)} recorded calls no longer fit the function's "
        f"arguments, key and parameters; {RECORD_AGAIN}; the new calls replace the old ones in {file}"
    )
    if not calls:
        none = (
            f"{name}: no call is recorded, so its arguments are unknown; run a program that calls it "
            f"with {_RECORD}=1"
        )
        raise NotRecordedError(stale if own else none, name, function.project)
    if len(calls) < len(own):
        warnings.warn(f"{stale}; these calls are left out", stacklevel=1)
    known = [listed_in(call) for call in calls]
    if new := sum(any(c not in listed for listed in known) for c in function.configurations):
        text = (
            f"{new} of {count} configurations are new since some calls were recorded, and are left out "
            "there"
        )
        warnings.warn(f"{name}: {text}; {RECORD_AGAIN}", stacklevel=1)
    return function.kernel(calls)


def record(function: TritonFunction, call: RecordedCall) -> None:
    """Add a call to the recorded calls; drop calls of this file that no longer fit."""
    own, known = ("", function.file), read_calls(function.project, function.name)
    kept = [other for other in known if other.file not in own or function.fits(other)]
    write_calls(function.project, function.name, [*kept, call])

"""Verifies the configuration of a call beyond the verified sizes on a small problem; see `load`, ``verify=``.

Verification runs in a process of its own, since a wrong kernel may hang or break its context.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from functools import partial

from autotune.calling.choice import Choice, tuning_command
from autotune.compiling.binaries import compiled_for
from autotune.data.dataset import EXACT
from autotune.data.prepare import prepare_dataset
from autotune.devices.device import Device
from autotune.errors import NothingValidError
from autotune.kernel.sizes import twin_of
from autotune.kernel.snapshot import origin_of
from autotune.kernel.source import own_fingerprint, source_fingerprint
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.measurement import Measurement, Status
from autotune.measure.rounding import may_be_rounding
from autotune.measure.worker_state import Job
from autotune.tuned.lookup import promising
from autotune.values import Configuration, Problem

#: Maximum number of recorded configurations that are verified for a call.
_MAX_TRIED = 8

#: Results by kernel, fingerprints, device, configuration and twin.
_results: dict[object, Measurement] = {}
#: Held while a thread verifies, so that no other thread verifies the same.
_turn = threading.Lock()


def verified_choice(kernel: Kernel, choice: Choice, device: Device, deterministic: bool) -> Choice:
    """Return the first recorded configuration that is correct on a small twin of the problem.

    The choice itself comes first, and last the default. Raise `NothingValidError` if none is correct.
    """
    if choice.is_verified:
        return choice
    remedy = f"tune the problem: {tuning_command(kernel, choice.problem)}"
    if "reference" not in kernel.hooks:
        raise NothingValidError(
            f"{kernel.name}({choice.problem}): no verified size, and no reference to verify it; {remedy}"
        )
    faults = list[str]()
    for configuration in _candidates(kernel, choice, device, deterministic):
        twin = twin_of(kernel, choice.problem, device, partial(kernel.allows, configuration))
        if twin is None:
            faults.append(f"{configuration}: a small problem that is like it would be too large")
            continue
        found = _verified(kernel, twin, device, configuration)
        if found.status is Status.OK:
            tuned = choice.tuned if configuration == choice.configuration else None
            return replace(choice, configuration=configuration, tuned=tuned, twin=twin)
        faults.append(f"{configuration} on {twin}: {found.message}")
    raise NothingValidError(
        f"{kernel.name}({choice.problem}): no configuration was verified at such a size; {faults[0]}; {remedy}"
    )


def _candidates(
    kernel: Kernel, choice: Choice, device: Device, deterministic: bool
) -> list[Configuration]:
    recorded = promising(
        kernel.name,
        device,
        _MAX_TRIED,
        deterministic=deterministic,
        project=kernel.project,
        **choice.problem,
    )
    others = [*(Configuration(dict(values)) for values in recorded), kernel.default()]
    able = [
        other
        for other in others
        if is_member(kernel, other, device)
        and kernel.allows(other, choice.problem)
        and (not deterministic or kernel.is_deterministic(other, choice.problem))
    ]
    return list(dict.fromkeys([choice.configuration, *able]))


def _verified(
    kernel: Kernel, twin: Problem, device: Device, configuration: Configuration
) -> Measurement:
    """Verify a configuration on a twin, once in a process; rounding of long sums is no fault."""
    fingerprints = source_fingerprint(kernel), own_fingerprint(kernel)
    key = kernel.name, fingerprints, device.selector, configuration, twin
    with _turn:
        if key not in _results:
            job = Job(
                origin_of(kernel),
                twin,
                device,
                (prepare_dataset(kernel, twin, EXACT),),
                fingerprint=fingerprints[1],
            )
            binary = compiled_for(kernel, configuration, twin, device)
            with closing(device_actor(device)) as actor:
                found = DeviceWorker(actor).check(job, configuration, binary)
            if found.status is Status.WRONG_RESULT and may_be_rounding(found, job):
                found = replace(found, status=Status.OK)
            _results[key] = found
        return _results[key]

"""Tests whether the declared space of a kernel holds a configuration, without enumerating the space.

A configuration of a record is compiled only if it is a member of the declared space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from autotune.devices.device import CUDA_ARCHS, Device, for_arch
from autotune.kernel.declaration import Rule
from autotune.kernel.spec import Kernel


def is_member(kernel: Kernel, configuration: Mapping[str, Any], device: Device) -> bool:
    """Return ``configuration in enumerate_space(kernel, device)``."""
    if set(configuration) != set(kernel.parameters):
        return False
    for name, values in kernel.parameters.items():
        value = configuration[name]
        if not any(type(value) is type(allowed) and value == allowed for allowed in values):
            return False
    applies = _applicable(kernel, configuration)
    if any(configuration[n] != kernel.parameters[n][0] for n, used in applies.items() if not used):
        return False
    return not any(broken_constraints(kernel, configuration, device))


def broken_constraints(
    kernel: Kernel, configuration: Mapping[str, Any], device: Device
) -> Iterator[Rule]:
    """Yield the constraints that a configuration of declared values breaks."""
    applies = _applicable(kernel, configuration)
    conditional = {name for rule in kernel.applies_rules for name in rule.governs}
    for rule in kernel.constraint_rules:
        named = conditional & set(rule.parameters)
        if named and not any(applies[name] for name in named):
            continue  # it would judge placeholders
        asked = {name: configuration[name] for name in rule.parameters}
        if rule.uses_device:
            asked["device"] = device
        if not kernel.guarded(f"rule {rule.name!r}", partial(rule.function, **asked)):
            yield rule


def _applicable(kernel: Kernel, configuration: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each parameter whether it has an effect in a configuration."""
    applies = dict.fromkeys(kernel.parameters, True)
    for rule in kernel.applies_rules:
        asked = {name: configuration[name] for name in rule.parameters}
        if not kernel.guarded(f"rule {rule.name!r}", partial(rule.function, **asked)):
            applies |= dict.fromkeys(rule.governs, False)
    return applies


def valid_archs(kernel: Kernel, configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CUDA architectures whose declared space holds a configuration; see `tuned.Plan.archs`."""
    return tuple(arch for arch in CUDA_ARCHS if is_member(kernel, configuration, for_arch(arch)))

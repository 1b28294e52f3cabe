"""Which configuration a call launches, and why: the recorded one where it may be used, else the next.

Knows lookup and the declared space; nothing of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.devices.device import Device
from autotune.errors import NothingValidError, UsageError
from autotune.kernel.membership import is_member
from autotune.kernel.source import changed_since
from autotune.kernel.spec import Kernel
from autotune.tuned.config import TunedConfig
from autotune.tuned.lookup import lookup, recorded_for_other
from autotune.tuned.reading import warn
from autotune.tuned.table import DEFAULT
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class Choice:
    """What to launch, and the answer of lookup that it comes from.

    Attributes
    ----------
    kernel : str
        Another than the one called where that serves the call better.
    problem : Problem
        Of the call.
    configuration : Configuration
        What is launched.
    tuned : TunedConfig or None
        None where nothing is recorded that may be used.
    """

    kernel: str
    problem: Problem
    configuration: Configuration
    tuned: TunedConfig | None

    @property
    def why(self) -> str:
        """One line: where the configuration comes from, and how good it is expected to be."""
        if self.tuned is None:
            return f"nothing recorded can be used; tune it: autotune run {self.kernel}"
        if self.tuned.quality == DEFAULT:
            return f"the kernel's default: nothing like it was tuned ({self.tuned.source})"
        share = self.tuned.expected_fraction
        hope = "" if share is None else f", expected at {share:.0%} of the best speed"
        aged = "".join(f"; {reason}" for reason in self.tuned.stale_reasons)
        return f"{self.tuned.quality} of {self.tuned.source}{hope}{aged}"

    def __str__(self) -> str:
        return f"{self.kernel}({self.problem}): {self.configuration} - {self.why}"


def explained(choice: Choice, kernel: Kernel) -> Choice:
    """A choice that says too what of the kernel changed since its configuration was tuned.

    Reads the kernel's files, which a call need not wait for.
    """
    if choice.tuned is None or choice.tuned.made_for is None:
        return choice
    changed = changed_since(kernel, *choice.tuned.made_for)
    return replace(choice, tuned=choice.tuned.with_reasons(changed))


def choose(kernel: Kernel, problem: Problem, device: Device, deterministic: bool = False) -> Choice:
    """The recorded configuration where the declared space has it, else the first that can serve.

    Where ``deterministic``, only what the kernel declares to be so can.

    Raises
    ------
    NothingValidError
        If none is valid on this device.
    UsageError
        If no configuration takes the problem, or none is known that is deterministic.
    """

    def serves(configuration: Configuration) -> bool:
        return kernel.allows(configuration, problem) and (
            not deterministic or kernel.is_deterministic(configuration, problem)
        )

    found = _recorded(kernel, problem, device, deterministic)
    if found is not None and is_member(kernel, found, device):
        configuration = Configuration(dict(found))
        if serves(configuration):
            return Choice(kernel.name, problem, configuration, found)
    elif found is not None and found.quality == DEFAULT:
        warn(
            f"{kernel.name}: nothing is recorded for {device.name}; it runs in its default "
            f"configuration, tune it: autotune run {kernel.name}"
        )
    elif found is not None:
        warn(
            f"{kernel.name}: the recorded configuration {Configuration(dict(found))} is not in its "
            f"space on {device.name}; using a default, tune again with: autotune run {kernel.name}"
        )
    candidates = [kernel.default(), *(kernel.completed(seed) for seed in kernel.seeds)]
    valid = [candidate for candidate in candidates if is_member(kernel, candidate, device)]
    for configuration in valid:
        if serves(configuration):
            return Choice(kernel.name, problem, configuration, None)
    if deterministic and any(kernel.allows(configuration, problem) for configuration in valid):
        raise UsageError(
            f"{kernel.name}: no configuration for ({problem}) on {device.name} is known to be "
            f"deterministic; declare which are (@{kernel.name}.deterministic), and tune: "
            f"autotune run {kernel.name}"
        )
    if valid:
        raise UsageError(f"{kernel.name}: no configuration accepts the problem {problem}")
    raise NothingValidError(
        f"{kernel.name}: neither default nor seeds are valid on {device.name}; "
        f"tune it there: autotune run {kernel.name}"
    )


def _recorded(
    kernel: Kernel, problem: Problem, device: Device, deterministic: bool
) -> TunedConfig | None:
    if told := recorded_for_other(kernel):
        warn(f"{told}; until then it runs in its default configuration")
        return None
    try:
        return lookup(kernel.name, device=device, deterministic=deterministic, **problem)
    except UsageError as error:
        warn(f"{error}; until then {kernel.name} runs in its default configuration")
        return None

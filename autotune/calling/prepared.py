"""A problem on a device, ready to be launched: configuration chosen, compiled, and its steps planned.

Knows lookup through `choice`, and the compiler; neither arrays nor how a device is driven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.calling.binding import Bound, declared_argument
from autotune.calling.choice import Choice, choose
from autotune.devices.binary import Binary
from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.launches import LaunchSequence, launch_sequence
from autotune.measure.compiler import compiled_for
from autotune.measure.data import Argument


@dataclass(frozen=True, eq=False)
class Prepared:
    """All that does not change from call to call of one problem on one device."""

    device: Device
    choice: Choice
    binary: Binary
    sequence: LaunchSequence
    arguments: Mapping[str, Argument]
    scratch: Mapping[str, Argument]
    #: Whether launches of one loaded module must not overlap.
    exclusive: bool

    @classmethod
    def of(cls, bound: Bound, device: Device, deterministic: bool = False) -> Prepared:
        """Look up, check, compile and plan.

        Raises
        ------
        UsageError, NothingValidError
            If no configuration serves.
        SpecError
            If it does not compile.
        """
        kernel, problem = bound.kernel, bound.problem
        choice = choose(kernel, problem, device, deterministic)
        configuration = choice.configuration
        scratch = kernel.workspaces(configuration, problem, device)
        # Module symbols are set before every launch, maybe to other values.
        has_symbols = any(argument.kind == "constant" for argument in bound.arguments.values())
        return cls(
            device,
            choice,
            compiled_for(kernel, configuration, problem, device),
            launch_sequence(kernel, configuration, problem, device),
            bound.arguments,
            {name: declared_argument(kernel, name, out) for name, out in scratch.items()},
            exclusive=has_symbols or kernel.is_exclusive(configuration),
        )

    @property
    def names(self) -> list[str]:
        """What a launch without ``args`` gets: arguments, then scratch; no constants."""
        used = [name for name, argument in self.arguments.items() if argument.kind != "constant"]
        return [*used, *self.scratch]

    def scalar(self, name: str, given: Mapping[str, Any]) -> np.generic:
        """A scalar in the kernel's type: as given, else as declared.

        Raises
        ------
        UsageError
            If it is no number of that type.
        """
        declared = self.arguments[name].scalar
        if name not in given:
            return declared
        kind = type(declared)
        try:
            with np.errstate(over="ignore"):
                value = kind(given[name])
        except (TypeError, ValueError, OverflowError) as error:
            raise self._misfit(name, given[name], declared) from error
        if isinstance(value, np.integer) and value != given[name]:
            raise self._misfit(name, given[name], declared)
        return value

    def _misfit(self, name: str, value: Any, declared: np.generic) -> UsageError:
        return UsageError(f"{self.choice.kernel}: {name}={value!r:.40} is no {declared.dtype}")

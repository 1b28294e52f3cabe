"""Rules for calls in production: frozen to recorded answers, or pinned to a configuration.

The rules are the arguments of `load`, else the environment's at the time of `load`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from autotune.calling.choice import (
    Choice,
    choose,
    pinned_choice,
    recorded_choice,
    tuning_command,
    with_rival,
)
from autotune.devices.device import Device
from autotune.errors import NoAnswerError, UsageError, unknown
from autotune.kernel import parsing
from autotune.kernel.spec import Kernel
from autotune.tuned.answer import TunedConfig
from autotune.tuned.merged import (
    DEFAULT,
    EXACT,
    FIRST_CALL,
    NEAREST_ARCH,
    NEAREST_PROBLEM,
    SAME_ARCH,
)
from autotune.values import Configuration, Problem

#: Environment variables of the default rules.
FROZEN, PIN = "AUTOTUNE_FROZEN", "AUTOTUNE_PIN"
NEAREST = "nearest"
#: Qualities that answer frozen calls, by mode.
ACCEPTED = {
    EXACT: (EXACT, FIRST_CALL),
    NEAREST: (EXACT, FIRST_CALL, NEAREST_PROBLEM, SAME_ARCH, NEAREST_ARCH),
}
#: Modes by the value of the variable; "": not frozen.
_MODES = {"0": "", "1": EXACT, EXACT: EXACT, NEAREST: NEAREST}
#: Values of the argument ``frozen`` of `load`; None: the variable decides.
Frozen: TypeAlias = bool | Literal["exact", "nearest"] | None

_log = logging.getLogger("autotune")


class Pin(NamedTuple):
    """The configuration that a kernel is pinned to, as it was given."""

    given: str | Mapping[str, Any]
    #: The variable or argument that gave it.
    source: str


@dataclass(frozen=True)
class ProductionRules:
    """Which configurations the calls of a kernel may launch.

    A pin overrides the answer of the records, so it is also accepted where calls are frozen. A pin that leaves
    parameters out takes their defaults, not those of a record: the same pin is the same configuration on each
    machine and after each run, as a bisection needs. ``--config`` of `autotune run` completes in the same way.
    """

    #: A mode of `ACCEPTED`; "": not frozen.
    frozen: str = ""
    #: By name of the kernel. Names of kernels that are never called have no effect.
    pins: Mapping[str, Pin] = field(default_factory=lambda: MappingProxyType({}))
    #: Whether rivals may answer; see docs/spaces.md. Not where a configuration is pinned.
    rivals: bool = True
    #: The arguments of `load` that differ from the environment's rules, as text; part of a function's name in torch.
    arguments: str = ""

    @classmethod
    def of(
        cls,
        frozen: Frozen = None,
        kernel: str = "",
        config: str | Mapping[str, Any] | None = None,
        rivals: bool = True,
    ) -> ProductionRules:
        """Return the rules of the environment, overridden by the arguments of `load` for a kernel."""
        pins = dict(_pins(os.environ.get(PIN, "")))
        arguments = "" if frozen is None else f", frozen={frozen}"
        if config is not None:
            pins[kernel] = Pin(config, "load(config=...)")
            arguments += f", config={config}"
        arguments += "" if rivals else ", rivals=False"
        return cls(_mode(frozen), MappingProxyType(pins), rivals, arguments)

    def pinned(self, kernel: Kernel) -> Configuration | None:
        """Return the configuration that a kernel is pinned to; raise `UsageError` if it is not declared."""
        pin = self.pins.get(kernel.name)
        if pin is None:
            return None
        try:
            configuration = parsing.configuration(kernel, pin.given)
        except UsageError as error:
            raise UsageError(f"{pin.source}: {error}") from None
        _warn_of_pin(kernel.name, str(configuration), pin.source)
        return configuration

    def choose(
        self, kernel: Kernel, problem: Problem, device: Device, deterministic: bool
    ) -> Choice:
        """Return the pinned configuration, else the answer that the rules allow, with its rival.

        Raise `UsageError` if the pin cannot run, and `NoAnswerError` if frozen calls have no answer.
        """
        pinned = self.pinned(kernel)
        if pinned is not None:
            source = self.pins[kernel.name].source
            return pinned_choice(kernel, problem, device, deterministic, pinned, source)
        choice = self._recorded(kernel, problem, device, deterministic)
        return with_rival(choice, kernel, device, deterministic) if self.rivals else choice

    def _recorded(
        self, kernel: Kernel, problem: Problem, device: Device, deterministic: bool
    ) -> Choice:
        if not self.frozen:
            return choose(kernel, problem, device, deterministic)
        recorded, reason = recorded_choice(kernel, problem, device, deterministic)
        found = recorded.tuned if recorded else None
        if recorded is None or not self.accepts(found):
            what = f"{kernel.name}({problem}) on {device.name}"
            raise self.refusal(what, found, tuning_command(kernel, problem), reason)
        return recorded

    def accepts(self, found: TunedConfig | None) -> bool:
        """Return whether an answer of lookup may serve a frozen call."""
        return found is not None and found.quality in ACCEPTED[self.frozen]

    def refusal(
        self, what: str, found: TunedConfig | None, remedy: str, reason: str = ""
    ) -> NoAnswerError:
        """Return the error of a frozen call whose answer, or lack of one, is not accepted."""
        if found is None:
            best = reason or "no record has an answer that can run"
        elif found.quality == DEFAULT:
            best = "the best answer is the kernel's default"
        else:
            best = f"the best answer is {found.quality} of {found.source}"
            remedy += f"; or accept this answer: {FROZEN}={NEAREST}"
        needed = "a tuned answer" if self.frozen == NEAREST else "an exact answer"
        return NoAnswerError(f"{what}: frozen calls need {needed}; {best}; tune it: {remedy}")


def keep_cupy_in_memory() -> None:
    """Make CuPy keep in memory the kernels that copy arrays of other layouts, unless the user decided."""
    os.environ.setdefault("CUPY_CACHE_IN_MEMORY", "1")


def _mode(frozen: Frozen) -> str:
    name, given = ("frozen", frozen) if frozen is not None else (FROZEN, os.environ.get(FROZEN))
    text = str(int(given)) if isinstance(given, bool) else str(given or "0")
    if text not in _MODES:
        raise UsageError(unknown(name, text, _MODES))
    return _MODES[text]


@cache
def _pins(text: str) -> Mapping[str, Pin]:
    """Return the pins of ``sgemm:BM=64,BN=64;gemv:BLOCK=128``, by kernel."""
    found: dict[str, Pin] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        kernel, _, values = (piece.strip() for piece in part.partition(":"))
        if not kernel or not values or kernel in found:
            raise UsageError(
                f"{PIN}={text!r:.200}: {part!r:.80}: expected KERNEL:NAME=VALUE,... once for a kernel; "
                "separate kernels by ;"
            )
        found[kernel] = Pin(values, PIN)
    return found


@cache
def _warn_of_pin(kernel: str, configuration: str, source: str) -> None:
    """Log once that a pin is in effect, so that none is forgotten."""
    _log.warning("autotune: %s is pinned to %s by %s", kernel, configuration, source)

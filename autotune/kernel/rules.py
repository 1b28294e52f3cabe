"""A source of a kernel: its parameters, its rules, and the functions that users attach to it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from autotune.devices.device import Device
from autotune.errors import SpecError
from autotune.kernel.names import check_known, fault, partial_of, refuse, values_of
from autotune.values import SOURCE, Value

Function = TypeVar("Function", bound=Callable[..., Any])
#: The code of a source: a file name or a text; for other languages ``FILE:FUNCTION`` or the function.
Code: TypeAlias = "str | Callable[..., Any]"

#: Optional last argument of hooks that depend on the device.
DEVICE = "device"
#: Arguments of each hook in order, without the optional `DEVICE`.
HOOKS = {
    "arguments": ("p", "rng"),
    "tolerance": ("p",),
    "matches": ("found", "expected"),
    "work": ("p",),
    "launch": ("c", "p"),
    "scratch": ("c", "p"),
    "requires": ("c", "p"),
    "defines": ("c", "p"),
    "deterministic": ("c", "p"),
    "options": ("c",),
    "exclusive": ("c",),
}
#: Attributes of a device that a source can get as macros.
_FACTS = frozenset(
    [*(field.name for field in fields(Device) if field.type == "int"), "compute_capability"]
) - {"index"}


@dataclass(frozen=True)
class Rule:
    """A constraint or applicability rule: a function over some of the parameters."""

    name: str
    doc: str
    function: Callable[..., object]
    #: The parameters that the function takes, in its order.
    parameters: tuple[str, ...]
    #: Whether the function takes ``device`` too.
    uses_device: bool = False
    #: For applicability: the parameters that keep their first value if the rule is false.
    governs: tuple[str, ...] = ()


class Functions:
    """The functions that decorators attach to a kernel or to one of its sources: hooks."""

    def __init__(self, label: str, file: Path | None) -> None:
        #: Name for messages.
        self.label = label
        #: The file of the declaration; None in a notebook.
        self.file = file
        self.hooks: dict[str, Callable[..., Any]] = {}
        #: Names of the hooks that take the device.
        self.device_hooks: set[str] = set()

    def scratch(self, function: Function) -> Function:
        """Attach ``(c, p) -> dict of Out``: the scratch buffers, which launches pass after the arguments."""
        return self._hook("scratch", function)

    def launch(self, function: Function) -> Function:
        """Attach ``(c, p) -> Launch | tuple of Launch and Fill``: the timed, repeatable launch sequence."""
        return self._hook("launch", function)

    def options(self, function: Function) -> Function:
        """Attach ``(c, device) -> sequence of str``: compiler options in addition to the defines."""
        return self._hook("options", function)

    def requires(self, function: Function) -> Function:
        """Attach ``(c, p) -> condition``: whether a configuration supports a problem."""
        return self._hook("requires", function)

    def defines(self, function: Function) -> Function:
        """Attach ``(c, p) -> dict``: the macros of a configuration, instead of its parameters."""
        return self._hook("defines", function)

    def exclusive(self, function: Function) -> Function:
        """Attach ``(c) -> bool``: whether two launches of one loaded module must not overlap."""
        return self._hook("exclusive", function)

    def deterministic(self, function: Function) -> Function:
        """Attach ``(c, p) -> bool``: whether every run on the same data and device gives the same bits."""
        return self._hook("deterministic", function)

    def error(self, message: str) -> SpecError:
        """Return a `SpecError` that names the declaration and its file."""
        where = f" ({self.file.name})" if self.file else ""
        return SpecError(f"{self.label}{where}: {message}")

    def _hook(self, name: str, function: Function) -> Function:
        given, needed = tuple(inspect.signature(function).parameters), HOOKS[name]
        if given not in (needed, (*needed, DEVICE)):
            hint = "; a launch depends only on parameters and problem fields, never on data"
            raise self.error(
                f"{name} takes ({', '.join(needed)}) and optionally {DEVICE}, "
                f"not ({', '.join(given)}){hint if name == 'launch' else ''}"
            )
        self.hooks[name] = function
        (self.device_hooks.add if DEVICE in given else self.device_hooks.discard)(name)
        return function


class Source(Functions):
    """One of several sources of a kernel; docs/spaces.md has its arguments and decorators.

    A source without a function of some name uses the function of the kernel.
    """

    def __init__(
        self,
        code: Code,
        *,
        seeds: Sequence[Mapping[str, Value]] = (),
        default: Mapping[str, Value] | None = None,
        variants: Mapping[str, Mapping[str, Value]] | None = None,
        device_macros: Mapping[str, str] | None = None,
        **parameters: Iterable[Value],
    ) -> None:
        super().__init__(_label(code), file_of(sys._getframe(1)))
        self.code = code
        self.parameters: dict[str, tuple[Value, ...]] = {
            key: values_of(key, values) for key, values in parameters.items()
        }
        refuse(
            (SOURCE in self.parameters, f"parameter {SOURCE}: reserved for the source; rename it")
        )
        #: Attributes of the device, by the macros with their values.
        self.device_macros = dict(device_macros or {})
        for name, fact in self.device_macros.items():
            check_known(f"device_macros {name}", "attribute of a device", (fact,), _FACTS)
            refuse(
                (wrong := fault("parameter", name), wrong),
                (name in self.parameters, f"device_macros: {name} is also a parameter; rename one"),
            )
        self.seeds = tuple(self.partial("seeds", seed) for seed in seeds)
        self.default_values = self.partial("default", default or {})
        #: Named configurations that `autotune explain` compares with the winner.
        self.variants: dict[str, dict[str, Value]] = {}
        for variant, values in (variants or {}).items():
            refuse((wrong := fault("variant", variant), wrong))
            self.variants[variant] = self.partial(f"variant {variant}", values)
        self.constraint_rules: list[Rule] = []
        self.applies_rules: list[Rule] = []

    def constraint(self, function: Function) -> Function:
        """Attach a condition that valid configurations meet; its arguments are parameters or ``device``."""
        self._attach(self.constraint_rules, self._rule("constraint", function))
        return function

    def applies(self, *governed: str) -> Callable[[Function], Function]:
        """Attach a condition for parameters to apply; if it is false, they keep their first value."""
        check_known("applies", "parameter", governed, self.parameters)

        def attach(function: Function) -> Function:
            rule = self._rule("applies", function, governs=governed)
            for name in set(rule.parameters) & set(governed):
                raise self.error(f"applies {rule.name!r}: whether {name} applies depends on itself")
            self._attach(self.applies_rules, rule)
            return function

        return attach

    def partial(self, where: str, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return values of some parameters in the declared types; see `partial_of`."""
        return partial_of(where, values, self.parameters)

    def completed(self, partial: Mapping[str, Value]) -> dict[str, Value]:
        """Return values of all parameters: the given ones, else the first value."""
        return {**{name: values[0] for name, values in self.parameters.items()}, **partial}

    def _rule(
        self, kind: str, function: Callable[..., object], governs: tuple[str, ...] = ()
    ) -> Rule:
        names = tuple(inspect.signature(function).parameters)
        parameters = tuple(name for name in names if name != DEVICE)
        uses_device = len(parameters) < len(names)
        # Whether a parameter applies must not depend on the device.
        allowed = names if kind == "applies" else parameters
        check_known(f"{kind} {function.__name__!r}", "parameter", allowed, self.parameters)
        return Rule(function.__name__, _about(function), function, parameters, uses_device, governs)

    def _attach(self, rules: list[Rule], rule: Rule) -> None:
        if self.file is None and rule.name != "_":
            rules[:] = [known for known in rules if known.name != rule.name]
        rules.append(rule)


def file_of(frame: FrameType) -> Path | None:
    """Return the file of a frame's module; None in a notebook."""
    name = frame.f_globals.get("__file__")
    return Path(name).resolve() if name else None


def is_text(code: str) -> bool:
    """Return whether code is a text, not a file name."""
    return "\n" in code or "{" in code


def _label(code: Code) -> str:
    if isinstance(code, str):
        return "a source" if is_text(code) else code
    return str(getattr(code, "__name__", "a source"))


def _about(function: Callable[..., object]) -> str:
    return inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")

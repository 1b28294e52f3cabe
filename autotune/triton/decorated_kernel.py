"""A decorated function as a kernel, whose problems are calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter, Signature, signature
from math import prod
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from autotune.devices.device import Device
from autotune.kernel.expression import UntraceableError
from autotune.kernel.includes import text_fingerprint
from autotune.kernel.modules import SPACE
from autotune.kernel.source import Description, modules_fingerprint
from autotune.kernel.spec import BFloat16, Fill, InOut, Kernel, Launch
from autotune.triton.calls import ConfiguredLaunch, PassedArray, RecordedCall
from autotune.values import Configuration, Problem, Value

#: Elements of all arrays of a call that the interpreter runs.
_MOST_INTERPRETED = 1 << 24
RECORD_AGAIN = "record again: run the program with AUTOTUNE_RECORD_SIZES=1"


class DecoratedKernel(Kernel):
    """The kernel of a decorated function.

    Every array may be read and written, so configurations must agree on all of them.
    """

    def __init__(
        self,
        function: Any,
        name: str,
        configurations: Sequence[Mapping[str, Value]],
        calls: Sequence[RecordedCall],
        reference: Any = None,
        tolerance: float | None = None,
    ) -> None:
        parameters: dict[str, Any] = {
            name: tuple(dict.fromkeys(values[name] for values in configurations))
            for name in configurations[0]
        }
        super().__init__(
            function,
            language="triton",
            name=name,
            problems=[Problem(call.problem) for call in calls],
            default=configurations[0],
            # No call of another size is known, where finalists would be verified too.
            static=[n for n, size in calls[0].problem.items() if isinstance(size, int)],
            **parameters,
        )
        file = Path(function.__code__.co_filename).resolve()
        self.files = {"": f"{file}:{function.__name__}"}
        self.file, self.places = file, ()
        self.module = function.__module__.removeprefix(SPACE)
        self.calls: dict[Problem, RecordedCall] = {}
        self._launches: dict[Problem, dict[Configuration, ConfiguredLaunch]] = {}
        #: Of each call: recording a call makes no result of another call stale.
        self._fingerprints: dict[Problem, str] = {}
        for call in calls:
            self.add(call)
        self.constraint(_member(list(self.parameters), configurations))
        self.hooks |= {
            "arguments": self._arguments,
            "launch": self._launch,
            "requires": self._requires,
        }
        if reference is not None:
            self.hooks["reference"] = reference
        if tolerance is not None:
            self.hooks["tolerance"] = lambda p: tolerance
        self.fingerprint = _fingerprint(reference, tolerance)

    def add(self, call: RecordedCall) -> None:
        """Keep a call, in place of an earlier one of the same problem."""
        problem = Problem(call.problem)
        self.calls[problem] = call
        self._launches[problem] = {
            Configuration(launch.configuration): launch for launch in call.launches
        }
        # A file with a caller's data has a name of its own.
        self._fingerprints[problem] = text_fingerprint(msgspec.json.encode(call).decode())

    def of_problem(self, p: Problem) -> Self:
        """Return the kernel with the reference and the fingerprint of one call."""
        problem, own = self.normal(p), copy(self)
        if call := self.calls.get(problem):
            own.fingerprint += self._fingerprints[problem]
            if reference := self.hooks.get("reference"):
                own.hooks = {**self.hooks, "reference": _reference(reference, call)}
        return own

    def edges_on(self, device: Device) -> tuple[Problem, ...]:
        """Return all small calls for the interpreter, in place of odd sizes; none for a GPU."""
        if device.backend != "interpreter":
            return ()
        return tuple(p for p, call in self.calls.items() if _elements(call) <= _MOST_INTERPRETED)

    def values_of(self, c: Configuration, p: Problem) -> dict[str, Value]:
        """Return parameters, and all arguments that are compiled in."""
        constants, launch = self._call(p).constants, self._launches[self.normal(p)].get(c)
        return {**constants, **(launch.constants if launch else {}), **c}

    def _call(self, p: Problem) -> RecordedCall:
        found = self.calls.get(self.normal(p))
        if found is None:
            known = "; ".join(f"{problem}".replace(", ", ",") for problem in self.calls)
            raise self.error(
                f"no call of ({p}) is recorded, which says what it passes; {RECORD_AGAIN} "
                f"(recorded: {known})"
            )
        return found

    def _arguments(self, p: Problem, rng: Any) -> dict[str, Any]:
        given = self._call(p).arguments
        return {name: _drawn(value, rng) for name, value in given.items()}

    def _launch(self, c: Configuration, p: Problem) -> Any:
        if not all(isinstance(value, int | str) for value in p.values()):
            raise UntraceableError("a grid is that of a call")
        call = self._call(p)
        launch = self._launches[self.normal(p)].get(c)
        if launch is None:
            is_pruned = dict(c) in call.pruned
            why = "was pruned" if is_pruned else "is not recorded"
            again = "" if is_pruned else f"; {RECORD_AGAIN}"
            raise self.error(f"{c} {why} for ({p}){again}")
        return (*(Fill(name, value) for name, value in launch.fills), Launch(grid=launch.grid))

    def _requires(self, c: Configuration, p: Problem) -> bool:
        if not all(isinstance(value, int | str) for value in p.values()):
            return True  # other sizes prune otherwise
        launches = self._launches.get(self.normal(p))
        return launches is None or c in launches


def _elements(call: RecordedCall) -> int:
    return sum(prod(v.shape) for v in call.arguments.values() if isinstance(v, PassedArray))


def _named(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Give a function a signature, by which it is called."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = Signature([Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return function


def _member(names: Sequence[str], configurations: Sequence[Mapping[str, Value]]) -> Any:
    """Return the rule that a configuration is one of those listed."""
    listed = {tuple(values[name] for name in names) for values in configurations}

    def is_listed(*values: Value, **named: Value) -> bool:
        """It is one of the configurations of the decorator."""
        return (*values, *(named[name] for name in names if name in named)) in listed

    return _named(is_listed, names)


def _reference(
    function: Callable[..., Mapping[str, Any]], call: RecordedCall
) -> Callable[..., Any]:
    """Return a person's reference with values for all arrays: others than those it names stay as they are."""
    arrays = [name for name, value in call.arguments.items() if isinstance(value, PassedArray)]
    wanted, constants = list(signature(function).parameters), call.constants

    def reference(**given: Any) -> dict[str, Any]:
        known = {**constants, **given}
        found = function(**{name: known[name] for name in wanted})
        if not isinstance(found, Mapping):
            raise TypeError("expected a dict of the arrays that the function writes, by name")
        return {**{name: given[name] for name in arrays}, **found}

    return _named(
        reference, [*arrays, *(n for n in wanted if n not in constants and n not in arrays)]
    )


def _drawn(value: PassedArray | bool | int | float, rng: Any) -> Any:
    """Return an argument of a call with the caller's data, or with others of the same kind."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return value if -(2**31) <= value < 2**31 else np.int64(value)
    if isinstance(value, float):
        return np.float32(value)
    is_bits = value.dtype == "bfloat16"
    is_float = value.dtype.endswith(("float16", "float32", "float64"))
    # Other numbers in one of the two data sets: what is not written shows, whatever the caller's memory held.
    if value.file and not (is_float and rng.exact):
        array = np.load(value.file, mmap_mode="r")
        return InOut(BFloat16(array) if is_bits else array)
    if is_bits:  # of numbers from 1/8 to 2
        return InOut(BFloat16(rng.integers(0x3E00, 0x4000, value.shape, np.uint16)))
    if is_float:
        return InOut(rng.standard_normal(value.shape, np.dtype(value.dtype)))
    return InOut(
        rng.integers(value.low, value.high, value.shape, np.dtype(value.dtype), endpoint=True)
    )


def _fingerprint(reference: Callable[..., Any] | None, tolerance: float | None) -> str:
    """Return the fingerprint of tolerance and reference, with all that the reference uses."""
    text = f"{tolerance}"
    if reference is not None:
        found = Description(reference.__module__, [reference])
        text += found.text + modules_fingerprint(found.modules)
    return text_fingerprint(text)

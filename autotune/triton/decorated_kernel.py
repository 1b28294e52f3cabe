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

from autotune.data.dataset import mapped
from autotune.devices.device import Device
from autotune.encoding import dtype_of, encoded_type
from autotune.kernel.expression import UntraceableError
from autotune.kernel.includes import text_fingerprint
from autotune.kernel.modules import SPACE
from autotune.kernel.names import OFFSET
from autotune.kernel.source import Description
from autotune.kernel.space_text import modules_fingerprint
from autotune.kernel.spec import BFloat16, Fill, InOut, Kernel, Launch
from autotune.triton.calls import ConfiguredLaunch, PassedArray, RecordedCall
from autotune.values import Configuration, Problem, Value

#: Maximum number of elements of all arrays together of a call that the interpreter runs.
_MAX_INTERPRETED = 1 << 24
#: Remedies of messages about recorded calls.
RECORD_CALLS = "run the program with AUTOTUNE_RECORD_SIZES=1"
RECORD_AGAIN = f"record the calls again: {RECORD_CALLS}"


class DecoratedKernel(Kernel):
    """The kernel of a decorated function.

    It may read and write every array, so configurations must agree on all arrays.
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
        self._fields = frozenset(calls[0].problem)
        super().__init__(
            function,
            language="triton",
            name=name,
            problems=[Problem(call.problem) for call in calls],
            default=configurations[0],
            # Finalists cannot be verified at other sizes: no call of them is known.
            static=[n for n, size in calls[0].problem.items() if isinstance(size, int)],
            **parameters,
        )
        file = Path(function.__code__.co_filename).resolve()
        self.files = {"": f"{file}:{function.__name__}"}
        self.file = file
        self.module = function.__module__.removeprefix(SPACE)
        self.calls: dict[Problem, RecordedCall] = {}
        self._launches: dict[Problem, dict[Configuration, ConfiguredLaunch]] = {}
        #: A fingerprint for each call, so that a new call makes no result of another call stale.
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
        # The name of a file with a caller's data is unique, so its content is part of the fingerprint.
        self._fingerprints[problem] = text_fingerprint(msgspec.json.encode(call).decode())

    def filled(self, p: Problem) -> Problem:
        """Return a problem with the offsets of its call's arrays as layout fields."""
        call = self.calls.get(self.normal(p)) if _is_known(p) else None
        arrays = (
            {n: a for n, a in call.arguments.items() if isinstance(a, PassedArray)} if call else {}
        )
        return Problem(
            {**p, **{OFFSET + n: array.offset for n, array in arrays.items() if array.offset}}
        )

    def normal(self, p: Problem) -> Problem:
        """Return a problem without the offsets that `filled` adds."""
        return Problem({name: value for name, value in p.items() if name in self._fields})

    def of_problem(self, p: Problem) -> Self:
        """Return the kernel with the reference and the fingerprint of a problem's call."""
        problem, own = self.normal(p), copy(self)
        if call := self.calls.get(problem):
            own.fingerprint += self._fingerprints[problem]
            if reference := self.hooks.get("reference"):
                own.hooks = {**self.hooks, "reference": _reference(reference, call)}
        return own

    def edges_on(self, device: Device) -> tuple[Problem, ...]:
        """Return the problems of small calls for the interpreter; none for a GPU.

        They replace the odd sizes of other kernels.
        """
        if device.backend != "interpreter":
            return ()
        return tuple(p for p, call in self.calls.items() if _elements(call) <= _MAX_INTERPRETED)

    def values_of(self, c: Configuration, p: Problem) -> dict[str, Value]:
        """Return the parameters, and all arguments that are compiled into the binary."""
        constants, launch = self._call(p).constants, self._launches[self.normal(p)].get(c)
        return {**constants, **(launch.constants if launch else {}), **c}

    def _call(self, p: Problem) -> RecordedCall:
        found = self.calls.get(self.normal(p))
        if found is None:
            known = "; ".join(f"{problem}".replace(", ", ",") for problem in self.calls)
            raise self.error(
                f"no call of ({p}) is recorded, so its arguments are unknown; {RECORD_AGAIN} "
                f"(recorded: {known})"
            )
        return found

    def _arguments(self, p: Problem, rng: Any) -> dict[str, Any]:
        given = self._call(p).arguments
        return {name: _drawn(value, rng) for name, value in given.items()}

    def _launch(self, c: Configuration, p: Problem) -> Any:
        if not _is_known(p):
            raise UntraceableError("the grid is known for recorded calls only")
        call = self._call(p)
        launch = self._launches[self.normal(p)].get(c)
        if launch is None:
            is_pruned = dict(c) in call.pruned
            why = "was pruned" if is_pruned else "is not recorded"
            again = "" if is_pruned else f"; {RECORD_AGAIN}"
            raise self.error(f"{c} {why} for ({p}){again}")
        return (*(Fill(name, value) for name, value in launch.fills), Launch(grid=launch.grid))

    def _requires(self, c: Configuration, p: Problem) -> bool:
        if not _is_known(p):
            return True  # pruning may differ at other sizes
        launches = self._launches.get(self.normal(p))
        return launches is None or c in launches


def _is_known(p: Problem) -> bool:
    """Return whether all fields of a problem are values, not symbols of a trace."""
    return all(isinstance(value, int | str) for value in p.values())


def _elements(call: RecordedCall) -> int:
    return sum(prod(v.shape) for v in call.arguments.values() if isinstance(v, PassedArray))


def _named(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Set the signature of a function; the caller passes arguments by these names."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = Signature([Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return function


def _member(names: Sequence[str], configurations: Sequence[Mapping[str, Value]]) -> Any:
    """Return the constraint that a configuration is in the list."""
    listed = {tuple(values[name] for name in names) for values in configurations}

    def is_listed(*values: Value, **named: Value) -> bool:
        """The configuration is in the decorator's list."""
        return (*values, *(named[name] for name in names if name in named)) in listed

    return _named(is_listed, names)


def _reference(
    function: Callable[..., Mapping[str, Any]], call: RecordedCall
) -> Callable[..., Any]:
    """Return a user's reference completed to all arrays: arrays that it does not return stay unchanged."""
    arrays = [name for name, value in call.arguments.items() if isinstance(value, PassedArray)]
    wanted, constants = list(signature(function).parameters), call.constants

    def reference(**given: Any) -> dict[str, Any]:
        known = {**constants, **given}
        found = function(**{name: known[name] for name in wanted})
        if not isinstance(found, Mapping):
            raise TypeError("return a dict of the arrays that the function writes, by name")
        return {**{name: given[name] for name in arrays}, **found}

    return _named(
        reference, [*arrays, *(n for n in wanted if n not in constants and n not in arrays)]
    )


def _drawn(value: PassedArray | bool | int | float, rng: Any) -> Any:
    """Return an argument of a call with the caller's data, or with random data of the same type."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return value if -(2**31) <= value < 2**31 else np.int64(value)
    if isinstance(value, float):
        return np.float32(value)
    element = encoded_type(value.dtype)
    is_float = element is not None or value.dtype in ("float16", "float32", "float64")
    # The exact data set has random numbers instead of the caller's: so a missing write shows, even if the
    # caller's memory already held the result.
    if value.file and not (is_float and rng.exact):
        array = mapped(Path(value.file))
        return InOut(array.view(dtype_of(element.name)) if element else array)
    if value.dtype == "bfloat16":  # numbers from 1/8 to 2
        return InOut(BFloat16(rng.integers(0x3E00, 0x4000, value.shape, np.uint16)))
    if is_float:
        return InOut(rng.standard_normal(value.shape, value.dtype))
    return InOut(
        rng.integers(value.low, value.high, value.shape, np.dtype(value.dtype), endpoint=True)
    )


def _fingerprint(reference: Callable[..., Any] | None, tolerance: float | None) -> str:
    """Return the fingerprint of the tolerance, the reference and the modules that the reference uses."""
    text = f"{tolerance}"
    if reference is not None:
        found = Description(reference.__module__, [reference])
        text += found.text + modules_fingerprint(found.modules)
    return text_fingerprint(text)

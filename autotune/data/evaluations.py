"""The reference of a data set on changed inputs: how far its outputs move, from which bounds are made."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, in_threads, usable_cores
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, Dataset
from autotune.data.reference import reevaluated
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel

#: Elements of all arrays of a problem up to which maps are looked for: that takes eleven more evaluations,
#: and small sizes show the same as large ones.
_MAX_MAP_ELEMENTS = 1 << 20
#: Elements of the arguments of all evaluations that run at once, each with some numbers of 64 bits.
_MAX_ELEMENTS_AT_ONCE = 1 << 27


@dataclass(frozen=True)
class Evaluations:
    """The reference of a data set, evaluated on changed inputs."""

    kernel: Kernel
    made: Dataset
    names: tuple[str, ...]
    key: int

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Expected values of each output as one row of real numbers."""
        return {name: tolerance.parts(self.made.expected(name)) for name in self.names}

    def element_bounds(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the bounds of each element, for outputs that are not exact; see `autotune.data.tolerance`."""
        if not names:
            return
        sensitivity = self.response(tolerance.perturb, "fc", tolerance.EVALUATIONS)
        in_single = self.response(tolerance.scatter, "fc", tolerance.IN_SINGLE, is_single=True)
        of_integers, struck, is_exact = dict[str, Any](), dict[str, Any](), self.made.name == EXACT
        if not is_exact and sensitivity and not self.arrays("fciu", other=True):
            of_integers = self.response(tolerance.flip, "iu", tolerance.FEWEST)
            struck = self.struck
        sizes = [
            np.mean(np.square(self.made.array(name), dtype=float)) ** 0.5
            for name in self.arrays("iu")
        ]
        for name in names:
            info, expected = self._info(name), self.expected[name]
            responses = tolerance.Responses(
                sensitivity.get(name, np.zeros(expected.size)) / tolerance.STEP,
                in_single.get(name),
                of_integers[name] * max(sizes, default=0.0) if name in of_integers else None,
                struck.get(name),
            )
            yield name, tolerance.element_bounds(info, expected, responses, is_exact)

    def _info(self, name: str) -> Any:
        return next(o.info for o in self.made.arguments if o.name == name)

    def maps(self, names: Sequence[str]) -> list[str]:
        """Return the outputs whose elements depend on one or two inputs each; see `tolerance.is_map`."""
        if not names or self._elements > _MAX_MAP_ELEMENTS or self.arrays("fciu", other=True):
            return []
        return [n for n in names if tolerance.is_map(self.expected[n], self.struck.get(n))]

    @cached_property
    def struck(self) -> dict[str, NDArray[Any]]:
        """Rows of the results after a clear change of some inputs."""
        return self.results(tolerance.strike, "fciu", tolerance.EVALUATIONS)

    def errors_in_single(self) -> dict[str, float]:
        """Return the largest error of the reference in float32, by output; {} if it fails."""
        errors = dict[str, float]()
        for name, values in self.results(None, "", 0, is_single=True).items():
            error = np.zeros(values.size)
            info = self._info(name)
            least = tolerance.held_in_single(info)
            tolerance.add_change(error, self.expected[name], values, info.bits, least)
            errors[name] = tolerance.largest(error)
        return errors

    def arrays(self, kinds: str, other: bool = False) -> dict[str, np.dtype[Any]]:
        """Return the types of input arrays by name: of these kinds, or with ``other`` of all other kinds."""
        arrays = {o.name: o.number for o in self.made.arguments if o.kind not in ("out", "scalar")}
        return {name: dtype for name, dtype in arrays.items() if (dtype.kind in kinds) != other}

    def response(
        self, change: tolerance.Change, kinds: str, most: int, is_single: bool = False
    ) -> dict[str, NDArray[np.float64]]:
        """Return the root mean square change of each output's elements; {} if the reference fails."""
        squares = {name: np.zeros(values.size) for name, values in self.expected.items()}
        if not self.arrays(kinds) and "i" in kinds:
            return squares
        done, until = 0, time.monotonic() + tolerance.LONGEST_S
        at_once = max(1, min(usable_cores(), _MAX_ELEMENTS_AT_ONCE // max(1, self._elements)))
        evaluated = partial(self.results, change, kinds, is_single=is_single)
        for number in range(0, most, at_once):
            if number >= tolerance.FEWEST and time.monotonic() > until:
                break
            for found in in_threads(evaluated, range(number, min(most, number + at_once)), at_once):
                for name, values in found.items():
                    info = self._info(name)
                    least = tolerance.held_in_single(info) if is_single else 0.0
                    tolerance.add_change(
                        squares[name], self.expected[name], values, info.bits, least
                    )
                done += bool(found)
        for root in squares.values():
            root /= math.sqrt(done or 1)
        return squares if done else {}

    @property
    def _elements(self) -> int:
        return sum(argument.count for argument in self.made.arguments)

    def results(
        self, change: tolerance.Change | None, kinds: str, number: int, is_single: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Return rows of the outputs for one change of the inputs; {} if the reference fails."""
        arguments, inputs = self.made.arguments, dict[str, NDArray[Any]]()
        for place, name in enumerate(self.arrays(kinds) if change else ()):
            assert change
            inputs[name] = tolerance.changed(
                self.made.values(name), change, self.key + place, number
            )
        if change in (tolerance.perturb, tolerance.scatter):
            arguments = tuple(
                _perturbed_scalar(o, number >> i % 3) for i, o in enumerate(arguments)
            )
        with suppress(SpecError):  # a changed number may be no valid size
            found = reevaluated(
                self.kernel, replace(self.made, arguments=arguments), inputs, is_single
            )
            return {
                name: tolerance.parts(converted(found[name], found[name].dtype))
                for name in self.names
            }
        return {}


def _perturbed_scalar(argument: Argument, number: int) -> Argument:
    """Return a scalar argument with a slight change; integers stay, since sizes and signs are integers."""
    is_real = argument.kind == "scalar" and np.dtype(argument.dtype).kind == "f"
    if not is_real or float(argument.scalar).is_integer():
        return argument
    sign = 1 if number % 2 else -1
    changed = float(argument.scalar) * (1 + sign * tolerance.STEP)
    return replace(argument, dtype="<f8", value=changed)

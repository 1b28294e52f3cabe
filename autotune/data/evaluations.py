"""Evaluates the reference of a data set on changed inputs; bounds follow from the changes of outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
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
from autotune.data.reference import ArrayLibrary, reevaluated
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel

#: Maximum number of elements in concurrent evaluations. Each element takes several numbers of 64 bits.
_MAX_ELEMENTS_AT_ONCE = 1 << 27
#: Evaluations that show whether an element depends on few inputs: one without an effect does.
_STRIKES = 8
#: Least share of elements that differ from the others in this.
_MIXED = 1 / 32


@dataclass(frozen=True)
class Evaluations:
    """The reference of a data set, evaluated on changed inputs."""

    kernel: Kernel
    dataset: Dataset
    names: tuple[str, ...]
    key: int
    #: The library that evaluates it; None for NumPy.
    library: ArrayLibrary | None = None

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Expected values of each output as one row of real numbers; of a drawn data set the reference gives them."""
        if not self.dataset.bounds:
            outputs = reevaluated(self.kernel, self.dataset, {})
            return {
                name: tolerance.parts(converted(outputs[name], outputs[name].dtype))
                for name in self.names
            }
        return {name: tolerance.parts(self.dataset.expected(name)) for name in self.names}

    def element_bounds(
        self, names: Sequence[str], carried: Mapping[str, tolerance.Carried]
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the bounds of each element of outputs that are not exact; see `autotune.data.tolerance`.

        Outputs whose bounds are ``carried`` from a small problem take one evaluation, in float32.
        """
        responses = self.responses if any(name not in carried for name in names) else {}
        for name in names:
            info, expected = self.info(name), self.expected[name]
            if name in carried:
                in_single = self.errors_in_single.get(name, self._number(name, 0.0))
                yield name, tolerance.carried_bounds(info, expected, carried[name], in_single)
            else:
                yield name, tolerance.element_bounds(info, expected, responses[name])

    @cached_property
    def responses(self) -> dict[str, tolerance.Responses]:
        """The changes of each output after changes of inputs."""
        sensitivity = self.response(tolerance.perturb, "fc", tolerance.EVALUATIONS)
        # Exact data get narrow bounds, so that a missing element shows.
        struck, of_integers = self.expected, dict[str, NDArray[np.float64]]()
        if self.dataset.name != EXACT:
            struck = self.results(tolerance.strike, "fciu", tolerance.EVALUATIONS)
            integers = [self.dataset.values(name) for name in self.arrays("iu")]
            sizes = [np.mean(np.square(array, dtype=float)) ** 0.5 for array in integers]
            of_integers = self.response(tolerance.flip, "iu", tolerance.MIN_EVALUATIONS)
            for change in of_integers.values():
                change *= max(sizes, default=0)
        for change in sensitivity.values():
            change /= tolerance.STEP
        return {
            name: tolerance.Responses(
                sensitivity.get(name, self._number(name, 0.0)),
                of_integers.get(name, self._number(name, math.inf)),
                self.errors_in_single.get(name, self._number(name, 0.0)),
                struck.get(name, self._number(name, math.nan)),
            )
            for name in self.names
        }

    def depends_on_few(self, name: str) -> bool | None:
        """Return whether all elements of an output depend on few inputs, or none; None if only some do."""
        if self.dataset.name == EXACT:  # narrow bounds
            return True
        is_few = np.zeros(self.expected[name].size, bool)
        for number in range(_STRIKES):
            struck = self.results(tolerance.strike, "fciu", tolerance.EVALUATIONS + number)
            if struck:
                is_few |= struck[name] == self.expected[name]
        share = float(is_few.mean())
        return None if _MIXED < share < 1 - _MIXED else share > _MIXED

    def _number(self, name: str, number: float) -> NDArray[np.float64]:
        """Return one number for each element of an output; it takes no memory."""
        return np.broadcast_to(np.float64(number), self.expected[name].shape)

    def info(self, name: str) -> Any:
        """Return the limits of an output's type."""
        return next(argument.info for argument in self.dataset.arguments if argument.name == name)

    @cached_property
    def errors_in_single(self) -> dict[str, NDArray[np.float64]]:
        """The error of each element of the reference in float32, by output; {} if it fails."""
        errors = dict[str, NDArray[np.float64]]()
        for name, values in self.results(None, "", 0, is_single=True).items():
            info, errors[name] = self.info(name), np.zeros(values.size)
            least = tolerance.held_in_single(info)
            tolerance.add_change(errors[name], self.expected[name], values, info.bits, least)
        return errors

    def arrays(self, kinds: str) -> list[str]:
        """Return the names of the input arrays of these kinds."""
        return [each.name for each in self.dataset.inputs() if each.value_type.kind in kinds]

    def response(
        self, change: tolerance.Change, kinds: str, most: int
    ) -> dict[str, NDArray[np.float64]]:
        """Return the root mean square change of each output's elements; {} if the reference fails."""
        squares = {name: np.zeros(values.size) for name, values in self.expected.items()}
        if not self.arrays(kinds) and "i" in kinds:
            return squares
        evaluations, end_s = 0, time.monotonic() + tolerance.MAX_EVALUATIONS_S
        # One after the other on a device.
        cores = 1 if self.library else usable_cores()
        at_once = max(1, min(cores, _MAX_ELEMENTS_AT_ONCE // max(1, self._elements)))
        for number in range(0, most, at_once):
            if number >= tolerance.MIN_EVALUATIONS and time.monotonic() > end_s:
                break
            numbers = range(number, min(most, number + at_once))
            for outputs in in_threads(partial(self.results, change, kinds), numbers, at_once):
                for name, values in outputs.items():
                    bits = self.info(name).bits
                    tolerance.add_change(squares[name], self.expected[name], values, bits)
                evaluations += bool(outputs)
        for root in squares.values():
            root /= math.sqrt(evaluations or 1)
        return squares if evaluations else {}

    @property
    def _elements(self) -> int:
        return sum(argument.count for argument in self.dataset.arguments)

    def results(
        self, change: tolerance.Change | None, kinds: str, number: int, is_single: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs as rows of numbers, after one change of the inputs; {} if the reference fails."""
        arguments, inputs = self.dataset.arguments, dict[str, NDArray[Any]]()
        for place, name in enumerate(self.arrays(kinds) if change else ()):
            assert change
            inputs[name] = tolerance.changed(
                self.dataset.values(name), change, self.key + place, number
            )
        if change is tolerance.perturb:
            arguments = tuple(
                _perturbed_scalar(argument, number >> place % 3)
                for place, argument in enumerate(arguments)
            )
        with suppress(SpecError):  # a changed number may be an invalid size
            changed = replace(self.dataset, arguments=arguments)
            outputs = reevaluated(self.kernel, changed, inputs, is_single, self.library)
            return {
                name: tolerance.parts(converted(outputs[name], outputs[name].dtype))
                for name in self.names
            }
        return {}


def _perturbed_scalar(argument: Argument, number: int) -> Argument:
    """Return a scalar argument slightly changed. Integers stay, because sizes and signs are integers."""
    is_real = argument.kind == "scalar" and np.dtype(argument.dtype).kind == "f"
    if not is_real or float(argument.scalar).is_integer():
        return argument
    sign = 1 if number % 2 else -1
    changed = float(argument.scalar) * (1 + sign * tolerance.STEP)
    return replace(argument, dtype="<f8", value=changed)

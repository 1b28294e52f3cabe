"""Sets the error bounds of a data set's outputs: exact, one for all elements, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.data import tolerance
from autotune.data.carried import carried_shares
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.evaluations import Evaluations
from autotune.data.small import MANY_ELEMENTS, PROBE_ELEMENTS, count_of, small_problem
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Seconds of an evaluation from which a problem counts as large.
LONG_S = 1.0

#: Returns the `EXACT` or `RANDOM` data set of a problem, drawn with a seed of its own.
Prepared: TypeAlias = Callable[[Problem, str], Dataset]


def is_large(dataset: Dataset, seconds: float = 0.0) -> bool:
    """Return whether one more evaluation of a reference, which takes ``seconds``, is worth avoiding."""
    return count_of(dataset.arguments) > MANY_ELEMENTS or seconds > LONG_S


@dataclass(frozen=True)
class Smaller:
    """Makes data sets of smaller problems, complete or with inputs alone, which need no data set of a larger one."""

    prepared: Prepared
    drawn: Callable[[Problem], Dataset]


@dataclass(frozen=True)
class Bounds:
    """The bounds of one data set. ``probe`` is the exact data set that shows which outputs are exact."""

    kernel: Kernel
    problem: Problem
    made: Dataset
    #: Whether the type of each output holds all expected values.
    is_held: Mapping[str, bool]
    probe: Dataset | None
    evaluations: Evaluations
    #: Makes data sets of smaller problems, if the problem is large.
    smaller: Smaller | None

    def set(self) -> list[str]:
        """Set the bounds of all outputs, and write element bounds; return the outputs that have element bounds."""
        made, probe, bounds = self.made, self.probe, self.made.bounds
        is_exact, declared = made.name == EXACT, self.kernel.tolerance_of(self.problem)
        exact = [name for name, held in self.is_held.items() if held or not is_exact]
        if probe:
            exact = [name for name in exact if not probe.bounds.get(name)]
        errors = dict[str, float]()
        if not probe if is_exact else declared is None:
            errors = self._errors_in_single(exact)
        if is_exact:
            exact = _without_errors(exact, errors)
        others = [name for name in self.is_held if name not in exact]
        if declared is not None:
            bounds.update(dict.fromkeys(others if is_exact else self.is_held, declared))
            return []
        short = dict[str, NDArray[Any]]()
        if probe and not is_exact:
            for name in exact:
                bounds[name] = _common_bound(made, probe, name, errors.get(name, 0.0))
                info = self.evaluations.info(name)
                if tolerance.is_short(info):
                    values = self.evaluations.expected[name]
                    short[name] = tolerance.bounds_of_short(info, values, bounds[name])
        of_elements = self.evaluations.element_bounds(others, self._carried(others))
        for name, found in chain(short.items(), of_elements):
            bounds[name] = float(found.max(initial=0))
            np.save(made.folder / f"{name}.bounds.npy", found)
        return [*others, *short]

    def _errors_in_single(self, names: Sequence[str]) -> dict[str, float]:
        """Return the largest error of each output in float32; of a large problem if it decides a small one."""
        is_random = self.made.name == RANDOM
        if not names or (is_random and self.smaller and not self._single_decides(names)):
            return {}
        found = self.evaluations.errors_in_single
        return {name: tolerance.largest(errors) for name, errors in found.items()}

    def _single_decides(self, names: Sequence[str]) -> bool:
        """Return whether the error of the reference in float32 widens a bound of a small problem."""
        assert self.smaller
        prepared = self.smaller.prepared
        small = small_problem(self.kernel, self.problem, PROBE_ELEMENTS)
        with suppress(SpecError):  # the kernel's functions refuse the small problem
            if small is not None and not is_large(prepared(small, EXACT)):
                probe, random = (prepared(small, which) for which in (EXACT, RANDOM))
                without = {name: _common_bound(random, probe, name, 0.0) for name in names}
                return any(random.bounds[name] > without[name] for name in names)
        return True

    def _carried(self, names: Sequence[str]) -> Mapping[str, tolerance.Carried]:
        if not names or not self.smaller:
            return {}
        elements = count_of(self.made.arguments)
        return carried_shares(self.kernel, self.problem, self.smaller.drawn, names, elements)


def _without_errors(exact: list[str], errors: Mapping[str, float]) -> list[str]:
    """Leave out outputs with an error in float32: the difference of two sums that it cannot hold may be exact."""
    return [name for name in exact if not errors.get(name)]


def _common_bound(made: Dataset, probe: Dataset, name: str, error_in_single: float) -> float:
    """Return the bound for all elements of an output that exact data decide."""
    output = next(argument for argument in made.arguments if argument.name == name)
    inputs = max((argument.count for argument in made.inputs()), default=1)
    return tolerance.common_bound(
        output.info,
        tolerance.largest(tolerance.parts(made.expected(name))),
        tolerance.largest(tolerance.parts(probe.expected(name))),
        inputs / output.count,
        error_in_single,
    )

"""Proves that verification detects a kernel that omits an input, or holds its content in place of reading it.

An input is changed for the reference alone. If the reference changes but every output stays within its
bound, a kernel could omit what was changed. A change without an effect on the reference proves nothing.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.fixed import fixed_inputs, redraws
from autotune.data.prepare import prepare_dataset
from autotune.data.reference import reevaluated
from autotune.data.small import MANY_ELEMENTS, PROBE_ELEMENTS, elements_of, small_problem
from autotune.errors import SpecError
from autotune.kernel.includes import text_fingerprint
from autotune.kernel.spec import Kernel
from autotune.values import Problem, size_of

#: Elements of an input among which the element of median size is changed: an element near 0 may be missing
#: unnoticed. A problem whose inputs have fewer elements is too small to prove anything.
_BLOCK = 16
#: Maximum number of elements to change, one after the other, until one has an effect in a data set.
_MAX_CHANGES = 8
#: Seconds after which no further change is tried.
_MAX_SECONDS = 3.0
#: Largest change of the reference that may be its own rounding, as a share of its largest value.
_ROUNDING = 2.0**-40

#: Yields descriptions of changes of an input, and the changed values.
_Changes: TypeAlias = Callable[[Argument, NDArray[Any]], Iterator[tuple[str, NDArray[Any]]]]


@dataclass(frozen=True)
class Unseen:
    """An input, number or output that verification would not notice if a kernel ignored it."""

    argument: str
    reason: str

    def __str__(self) -> str:
        return f"weak check: {self.reason}"


@dataclass(frozen=True, order=True)
class _Effect:
    """The effect of a change on one element of an output, ordered by its share of the bound."""

    share: float = 0.0
    output: str = ""
    error: float = 0.0
    bound: float = 0.0
    change: str = ""

    def unseen(self, name: str, missing: str, where: str = "") -> Unseen:
        """Return the finding that the tolerance allows this effect."""
        return Unseen(
            name,
            f"this tolerance would not notice a missing {missing}: {self.change} changes {self.output} "
            f"{where}by {self.error:.2g}, and {self.bound:.2g} is allowed; declare a smaller @tolerance "
            "or none, give smaller edge_problems, or draw integers or other data in which each element "
            "shows",
        )


def unseen_inputs(kernel: Kernel, problems: Iterable[Problem], seed: int = 0) -> tuple[Unseen, ...]:
    """Change every input of the smallest problem, made small; return the inputs whose change no data set refuses.

    The result is kept with the random data set. Without a reference, or with a matches hook, it is empty.
    """
    if "reference" not in kernel.hooks or "matches" in kernel.hooks:
        return ()  # no bound decides
    datasets, ordered = list[Dataset](), sorted(problems, key=size_of)
    for declared in ordered:
        problem = declared
        with suppress(SpecError):  # the kernel's functions refuse the problem
            if elements_of(kernel, declared) > MANY_ELEMENTS:
                problem = small_problem(kernel, declared, PROBE_ELEMENTS) or declared
        datasets = [prepare_dataset(kernel, problem, which, seed) for which in (RANDOM, EXACT)]
        if any(argument.count >= _BLOCK for argument in _inputs(kernel, datasets[0])):
            break
    file = datasets[0].folder / f"unseen-{text_fingerprint(repr(ordered))[:16]}.msgpack"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(file.read_bytes(), type=tuple[Unseen, ...])
    found = tuple(_found(kernel, problem, ordered, datasets))
    with suppress(OSError):
        file.write_bytes(msgspec.msgpack.encode(found))
    return found


def _inputs(kernel: Kernel, dataset: Dataset) -> list[Argument]:
    """Return the arrays and numbers that the reference reads."""
    read = inspect.signature(kernel.hook("reference")).parameters
    return [
        argument
        for argument in dataset.arguments
        if argument.name in read and argument.kind != "out" and argument.count
        if argument.value_type.kind in "biufc"
    ]


def _found(
    kernel: Kernel, problem: Problem, problems: list[Problem], datasets: list[Dataset]
) -> Iterator[Unseen]:
    """Yield inputs that a kernel could hold, inputs that it could omit, and outputs that it could leave 0."""
    end_s, known = time.monotonic() + _MAX_SECONDS, set[str]()
    inputs = _inputs(kernel, datasets[0])
    fixed = fixed_inputs(kernel, problem, problems, datasets, inputs, end_s)
    kernel = kernel.of_problem(problem)
    for argument in inputs:
        if argument.name in fixed:
            drawn, _ = _first_effect(kernel, datasets[0], argument, partial(redraws, problem))
            if drawn.share:
                known.add(argument.name)
                yield Unseen(
                    argument.name,
                    f"{argument.name} is {fixed[argument.name]} in all data, so that a kernel without it "
                    f"would pass; draw it, for example {drawn.change}",
                )
    for changes in (_omitted, _shifted):
        for argument in inputs:
            if argument.name in known or time.monotonic() > end_s:
                continue
            if missed := _missed(kernel, datasets, argument, changes):
                known.add(argument.name)
                yield missed
    for name in datasets[0].bounds:
        zeros = [{name: np.zeros_like(dataset.expected(name))} for dataset in datasets]
        nearest = max(_effects(*pair)[0] for pair in zip(datasets, zeros, strict=True))
        if 0 < nearest.share <= 1:
            yield replace(nearest, change=f"{name} = 0").unseen(name, name)


def _omitted(argument: Argument, values: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Set a number to 0, or one nonzero element of the middle, beginning with that of median size."""
    if argument.kind == "scalar":
        if values.dtype.kind == "f":
            yield f"{argument.name} = 0", np.zeros_like(values)
        for member in values.dtype.names or ():
            if values[member].dtype.kind == "f" and values[member].any():
                changed = values.copy()
                changed[member] = 0
                yield f"{argument.name}.{member} = 0", changed
        return
    places = np.flatnonzero(values)
    places = places[max(0, (places.size - _BLOCK) // 2) :][:_BLOCK]
    order = places[np.argsort(np.abs(values.reshape(-1)[places]))]
    for index in np.roll(order, -(order.size // 2)):
        changed = values.copy()
        changed.reshape(-1)[index] = 0
        where = ", ".join(map(str, np.unravel_index(index, values.shape)))
        yield f"{argument.name}[{where}] = 0", changed


def _shifted(argument: Argument, values: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    if argument.kind != "scalar":
        yield f"{argument.name} shifted by one", np.roll(values, 1)


def _missed(
    kernel: Kernel, datasets: list[Dataset], argument: Argument, changes: _Changes
) -> Unseen | None:
    """Return a change with an effect on the reference that no data set refuses."""
    nearest, others = _Effect(), _Effect()
    for dataset in datasets:
        here, there = _first_effect(kernel, dataset, argument, changes)
        nearest, others = max(nearest, here), max(others, there)
        if min(nearest.share, others.share) > 1:
            return None
    missing = f"{'' if argument.kind == 'scalar' else 'element of '}{argument.name}"
    for effect, where in ((nearest, ""), (others, "elsewhere ")):
        if 0 < effect.share <= 1:
            return effect.unseen(argument.name, missing, where)
    return None


def _first_effect(
    kernel: Kernel, dataset: Dataset, argument: Argument, changes: _Changes
) -> tuple[_Effect, _Effect]:
    """Return the effects of the first change that changes the reference; see `_effects`."""
    name, values = argument.name, dataset.values(argument.name)
    for text, changed in islice(changes(argument, values), _MAX_CHANGES):
        arrays, numbers = {name: changed}, dataset.arguments
        if argument.kind == "scalar":
            arrays, numbers = (
                {},
                tuple(
                    other.with_scalar(changed) if other.name == name else other
                    for other in dataset.arguments
                ),
            )
        with suppress(SpecError):  # the reference refuses the change
            results = reevaluated(kernel, replace(dataset, arguments=numbers), arrays)
            nearest, others = _effects(dataset, results)
            if nearest.share:
                return replace(nearest, change=text), replace(others, change=text)
    return _Effect(), _Effect()


def _effects(dataset: Dataset, results: Mapping[str, NDArray[Any]]) -> tuple[_Effect, _Effect]:
    """Return the effect with the largest share of its bound, and the largest effect on any other element.

    An element of a softmax shows in its own result, though its share of the sum may not show in others.
    """
    found = [_Effect(), _Effect()]
    for name, values in results.items():
        errors, bounds = _compared(dataset, name, values)
        with np.errstate(over="ignore"):  # the least bound is the least number
            share = np.divide(errors, bounds, out=np.where(errors, np.inf, 0.0), where=bounds > 0)
        for place in range(2):
            at = int(np.argmax(share))
            effect = _Effect(float(share[at]), name, float(errors[at]), float(bounds[at]))
            found[place] = max(found[place], effect)
            share[at] = 0
    return found[0], found[1]


def _compared(
    dataset: Dataset, name: str, values: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return errors and bounds of an output's elements."""
    expected, bounds = dataset.expected(name), dataset.element_bounds(name)
    if expected.dtype.kind not in "fc":
        errors = (values != expected).reshape(-1).astype(np.float64)
        return errors, np.zeros(errors.shape)
    want, got = tolerance.parts(expected), tolerance.parts(converted(values, values.dtype))
    if bounds is None:
        bounds = np.broadcast_to(np.float64(dataset.bounds[name]), want.shape)
    with np.errstate(all="ignore"):
        errors = np.abs(got - want)
        errors[(got == want) | (np.isnan(got) & np.isnan(want))] = 0
        errors[np.isnan(errors)] = np.inf
        errors[errors <= _ROUNDING * tolerance.largest(want)] = 0
    return errors, bounds

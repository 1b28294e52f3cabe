"""Proves that verification notices a missing input: a data set must refuse the results of changed inputs.

If the reference changes but every output stays within its bound, a kernel could omit the element, or a
number such as the eps of a norm. A change without an effect on the reference proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.data.reference import reevaluated
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel
from autotune.values import Problem, size_of

_FILE = "unseen.msgpack"
#: Elements of an input among which the element of median size is changed: an element near 0 may be missing
#: unnoticed. A problem whose inputs have fewer elements is too small to prove anything.
_BLOCK = 16
#: Maximum number of elements to change, one after the other, until one has an effect in a data set.
_MAX_STEPS = 8
#: Seconds after which no further change is tried.
_MAX_SECONDS = 3.0
#: Largest change of the reference that may be its own rounding, as a share of its largest value.
_ROUNDING = 2.0**-40
#: An element is affected if it changes by more than this number of its rounding errors.
_NOTABLE = 16

#: A change of an input: its text, and a function that changes the row of elements in place. The function's
#: second argument shifts the change by that number of elements.
_Change: TypeAlias = tuple[str, Callable[[NDArray[Any], int], None]]


@dataclass(frozen=True)
class Unseen:
    """An input, number or output whose absence verification would not notice, with an example."""

    argument: str
    change: str
    output: str
    #: ``elsewhere `` if the change shows in the most affected element, but in no other.
    where: str
    #: Change of the output at the element nearest to its bound; 0 for a number that is 0 or 1.
    error: float = 0.0
    #: Bound of that element.
    bound: float = 0.0

    def __str__(self) -> str:
        if not self.error:
            return (
                f"weak check: {self.change} in all data, so that a kernel without it would pass; "
                "give it another value"
            )
        is_whole = self.change == f"{self.argument} = 0"
        return (
            "weak check: this tolerance would not notice a missing "
            f"{'' if is_whole else 'element of '}{self.argument}: "
            f"{self.change} changes {self.output} {self.where}by {self.error:.2g}, "
            f"and {self.bound:.2g} is allowed; "
            "declare a smaller @tolerance or none, give smaller edge_problems, or draw integers or "
            "other data in which each element shows"
        )


@dataclass(frozen=True, order=True)
class _Effect:
    """The effect of a change on one element of an output, ordered by its share of the bound."""

    share: float = 0.0
    output: str = ""
    index: int = 0
    error: float = 0.0
    bound: float = 0.0


def unseen_inputs(kernel: Kernel, problems: Iterable[Problem], seed: int = 0) -> tuple[Unseen, ...]:
    """Change every input of the smallest problem; return the inputs whose change no data set refuses.

    The result is kept with the random data set. Without a reference it is empty.
    """
    if "reference" not in kernel.hooks:
        return ()
    datasets: list[Dataset] = []
    for problem in sorted(problems, key=size_of):
        datasets = [prepare_dataset(kernel, problem, which, seed) for which in (RANDOM, EXACT)]
        if any(argument.count >= _BLOCK for argument in _inputs(datasets[0])):
            break
    file = datasets[0].folder / _FILE
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(file.read_bytes(), type=tuple[Unseen, ...])
    found, kernel = dict[str, Unseen](), kernel.of_problem(problem)
    end_s = time.monotonic() + _MAX_SECONDS
    for argument, changes in _trials(datasets[0]):
        if missed := _missed(kernel, datasets, argument.name, changes):
            found.setdefault(argument.name, missed)
        if time.monotonic() > end_s:
            break
    found |= {missed.argument: missed for missed in (*_lost(datasets), *_neutral(kernel, datasets))}
    with suppress(OSError):
        file.write_bytes(msgspec.msgpack.encode(tuple(found.values())))
    return tuple(found.values())


def _lost(datasets: list[Dataset]) -> Iterator[Unseen]:
    """Yield the outputs for which a kernel could write 0 everywhere."""
    for name in datasets[0].bounds:
        results = [{name: np.zeros_like(dataset.expected(name))} for dataset in datasets]
        nearest = max(
            _effects(dataset, zeros)[0] for dataset, zeros in zip(datasets, results, strict=True)
        )
        if 0 < nearest.share <= 1:
            yield Unseen(name, f"{name} = 0", name, "", nearest.error, nearest.bound)


def _neutral(kernel: Kernel, datasets: list[Dataset]) -> Iterator[Unseen]:
    """Yield floating-point scalars that have an effect, but are 0 or 1: a sum or product may omit them."""

    def increase(row: NDArray[Any], _: int) -> None:
        row += 1.5

    for argument in datasets[0].arguments:
        if argument.kind != "scalar" or np.dtype(argument.dtype).kind != "f":
            continue
        values = {
            float(other.scalar)
            for dataset in datasets
            for other in dataset.arguments
            if other.name == argument.name
        }
        if not values <= {0.0, 1.0} or len(values) > 1:
            continue
        with suppress(SpecError):  # the reference refuses the change
            effect, _ = _effects(
                datasets[0], _results(kernel, datasets[0], argument.name, increase, 0)
            )
            if effect.share:
                constant = f"{argument.name} is {values.pop():g}"
                yield Unseen(argument.name, constant, effect.output, "")


def _inputs(dataset: Dataset) -> list[Argument]:
    kinds = ("input", "inout", "constant")
    return [
        argument
        for argument in dataset.arguments
        if argument.kind in kinds and argument.value_type.kind in "fciu"
    ]


def _trials(dataset: Dataset) -> Iterator[tuple[Argument, list[_Change]]]:
    """Yield inputs with changes; the first change that affects the reference must be noticed."""
    inputs = [argument for argument in _inputs(dataset) if argument.count]
    for place in (0.5, 1.0, 0.0):
        for argument in inputs:
            row = dataset.values(argument.name).reshape(-1)
            begin = int(place * max(0, row.size - _BLOCK))
            block = np.abs(row[begin : begin + _BLOCK])
            order = [int(i) for i in np.argsort(block) if np.isfinite(block[i])]
            if order:
                middle = order[len(order) // 2]
                yield argument, _changes_of(argument, begin + middle, float(block[middle]) or 1.0)
        if place == 0.5:
            for argument in inputs:
                yield argument, [(f"{argument.name} shifted by one", _shift)]
            for argument in dataset.arguments:
                if argument.kind == "scalar" and np.dtype(argument.dtype).kind == "f":
                    yield argument, [(f"{argument.name} = 0", _zero)]


def _changes_of(argument: Argument, index: int, size: float) -> list[_Change]:
    def drop(row: NDArray[Any], step: int) -> None:
        row[(index + step) % row.size] = 0

    def enlarge(row: NDArray[Any], step: int) -> None:
        at = (index + step) % row.size
        row[at] += size if row[at].real >= 0 else -size

    where = ", ".join(map(str, np.unravel_index(index, argument.shape)))
    element = f"{argument.name}[{where}]"
    return [(f"{element} = 0", drop), (f"{element} further from 0 by {size:.3g}", enlarge)]


def _shift(row: NDArray[Any], step: int) -> None:
    row[:] = np.roll(row, 1 + step)


def _zero(row: NDArray[Any], _: int) -> None:
    row[:] = 0


def _missed(
    kernel: Kernel, datasets: list[Dataset], name: str, changes: list[_Change]
) -> Unseen | None:
    """Return the first change with an effect on the reference that no data set refuses.

    A change may have an effect in only one data set, for example below a threshold. The next elements are
    then changed in the other data set.
    """
    for text, change in changes:
        nearest, others = _Effect(), _Effect()
        for dataset in datasets:
            for step in range(_MAX_STEPS if nearest.share else 1):
                here, there = _Effect(), _Effect()
                with suppress(SpecError):  # the reference refuses the change
                    here, there = _effects(dataset, _results(kernel, dataset, name, change, step))
                nearest, others = max(nearest, here), max(others, there)
                if here.share:
                    break
            if min(nearest.share, others.share) > 1:
                break
        missed = next((effect for effect in (nearest, others) if 0 < effect.share <= 1), None)
        if missed:
            where = "" if missed is nearest else "elsewhere "
            return Unseen(name, text, missed.output, where, missed.error, missed.bound)
        if nearest.share:
            return None
    return None


def _results(
    kernel: Kernel,
    dataset: Dataset,
    name: str,
    change: Callable[[NDArray[Any], int], None],
    step: int,
) -> dict[str, NDArray[Any]]:
    """Return the outputs of the reference for a changed input."""
    arguments = list(dataset.arguments)
    place = [argument.name for argument in arguments].index(name)
    is_number = arguments[place].kind == "scalar"
    array = np.array(arguments[place].scalar if is_number else dataset.values(name))
    change(array.reshape(-1), step)
    if not is_number:
        return reevaluated(kernel, dataset, {name: array})
    arguments[place] = replace(arguments[place], value=array.item())
    return reevaluated(kernel, replace(dataset, arguments=tuple(arguments)), {})


def _effects(dataset: Dataset, results: Mapping[str, NDArray[Any]]) -> tuple[_Effect, _Effect]:
    """Return the effect with the largest share of its bound, and the largest effect on any other element.

    An element of a softmax shows in its own result, though its share of the sum may not show in others.
    Other elements count if they change by more than their rounding.
    """
    found = [_Effect(), _Effect()]
    rows = {name: _compared(dataset, name, values) for name, values in results.items()}
    for place in range(2):
        for name, (errors, bounds, notable) in rows.items():
            errors = np.where(notable, errors, 0) if place else errors
            share = np.divide(errors, bounds, out=np.where(errors, np.inf, 0.0), where=bounds > 0)
            at = int(np.argmax(share))
            found[place] = max(
                found[place],
                _Effect(float(share[at]), name, at, float(errors[at]), float(bounds[at])),
            )
        if found[0].output:
            rows[found[0].output][0][found[0].index] = 0
    return found[0], found[1]


def _compared(
    dataset: Dataset, name: str, values: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return errors and bounds of an output's elements, and a mask of errors that exceed rounding."""
    expected, bounds = dataset.expected(name), dataset.element_bounds(name)
    if expected.dtype.kind not in "fc":
        errors = (values != expected).reshape(-1).astype(np.float64)
        return errors, np.zeros(errors.shape), errors > 0
    want, got = tolerance.parts(expected), tolerance.parts(converted(values, values.dtype))
    if bounds is None:
        bounds = np.broadcast_to(np.float64(dataset.bounds[name]), want.shape)
    info = next(argument.info for argument in dataset.arguments if argument.name == name)
    with np.errstate(all="ignore"):
        errors = np.abs(got - want)
        errors[(got == want) | (np.isnan(got) & np.isnan(want))] = 0
        errors[np.isnan(errors)] = np.inf
        errors[errors <= _ROUNDING * tolerance.largest(want)] = 0
        # Kernels of half precision compute in float32, so changes below the rounding of a half count too.
        eps = min(info.eps, np.finfo(np.float32).eps)
        return errors, bounds, errors > _NOTABLE * eps * np.abs(want)

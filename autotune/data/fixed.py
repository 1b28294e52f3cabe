"""Finds inputs whose content a kernel could hold in place of reading it, and draws other content."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.data.arguments import Argument, argument_of, declared_values
from autotune.data.dataset import Dataset
from autotune.data.draw import Draw
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel
from autotune.values import Problem, size_of

#: Further draws that must give the same content: a number drawn from two repeats by chance.
_DRAWS = 6
#: Number of different steps between neighbours in content that is not random: 0 0 0 1 1 1, or 0 1 2 0 1 2.
_STEPS = 3
#: Minimum number of elements whose equal steps are no accident, and number of elements that are compared first.
_MIN_ELEMENTS, _HEAD = 8, 64
#: Size of the largest problem that is compared: arrays that are not drawn take memory.
_MAX_SIZE = 1 << 22


def fixed_inputs(
    kernel: Kernel,
    problem: Problem,
    problems: Sequence[Problem],
    datasets: Sequence[Dataset],
    inputs: Sequence[Argument],
    end_s: float,
) -> dict[str, str]:
    """Return the inputs whose content a kernel could hold, with a description of the content.

    The content is the same for all problems and in all draws, or it has few different steps. The sizes of a
    problem are no such inputs, because verification at other sizes changes them.
    """
    drawn = {each.name: [dataset.values(each.name) for dataset in datasets] for each in inputs}
    others = {name: list[NDArray[Any]]() for name in drawn}
    fixed = {name: _description(values, []) for name, values in drawn.items()}

    def compare(contents: Mapping[str, list[NDArray[Any]]], declared: Mapping[str, Any]) -> None:
        for name in [name for name in declared if fixed.get(name)]:
            argument, array = argument_of(kernel, name, declared[name])
            contents[name].append(argument.values(array))
            fixed[name] = _description(drawn[name], others[name])

    for other in _other_problems(problem, problems):
        if any(fixed.values()) and time.monotonic() < end_s:
            with suppress(SpecError):  # the kernel does not support this problem
                compare(others, declared_values(kernel, other))
    for key in range(_DRAWS):
        if any(fixed.values()):
            with suppress(SpecError):
                declared = kernel.call_hook("arguments", problem, Draw(exact=False, key=key))
                compare(drawn, declared)
    return {name: text for name, text in fixed.items() if text}


def _other_problems(problem: Problem, problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield problems with one field changed, then the declared problems."""
    for name, value in problem.items():
        for changed in (value + 1, 2 * value) if isinstance(value, int) else ("",):
            yield problem.replace(**{name: changed})
    yield from (other for other in problems if size_of(other) <= _MAX_SIZE)


def _description(drawn: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]]) -> str:
    """Describe the content of several draws and for other problems; return "" if a kernel must read it."""
    first, everywhere = drawn[0], (*drawn, *others)
    is_same, is_fixed = (
        all(np.array_equal(first, values) for values in contents)
        for contents in (drawn, everywhere)
    )
    # A rule may give an array that varies with the problem, and a line one that varies with the draw.
    most = _STEPS if is_same else 1
    is_regular = first.size >= _MIN_ELEMENTS and all(
        values.size < _MIN_ELEMENTS or _steps(values) <= most for values in everywhere
    )
    if all((values == first.flat[0]).all() for values in everywhere):
        return str(first.flat[0])
    return "the same" if is_fixed else "a regular pattern" if is_regular else ""


def _steps(values: NDArray[Any]) -> int:
    """Return the number of different steps between neighbours in memory, apart from rounding."""
    flat, steps = values.reshape(-1), 0
    for part in (flat[:_HEAD], flat):
        if steps <= _STEPS:
            wide = part.astype(np.result_type(part, np.float64))
            eps = np.finfo(part.dtype).eps if part.dtype.kind in "fc" else 0.0
            with np.errstate(all="ignore"):
                steps = np.unique(np.rint(np.diff(wide) / (8 * eps * np.abs(wide).max() or 1))).size
    return steps


def redraws(
    problem: Problem, argument: Argument, values: NDArray[Any]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield expressions that draw an input in the range and order of its values, and what they draw."""
    rng, shape = np.random.default_rng(0), values.shape
    flat = np.nan_to_num(values.reshape(-1).real, posinf=0, neginf=0)
    fields = {extent: f"p.{name}" for name, extent in problem.items() if type(extent) is int}
    extents = [fields.get(extent, str(extent)) for extent in shape]
    size = f", ({', '.join(extents)})" if len(extents) > 1 else "".join(f", {n}" for n in extents)
    low, high, is_whole = flat.min().item(), flat.max().item(), flat.dtype.kind in "biu"
    is_sorted = low < high and bool((flat[1:] >= flat[:-1]).all())
    if is_whole and is_sorted and high - low == flat.size - 1:
        yield f'rng.permutation({extents[0]}).astype("{values.dtype}")', rng.permutation(flat)
    if low == high:
        low, high = sorted((low / 2, low)) if low else (0, 1)
    drawn: NDArray[Any]
    if is_whole:
        low, high = int(low), int(high)
        of_type = "" if values.dtype == np.int32 else f', dtype="{values.dtype}"'
        text = f"rng.integers({low}, {high + 1}{size}{of_type})"
        drawn = rng.integers(low, high, shape, values.dtype, endpoint=True)
    else:
        of_type = "" if values.dtype == np.float32 else f'.astype("{values.dtype}")'
        text = f"rng.uniform({low:.3g}, {high:.3g}{size}){of_type}"
        drawn = rng.uniform(low, high, shape).astype(values.dtype)
    if is_sorted:
        drawn = np.sort(drawn, axis=None)
        drawn[[0, -1]] = low, high
        yield f"np.sort({text})", drawn.reshape(shape)
    else:
        yield text, np.where(drawn == values, high - drawn + low, drawn).astype(values.dtype)

"""Finds outputs that the reference computes in 8 or 16 bits and that wrap around, mostly by mistake."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.data.arguments import Argument, declared_arguments
from autotune.data.dataset import RANDOM
from autotune.data.prepare import drawn_dataset
from autotune.data.reference import outputs_of
from autotune.data.small import MANY_ELEMENTS, PROBE_ELEMENTS, elements_of, small_problem
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel
from autotune.values import size_of

#: Bytes of the largest type whose wrapping is looked for.
_NARROW_BYTES = 2


def wrapping_outputs(kernel: Kernel, seed: int = 0) -> Iterator[str]:
    """Yield a warning for each integer output that differs if the reference gets 64-bit integers.

    It is evaluated on random data of the smallest problem, made small.
    """
    if "reference" not in kernel.hooks:
        return
    problem = min(kernel.all_problems(), key=size_of)
    with suppress(SpecError):  # the kernel's functions refuse the problem
        if elements_of(kernel, problem) > MANY_ELEMENTS:
            problem = small_problem(kernel, problem, PROBE_ELEMENTS) or problem
    names = _narrow_inputs(kernel, declared_arguments(kernel, problem).values())
    if not names:
        return
    dataset = drawn_dataset(kernel, problem, RANDOM, seed)
    narrow = {name: dataset.array(name) for name in names}
    kernel = kernel.of_problem(problem)
    try:
        usual = outputs_of(kernel, dataset, narrow)
        wide = outputs_of(
            kernel, dataset, {name: array.astype(np.int64) for name, array in narrow.items()}
        )
    except SpecError:  # the reference needs the types of its inputs
        return
    modulus = 2 ** min(8 * array.itemsize for array in narrow.values())
    types = " and ".join(sorted({array.dtype.name for array in narrow.values()}))
    for name in usual.keys() & wide.keys():
        if (where := _wraps(usual[name], wide[name], modulus)) is not None:
            yield (
                f"{kernel.name}: the reference wraps around in {types}: {name} has the element "
                f"{usual[name].flat[where]}, in 64 bits {wide[name].flat[where]}; if the kernel does not "
                f"wrap, compute in a wider type, for example {next(iter(narrow))}.astype(np.int32)"
            )


def _narrow_inputs(kernel: Kernel, arguments: Iterable[Argument]) -> list[str]:
    read = inspect.signature(kernel.hook("reference")).parameters
    return [
        argument.name
        for argument in arguments
        if argument.name in read
        and argument.kind in ("input", "inout", "constant")
        and argument.count
        and argument.value_type.kind in "iu"
        and not argument.bits_of
        and np.dtype(argument.dtype).itemsize <= _NARROW_BYTES
    ]


def _wraps(usual: NDArray[Any], wide: NDArray[Any], modulus: int) -> int | None:
    """Return the first place where a value wrapped around; None if none did, or for other differences."""
    if usual.dtype.kind not in "iu" or wide.dtype.kind not in "iu" or usual.shape != wide.shape:
        return None
    difference = usual.astype(np.int64) - wide.astype(np.int64)
    if not difference.any() or (difference % modulus).any():
        return None
    return int(np.flatnonzero(difference)[0])

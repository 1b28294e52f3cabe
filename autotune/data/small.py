"""Finds small problems of the same kind as a large one: the same text and compile-time fields, few elements.

What is a property of a kernel's functions, and not of a size, is found at a small problem.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from contextlib import suppress

from autotune.data.arguments import Argument, declared_arguments
from autotune.errors import SpecError
from autotune.kernel.sizes import cost_of, shrunk, size_fields
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Number of elements of all arrays above which a problem is large.
MANY_ELEMENTS = 1 << 22
#: Number of elements of a small problem that shows a property of a kernel's functions.
PROBE_ELEMENTS = 1 << 16
#: Number of elements from which such a problem takes the place of another.
MIN_ELEMENTS = 4 * PROBE_ELEMENTS
#: Binary logarithms of the values that the fields of a small problem keep at most.
_POWERS = range(4, 31)
#: Highest cost of a small problem for each element that it may have; see `cost_of`.
_COST_OF_ELEMENT = 128


def elements_of(kernel: Kernel, problem: Problem) -> int:
    """Return the number of elements of all arrays of a problem, without drawing them."""
    return count_of(declared_arguments(kernel, problem).values())


def count_of(arguments: Iterable[Argument]) -> int:
    """Return the number of elements of all arrays among arguments."""
    return sum(argument.count for argument in arguments if argument.kind != "scalar")


def small_problem(
    kernel: Kernel, problem: Problem, most_elements: int, kept: Collection[str] = ()
) -> Problem | None:
    """Return the largest problem of the same kind with a number of elements at most; None if there is none.

    Its fields keep their remainders by a power of two, and ``kept`` fields their value.
    """
    most_cost = _COST_OF_ELEMENT * most_elements if "work" in kernel.hooks else math.inf
    fields, found = [n for n in size_fields(kernel, problem) if n not in kept], None
    for power in _POWERS:
        small = shrunk(problem, fields, 1 << power)
        if small == problem:
            break
        with suppress(SpecError):  # the kernel's functions refuse this problem
            if elements_of(kernel, small) > most_elements:
                break
            if cost_of(kernel, small) <= most_cost:
                found = small
    return found

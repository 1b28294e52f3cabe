"""Carries bounds of elements from small problems to a large one, whose reference is costly.

A bound is a property of the kernel's function more than of its size. It is a share of the element's size
(an exponential, a quotient), or of the typical size of the output (a mean of neighbours). The share is taken
from a small problem, and only if a smaller one has the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.data import tolerance
from autotune.data.dataset import Dataset
from autotune.data.evaluations import Evaluations
from autotune.data.small import small_problem
from autotune.errors import SpecError
from autotune.kernel.sizes import size_fields
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Share of a large problem's elements that the small problem has: all evaluations there cost less than one more
#: of the large problem. Then the least and the largest number of elements.
_SHARE, _LEAST_ELEMENTS, _MOST_ELEMENTS = 1 / 64, 1 << 15, 1 << 22
#: Share of its elements that the smaller problem has.
_SMALLER = 1 / 8
#: Least number of elements of an output whose bounds have a distribution.
_MIN_OUTPUT = 256
#: Ratio of a bound to the carried one below which it is an outlier, and the largest share of these. Errors of
#: small elements then show among large ones, and chance alone makes some bounds a tenth.
_LOW, _LOW_SHARE = 1 / 16, 1 / 16
#: The same above: correct kernels need at most a third of a bound.
_HIGH, _HIGH_SHARE = 4.0, 1 / 32
#: The same far above: a pole of the function.
_FAR, _FAR_SHARE = 32.0, 1 / 4096
#: Largest ratio of the shares of two problems that are equal but for chance.
_SAME = 1.25

#: Returns the inputs of a problem of the kernel.
Datasets: TypeAlias = Callable[[Problem], Dataset]


def carried_shares(
    kernel: Kernel, problem: Problem, datasets: Datasets, names: Sequence[str], elements: int
) -> dict[str, tolerance.Carried]:
    """Return the shares of bounds that small problems give for outputs; {} unless they give all of them.

    ``elements`` is the number of elements of the large problem. If the shares change with all fields together,
    each field keeps its value in turn: the share of a sum of positive terms changes with their number.
    """
    most = int(min(_MOST_ELEMENTS, max(_LEAST_ELEMENTS, _SHARE * elements)))
    for kept in [(), *((name,) for name in size_fields(kernel, problem))]:
        small = small_problem(kernel, problem, most, kept)
        smaller = small and small_problem(kernel, small, int(_SMALLER * most), kept)
        if small and smaller:
            with suppress(SpecError):  # the kernel's functions refuse a problem
                first, other = (
                    Evaluations(kernel.of_problem(size), datasets(size), tuple(names), key=0)
                    for size in (small, smaller)
                )
                found = {name: _common_share(first, other, name) for name in names}
                shares = {name: share for name, share in found.items() if share}
                if len(shares) == len(names):
                    return shares
    return {}


def _common_share(first: Evaluations, other: Evaluations, name: str) -> tolerance.Carried | None:
    """Return the share of an output that two problems have in common."""
    others = list(_shares(other, name))
    for share in _shares(first, name):
        for known in others:
            ratio = share.share / known.share
            if share.is_relative == known.is_relative and 1 / _SAME <= ratio <= _SAME:
                return share
    return None


def _shares(evaluations: Evaluations, name: str) -> Iterator[tolerance.Carried]:
    """Yield the shares that describe the bounds of an output, the one with the smaller spread first."""
    expected, is_few = evaluations.expected[name], evaluations.depends_on_few(name)
    if expected.size < _MIN_OUTPUT or is_few is None:
        return
    info, responses = evaluations.info(name), evaluations.responses[name]
    bounds = tolerance.amplified_bounds(info, expected, responses, is_few)
    is_finite = np.isfinite(expected) & np.isfinite(bounds)
    sizes, rest = np.abs(expected[is_finite], dtype=np.float64), bounds[is_finite]
    typical, found = tolerance.typical_size(expected), list[tuple[float, tolerance.Carried]]()
    for is_relative in (True, False):
        base = tolerance.Carried(1.0, is_relative).base(sizes, typical)
        share, spread = _share(rest, base)
        if share:
            carried = tolerance.Carried(share, is_relative, not responses.knows_integers)
            found.append((spread, carried))
    yield from (share for _, share in sorted(found, key=lambda pair: pair[0]))


def _share(rest: NDArray[np.float64], base: NDArray[np.float64]) -> tuple[float, float]:
    """Return the geometric mean of the ratios and their spread; 0 if there are too many outliers."""
    counts = base > 0
    unbased = np.count_nonzero(rest[~counts])
    if not counts.any():
        return 0.0, 0.0
    ratios = rest[counts] / base[counts]
    median = float(np.median(ratios))
    if not median:
        return 0.0, 0.0
    logarithms = np.log(np.clip(ratios, _LOW * median, _HIGH * median))
    share = float(np.exp(logarithms.mean()))
    above, far = (
        (np.count_nonzero(ratios > most * share) + unbased) / rest.size for most in (_HIGH, _FAR)
    )
    if np.mean(ratios < _LOW * share) > _LOW_SHARE or above > _HIGH_SHARE or far > _FAR_SHARE:
        return 0.0, 0.0
    return share, float(logarithms.std())

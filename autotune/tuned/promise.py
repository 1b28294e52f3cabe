"""Shares of the best speed that problems got which were left out -> what is promised to others.

A promise is a lower bound that nine of ten keep, and it sinks with the distance to what was measured.
Knows no configurations and no tables.

Every problem is left out alone, and then with its neighbours, farther and farther; what it gets is
filed under the distance to the nearest problem that was left. A promise for a distance is made of
the problems that are at that distance or in the next step, of each the worst share:

- of 19 or more it is the quantile of these shares, as in the jackknife (Barber, Candès, Ramdas and
  Tibshirani, *Predictive inference with the jackknife+*, 2021)
- of fewer it is no more than the least, nor than the bound of one more loss, as if losses, minus the
  logarithms of shares, were exponential (Lawless, *Statistical Models and Methods for Lifetime Data*,
  2003): the next one may be worse than all of so few.

All are of 95 %, since problems of one kernel are not drawn at random, as these suppose.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

#: Distances that promises are made for. Beyond the last nothing is promised.
STEPS = (16, 32, 64, 128)
#: What is looked at beside these, as the next step after the last.
_BEYOND = 256
#: Fewer problems than this tell nothing about those that were not measured.
ENOUGH_PROBLEMS = 4
#: Share of those asked for whom a bound need not hold.
LEVEL = 0.05
#: A share that is as good as nothing: where nothing runs.
FAILED = 1e-3
#: Less is not worth promising.
LEAST = 0.1


def expectations(
    problems: Sequence[int],
    apart: Callable[[int, int], int],
    share_of: Callable[[int, Sequence[int]], float],
) -> tuple[tuple[int, float], ...]:
    """What is promised within which distance, nearest first; empty where too little is known.

    Parameters
    ----------
    problems : sequence of int
        What was measured.
    apart : callable
        The distance of two of them.
    share_of : callable
        What one gets, as a share of the best, from a table that is made of the given others only.
    """
    ends = (*STEPS, _BEYOND)
    shares: list[dict[int, float]] = [{} for _ in ends]
    for problem in problems:
        distances = {other: apart(problem, other) for other in problems if other != problem}
        for emptied in (-1, *STEPS):
            known = [other for other, distance in distances.items() if distance > emptied]
            if len(known) < ENOUGH_PROBLEMS - 1:  # no table would be made of so few
                break
            nearest = min(distances[other] for other in known)
            place = bisect_left(ends, nearest)
            # With nothing so near, leaving out what is nearer yet leaves out the same.
            if place < len(ends) and problem not in shares[place]:
                shares[place][problem] = share_of(problem, known)
    found: list[tuple[int, float]] = []
    for place, step in enumerate(STEPS):
        worst: dict[int, float] = {}
        for problem, share in (pair for held in shares[place : place + 2] for pair in held.items()):
            worst[problem] = min(share, worst.get(problem, share))
        if len(worst) >= ENOUGH_PROBLEMS:
            bound = min(lower_bound(tuple(worst.values())), found[-1][1] if found else 1.0)
            if bound < LEAST:
                break
            if found and found[-1][1] == bound:
                found.pop()
            found.append((step, bound))
    return tuple(found)


def lower_bound(shares: Sequence[float]) -> float:
    """What one more share is at least, with a probability of 95 %; see the module."""
    count = len(shares)
    logs = sorted(math.log(max(share, FAILED)) for share in shares)
    place = math.floor(LEVEL * (count + 1))
    exponential = sum(logs) * (LEVEL ** (-1 / count) - 1)
    return rounded(math.exp(logs[place - 1] if place else min(logs[0], exponential)))


def rounded(share: float) -> float:
    """Downwards, to what is worth writing."""
    return math.floor(1e4 * share + 1e-9) / 1e4

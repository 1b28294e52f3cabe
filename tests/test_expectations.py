"""Promises: bounds that hold as often as they say, and that sink with the distance."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.tuned.fallback import (
    ENOUGH_PROBLEMS,
    FAILED,
    STEPS,
    expectations,
    lower_bound,
)


def line(places: Sequence[int]) -> Callable[[int, int], int]:
    """The distance of problems that lie on a line."""
    return lambda p, q: abs(places[p] - places[q])


@pytest.mark.parametrize("count", [4, 9, 18, 35, 200])
def test_nine_of_ten_losses_like_those_seen_are_within_the_bound(count: int) -> None:
    """Of exponential losses 95 % are for few; a quantile of many is one of any distribution."""
    rng = random.Random(count)
    held = 0
    for _ in range(2000):
        *seen, new = (math.exp(-rng.expovariate(20)) for _ in range(count + 1))
        held += new >= lower_bound(seen)
    assert held >= 0.93 * 2000


def test_a_rare_great_loss_is_expected_of_many_only_where_it_was_seen_often() -> None:
    """One of 40 at half the speed is less than one of twenty; three are more."""
    steady = [0.99] * 40
    assert lower_bound([*steady[3:], 0.5, 0.5, 0.5]) == 0.5
    assert lower_bound([*steady[1:], 0.5]) == 0.99


def test_of_few_the_next_may_be_worse_than_all() -> None:
    assert lower_bound([0.95, 0.96, 0.97, 0.98]) < 0.9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_bound_is_a_share_and_below_most(shares: list[float]) -> None:
    bound = lower_bound(shares)
    assert 0 <= bound <= 1
    assert bound <= max(*shares, FAILED) + 1e-9
    assert sum(max(share, FAILED) < bound - 1e-9 for share in shares) <= 0.05 * len(shares)


def test_what_is_farther_is_promised_less_and_what_is_too_far_nothing() -> None:
    """A table that answers near itself and loses a hundredth for each step of the distance."""
    places = range(0, 480, 12)
    apart = line(places)

    def share_of(problem: int, known: Sequence[int]) -> float:
        return 1 - min(apart(problem, other) for other in known) / 200

    found = dict(expectations(range(len(places)), apart, share_of))
    # Of each step those count that are in it or in the next: 24, 36, 72 and 132 away.
    assert found == {16: 0.88, 32: 0.82, 64: 0.64, 128: 0.34}


def test_steps_that_promise_the_same_are_one() -> None:
    places = range(0, 480, 12)
    assert expectations(range(40), line(places), lambda *_: 1.0) == ((STEPS[-1], 1.0),)


@pytest.mark.parametrize("count", range(ENOUGH_PROBLEMS))
def test_few_problems_promise_nothing(count: int) -> None:
    assert expectations(range(count), line([0, 10, 20]), lambda *_: 1.0) == ()


def test_problems_far_from_each_other_promise_nothing() -> None:
    assert expectations(range(9), line([1000 * p for p in range(9)]), lambda *_: 1.0) == ()


def test_nothing_is_asked_of_nobody() -> None:
    """A table of no problems answers nothing, so none is made."""

    def share_of(problem: int, known: Sequence[int]) -> float:
        assert known
        assert problem not in known
        return 1.0

    expectations(range(6), line([0, 0, 1, 1, 40, 80]), share_of)

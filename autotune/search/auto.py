"""Our own strategies: ``surrogate`` asks the model for each configuration, ``auto`` also ends the search.

SciPy is imported where there is a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from autotune.kernel.space import Space
from autotune.search.base import BudgetSpent, Outlook, Session, is_measured_whole

if TYPE_CHECKING:
    from numpy.random import Generator

    from autotune.search.proposals import EndRule, Proposer

#: Results of own proposals before the model learns the seeds, on a first problem.
HELD = 40
#: The model learns at most this many of the configurations measured before the strategy began.
KNOWN = 256
#: Minimum number of space-filling configurations, if they are a third of a counted budget.
LEAST_START = 2


def auto(space: Space, session: Session, rng: Generator, ahead: int = 1) -> None:
    """Measure the whole space if it is small or the budget allows, else search until little is left to gain."""
    if is_measured_whole(len(space), session.evaluations_left, ahead > 1):
        session.measure(range(len(space)))
        return
    from autotune.search.proposals import EndRule

    # With related problems most results are of configurations compiled for them, which say little new.
    least = (4 if session.related else 1) * EndRule.least
    surrogate(space, session, rng, ahead, EndRule(least=least))


def surrogate(
    space: Space, session: Session, rng: Generator, ahead: int = 1, rule: EndRule | None = None
) -> None:
    """Search by the model until the budget is spent, all is measured or the rule ends the search.

    ``ahead`` proposals may wait for their result: as many as compilers and devices can take where
    time is scarce, 1 where evaluations are counted.
    """
    from autotune.search.proposals import START, Proposer

    left = session.evaluations_left
    held = 0 if session.related else HELD if left is None else min(HELD, left // 5)
    start = START if left is None else min(START, max(LEAST_START, left // 3))
    proposer = Proposer(
        space,
        np.random.default_rng(int(rng.integers(2**31))),
        session.problem_features,
        session.related,
        held,
        session.compiled,
        start,
    )
    known = session.best(KNOWN)
    for number, measurement in zip(known, session.measure(known) if known else (), strict=True):
        proposer.learn(number, measurement)
    try:
        if ahead > 1:
            _stream(proposer, session, ahead, rule)
        else:
            for number in _proposals(proposer, rule):
                proposer.learn(number, *session.measure([number]))
    except BudgetSpent:
        session.outlook = Outlook(proposer.gain_left())
        raise
    session.outlook = Outlook(proposer.gain_left(), is_enough=proposer.is_open)


def _stream(proposer: Proposer, session: Session, ahead: int, rule: EndRule | None) -> None:
    """Give compilers new configurations; devices measure compiled ones meanwhile."""

    def at_hand() -> int | None:
        return proposer.ask(compiled=True) if proposer.has_compiled else None

    session.stream(_proposals(proposer, rule, compiled=False), proposer.learn, ahead, at_hand)


def _proposals(
    proposer: Proposer, rule: EndRule | None, compiled: bool | None = None
) -> Iterator[int]:
    while not (rule and rule.ends(proposer)):
        number = proposer.ask(compiled)
        if number is None:
            return
        yield number

"""Our own strategies: ``surrogate`` asks the model for each configuration, ``auto`` also ends the search.

SciPy is imported only if a search needs the model.
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

#: Number of own results before the model learns the seeds, in a search without related problems.
HELD_BACK = 40
#: Maximum number of earlier measurements that the model learns.
MAX_KNOWN = 256
#: Minimum number of space-filling configurations under a budget of evaluations.
MIN_START = 2


def auto(space: Space, session: Session, rng: Generator, ahead: int = 1) -> None:
    """Measure the whole space if the budget allows, else search until little is left to gain."""
    if is_measured_whole(len(space), session.evaluations_left, ahead > 1):
        session.measure(range(len(space)))
        return
    from autotune.search.proposals import EndRule

    # With related problems, most results are of configurations compiled for them and add little.
    least = (4 if session.related else 1) * EndRule.least
    surrogate(space, session, rng, ahead, EndRule(least=least))


def surrogate(
    space: Space, session: Session, rng: Generator, ahead: int = 1, rule: EndRule | None = None
) -> None:
    """Search by the model until the budget is spent, the space is measured or the rule ends the search.

    Up to ``ahead`` proposals wait for their result. Use 1 under a budget of evaluations, and under a time
    budget as many as keep compilers and devices busy.
    """
    from autotune.search.proposals import START, Proposer

    left = session.evaluations_left
    held = 0 if session.related else HELD_BACK if left is None else min(HELD_BACK, left // 5)
    start = START if left is None else min(START, max(MIN_START, left // 3))
    proposer = Proposer(
        space,
        np.random.default_rng(int(rng.integers(2**31))),
        session.problem_features,
        session.related,
        held,
        session.compiled,
        start,
    )
    known = session.best(MAX_KNOWN)
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
    """Propose uncompiled configurations; devices measure compiled ones while they wait."""

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

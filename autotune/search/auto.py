"""The default choice among strategies: by the space, the budget, and whether batches are served faster.

Replayed on the five spaces recorded beside this checkout (benchmarks/search_quality.py, 30 seeds, 200
evaluations), median evaluations to 95 % of the best, and seeds of 150 that got there:

==========================  ==========  ========  =========  ======  =====  =====
strategy                    conv. 3090  c.m.A100  c.m.A4000  MI250X  gemm   seeds
==========================  ==========  ========  =========  ======  =====  =====
kt:adaptive_tabu_greywolf           60      >200        108     106     52    126
kt:hybrid_vndx                      39       196        132      68     80    118
kt:genetic_algorithm                96      >200        168     153    178     97
kt:pso                              98      >200        114     112   >200     92
optuna:tpe                          34      >200        188    >200    126     86
kt:mls                             158      >200       >200    >200   >200     42
random                            >200      >200       >200    >200   >200     36
==========================  ==========  ========  =========  ======  =====  =====
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.kernel.space import Space
from autotune.search import kernel_tuner as kernel_tuner_adapter
from autotune.search import simple
from autotune.search.base import Session

if TYPE_CHECKING:
    from numpy.random import Generator

#: Below this many evaluations no strategy has learned anything yet.
TINY = 20
STRATEGY = "adaptive_tabu_greywolf"
#: Of those that ask for whole generations, which several devices or compilers can share, the best in
#: the table. Where time is the limit and a compilation takes a second, it tries several times as many
#: configurations as one that waits for every answer.
POPULATION = "genetic_algorithm"


def search(space: Space, session: Session, rng: Generator, strategy: str = STRATEGY) -> None:
    """In order where all fits in the budget, at random where hardly anything does, else Kernel Tuner."""
    left = session.evaluations_left
    if left is not None and left >= len(space):
        simple.exhaustive(space, session, rng)
    elif left is not None and left < TINY:
        simple.random(space, session, rng)
    else:
        kernel_tuner_adapter.search(strategy, space, session, rng)

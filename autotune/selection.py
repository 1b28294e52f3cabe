"""Who won: ranking of interleaved samples, ties, confidence, and the ratio to the vendor.

Knows statistics, no files and no devices. All samples of one race were taken in rounds, so the
k-th samples of all contenders saw the same clocks and temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autotune.measurement import Measurement, Status
from autotune.timing import median_interval
from autotune.values import Configuration, Problem

#: Resamples of a bootstrap interval; more change the third digit.
_RESAMPLES = 2000
#: Most configurations that are measured on every problem.
PORTFOLIO_SIZE = 32
#: A contender whose ratio to the best cannot be told from 1 within this share is tied with it.
_TIE_TOLERANCE = 0.002


@dataclass(frozen=True)
class Ratio:
    """A ratio of median times, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Finalist:
    """One configuration after the finals."""

    measurement: Measurement
    samples_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Median over the rounds of the finals."""
        return median(self.samples_ms)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """95 % interval of that median."""
        return median_interval(self.samples_ms)


@dataclass(frozen=True)
class Result:
    """The outcome of one problem's finals."""

    winner: Finalist
    #: All finalists, best first.
    finalists: tuple[Finalist, ...]
    #: Those that cannot be told from the best, the winner among them.
    tied: tuple[Finalist, ...]
    #: Median of each baseline, and its time over the winner's: above 1 the winner is faster.
    vendors: Mapping[str, tuple[float, Ratio]]
    #: Samples of each baseline, in the rounds of the finalists.
    vendor_samples: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Portfolio:
    """Chosen configurations measured on every problem of a run."""

    configurations: tuple[Configuration, ...]
    problems: tuple[Problem, ...]
    #: One row per configuration, one column per problem; None where it is not right there.
    median_ms: tuple[tuple[float | None, ...], ...]

    def fraction(self, configuration: Configuration, but: Problem) -> float:
        """Geometric mean share of the best speed over the problems other than one; 0 if unknown."""
        if configuration not in self.configurations:
            return 0.0
        row = self.median_ms[self.configurations.index(configuration)]
        shares = []
        for column, problem in enumerate(self.problems):
            best = min((one[column] or math.inf for one in self.median_ms), default=math.inf)
            if problem != but and best < math.inf:
                time_ms = row[column]
                shares.append(best / time_ms if time_ms else 1e-3)
        return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else 1.0


def enter_portfolio(results: Sequence[Result], default: Configuration) -> list[Configuration]:
    """Who is measured on every problem: the default, tied sets and the three best of each.

    At most `PORTFOLIO_SIZE`: problems take turns, best first.
    """
    chosen: dict[Configuration, None] = {default: None}
    ranks = [[*one.tied, *one.finalists[:3]] for one in results]
    for place in range(max(map(len, ranks), default=0)):
        for ranked in ranks:
            if place < len(ranked) and len(chosen) < PORTFOLIO_SIZE:
                chosen[ranked[place].measurement.configuration] = None
    return list(chosen)


def with_portfolio(result: Result, problem: Problem, portfolio: Portfolio, seed: int = 0) -> Result:
    """Choose again among the tied: the best over the other problems, then fewest registers.

    Parameters
    ----------
    result : Result
        Of the problem's finals.
    problem : Problem
        Left out of the comparison: there they are tied.
    portfolio : Portfolio
        Of the same run.
    seed : int
        Of the bootstrap.
    """

    def merit(one: Finalist) -> tuple[float, int, float]:
        elsewhere = portfolio.fraction(one.measurement.configuration, problem)
        return (-round(elsewhere, 3), _registers(one.measurement), one.median_ms)

    winner = min(result.tied, key=merit)
    return replace(result, winner=winner, vendors=_against(result.vendor_samples, winner, seed))


def candidates(measured: Sequence[Measurement], count: int) -> list[Measurement]:
    """The best measurements by median, at most ``count``: who enters the finals."""
    timed = [one for one in measured if one.status is Status.OK and one.median_ms is not None]
    return sorted(timed, key=lambda one: one.median_ms or 0.0)[:count]


def decide(
    finalists: Sequence[Finalist], vendors: Mapping[str, Sequence[float]], seed: int = 0
) -> Result:
    """Rank finalists and choose the winner.

    All that cannot be told from the best are tied; of those the winner needs fewest registers,
    which leaves most room beside it, then has the smallest median.

    Parameters
    ----------
    finalists : sequence of Finalist
        With samples of the same rounds; at least one.
    vendors : mapping of str to sequence of float
        Samples of baselines in the same rounds.
    seed : int
        Of the bootstrap.
    """
    ranked = sorted(finalists, key=lambda one: one.median_ms)
    best = ranked[0]
    tied = [one for one in ranked if _is_tied(one, best, seed)]
    winner = min(tied, key=lambda one: (_registers(one.measurement), one.median_ms))
    return Result(
        winner=winner,
        finalists=tuple(ranked),
        tied=tuple(tied),
        vendors=_against(vendors, winner, seed),
        vendor_samples=dict(vendors),
    )


def ratio(numerator: Sequence[float], denominator: Sequence[float], seed: int = 0) -> Ratio:
    """Ratio of medians with its 95 % bootstrap interval, resampling rounds.

    Percentile bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, §13.3). Rounds are
    kept together, because drift moves both samples of a round alike.
    """
    rounds = min(len(numerator), len(denominator))
    above, below = np.asarray(numerator[:rounds]), np.asarray(denominator[:rounds])
    picks = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    ratios: NDArray[np.float64] = np.median(above[picks], axis=1) / np.median(below[picks], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def _against(
    vendors: Mapping[str, Sequence[float]], winner: Finalist, seed: int
) -> dict[str, tuple[float, Ratio]]:
    return {
        name: (median(samples), ratio(samples, winner.samples_ms, seed))
        for name, samples in vendors.items()
        if samples
    }


def _is_tied(one: Finalist, best: Finalist, seed: int) -> bool:
    return one is best or ratio(one.samples_ms, best.samples_ms, seed).low <= 1 + _TIE_TOLERANCE


def _registers(measurement: Measurement) -> int:
    return max((entry.registers or 0 for entry in measurement.entries), default=0)

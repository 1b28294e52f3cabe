"""Who won: ranking of interleaved samples, ties, confidence, the ratio to the vendor, doubts.

Knows statistics, no files and no devices. All samples of one race were taken in rounds, so the
k-th samples of all contenders saw the same clocks and temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autotune.devices.device import UNKNOWN_CLOCKS, Clocks
from autotune.measure.measurement import Energy, Measurement, Status, drift_words
from autotune.measure.timing import median_interval
from autotune.tuned.fallback import DETERMINISM
from autotune.values import Configuration, Problem

#: Resamples of a bootstrap interval; more change the third digit.
_RESAMPLES = 2000
#: Most configurations that are measured on every problem.
PORTFOLIO_SIZE = 48
#: Finalists that are deterministic, where a search found so many.
_LEAST_DETERMINISTIC = 2
#: A contender whose ratio to the best cannot be told from 1 within this share is tied with it.
_TIE_TOLERANCE = 0.002
#: How often finals of equally fast contenders may call any of them slower.
_FALSE_DIFFERENCE = 0.05
#: The most speed, as measured, that is given up for fewer registers or for other problems.
_WINNER_TOLERANCE = 0.003
#: A time, a ratio or a choice that may be wrong by a larger share is told to be unsure.
_UNSURE = 0.05
#: Rounds below which no two samples enclose the median with 95 %; see `median_interval`.
_LEAST_ROUNDS = 6
#: A device that took longer or shorter by this share for one thing, in more than one of ten looks
#: at it, makes it a matter of luck who enters the finals.
_MOVED, _SELDOM = 0.10, 0.10
#: What to do about a result that is unsure, for a person.
SURER = (
    "run again with --fresh while nothing else uses the device, with more time (--effort full, "
    "--budget), or with its clocks locked, which an administrator can do"
)


@dataclass(frozen=True)
class Ratio:
    """How much longer one takes than another in the same round: the median, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Finalist:
    """One configuration after the finals."""

    measurement: Measurement
    samples_ms: tuple[float, ...]
    #: Medians of clean calls, and of calls back to back, after the race; None where there was none.
    clean_ms: float | None = None
    hot_ms: float | None = None
    #: What each round cost by the objective; empty where that is the time.
    costs: tuple[float, ...] = ()
    #: Windows of the rounds; empty where energy was not measured.
    energies: tuple[Energy, ...] = ()
    #: Whether it is declared to give the same bits in every run, and so many runs that did.
    deterministic: bool = False
    identical_runs: int = 0

    @property
    def rounds(self) -> tuple[float, ...]:
        """What is compared, of each round: its cost, which is the time where no other was asked for."""
        return self.costs or self.samples_ms

    @property
    def cost(self) -> float:
        """Median over the rounds of what is compared."""
        return median(self.rounds)

    @property
    def median_ms(self) -> float:
        """Median over the rounds of the finals."""
        return median(self.samples_ms)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """95 % interval of that median."""
        return median_interval(self.samples_ms)

    @property
    def registers(self) -> int:
        """Per thread; 0 where unknown."""
        return self.measurement.largest_function.registers or 0


@dataclass(frozen=True)
class Repeat:
    """The best finalists raced again on another device of the model."""

    device_uuid: str
    #: Of every round; what failed there is missing.
    samples_ms: Mapping[Configuration, tuple[float, ...]]


@dataclass(frozen=True)
class Decision:
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
    #: Medians of each baseline's clean calls, and of its calls back to back.
    vendor_clean_ms: Mapping[str, float | None] = field(default_factory=dict)
    vendor_hot_ms: Mapping[str, float | None] = field(default_factory=dict)
    #: How all of them were launched: ``graph`` or ``stream``.
    launched_by: str = ""
    #: The worse of before and after the race.
    clocks: Clocks = UNKNOWN_CLOCKS
    #: Windows of each baseline, where energy was measured, and what its rounds cost by the objective:
    #: nothing where that is the time, or a metric, which a library has not.
    vendor_energies: Mapping[str, Sequence[Energy]] = field(default_factory=dict)
    vendor_costs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: None where there is one device.
    repeat: Repeat | None = None

    @property
    def best_deterministic(self) -> Finalist | None:
        """The best that gives the same bits in every run, where the winner does not; None: none does."""
        if self.winner.deterministic:
            return None
        return next((finalist for finalist in self.finalists if finalist.deterministic), None)

    @property
    def vendor(self) -> str | None:
        """The fastest baseline: beating a slower one proves nothing."""
        return min(self.vendors, key=lambda name: self.vendors[name][0], default=None)

    def against_winner(self, finalist: Finalist, seed: int = 0) -> Ratio:
        """A finalist's cost, by default its time, over the winner's, of the same rounds."""
        return ratio(finalist.rounds, self.winner.rounds, seed)

    def vendor_against_winner(self, name: str, seed: int = 0) -> Ratio | None:
        """A baseline's cost, by default its time, over the winner's; None where it has none."""
        if not self.winner.costs:
            return self.vendors[name][1]
        costs = self.vendor_costs.get(name, ())
        return ratio(costs, self.winner.costs, seed) if costs else None


@dataclass(frozen=True)
class PortfolioTimes:
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
            best = min((times[column] or math.inf for times in self.median_ms), default=math.inf)
            if problem != but and best < math.inf:
                time_ms = row[column]
                shares.append(best / time_ms if time_ms else 1e-3)
        return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else 1.0


def enter_portfolio(results: Sequence[Decision], default: Configuration) -> list[Configuration]:
    """Who is measured on every problem: the default, tied sets, the three best of each and the deterministic.

    At most `PORTFOLIO_SIZE`: problems take turns, best first.
    """
    chosen: dict[Configuration, None] = {default: None}
    ranks = [
        [*result.tied, *result.finalists[:3], *filter(None, [result.best_deterministic])]
        for result in results
    ]
    for place in range(max(map(len, ranks), default=0)):
        for ranked in ranks:
            if place < len(ranked) and len(chosen) < PORTFOLIO_SIZE:
                chosen[ranked[place].measurement.configuration] = None
    return list(chosen)


def with_portfolio(
    result: Decision, problem: Problem, portfolio: PortfolioTimes, seed: int = 0
) -> Decision:
    """Choose again among the tied: the best over the other problems, then fewest registers.

    The problem itself is left out of the comparison: there they are tied.
    """

    def merit(finalist: Finalist) -> tuple[float, int, float]:
        elsewhere = portfolio.fraction(finalist.measurement.configuration, problem)
        return (-round(elsewhere, 3), finalist.registers, finalist.cost)

    winner = min(_eligible(result.tied, result.tied[0]), key=merit)
    return replace(result, winner=winner, vendors=_against(result.vendor_samples, winner, seed))


def candidates(
    measured: Sequence[Measurement],
    count: int,
    is_deterministic: Callable[[Configuration], bool] = lambda _: False,
) -> list[Measurement]:
    """The best measurements by cost, the median by default, at most ``count``: who enters the finals.

    Those that were stopped early fill the places that are left. They get a second look: what
    stopped them may have been the clock of that moment. The last places are of those that are
    deterministic, where fewer than `_LEAST_DETERMINISTIC` of them are among the best.
    """
    timed = [row for row in measured if row.samples_ms and row.cost is not None]
    ranked = sorted(timed, key=lambda row: (row.status is not Status.OK, row.cost or 0.0))
    least = max(0, min(_LEAST_DETERMINISTIC, count - 1))
    repeating = (i for i, row in enumerate(ranked) if is_deterministic(row.configuration))
    kept = set(islice(repeating, least))
    others = (i for i in range(len(ranked)) if i not in kept)
    return [ranked[i] for i in sorted({*kept, *islice(others, count - len(kept))})]


def decide(
    finalists: Sequence[Finalist], vendors: Mapping[str, Sequence[float]], seed: int = 0
) -> Decision:
    """Rank finalists and choose the winner.

    Where the best is not deterministic and one that is costs at most `DETERMINISM` more, only such
    ones can win. All that cannot be told from the best of these are tied; of those that were measured
    within 0.3 % of it the winner needs fewest registers, which leaves most room beside it, then has
    the smallest median. Samples of all, baselines included, are of the same rounds.
    """
    ranked = sorted(finalists, key=lambda finalist: finalist.cost)
    entitled = _entitled(ranked)
    best = entitled[0]
    tied = [
        finalist
        for finalist in entitled
        if finalist is best or not _is_slower(finalist, best, len(ranked))
    ]
    winner = min(
        _eligible(tied, best),
        key=lambda finalist: (finalist.registers, finalist.cost),
    )
    return Decision(
        winner=winner,
        finalists=tuple(ranked),
        tied=tuple(tied),
        vendors=_against(vendors, winner, seed),
        vendor_samples=dict(vendors),
    )


def why_unsure(decision: Decision, measured: Sequence[Measurement]) -> str:
    """Why a result is unsure, from its finals and its search; empty where it is sure.

    `SURER` says what to do about it.
    """
    winner = decision.winner
    reasons = []
    looks = [1.0, *(row.recheck.ratio for row in measured if row.recheck is not None)]
    moved = [look / median(looks) - 1 for look in looks]
    if sum(abs(share) > _MOVED for share in moved) > _SELDOM * len(moved):
        reasons.append(f"the device changed during the search (drift {drift_words(measured)})")
    if decision.clocks.is_throttled:
        why = ", ".join(decision.clocks.throttle_reasons)
        reasons.append(f"the device was throttled during the finals ({why})")
    if len(winner.samples_ms) < _LEAST_ROUNDS:
        reasons.append(f"the finals had time for {len(winner.samples_ms)} rounds only")
    told = {"its time": Ratio(winner.median_ms, *winner.interval_ms)}
    if winner.costs:
        told["what is tuned for"] = Ratio(winner.cost, *median_interval(winner.costs))
    if decision.vendor:
        _, told[f"the ratio to {decision.vendor}"] = decision.vendors[decision.vendor]
    for name, number in told.items():
        width = max(number.high / number.value, number.value / number.low) - 1
        if width > _UNSURE:
            share = f"{width:.0%}" if width < 1 else f"a factor of {1 + width:.1f}"
            reasons.append(f"{name} is known to within {share} only")
    rivals = [decision.against_winner(other) for other in decision.tied if other is not winner]
    lead = 1 - min((rival.low for rival in rivals), default=1.0)
    if lead > _UNSURE:
        reasons.append(f"another finalist may be faster by {lead:.0%}")
    return "; ".join(reasons)


def ratio(numerator: Sequence[float], denominator: Sequence[float], seed: int = 0) -> Ratio:
    """Median ratio of the samples of a round, with its 95 % bootstrap interval.

    Percentile bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, §13.3) over rounds.
    What moves both samples of a round alike, drift or a change of clock, leaves their ratio.
    """
    ratios = _by_round(numerator, denominator)
    picks = np.random.default_rng(seed).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])
    return Ratio(float(np.median(ratios)), float(low), float(high))


def _by_round(numerator: Sequence[float], denominator: Sequence[float]) -> NDArray[np.float64]:
    rounds = min(len(numerator), len(denominator))
    above = np.asarray(numerator[:rounds], np.float64)
    return above / np.asarray(denominator[:rounds], np.float64)


def _against(
    vendors: Mapping[str, Sequence[float]], winner: Finalist, seed: int
) -> dict[str, tuple[float, Ratio]]:
    return {
        name: (median(samples), ratio(samples, winner.samples_ms, seed))
        for name, samples in vendors.items()
        if samples
    }


def _is_slower(finalist: Finalist, best: Finalist, contenders: int) -> bool:
    """Whether a finalist is surely slower than the best of so many.

    By the exact interval of the median ratio (a sign test), whose level is divided among all pairs
    of contenders (Bonferroni): which of them is the best shows only afterwards, so that the luckiest
    of many equals is compared with the unluckiest.
    """
    pairs = contenders * (contenders - 1) / 2
    ratios = _by_round(finalist.rounds, best.rounds)
    low, _ = median_interval(ratios.tolist(), 1 - _FALSE_DIFFERENCE / pairs)
    return low > 1 + _TIE_TOLERANCE


def _entitled(ranked: Sequence[Finalist]) -> Sequence[Finalist]:
    """Who may win: those that are deterministic, where their best is hardly slower than the best of all."""
    repeating = [finalist for finalist in ranked if finalist.deterministic]
    if not repeating:
        return ranked
    costs = np.median(_by_round(repeating[0].rounds, ranked[0].rounds))
    return repeating if costs <= 1 + DETERMINISM else ranked


def _eligible(tied: Sequence[Finalist], best: Finalist) -> list[Finalist]:
    """Of the tied, those measured so close to the best that one of them may win in its place.

    Where noise is large, much is tied that is a good deal slower.
    """
    most = 1 + _WINNER_TOLERANCE
    return [
        finalist
        for finalist in tied
        if finalist is best or np.median(_by_round(finalist.rounds, best.rounds)) <= most
    ]

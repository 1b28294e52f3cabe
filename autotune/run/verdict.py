"""Chooses the winner of a race: ranking, ties, ratios with their intervals, noise.

All functions are pure functions of samples. The k-th samples of all contenders come from one round of
the race, with the same clocks and temperature. Contenders are therefore compared round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune.answers.fit import DETERMINISM
from autotune.devices.base import CompiledFunction
from autotune.measure.measurement import TIME, Energy, Measurement, Objective, Status
from autotune.measure.race import Contender, ContenderSamples, Race
from autotune.measure.timing import median_interval
from autotune.tuned.record import ContenderResult, EnergyResult, Estimate, RaceResult
from autotune.values import Configuration

#: Number of resamples of a bootstrap interval; more would change the third digit only.
_RESAMPLES = 2000
#: Maximum number of configurations that are measured on every problem.
PORTFOLIO_SIZE = 48
#: Minimum number of deterministic finalists, if the search found them.
_MIN_DETERMINISTIC = 2
#: A contender is slower than the best if their ratio is significantly above 1 plus this share; else it is tied.
_TIE_TOLERANCE = 0.002
#: Maximum probability, per race, that a contender as fast as the best counts as slower.
_FALSE_DIFFERENCE = 0.05
#: A tied contender with fewer registers can win if its median cost exceeds the best's by at most this share.
_WINNER_TOLERANCE = 0.003
#: A time, a ratio or a choice that may be wrong by a larger share is noisy.
_NOISY = 0.05
#: Minimum number of rounds for a 95 % interval of the median; see `median_interval`.
_MIN_ROUNDS = 6
#: Advice for a result with less noise; `autotune.report.wording.hint` names the options.
LESS_NOISE = (
    "run again with {fresh} while no other program uses the device, with more time ({effort}, "
    "{budget}), or with locked clocks (an administrator can lock them)"
)


# ---------------------------------------------------------------------- entrants


def candidates(
    measured: Sequence[Measurement],
    count: int,
    is_deterministic: Callable[[Configuration], bool] = lambda _: False,
) -> list[Measurement]:
    """Return the best measurements by cost, at most ``count``, which enter the finals.

    Measurements that were stopped early come last. They may enter, because a change of clock may have
    stopped them. If fewer than `_MIN_DETERMINISTIC` of the best are deterministic, other deterministic
    configurations take the last places.
    """
    timed = [
        row
        for row in measured
        if row.samples_ms and row.cost is not None and row.status is not Status.PENDING
    ]
    ranked = sorted(timed, key=lambda row: (row.status is not Status.OK, row.cost or 0.0))
    least = max(0, min(_MIN_DETERMINISTIC, count - 1))
    deterministic = (i for i, row in enumerate(ranked) if is_deterministic(row.configuration))
    kept = set(islice(deterministic, least))
    others = (i for i in range(len(ranked)) if i not in kept)
    return [ranked[i] for i in sorted({*kept, *islice(others, count - len(kept))})]


def portfolio_entrants(
    results: Sequence[RaceResult], default: Configuration
) -> list[Configuration]:
    """Return the configurations to measure on every problem, the most important first.

    These are the default and, from each race, the tied configurations, the three best and the best
    deterministic one. Races take turns, up to `PORTFOLIO_SIZE` configurations.
    """
    chosen: dict[Configuration, None] = {default: None}
    ranks = [
        [
            *(finalist for finalist in result.finalists if finalist.tied),
            *result.finalists[:3],
            *filter(None, [result.best_deterministic]),
        ]
        for result in results
    ]
    for place in range(max(map(len, ranks), default=0)):
        for ranked in ranks:
            if place < len(ranked) and len(chosen) < PORTFOLIO_SIZE:
                chosen[Configuration(ranked[place].configuration)] = None
    return list(chosen)


# ---------------------------------------------------------------------- winner


def judge(
    race: Race,
    objective: Objective = TIME,
    seed: int = 0,
) -> RaceResult | None:
    """Choose the winner of a race and compare all contenders with it; return None if none was timed.

    1. Rank configurations by their median cost.
    2. If the best is not deterministic and a deterministic one costs at most `DETERMINISM` more,
       only deterministic configurations can win.
    3. Of these, among the configurations within 0.3 % of the best and not significantly slower, the one with
       the fewest registers wins: it leaves most room for other kernels. With equal registers, the smaller
       median wins.
    4. A configuration is tied if its ratio to the winner is not significantly above 1; see `paired_ratio`.

    ``seed`` is the seed of the bootstrap of the vendors' intervals.
    """
    costs = [
        _costs(contender, samples, objective)
        for contender, samples in zip(race.contenders, race.samples, strict=True)
    ]
    timed = [place for place, samples in enumerate(race.samples) if samples.times_ms]
    ranked = sorted(
        (place for place in timed if not race.contenders[place].vendor),
        key=lambda place: median(costs[place]),
    )
    if not ranked:
        return None
    eligible = _eligible(race, ranked, costs)
    best = eligible[0]
    close = [
        place
        for place in eligible
        if _is_close(costs[place], costs[best])
        and not _is_slower(paired_ratio(costs[place], costs[best], len(ranked)))
    ]
    winner = min(
        {best, *close}, key=lambda place: (race.contenders[place].registers, median(costs[place]))
    )
    paired = {place: paired_ratio(costs[place], costs[winner], len(ranked)) for place in ranked}
    tied = [place for place in eligible if not _is_slower(paired[place])]
    vendors = sorted(
        (place for place in timed if race.contenders[place].vendor),
        key=lambda place: median(race.samples[place].times_ms),
    )
    won_ms = race.samples[winner].times_ms
    contenders = []
    for place in (winner, *(place for place in ranked if place != winner), *vendors):
        contender, samples = race.contenders[place], race.samples[place]
        needs_time_ratio = contender.vendor and objective.needs_energy
        vendor_ratio = ratio(costs[place], costs[winner], seed) if costs[place] else None
        contenders.append(
            _summary(
                contender,
                samples,
                tied=None if contender.vendor else place in tied,
                ratio=vendor_ratio if contender.vendor else paired[place],
                time_ratio=ratio(samples.times_ms, won_ms, seed) if needs_time_ratio else None,
            )
        )
    result = RaceResult(
        timing=race.timing.value,
        rounds=len(won_ms),
        sm_mhz=race.clocks.sm_mhz,
        tied=len(tied),
        contenders=tuple(contenders),
    )
    cost = _estimate(costs[winner]) if objective.needs_energy else None
    noise = tuple(_noise(race, result, cost))
    return msgspec.structs.replace(result, noise=noise)


def paired_ratio(costs: Sequence[float], winner: Sequence[float], contenders: int) -> Estimate:
    """Return the median over rounds of a contender's cost over the winner's, with the interval that decides ties.

    The interval is the exact one of the median (a sign test). The winner is known only after the race, so
    any pair could be compared: the error probability is divided by the number of pairs of ``contenders``
    (Bonferroni).
    """
    if costs is winner:
        return Estimate(1.0, 1.0, 1.0)
    pairs = max(1.0, contenders * (contenders - 1) / 2)
    ratios = _by_round(costs, winner).tolist()
    return Estimate(median(ratios), *median_interval(ratios, 1 - _FALSE_DIFFERENCE / pairs))


def _is_slower(paired: Estimate) -> bool:
    return paired.interval[0] > 1 + _TIE_TOLERANCE


def ratio(numerator: Sequence[float], denominator: Sequence[float], seed: int = 0) -> Estimate:
    """Return the median over rounds of the ratio of two contenders' samples, with its 95 % interval.

    The interval is a percentile bootstrap over rounds (Efron & Tibshirani, An Introduction to the
    Bootstrap, §13.3). A change of clock affects both samples of a round and cancels in their ratio.
    """
    if numerator is denominator:
        return Estimate(1.0, 1.0, 1.0)
    ratios = _by_round(numerator, denominator)
    picks = np.random.default_rng(seed).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975])
    return Estimate(float(np.median(ratios)), float(low), float(high))


def _costs(
    contender: Contender, samples: ContenderSamples, objective: Objective
) -> Sequence[float]:
    """Return the cost of every round by the objective, or the times if the energy is missing."""
    if not samples.times_ms:
        return ()
    costs = objective.costs(samples.times_ms, samples.energy)
    return costs or (() if contender.vendor else samples.times_ms)


def _eligible(race: Race, ranked: Sequence[int], costs: Sequence[Sequence[float]]) -> Sequence[int]:
    """Return the deterministic contenders if their best is at most `DETERMINISM` slower; else all."""
    deterministic = [place for place in ranked if race.contenders[place].deterministic]
    if not deterministic:
        return ranked
    found = np.median(_by_round(costs[deterministic[0]], costs[ranked[0]]))
    return deterministic if found <= 1 + DETERMINISM else ranked


def _is_close(costs: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether a tied contender may win; with noise, much slower contenders are tied as well."""
    return bool(np.median(_by_round(costs, best)) <= 1 + _WINNER_TOLERANCE)


def _by_round(numerator: Sequence[float], denominator: Sequence[float]) -> NDArray[np.float64]:
    rounds = min(len(numerator), len(denominator))
    above = np.asarray(numerator[:rounds], np.float64)
    return above / np.asarray(denominator[:rounds], np.float64)


# ---------------------------------------------------------------------- results


def _summary(
    contender: Contender,
    samples: ContenderSamples,
    tied: bool | None,
    ratio: Estimate | None,
    time_ratio: Estimate | None,
) -> ContenderResult:
    function = contender.row.largest_function if contender.row else CompiledFunction("")
    return ContenderResult(
        configuration=None if contender.vendor else dict(contender.configuration),
        vendor=contender.vendor,
        tied=tied,
        time_ms=_estimate(samples.times_ms),
        ratio=ratio,
        time_ratio=time_ratio,
        clean_ms=samples.clean_ms,
        hot_ms=samples.hot_ms,
        energy=_energy(samples.energy),
        deterministic=contender.deterministic,
        identical_runs=samples.identical_runs,
        answers=contender.answers,
        pins=samples.pins,
        registers=function.registers,
        spill_bytes=function.spill_bytes,
        static_shared_bytes=function.shared_bytes,
        code=contender.code,
    )


def _estimate(samples: Sequence[float]) -> Estimate:
    return Estimate(median(samples), *median_interval(samples))


def _energy(windows: Sequence[Energy]) -> EnergyResult | None:
    if not windows:
        return None
    limits_w = [window.limit_w for window in windows if window.limit_w is not None]
    clocks = [window.clocks.sm_mhz for window in windows if window.clocks.sm_mhz is not None]
    return EnergyResult(
        call_mj=_estimate([window.call_mj for window in windows]),
        power_w=median(window.power_w for window in windows),
        limit_w=min(limits_w, default=None),
        sm_mhz=int(median(clocks)) if clocks else None,
        windows=len(windows),
    )


def _noise(race: Race, result: RaceResult, cost: Estimate | None) -> Iterator[str]:
    """Yield reasons why the time or the choice may be wrong; `LESS_NOISE` has the remedy."""
    if race.clocks.is_throttled:
        why = ", ".join(race.clocks.throttle_reasons)
        yield f"the device was throttled during the finals ({why})"
    if result.rounds < _MIN_ROUNDS:
        yield f"the finals had time for only {result.rounds} rounds"
    known: dict[str, Estimate | None] = {"its time": result.winner.time_ms}
    known["the objective"] = cost
    known[f"the ratio to {result.vendor_name}"] = result.speedup
    for name, number in known.items():
        if number is None:
            continue
        low, high = number.interval
        width = max(high / number.value, number.value / low) - 1
        if width > _NOISY:
            share = f"{width:.0%}" if width < 1 else f"a factor of {1 + width:.1f}"
            yield f"{name} is known only to within {share}"
    rivals = [rival.ratio for rival in result.runners_up if rival.tied and rival.ratio]
    lead = 1 - min((rival.interval[0] for rival in rivals), default=1.0)
    if lead > _NOISY:
        yield f"another finalist may be faster by {lead:.0%}"

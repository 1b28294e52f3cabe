"""How many samples, when to stop, and whether a 95 % interval holds the median 95 times in 100."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest

from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender, ContenderSamples, Race
from autotune.measure.timing import (
    StoppingRule,
    Timing,
    bar_ms,
    median_interval,
    proven_slow,
    sample,
)
from autotune.run.request import EFFORTS
from autotune.run.verdict import candidates, judge
from autotune.values import Configuration


class Script:
    """Times given in advance; counts what was taken."""

    def __init__(self, *first, then=()):
        self.times = itertools.chain(first, itertools.cycle(then or (1.0,)))
        self.taken = 0

    def __call__(self, count):
        self.taken += max(count, 0)
        return [next(self.times) for _ in range(count)]


NOISY = (1.0, 2.0, 3.0, 4.0, 5.0)


def test_steady_times_stop_at_the_fewest_samples_and_the_first_is_discarded():
    take = Script(99.0)
    done = sample(take, StoppingRule())
    assert done.samples_ms == (1.0,) * 7
    assert take.taken == 8
    assert not done.stopped_early


@pytest.mark.parametrize(("first_ms", "kept"), [(0.9, False), (1.1, True)])
def test_a_long_first_sample_is_kept(first_ms, kept):
    take = Script(first_ms, then=(1.1,))
    done = sample(take, StoppingRule(longest_discarded_ms=1.0))
    assert done.samples_ms[0] == 1.1
    assert take.taken == (7 if kept else 8)
    stopped = sample(Script(first_ms), StoppingRule(longest_discarded_ms=1.0), (0.5,) * 21)
    assert stopped.samples_ms == ((first_ms,) if kept else (1.0, 1.0))


def test_noisy_times_stop_at_the_most_samples():
    take = Script(then=NOISY)
    done = sample(take, StoppingRule())
    assert (len(done.samples_ms), take.taken) == (21, 22)


def test_time_running_out_ends_noisy_sampling_after_the_fewest():
    done = sample(Script(then=NOISY), StoppingRule(max_seconds=0.0))
    assert len(done.samples_ms) == 7


BEST = (1.0,) * 21


def clearly_slower(samples, best):
    return min(samples) > bar_ms(len(samples), best, 0.05)


@pytest.mark.parametrize(("ratio", "kept"), [(2.1, 1), (1.6, 2), (1.4, 3), (1.25, 5), (1.15, 7)])
def test_the_slower_the_fewer_samples_prove_it(ratio, kept):
    take = Script(0.1, then=(ratio, 9.0) if kept > 1 else (ratio,))  # the first is discarded
    done = sample(take, StoppingRule(), BEST)
    assert (done.stopped_early, len(done.samples_ms)) == (True, kept)
    assert done.samples_ms[0] == ratio
    assert take.taken == 1 + kept


@pytest.mark.parametrize(
    ("count", "of_best", "false_stop"), [(3, 6, 0.1), (2, 7, 0.2), (1, 9, 0.1)]
)
def test_the_bar_is_the_lowest_order_statistic_that_is_rarely_exceeded_by_chance(
    count, of_best, false_stop
):
    """Of equally fast configurations, by all orders in which their samples can come."""
    best = [float(rank) for rank in range(1, of_best + 1)]
    # The first sample of the other configuration exceeds as many samples of the best.
    exceeded = [min(places) for places in combinations(range(of_best + count), count)]
    rare = next(
        rank
        for rank in range(1, of_best + 1)
        if sum(below >= rank for below in exceeded) <= false_stop * len(exceeded)
    )
    assert bar_ms(count, best, false_stop) == pytest.approx((1 + 1 / count) * rare)


def test_what_may_be_as_fast_is_sampled_to_the_maximum_if_it_is_noisy():
    for close in ((0.999, 9.0), (1.0, 9.0)):
        done = sample(Script(9.0, then=close), StoppingRule(), BEST)
        assert len(done.samples_ms) == 21


def test_one_sample_as_fast_as_the_best_is_enough_to_go_on():
    """Noise makes a launch slower, never faster: the fastest sample decides."""
    assert not sample(Script(9.0, 1.0, then=(5.0,)), StoppingRule(), BEST).stopped_early
    assert sample(Script(1.0, 5.0, then=(1.0,)), StoppingRule(), BEST).stopped_early


def test_what_may_be_a_new_best_is_sampled_to_the_maximum():
    for best in ((), BEST):
        assert len(sample(Script(then=(0.99,)), StoppingRule(), best).samples_ms) == 21
    assert len(sample(Script(then=(1.01,)), StoppingRule(), BEST).samples_ms) == 7


@pytest.mark.parametrize("best", [None, (), (1.0,)])
def test_nothing_stops_early_for_want_of_a_best_or_of_its_samples(best):
    assert not sample(Script(then=(50.0,)), StoppingRule(), best).stopped_early


def test_launches_made_for_something_else_prove_as_much_as_samples():
    rule = StoppingRule()
    assert proven_slow((0.1, 1.6, 1.6), rule, BEST).samples_ms == (1.6, 1.6)  # the first: loading
    assert proven_slow((9.0, 1.6, 1.4), rule, BEST) is None
    long = StoppingRule(longest_discarded_ms=1.0)
    assert proven_slow((1.4, 1.4, 1.4), long, BEST).stopped_early
    assert proven_slow((1.4, 1.2, 1.4), long, BEST) is None


def test_launches_made_for_something_else_prove_nothing_without_best_or_rule():
    assert proven_slow((9.0, 9.0), StoppingRule(), ()) is None
    assert proven_slow((9.0, 9.0), StoppingRule(false_stop=0.0), BEST) is None
    assert proven_slow((9.0,), StoppingRule(), BEST) is None


def test_few_samples_of_the_best_need_more_of_the_other():
    """C(n + k - j, k) / C(n + k, k) with j = n is 1 / C(n + k, k): at least 20 arrangements."""
    for n, k in [(19, 1), (5, 2), (4, 3), (3, 3), (2, 5), (1, 19)]:
        assert clearly_slower([50.0] * k, [1.0] * n)
        if k > 1:
            assert not clearly_slower([50.0] * (k - 1), [1.0] * n)


def test_a_hiccup_in_the_best_shields_nothing_for_long_and_a_noisy_best_does():
    hiccup, noisy = [1.0] * 20 + [9.0], [1.0] * 14 + [2.0] * 7
    slow = [1.9] * 21
    assert not clearly_slower(slow[:1], hiccup)
    assert clearly_slower(slow[:2], hiccup)
    assert not any(clearly_slower(slow[:k], noisy) for k in (1, 2, 3))
    assert clearly_slower(slow, noisy)


def _without_margin(samples, best):
    """The precedence test alone."""
    margin = 1 + 1 / len(samples)
    return clearly_slower([margin * sample_ms * (1 + 1e-12) for sample_ms in samples], best)


@pytest.mark.parametrize("draw", ["lognormal", "exponential", "pareto"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_an_equal_one_is_stopped_no_oftener_than_said_whatever_the_noise(draw, k):
    rng = np.random.default_rng(k)
    draws = 1 + (
        rng.pareto(2, (4000, 21 + k))
        if draw == "pareto"
        else getattr(rng, draw)(size=(4000, 21 + k))
    )
    stopped = [_without_margin(row[:k], row[k:]) for row in draws.tolist()]
    assert np.mean(stopped) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)
    assert np.mean(stopped) > 0.01  # the test has power, so that the share says something
    margin = [clearly_slower(row[:k], row[k:]) for row in draws.tolist()]
    assert np.mean(margin) <= np.mean(stopped)


def test_precision_is_a_share_of_the_median():
    """The same relative noise ends alike for a nanosecond and for an hour."""
    for unit in (1e-6, 1.0, 3.6e6):
        near, far = (Script(then=(unit, unit * (1 + spread))) for spread in (0.009, 0.012))
        assert len(sample(near, StoppingRule()).samples_ms) == 7
        assert len(sample(far, StoppingRule()).samples_ms) == 21


@pytest.mark.parametrize(
    ("count", "rank"),
    [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6), (30, 10), (100, 40)],
)
def test_interval_ranks_are_those_of_the_tables(count, rank):
    """David & Nagaraja's ranks: the k-th smallest and largest of n enclose the median at 95 %."""
    numbers = np.random.default_rng(0).permutation(count).tolist()
    assert median_interval(numbers) == (rank - 1, count - rank)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_samples_give_their_whole_range(count):
    assert median_interval(list(range(count))) == (0, count - 1)


@pytest.mark.parametrize("count", [6, 7, 14, 21, 30, 100])
@pytest.mark.parametrize("draw", ["lognormal", "exponential"])
def test_the_interval_holds_the_true_median_95_times_in_100(count, draw):
    """By simulation on skewed times: not below 95 %, and not needlessly wide."""
    rng = np.random.default_rng(count)
    true = 1.0 if draw == "lognormal" else np.log(2)
    intervals = [median_interval(row) for row in getattr(rng, draw)(size=(4000, count)).tolist()]
    share = np.mean([low <= true <= high for low, high in intervals])
    assert share > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 4000)
    # The ranks are whole numbers, so few samples overshoot: six cover 96.9 %, seven 98.4 %.
    assert share < 0.995


# ---------------------------------------------------------------------- The stopping rule replayed


RECORDINGS = sorted((Path(__file__).parent / "data").glob("*.json.gz"))
#: A replay has no clock.
RULE = StoppingRule(max_seconds=math.inf)
#: The largest share of the recorded kernel time that may be spent, by recording; else `SHARE`. Where
#: many configurations are nearly as fast as the best there is less to save.
SHARES = {
    "copy-NVIDIA_H100_80GB_HBM3": 0.5,
    "gemv-NVIDIA_H100_80GB_HBM3": 0.35,
    "reduce-NVIDIA_H100_80GB_HBM3": 0.4,
    "sgemm-NVIDIA_H100_80GB_HBM3": 0.25,
    "synthetic": 1.0,  # of four samples, fewer than are always taken
    "transpose-NVIDIA_H100_80GB_HBM3": 0.65,
}
SHARE = 0.35


def samples_of(path):
    """Return all samples in milliseconds of every configuration that ran, the first included."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        entries = json.load(file)["cache"].values()
    times = [entry["times"] for entry in entries if isinstance(entry["time"], float | int)]
    return [samples for samples in times if len(samples) > 1]


def replay(recorded, order):
    """Time configurations in this order, then hold the finals of a full run, with all samples.

    Returns the share of the recorded kernel time that this took, and the winner's regret: its median
    over all its samples against the best of all.
    """
    best, measured, truths = (), [], []
    spent_ms = all_ms = 0.0
    for number in order:
        times = recorded[number]
        tape = iter(times)
        most = min(RULE.max_samples, len(times) - 1)
        own = replace(RULE, min_samples=min(RULE.min_samples, most), max_samples=most)
        done = sample(lambda count, tape=tape: [next(tape) for _ in range(count)], own, best)
        spent_ms += sum(times) - sum(tape)
        all_ms += sum(times)
        truths.append(median(times[1:]))
        status = Status.STOPPED_EARLY if done.stopped_early else Status.OK
        configuration = Configuration(NUMBER=int(number))
        measured.append(Measurement(configuration, status, samples_ms=done.samples_ms))
        if status is Status.OK and (not best or median(done.samples_ms) < median(best)):
            best = done.samples_ms
    contenders, samples = [], []
    for measurement in candidates(measured, EFFORTS["full"].finalists):
        times = recorded[measurement.configuration["NUMBER"]]
        spent_ms += sum(times[1 + len(measurement.samples_ms) :])
        contenders.append(Contender(measurement.configuration, row=measurement))
        samples.append(ContenderSamples(tuple(times[1:])))
    decided = judge(Race(tuple(contenders), tuple(samples), Timing.COLD_STREAM))
    regret = decided.winner.time_ms.value / min(truths) - 1
    return spent_ms / all_ms, regret


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_recorded_spaces_keep_their_best_at_a_fraction_of_the_time(path):
    recorded = samples_of(path)
    orders = [np.random.default_rng(seed).permutation(len(recorded)) for seed in range(3)]
    shares, regrets = zip(*(replay(recorded, order) for order in orders), strict=True)
    assert fmean(regrets) <= 0.001
    assert fmean(shares) <= SHARES.get(path.name.split(".")[0], SHARE)

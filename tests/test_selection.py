"""The winner of a race: ties, fewest registers among them, ratios to the vendor."""

import numpy as np
import pytest

from autotune.measurement import Entry, Measurement, Status
from autotune.selection import Finalist, candidates, decide, ratio
from autotune.values import Configuration

ROUNDS = 30


def measurement(number=0, status=Status.OK, ms=1.0, registers=None):
    return Measurement(
        Configuration(NUMBER=number),
        status,
        samples_ms=(ms,) * 3 if ms is not None else (),
        entries=() if registers is None else (Entry("k", registers=registers), Entry("tail")),
    )


def finalist(number, samples, registers=None):
    return Finalist(measurement(number, registers=registers), tuple(samples))


def noisy(rng, center, rounds=ROUNDS, noise=0.01):
    return center * rng.lognormal(0, noise, rounds)


# ---------------------------------------------------------------- candidates


def test_candidates_are_the_fastest_right_ones():
    measured = [measurement(i, ms=ms) for i, ms in enumerate((3.0, 1.0, 2.0, 5.0))]
    assert [one.configuration.NUMBER for one in candidates(measured, 3)] == [1, 2, 0]
    assert len(candidates(measured, 9)) == 4


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.OK])
def test_what_is_not_ok_is_no_candidate_however_fast(status):
    measured = [measurement(0, status, ms=0.001), measurement(1, ms=5.0)]
    assert [one.configuration.NUMBER for one in candidates(measured, 5)] == [1]


def test_candidates_of_nothing_are_none():
    assert candidates([], 5) == candidates([measurement(ms=None)], 5) == []


# ---------------------------------------------------------------- the winner


def test_a_single_finalist_wins():
    only = finalist(0, [1.0] * 9)
    result = decide([only], {})
    assert (result.winner, result.finalists, result.tied, result.vendors) == (
        only,
        (only,),
        (only,),
        {},
    )


def test_a_clearly_faster_one_wins_alone_whatever_its_registers():
    rng = np.random.default_rng(1)
    fast = finalist(0, noisy(rng, 1.0), registers=255)
    slow = finalist(1, noisy(rng, 1.1), registers=16)
    result = decide([slow, fast], {})
    assert result.winner is fast
    assert result.tied == (fast,)
    assert result.finalists == (fast, slow)


def test_of_those_within_noise_the_one_with_fewest_registers_wins():
    rng = np.random.default_rng(2)
    finalists = [
        finalist(0, noisy(rng, 1.000), registers=128),
        finalist(1, noisy(rng, 1.001), registers=32),
        finalist(2, noisy(rng, 1.001), registers=64),
        finalist(3, noisy(rng, 1.200), registers=8),
    ]
    result = decide(finalists, {})
    assert result.winner is finalists[1]
    assert {one.measurement.configuration.NUMBER for one in result.tied} == {0, 1, 2}
    assert result.finalists[-1] is finalists[3]


def test_equal_registers_leave_it_to_the_median():
    rng = np.random.default_rng(3)
    finalists = [finalist(i, noisy(rng, 1.0), registers=40) for i in range(5)]
    result = decide(finalists, {})
    assert len(result.tied) > 1
    assert result.winner is min(result.tied, key=lambda one: one.median_ms)


def test_the_function_with_most_registers_counts():
    two = Measurement(
        Configuration(N=0),
        Status.OK,
        samples_ms=(1.0,),
        entries=(Entry("a", registers=8), Entry("b", registers=200)),
    )
    finalists = [Finalist(two, (1.0,) * 9), finalist(1, [1.0] * 9, registers=100)]
    assert decide(finalists, {}).winner is finalists[1]


def test_a_difference_of_less_than_the_tolerance_is_a_tie_even_without_noise():
    """0.2 %: clocks are not read better than that."""
    finalists = [
        finalist(0, [1.0] * 9, 99),
        finalist(1, [1.0019] * 9, 9),
        finalist(2, [1.0021] * 9, 1),
    ]
    result = decide(finalists, {})
    assert result.tied == tuple(finalists[:2])
    assert result.winner is finalists[1]


def test_drift_common_to_all_contenders_parts_nobody_and_hides_nobody():
    """Samples of one round share clock and temperature, so the rounds are resampled together."""
    rng = np.random.default_rng(4)
    drift = np.linspace(1.0, 1.5, ROUNDS)
    one, equal, slower = (finalist(i, noisy(rng, ms) * drift) for i, ms in enumerate((1, 1, 1.05)))
    result = decide([one, equal, slower], {})
    assert set(result.tied) == {one, equal}


def test_the_same_seed_gives_the_same_result():
    rng = np.random.default_rng(5)
    a, b = noisy(rng, 1.0), noisy(rng, 1.02)
    assert ratio(a, b, seed=1) == ratio(a, b, seed=1)
    assert ratio(a, b, seed=1) != ratio(a, b, seed=2)


# ---------------------------------------------------------------- vendors


def test_the_vendors_ratio_is_above_one_where_ours_is_faster():
    rng = np.random.default_rng(6)
    result = decide(
        [finalist(0, noisy(rng, 1.0))],
        {"twice": list(noisy(rng, 2.0)), "half": list(noisy(rng, 0.5)), "absent": []},
    )
    assert set(result.vendors) == {"twice", "half"}
    median_ms, slower = result.vendors["twice"]
    assert median_ms == pytest.approx(2.0, rel=0.02)
    assert slower.low < slower.value < slower.high
    assert slower.value == pytest.approx(2.0, rel=0.03)
    assert result.vendors["half"][1].high < 1


def test_the_vendor_is_compared_with_the_winner_not_with_the_fastest():
    """The ratio that is printed is that of the configuration that is recorded."""
    fast = finalist(0, [1.0] * 9, registers=99)
    winner = finalist(1, [1.001] * 9, registers=9)
    _, found = decide([fast, winner], {"blas": [2.002] * 9}).vendors["blas"]
    assert found.value == pytest.approx(2.0)


def test_a_ratio_uses_whole_rounds_only():
    """A race cut short leaves the last round incomplete."""
    assert ratio([2.0] * 5 + [100.0] * 4, [1.0] * 5).value == 2.0
    assert ratio([3.0], [1.5]).value == ratio([3.0], [1.5]).low == 2.0


@pytest.mark.parametrize("drift", [0.0, 0.2])
def test_the_ratios_interval_holds_the_true_ratio_95_times_in_100(drift):
    """By simulation: 30 rounds, a true ratio of 1.3, common drift and noise of a few per cent.

    The percentile bootstrap of a median is known to be a little liberal or conservative.
    """
    rng = np.random.default_rng(7)
    held, widths = [], []
    for trial in range(250):
        common = 1 + drift * rng.random(ROUNDS)
        interval = ratio(
            noisy(rng, 1.3, noise=0.03) * common, noisy(rng, 1.0, noise=0.03) * common, trial
        )
        held.append(interval.low <= 1.3 <= interval.high)
        widths.append(interval.high - interval.low)
    assert 0.92 <= np.mean(held) <= 0.99
    # Common drift cancels only in part, since medians are taken before the ratio.
    assert np.median(widths) < 0.05 + 0.5 * drift

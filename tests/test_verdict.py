"""The winner of a race: ties, fewest registers among them, ratios to the vendor."""

import re
from pathlib import Path

import numpy as np
import pytest
from sample_records import entered, race
from tuned_project import edit_record, record_file

from autotune.devices.base import CompiledFunction
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender, ContenderSamples, Failure
from autotune.measure.timing import Timing
from autotune.run.recording import request_for
from autotune.run.verdict import (
    PORTFOLIO_SIZE,
    candidates,
    judge,
    paired_ratio,
    portfolio_entrants,
    ratio,
)
from autotune.tuned.reading import read
from autotune.values import Configuration

pytestmark = pytest.mark.usefixtures("kept_processes")

ROUNDS = 30


def measurement(number=0, status=Status.OK, ms=1.0, registers=None):
    return Measurement(
        Configuration(NUMBER=number),
        status,
        samples_ms=(ms,) * 3 if ms is not None else (),
        entries=()
        if registers is None
        else (CompiledFunction("k", registers=registers), CompiledFunction("tail")),
    )


def finalist(number, samples, registers=None, deterministic=False):
    return entered(measurement(number, registers=registers), samples, deterministic)


def number(result):
    """The configuration of a contender, by its number."""
    return result.configuration["NUMBER"]


def tied(result):
    return {number(found) for found in result.finalists if found.tied}


def order(result):
    return [number(found) for found in result.finalists]


def noisy(rng, center, rounds=ROUNDS, noise=0.01):
    return center * rng.lognormal(0, noise, rounds)


# ---------------------------------------------------------------- candidates


def test_candidates_are_the_fastest_right_ones():
    measured = [measurement(i, ms=ms) for i, ms in enumerate((3.0, 1.0, 2.0, 5.0))]
    assert [row.configuration.NUMBER for row in candidates(measured, 3)] == [1, 2, 0]
    assert len(candidates(measured, 9)) == 4


@pytest.mark.parametrize("status", [status for status in Status if not status.is_timed])
def test_what_is_not_right_is_no_candidate_however_fast(status):
    measured = [measurement(0, status, ms=0.001), measurement(1, ms=5.0)]
    assert [row.configuration.NUMBER for row in candidates(measured, 5)] == [1]


def test_what_was_stopped_early_fills_the_places_that_are_left():
    """A second look: the clock of that moment may have stopped it."""
    stopped = [measurement(i, Status.STOPPED_EARLY, ms) for i, ms in ((0, 9.0), (1, 1.5))]
    measured = [*stopped, measurement(2, ms=2.0), measurement(3, ms=1.0)]
    assert [row.configuration.NUMBER for row in candidates(measured, 3)] == [3, 2, 1]
    assert [row.configuration.NUMBER for row in candidates(measured, 2)] == [3, 2]


def test_the_last_places_are_of_those_that_are_deterministic():
    measured = [measurement(i, ms=1.0 + i) for i in range(6)]

    def chosen(count, *repeating):
        rows = candidates(measured, count, lambda c: c.NUMBER in repeating)
        return [row.configuration.NUMBER for row in rows]

    assert chosen(3, 4, 5) == [0, 4, 5]
    assert chosen(3, 1, 4, 5) == [0, 1, 4]
    assert chosen(4, 5) == [0, 1, 2, 5]
    assert chosen(1, 5) == [0]
    assert chosen(9, 5) == [0, 1, 2, 3, 4, 5]


# ---------------------------------------------------------------- the winner


def test_a_single_finalist_wins():
    result = judge(race([finalist(0, [1.0] * 9)]))
    assert (order(result), result.tied, result.rounds, result.noise) == ([0], 1, 9, ())
    assert (result.winner.tied, result.runners_up, result.vendor) == (True, (), None)
    assert result.timing == Timing.COLD_GRAPH


def test_where_nobody_was_timed_nobody_wins():
    failed = Contender(), ContenderSamples(failure=Failure(Status.CRASHED, "gone"))
    assert judge(race([failed], {"blas": [1.0]})) is None


def test_a_clearly_faster_one_wins_alone_whatever_its_registers():
    rng = np.random.default_rng(1)
    fast = finalist(0, noisy(rng, 1.0), registers=255)
    slow = finalist(1, noisy(rng, 1.1), registers=16)
    result = judge(race([slow, fast]))
    assert (order(result), tied(result)) == ([0, 1], {0})


def test_of_those_within_noise_the_one_with_fewest_registers_wins():
    rng = np.random.default_rng(2)
    finalists = [
        finalist(0, noisy(rng, 1.000), registers=128),
        finalist(1, noisy(rng, 1.001), registers=32),
        finalist(2, noisy(rng, 1.001), registers=64),
        finalist(3, noisy(rng, 1.200), registers=8),
    ]
    result = judge(race(finalists))
    assert number(result.winner) == 1
    assert tied(result) == {0, 1, 2}
    assert order(result)[-1] == 3


@pytest.mark.parametrize(("slower", "wins"), [(1.018, 1), (1.022, 0)])
def test_what_is_deterministic_wins_where_it_costs_less_than_two_percent(slower, wins):
    """Whatever the registers of others. Else it stands beside the winner."""
    rng = np.random.default_rng(6)
    finalists = [
        finalist(0, noisy(rng, 1.0, noise=1e-4), registers=16),
        finalist(1, noisy(rng, slower, noise=1e-4), registers=64, deterministic=True),
        finalist(2, noisy(rng, 1.1, noise=1e-4), registers=8, deterministic=True),
    ]
    result = judge(race(finalists))
    assert (number(result.winner), tied(result)) == (wins, {wins})
    assert result.best_deterministic is (None if wins else result.of({"NUMBER": 1}))
    assert Configuration(NUMBER=1) in portfolio_entrants([result], Configuration(NUMBER=9))


def test_the_portfolio_takes_the_tied_and_the_three_best_of_each_race_in_turns():
    slower = judge(race([finalist(i, [1.0 + i] * 9) for i in range(5)]))
    tied_ones = judge(race([finalist(10 + i, [1.0] * 9, registers=i) for i in range(5)]))
    entrants = portfolio_entrants([slower, tied_ones], Configuration(NUMBER=99))
    assert [each.NUMBER for each in entrants] == [99, 0, 10, 11, 1, 12, 2, 13, 14]
    crowd = judge(race([finalist(i, [1.0] * 9) for i in range(60)]))
    assert len(portfolio_entrants([crowd], Configuration(NUMBER=99))) == PORTFOLIO_SIZE == 48


def test_a_difference_of_less_than_the_tolerance_is_a_tie_even_without_noise():
    """0.2 %: clocks are not read better than that."""
    finalists = [
        finalist(0, [1.0] * 9, 99),
        finalist(1, [1.0018] * 9, 9),
        finalist(2, [1.0039] * 9, 1),
    ]
    result = judge(race(finalists))
    assert (number(result.winner), tied(result)) == (1, {0, 1})


def test_a_clock_change_common_to_all_contenders_parts_nobody_and_hides_nobody():
    """Samples of one round share clock and temperature, so the rounds are resampled together."""
    rng = np.random.default_rng(4)
    clock = np.linspace(1.0, 1.5, ROUNDS)
    finalists = [finalist(i, noisy(rng, ms) * clock) for i, ms in enumerate((1, 1, 1.05))]
    assert tied(judge(race(finalists))) == {0, 1}


def test_what_is_tied_only_because_times_scatter_does_not_win_for_its_registers():
    """A difference of 2 % that noise hides is given up for nothing."""
    fast = finalist(0, [1.0] * ROUNDS, registers=200)
    slow = finalist(1, [1.02, 0.97, 1.03] * (ROUNDS // 3), registers=16)
    result = judge(race([fast, slow]))
    assert (number(result.winner), tied(result)) == (0, {0, 1})


# ---------------------------------------------------------------- equals, and what is not equal


def times(rng, model, contenders, rounds):
    """Samples of equally fast contenders, round by round, in milliseconds."""
    noise = rng.lognormal(0, 0.01, (contenders, rounds))
    match model:
        case "normal":
            return noise
        case "changing clock":  # clock and temperature wander, alike for all of a round
            return (
                noise * np.exp(np.cumsum(rng.normal(0, 0.01, rounds))) * np.linspace(1, 1.1, rounds)
            )
        case "bimodal":  # of each launch by itself, as where pages lie
            return noise * np.where(rng.random((contenders, rounds)) < 0.4, 1.25, 1.0)
        case "two clocks":  # kept for some rounds, as on the recorded RTX A4000
            return noise * np.where(np.cumsum(rng.random(rounds) < 0.1) % 2, 1.25, 1.0)
        case "quantized":  # to the 32 ns of a GPU's timer, which is 0.4 % of a short kernel
            return np.round(0.0085 * noise / 32e-6) * 32e-6
        case "hiccups":
            return noise * np.where(rng.random((contenders, rounds)) < 0.05, 3.0, 1.0)
    raise ValueError(model)


def is_slower(costs, winner, contenders):
    return paired_ratio(costs, winner, contenders).interval[0] > 1.002


MODELS = ["normal", "changing clock", "bimodal", "two clocks", "quantized", "hiccups"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("contenders", "rounds"), [(2, 30), (2, 100), (6, 30), (12, 100)])
def test_equals_are_called_different_in_at_most_five_finals_of_a_hundred(model, contenders, rounds):
    rng = np.random.default_rng([MODELS.index(model), contenders, rounds])
    trials = 200
    apart = 0
    for _ in range(trials):
        samples = times(rng, model, contenders, rounds)
        best = min(samples, key=np.median)
        apart += any(is_slower(row, best, contenders) for row in samples if row is not best)
    assert apart / trials <= 0.05


@pytest.mark.parametrize("model", MODELS)
def test_the_interval_between_equals_holds_one_95_times_in_100(model):
    """Without the tolerance that a tie has: 400 pairs of 30 rounds."""
    rng = np.random.default_rng(MODELS.index(model))
    held = 0
    for trial in range(400):
        first, second = times(rng, model, 2, ROUNDS)
        low, high = ratio(first, second, trial).interval
        held += low <= 1 <= high
    assert held / 400 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 400)


@pytest.mark.parametrize("model", [model for model in MODELS if model != "bimodal"])
def test_two_per_cent_slower_is_seen_among_twelve(model):
    """Or nothing would ever be called different, and that at most five times in a hundred."""
    rng = np.random.default_rng(MODELS.index(model))
    seen = 0
    for _ in range(50):
        samples = times(rng, model, 12, 100)
        samples[0] *= 1.02
        seen += is_slower(samples[0], min(samples, key=np.median), 12)
    assert seen >= 45


@pytest.mark.parametrize(("contenders", "is_apart"), [(3, True), (4, False)])
def test_more_contenders_need_more_rounds_to_differ(contenders, is_apart):
    """10 of 11 rounds are slower: equals do that in 1.2 % of races, and the pairs share 5 %."""
    assert is_slower([0.9] + [1.1] * 10, [1.0] * 11, contenders) is is_apart


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.2])
def test_the_interval_that_is_shown_decides_ties(noise):
    rng = np.random.default_rng(8)
    times_ms = [1 + 0.003 * i for i in range(8)]
    result = judge(
        race([finalist(i, noisy(rng, ms, ROUNDS, noise)) for i, ms in enumerate(times_ms)])
    )
    assert any(found.tied for found in result.runners_up) or noise == 0.001
    for found in result.finalists:
        assert found.tied is (found.ratio.interval[0] <= 1.002)


# ---------------------------------------------------------------- vendors


def test_the_vendors_ratio_is_above_one_where_ours_is_faster():
    rng = np.random.default_rng(6)
    vendors = {"twice": noisy(rng, 2.0), "half": noisy(rng, 0.5), "absent": []}
    result = judge(race([finalist(0, noisy(rng, 1.0))], vendors))
    half, twice = (found for found in result.contenders if found.vendor)
    assert (half.vendor, twice.vendor, result.vendor) == ("half", "twice", half)
    assert twice.time_ms.value == pytest.approx(2.0, rel=0.02)
    low, high = twice.ratio.interval
    assert low < twice.ratio.value < high
    assert twice.ratio.value == pytest.approx(2.0, rel=0.03)
    assert half.ratio.interval[1] < 1


def test_a_ratio_uses_whole_rounds_only():
    """A race cut short leaves the last round incomplete."""
    assert ratio([2.0] * 5 + [100.0] * 4, [1.0] * 5).value == 2.0
    assert ratio([3.0], [1.5]).interval == (2.0, 2.0)


# ---------------------------------------------------------------- noise


def finals(noise=0.01, rounds=ROUNDS, vendor_noise=0.01, throttled=(), rivals=3):
    rng = np.random.default_rng(5)
    raced = [finalist(i, noisy(rng, 1.0, rounds, noise)) for i in range(rivals)]
    vendors = {"vendor": noisy(rng, 1.2, rounds, vendor_noise)}
    return judge(race(raced, vendors, throttled))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ""),
        ({"throttled": ("hw_thermal_slowdown",)}, "throttled .*hw_thermal_slowdown"),
        ({"rounds": 5}, "time for only 5 rounds"),
        ({"rounds": 6}, ""),
        ({"noise": 0.2, "rivals": 1}, "its time is known only to within [0-9]+%; the ratio"),
        ({"noise": 2.0, "rivals": 1}, "its time is known only to within a factor of [1-9]"),
        ({"vendor_noise": 0.3}, "^the ratio to vendor is known only to within [0-9]+%$"),
        ({"noise": 0.2}, "another finalist may be faster by [0-9]+%"),
    ],
)
def test_the_reasons_of_noise(options, reason):
    """Little noise has none; all else has its reason."""
    noise = "; ".join(finals(**options).noise)
    assert re.search(reason, noise)
    assert bool(reason) == bool(noise)


@pytest.mark.parametrize(
    ("samples", "noise"),
    [
        ([1.0] * 6 + [1.2] * 3, ("its time is known only to within 20%",)),
        ([0.8] * 3 + [1.0] * 6, ("its time is known only to within 25%",)),
        ([1.0] * 6 + [1.06] * 3, ("its time is known only to within 6%",)),
        ([1.0] * 6 + [1.04] * 3, ()),
    ],
)
def test_a_time_is_as_noisy_as_the_wider_side_of_its_interval(samples, noise):
    assert judge(race([finalist(0, samples)])).noise == noise


@pytest.mark.parametrize(
    ("fastest", "noise"), [(0.93, ("another finalist may be faster by 7%",)), (0.96, ())]
)
def test_a_tied_finalist_that_may_be_faster_is_noise(fastest, noise):
    rival = finalist(1, [fastest] * 6 + [1.0] * 2 + [1.1] * 6)
    assert judge(race([finalist(0, [1.0] * 14), rival])).noise == noise


@pytest.mark.parametrize("order", [(0.93, 0.96), (0.96, 0.93)])
def test_of_two_tied_finalists_the_one_that_may_be_fastest_is_noise(order):
    rivals = [
        finalist(place, [fastest] * 6 + [1.0] * 2 + [1.1] * 6)
        for place, fastest in enumerate(order, 1)
    ]
    result = judge(race([finalist(0, [1.0] * 14), *rivals]))
    assert result.noise == ("another finalist may be faster by 7%",)


def test_a_finalist_that_may_not_win_is_no_noise():
    scattered = finalist(0, [0.8] * 4 + [0.99] * 5)
    result = judge(race([scattered, finalist(1, [1.0] * 9, deterministic=True)]))
    assert result.runners_up[0].ratio.interval[0] < 0.9
    assert (number(result.winner), result.noise) == (1, ())


# ---------------------------------------------------------------------- timing again


@pytest.mark.opencl
@pytest.mark.parametrize("timing", ["hot", "mixed", "cold:flush"])
def test_times_are_taken_as_the_winners_were(
    project: Path, opencl_device: str, timing: str
) -> None:
    edit_record("saxpy", timing=timing)
    device = choose_device(opencl_device)
    request = request_for(read(record_file("saxpy")), find_kernel("saxpy"), device)
    assert all(request.timing_of(problem) == timing for problem in request.problems)

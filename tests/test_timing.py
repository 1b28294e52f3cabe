"""How many samples, when to stop, and whether a 95 % interval holds the median 95 times in 100."""

import itertools
from statistics import median

import numpy as np
import pytest

from autotune.timing import StoppingRule, median_interval, sample


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
    assert done.reason == "precise"
    assert take.taken == 8
    assert not done.stopped_early


def test_noisy_times_stop_at_the_most_samples():
    take = Script(then=NOISY)
    done = sample(take, StoppingRule())
    assert (done.reason, len(done.samples_ms), take.taken) == ("max_samples", 21, 22)


@pytest.mark.parametrize("most", [7, 8, 20])
def test_the_most_samples_are_never_exceeded(most):
    done = sample(Script(then=NOISY), StoppingRule(max_samples=most))
    assert len(done.samples_ms) == most


def test_time_running_out_ends_noisy_sampling_after_the_fewest():
    done = sample(Script(then=NOISY), StoppingRule(max_seconds=0.0))
    assert (done.reason, len(done.samples_ms)) == ("max_seconds", 7)


def test_steady_times_are_precise_even_when_time_has_run_out():
    assert sample(Script(), StoppingRule(max_seconds=0.0)).reason == "precise"


def test_a_clearly_slower_one_stops_after_a_first_look():
    take = Script(0.1, 1.21, 1.3, 9.0)
    done = sample(take, StoppingRule(), best_ms=1.0)
    assert done.stopped_early
    assert done.samples_ms == (1.21, 1.3, 9.0)
    assert take.taken == 4


@pytest.mark.parametrize("times", [(1.3, 1.3, 1.2), (1.19, 9.0, 9.0)])
def test_one_sample_within_the_ratio_is_enough_to_go_on(times):
    """Noise makes a launch slower, never faster: the fastest sample decides."""
    assert not sample(Script(9.0, *times), StoppingRule(), best_ms=1.0).stopped_early


def test_nothing_stops_early_without_a_best_or_with_an_endless_ratio():
    assert not sample(Script(then=(50.0,)), StoppingRule()).stopped_early
    rule = StoppingRule(stop_ratio=float("inf"))
    assert not sample(Script(then=(50.0,)), rule, best_ms=1.0).stopped_early


def test_precision_is_a_share_of_the_median():
    """The same relative noise ends alike for a nanosecond and for an hour."""
    for unit in (1e-6, 1.0, 3.6e6):
        near, far = (Script(then=(unit, unit * (1 + spread))) for spread in (0.009, 0.012))
        assert sample(near, StoppingRule()).reason == "precise"
        assert sample(far, StoppingRule()).reason == "max_samples"


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


def test_the_interval_encloses_the_sample_median():
    samples = np.random.default_rng(1).lognormal(size=17).tolist()
    low, high = median_interval(samples)
    assert low < median(samples) < high

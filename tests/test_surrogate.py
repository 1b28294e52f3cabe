"""Our own search: the encoding, the Gaussian process, the asking, the sampler in a study, hostile spaces."""

from __future__ import annotations

import itertools
import math
import tracemalloc
import warnings
from contextlib import suppress
from dataclasses import replace

import numpy as np
import optuna
import pytest

from autotune.kernel.joining import index_type
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.search.auto import surrogate
from autotune.search.base import BudgetSpent
from autotune.search.proposals import EndRule, Proposer
from autotune.search.surrogate import Covariance, Encoding, FitLoss, Points, Posterior

optuna.logging.set_verbosity(optuna.logging.ERROR)


def full(**parameters):
    """A space without constraints."""
    rows = (
        np.indices([len(values) for values in parameters.values()]).reshape(len(parameters), -1).T
    )
    return Space(parameters, rows.astype(index_type(map(len, parameters.values()))))


def searched(space, time_ms, count, seed=0):
    """The numbers proposed, each told what it takes; no warning is allowed."""
    path: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proposer = Proposer(space, np.random.default_rng(seed))
        while len(path) < count and (number := proposer.ask()) is not None:
            path.append(number)
            proposer.tell(number, time_ms(space.configuration(number)))
    assert len(set(path)) == len(path), "asked twice"
    return path


def bowl(configuration):
    """Best at A=32, B=3."""
    return 1 + abs(math.log2(configuration["A"]) - 5) + 0.5 * abs(configuration["B"] - 3)


BOWL = full(A=tuple(2**k for k in range(12)), B=tuple(range(12)), T=("x", "y", "z"))
#: To be measured to the last: every fit takes longer than the one before.
SMALL_BOWL = full(A=tuple(2**k for k in range(12)), B=tuple(range(12)))


# --- the encoding


def test_near_are_the_valid_ones_that_differ_in_one_or_two_parameters():
    space = full(A=(1, 2, 3, 4), B=(1, 2, 3), C=("u", "v"))
    space = Space(space.parameters, space.rows[space.rows[:, :2].sum(axis=1) % 2 == 0])
    encoding = Encoding(space)
    for number, apart in itertools.product(range(len(space)), (1, 2)):
        differing = (space.rows != space.rows[number]).sum(axis=1)
        expected = np.flatnonzero((differing >= 1) & (differing <= apart))
        assert encoding.near(number, apart).tolist() == expected.tolist()


# --- the Gaussian process


def test_a_parameter_of_thousands_of_values_is_searched_in_little_memory():
    """An indicator for each value, and pairs of changes, took more than 20 GB."""
    space = full(A=tuple(range(40000)), B=(0, 1), C=(1, 2, 4))
    encoding = Encoding(space)
    tracemalloc.start()
    try:
        assert encoding.indicators(np.arange(4000)).shape == (4000, 5)
        near = encoding.near(200_000, 2)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(near) == 39999 + 1 + 2
    assert most_bytes < 100e6


def points(count, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.random((count, 3), np.float32)
    return Points(features, np.eye(3, dtype=np.float32)[rng.integers(0, 3, count)])


COVARIANCE = Covariance(np.log([0.5, 1.0, 2.0]), 0.2, -1.0, math.log(0.1))


def test_what_is_believed_is_the_textbooks():
    given, candidates = points(20), points(7, seed=1)
    values = np.random.default_rng(2).standard_normal(20)
    posterior = Posterior(COVARIANCE, given, candidates, spare=0)
    noisy = COVARIANCE.between(given, given) + COVARIANCE.noise * np.eye(20)
    across = COVARIANCE.between(given, candidates)
    assert posterior.means(values) == pytest.approx(
        across.T @ np.linalg.solve(noisy, values), abs=1e-4
    )
    explained = np.diag(across.T @ np.linalg.solve(noisy, across))
    assert posterior.variances == pytest.approx(COVARIANCE.variance - explained, abs=1e-4)


def test_the_gradient_of_the_fit_is_that_of_its_loss():
    loss = FitLoss(points(30), np.random.default_rng(3).standard_normal(30))
    # Noise that is large compared with the jitter, which the gradient leaves out.
    vector, step = replace(COVARIANCE, log_noise=-0.5).vector, 1e-6
    _, gradient = loss(vector)
    for place, change in enumerate(np.eye(len(vector)) * step):
        rise = loss(vector + change)[0] - loss(vector - change)[0]
        assert gradient[place] == pytest.approx(rise / (2 * step), rel=5e-3, abs=1e-3)


@pytest.mark.parametrize("bound", [-1.0, 0.3, 1.5])
def test_a_value_of_which_a_bound_is_known_counts_as_its_mean_above_it(bound):
    """Against samples of the prior at one point that are above the bound."""
    (given, candidates) = points(1), points(5, seed=1)
    posterior = Posterior(COVARIANCE, given, candidates, spare=0)
    means = posterior.means(np.array([np.nan]), np.array([bound]))
    deviation = math.sqrt(COVARIANCE.variance + COVARIANCE.noise)
    samples = np.random.default_rng(4).normal(0.0, deviation, 1_000_000)
    expected = posterior.means(np.array([samples[samples > bound].mean()]))
    assert means == pytest.approx(expected, abs=5e-3)


def test_points_that_are_nearly_one_are_no_error():
    """Rounding in single precision would make their covariance indefinite."""
    near = Points(1 + 1e-4 * points(200).features, np.ones((200, 1), np.float32))
    covariance = Covariance(np.full(3, 3.0), 1.5, 1.0, math.log(1e-3))
    posterior = Posterior(covariance, near, near, spare=10)
    for place in range(10):
        posterior.condition(place)
    values = np.random.default_rng(1).standard_normal(210)
    assert np.abs(posterior.means(values)).max() < 1


# --- the asking


def test_a_smooth_optimum_is_found_early():
    best = BOWL.index({"A": 32, "B": 3, "T": "x"})
    assert best is not None
    for seed in range(5):
        path = searched(BOWL, bowl, 40, seed)
        assert any(bowl(BOWL.configuration(number)) == 1 for number in path)


def test_what_was_stopped_early_is_neither_the_best_nor_believed():
    """Everything far away is stopped just above the best: as values those would look like the best."""
    for seed in range(3):
        proposer = Proposer(BOWL, np.random.default_rng(seed))
        best_ms = math.inf
        for _ in range(60):
            number = proposer.ask()
            assert number is not None
            time_ms = bowl(BOWL.configuration(number))
            is_bound = time_ms > 1.5 * best_ms
            proposer.tell(number, 1.05 * best_ms if is_bound else time_ms, is_bound)
            best_ms = min(best_ms, time_ms)
        assert best_ms == 1


def test_what_is_awaited_is_not_proposed_and_answers_come_in_any_order():
    proposer = Proposer(SMALL_BOWL, np.random.default_rng(3))
    waiting: list[int] = []
    told: list[int] = []
    while proposer.is_open:
        while len(waiting) < 8 and (number := proposer.ask()) is not None:
            waiting.append(number)
        number = waiting.pop(len(told) * 5 % len(waiting))
        proposer.tell(number, bowl(SMALL_BOWL.configuration(number)))
        told.append(number)
    assert sorted(told + waiting) == list(range(len(SMALL_BOWL)))


def test_the_chance_of_a_gain_falls():
    proposer = Proposer(SMALL_BOWL, np.random.default_rng(0))
    assert proposer.chance_left() == 1
    chances = []
    while (number := proposer.ask()) is not None:
        proposer.tell(number, bowl(SMALL_BOWL.configuration(number)))
        chances.append(proposer.chance_left())
    assert chances[10] > 0.05 > chances[100]
    assert chances[-1] == 0


class Counted:
    """A session of so many evaluations."""

    problem_features = related = compiled = ()
    outlook = None

    def __init__(self, space, time_ms, budget):
        self.space, self.time_ms, self.evaluations_left = space, time_ms, budget
        self.times = []

    def measure(self, indices):
        configurations = [self.space.configuration(index) for index in indices]
        if len(configurations) > self.evaluations_left:
            raise BudgetSpent
        self.evaluations_left -= len(configurations)
        times = list(map(self.time_ms, configurations))
        self.times += times
        return [
            Measurement(configuration, Status.OK, samples_ms=(time_ms,))
            for configuration, time_ms in zip(configurations, times, strict=True)
        ]

    def best(self, count):
        return []

    def hint(self, indices):
        pass


def test_a_search_ends_when_little_is_left_to_gain():
    session = Counted(BOWL, bowl, 400)
    surrogate(BOWL, session, np.random.default_rng(0), rule=EndRule())
    assert min(session.times) == 1
    assert len(session.times) < 200
    assert session.outlook is not None and session.outlook.is_enough and session.outlook.gain < 0.01


def test_a_search_of_few_evaluations_learns_from_the_first():
    """Where eight of nine are far from each other, the best is found in 6 of 20 searches."""
    grid = full(A=(1, 2, 4, 8), B=(1, 2, 3), T=("x", "y"), U=("x", "y"))

    def time_ms(configuration):
        slower = (configuration["T"] == "x") + 0.1 * (configuration["U"] == "x")
        return 1 + abs(math.log2(configuration["A"]) - 2) + abs(configuration["B"] - 2) + slower

    found = []
    for seed in range(20):
        session = Counted(grid, time_ms, 9)
        with suppress(BudgetSpent):
            surrogate(grid, session, np.random.default_rng(seed))
        found.append(min(session.times) == 1)
    assert sum(found) >= 15


# --- hostile spaces


def test_one_configuration():
    assert searched(full(A=(3,), B=("x",)), lambda _: 1.0, 9) == [0]


@pytest.mark.parametrize(
    "time_ms",
    [
        pytest.param(lambda _: None, id="all-failing"),
        pytest.param(lambda _: 2.5, id="all-equal"),
        pytest.param(lambda c: 1.0 if c["A"] == 1 and c["B"] == 2 else None, id="one-is-right"),
        pytest.param(lambda c: 1.0 if c["A"] < 8 else None, id="cliff-to-failure"),
        pytest.param(lambda c: 1.0 + c["B"] if c["A"] < 8 else 1e6, id="cliff"),
        pytest.param(lambda c: 10.0 ** (20 * c["B"] - 150), id="all-magnitudes"),
    ],
)
def test_hostile_times_end_with_everything_asked_once(time_ms):
    space = full(A=(1, 2, 4, 8, 16), B=tuple(range(13)), C=(False, True))
    assert len(searched(space, time_ms, 1000)) == len(space)


def test_nothing_but_bounds():
    proposer = Proposer(BOWL, np.random.default_rng(0))
    for _ in range(30):
        number = proposer.ask()
        assert number is not None
        proposer.tell(number, 1 + number / 7, is_bound=True)


def test_a_million_configurations_in_a_hundred_megabytes():
    parameters = {f"P{place}": tuple(range(1, 11)) for place in range(6)}
    space = full(**parameters)
    assert len(space) == 10**6
    tracemalloc.start()
    try:
        path = searched(space, lambda c: 1.0 + sum((v - 4) ** 2 for v in c.values()), 60)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(path) == 60
    assert peak_bytes < 100e6
    times = [1.0 + sum((v - 4) ** 2 for v in space.configuration(n).values()) for n in path]
    assert min(times) <= 5

"""One contract suite that every available strategy passes, on a synthetic and on recorded spaces."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from recorded import Recording, load
from thinned import thinned

from autotune.devices.device import for_arch
from autotune.errors import UsageError
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.evaluator import nothing
from autotune.measure.measurement import Measurement, Status
from autotune.search import kernel_tuner as kernel_tuner_adapter
from autotune.search import strategies
from autotune.search.base import Outlook
from autotune.search.lattice import Lattice, Point
from autotune.search.session import Budget, SearchSession
from autotune.search.strategies import BudgetSpent

pytestmark = pytest.mark.slow

RECORDINGS = sorted((Path(__file__).parent / "data").glob("*.json.gz"))
DATA = Path(__file__).parent / "data" / "synthetic.json.gz"
RUNNABLE = [info.name for info in strategies.available() if not info.unavailable]
IN_ORDER = ("exhaustive", "kt:brute_force")
#: One of each kind: own ones, Kernel Tuner's that go from point to point, in swarms and by a model, Optuna's.
KINDS = {
    *("auto", "surrogate", "random", "exhaustive", "kt:greedy_mls", "kt:pso", "kt:bayes_opt"),
    *("optuna:tpe", "optuna:cmaes"),
}
#: All have the budget's contract in the suite, the others of `KINDS` the rest.
SOME = thinned(RUNNABLE, KINDS)
load = cache(load)


@pytest.fixture(scope="module")
def synthetic():
    """A made-up space; see data/make_synthetic.py."""
    return load(DATA)


@dataclass(frozen=True)
class Recorded:
    """An evaluator that looks configurations up in a recording."""

    recording: Recording

    def measure(self, configurations, begin=None, ahead=None, at_hand=nothing):
        for configuration in configurations:
            yield self.recording.measurements[self.recording.space.index(configuration)]

    def hint(self, configurations):
        pass

    def recall(self, measurement):
        pass


class Watched:
    """A session over a recording; tests watch what comes through here."""

    problem_features: tuple[float, ...] = ()
    related = ()
    compiled = ()
    outlook: Outlook | None = None

    def __init__(self, recording, budget):
        self.recording = recording
        measuring, budgeted = Recorded(recording), Budget(evaluations=budget)
        self.session = SearchSession(recording.space, measuring, None, 0, recording.scope, budgeted)

    @property
    def path(self):
        """Numbers of the configurations measured, in order."""
        return list(self.session.measurements)

    def __getattr__(self, name):
        return getattr(self.session, name)


class StrictSession(Watched):
    """A session that fails the test as soon as a strategy breaks the contract."""

    ended = False

    @property
    def is_enough(self):
        """Whether the strategy said that little is left to gain."""
        return self.outlook is not None and self.outlook.is_enough

    def measure(self, indices):
        assert not self.ended, "measured after the budget was spent"
        assert indices, "an empty batch"
        for index in indices:
            assert isinstance(index, int)
            assert 0 <= index < len(self.recording.space), "an invalid configuration"
            assert index not in self.session.measurements, "measured before"
        assert len(set(indices)) == len(indices), "twice in one batch"
        # What a session does with the global streams must not move the strategy's.
        random.random()
        np.random.random()
        try:
            return self.session.measure(indices)
        except BudgetSpent:
            self.ended = True
            raise

    def stream(self, proposals, tell, ahead, at_hand=nothing):
        def checked():
            for number in proposals:
                assert 0 <= number < len(self.recording.space), "an invalid configuration"
                assert number not in self.session.measurements, "measured before"
                yield number

        assert not self.ended, "measured after the budget was spent"
        try:
            self.session.stream(checked(), tell, ahead, at_hand)
        except BudgetSpent:
            self.ended = True
            raise

    def hint(self, indices):
        assert all(0 <= index < len(self.recording.space) for index in indices)


def run(name, recording, budget, seed=0, kind=StrictSession, options=None):
    """Search until the end: the budget's, the space's, or where little is left to gain."""
    strict = kind(recording, budget)
    try:
        search = strategies.find(name, options=options)
        search(recording.space, strict, np.random.default_rng(seed))
    except BudgetSpent:
        assert strict.ended, "BudgetSpent of its own making"
    else:
        is_all = len(strict.path) == len(recording.space)
        assert is_all or strict.is_enough, "returned with something left to measure"
    return strict


def part(recording, count):
    """A recording of some configurations, spread over the whole."""
    chosen = np.linspace(0, len(recording.space) - 1, count).astype(int)
    return replace(
        recording,
        space=Space(recording.space.parameters, recording.space.rows[chosen]),
        measurements=tuple(recording.measurements[index] for index in chosen),
    )


def failing(recording):
    """The recording as if nothing had compiled."""
    return replace(
        recording,
        measurements=tuple(
            Measurement(configuration, Status.COMPILE_FAILED, "no")
            for configuration in recording.space
        ),
    )


@pytest.mark.parametrize("name", RUNNABLE)
def test_keeps_the_budget_to_the_evaluation(name, synthetic):
    for budget in (1, 7, 40):
        assert len(run(name, synthetic, budget).path) == budget


@pytest.mark.parametrize("name", SOME)
def test_same_seed_same_path(name, synthetic):
    random.seed(1)
    np.random.seed(1)
    first = run(name, synthetic, 30, seed=5).path
    random.seed(2)
    np.random.seed(2)
    assert run(name, synthetic, 30, seed=5).path == first
    other = run(name, synthetic, 30, seed=6).path
    assert (other == first) == (name in IN_ORDER)


def test_same_seed_same_path_in_another_process(synthetic):
    """Hashes of text differ between processes; paths must not."""
    names = [
        "surrogate",
        "kt:genetic_algorithm",
        "kt:greedy_mls",
        "kt:bayes_opt",
        "optuna:tpe",
        "optuna:cmaes",
    ]
    code = (
        "import sys, json; sys.path[:0] = sys.argv[1:3]; import test_strategies as t; "
        "r = t.load(t.DATA); print(json.dumps([t.run(n, r, 25).path for n in sys.argv[3:]]))"
    )
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]
    command = [sys.executable, "-c", code, *folders, *names]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(output) == [run(name, synthetic, 25).path for name in names]


@pytest.mark.parametrize("name", SOME)
def test_measures_everything_when_the_budget_allows(name, synthetic):
    for count in (1, 2, 5, 9, 40):
        strict = run(name, part(synthetic, count), count + 10)
        assert sorted(strict.path) == list(range(count))


@pytest.mark.parametrize("name", SOME)
def test_survives_a_space_where_all_fails(name, synthetic):
    assert len(run(name, failing(synthetic), 25).path) == 25
    run(name, failing(part(synthetic, 12)), 100)


@pytest.mark.parametrize("name", SOME)
def test_leaves_the_global_random_streams_alone(name, synthetic):
    def state():
        return hash((random.getstate(), str(np.random.get_state())))  # short where they differ

    class Untouched(Watched):
        def measure(self, indices):
            assert state() == before
            return self.session.measure(indices)

    run(name, part(synthetic, 12), 20)  # a library may draw from them as it is imported
    before = state()
    with pytest.raises(BudgetSpent):
        strategies.find(name)(synthetic.space, Untouched(synthetic, 30), np.random.default_rng(0))
    assert state() == before


@pytest.mark.parametrize(
    "name", thinned([name for name in RUNNABLE if name.startswith("kt:")], KINDS)
)
def test_kernel_tuner_proposed_what_was_measured(name, synthetic, monkeypatch):
    proposed: list[Point] = []
    measured = kernel_tuner_adapter.Runner.measured

    def watched(runner, points):
        proposed.extend(points)
        return measured(runner, points)

    monkeypatch.setattr(kernel_tuner_adapter.Runner, "measured", watched)
    check_origin(name, synthetic, proposed, kernel_tuner_adapter.PATIENCE)


def test_an_unexpected_error_of_a_strategy_ends_the_search(synthetic, monkeypatch):
    def tune(*_):
        raise KeyError("a fault of the library")

    monkeypatch.setattr("kernel_tuner.strategies.pso.tune", tune)
    with pytest.raises(KeyError, match="a fault of the library"):
        run("kt:pso", synthetic, 20)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kt:genetic_algorithm", {"popsize": 4, "method": "uniform"}),
        ("optuna:nsgaii", {"population_size": 4}),
    ],
)
def test_options_reach_the_library(name, options, synthetic):
    path = run(name, synthetic, 25, options=options).path
    assert path != run(name, synthetic, 25).path


def test_options_have_the_types_of_the_library():
    given = {"popsize": "4", "F": 1, "constraint_aware": "false", "method": "rand1bin"}
    found = strategies.checked_options("kt:diff_evo", given)
    assert found == {"popsize": 4, "F": 1.0, "constraint_aware": False, "method": "rand1bin"}
    assert list(map(type, found.values())) == [int, float, bool, str]
    given = {"n_startup_trials": "2", "multivariate": True, "prior_weight": "0.5"}
    found = strategies.checked_options("optuna:tpe", given)
    assert found == {"n_startup_trials": 2, "multivariate": True, "prior_weight": 0.5}


def test_a_population_larger_than_the_space_is_cut(synthetic):
    options = {"popsize": 500}
    assert len(run("kt:genetic_algorithm", part(synthetic, 12), 30, options=options).path) == 12


@pytest.mark.parametrize(
    ("name", "options"),
    [("kt:diff_evo", {"method": "foo"}), ("optuna:nsgaii", {"population_size": 0})],
)
def test_a_value_that_the_library_refuses_is_an_error_of_usage(name, options, synthetic):
    option, value = next(iter(options.items()))
    with pytest.raises(UsageError, match=f"{name} fails with {option}={value}: "):
        run(name, synthetic, 20, options=options)


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("kt:pso", "popsiz", 1, r"unknown option 'popsiz'; did you mean 'popsize'\? \(known: .*c1"),
        ("kt:pso", "popsize", "1.5", r"option popsize=1.5: expected an integer"),
        ("kt:pso", "w", "nan", r"expected a number"),
        ("kt:pso", "constraint_aware", "maybe", r"expected true or false"),
        ("optuna:tpe", "seed", 1, r"unknown option 'seed'"),
        ("auto", "popsize", 1, r"strategy auto has no options"),
        ("optuna:random", "x", 1, r"has no options"),
        ("kt:psso", "x", 1, r"unknown strategy"),
    ],
)
def test_a_wrong_option_is_refused(name, option, value, message):
    with pytest.raises(UsageError, match=message):
        strategies.checked_options(name, {option: value})


def check_origin(name, recording, proposed, patience):
    """Everything measured was proposed, or is nearest to the last of many futile proposals."""
    lattice = Lattice(recording.space)
    moved = []

    class Watching(StrictSession):
        def measure(self, indices):
            for index in indices:
                if lattice.point(index) not in proposed:
                    distances = lattice.distances(proposed[-1])
                    distances[self.path] = 9999
                    assert index == np.argmin(distances)
                    known = {lattice.point(measured) for measured in self.path}
                    futile = [lattice.find(p) is None or p in known for p in proposed[-patience:]]
                    assert len(futile) == patience
                    assert all(futile)
                    moved.append(index)
            return super().measure(indices)

    with pytest.raises(BudgetSpent):
        strategies.find(name)(recording.space, Watching(recording, 60), np.random.default_rng(3))
    # CMA-ES narrows until it proposes the same few points; the others rarely repeat themselves.
    assert len(moved) <= (20 if name == "optuna:cmaes" else 6)


def test_finds_good_configurations_faster_than_chance(synthetic):
    """Medians over seeds on the synthetic space; what they are on real ones, benchmarks say."""
    best_ms = synthetic.best_ms or 0.0

    def typical(name):
        fractions = []
        for seed in range(7):
            times = [
                synthetic.measurements[i].median_ms for i in run(name, synthetic, 80, seed).path
            ]
            fractions.append(best_ms / min(time for time in times if time))
        return float(np.median(fractions))

    assert typical("auto") > typical("random")


@pytest.mark.parametrize("path", RECORDINGS[1:3], ids=lambda path: path.name.split(".")[0])
@pytest.mark.parametrize("name", SOME)
def test_contract_on_a_recorded_space(name, path):
    assert len(run(name, load(path), 40).path) == 40


@pytest.mark.parametrize("name", SOME)
def test_compiling_ahead_changes_no_path(name, synthetic):
    class Compiling(StrictSession):
        """Takes hints with work that could move a global stream."""

        def hint(self, indices):
            super().hint(indices)
            random.random()
            np.random.random()

    assert run(name, synthetic, 30, kind=Compiling).path == run(name, synthetic, 30).path


def test_an_unknown_strategy_is_told_with_the_nearest():
    with pytest.raises(UsageError, match=r"did you mean 'optuna:tpe'.*known: .*kt:pso"):
        strategies.find("optuna:tpee")


def test_a_missing_library_is_a_reason(monkeypatch):
    for package in ("kernel_tuner", "optuna", "scipy"):
        monkeypatch.setitem(sys.modules, package, None)  # as where it is not installed
    usable = [info.name for info in strategies.available() if not info.unavailable]
    assert usable == ["random", "exhaustive"]
    with pytest.raises(UsageError, match=r"pip install .*\[tune\]"):
        strategies.find("optuna:tpe")


def test_listing_and_small_spaces_import_no_library():
    """Of up to 32 configurations all are measured, in the order of the space; of 64 where there are compilers."""
    code = (
        "import sys; from types import SimpleNamespace; "
        "from autotune.search.strategies import available, find; available(); find('random'); "
        "find('kt:pso'); session = SimpleNamespace(evaluations_left=None, measure=lambda all: "
        "sys.stderr.write(f'{all} ')); find('auto')(range(32), session, None); "
        "find('auto', ahead=2)(range(64), session, None); "
        "print({'kernel_tuner', 'optuna', 'scipy'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert output.stdout.strip() == "set()" and output.stderr == "range(0, 32) range(0, 64) "


def test_ranks_follow_values_not_their_declared_order():
    rows = np.array([[0, 2], [1, 0], [2, 1]], np.int16)
    lattice = Lattice(Space({"A": (64, 16, 32, 8), "B": ("x", "y", "z")}, rows))
    assert lattice.sizes == (3, 3)  # nothing valid has A=8
    assert [lattice.point(index) for index in range(3)] == [(2, 2), (0, 0), (1, 1)]
    assert [lattice.find(lattice.point(index)) for index in range(3)] == [0, 1, 2]
    assert lattice.find((1, 2)) is None
    # Text values are all one step apart.
    assert lattice.distances((2, 0)).tolist() == [1, 2, 2]
    assert lattice.nearest((2, 0)) == [0]
    assert lattice.adjacent((0, 0)) == [2]
    assert lattice.changed_in_one((0, 1)) == [1, 2]


@pytest.fixture(scope="module")
def conditional():
    """A thin space: most parameters apply to one kind only, so that most points are twins."""
    four = (1, 2, 3, 4)
    kernel = Kernel(source="a.cu", KIND=("a", "b", "c"), P=four, Q=four, R=four, S=four, T=four)

    @kernel.applies("P", "Q")
    def of_a(KIND):
        return KIND == "a"

    @kernel.applies("R", "S", "T")
    def of_b(KIND):
        return KIND == "b"

    @kernel.constraint
    def sums(R, S, T):
        """A multiple of three."""
        return (R + S + T) % 3 == 0

    space = enumerate_space(kernel, for_arch("sm_90"))
    return Recording(
        kernel="conditional",
        space=space,
        measurements=tuple(
            Measurement(
                configuration, Status.OK, samples_ms=(1.0 + sum(list(configuration.values())[1:]),)
            )
            for configuration in space
        ),
    )


@pytest.mark.parametrize("name", SOME)
def test_contract_on_a_space_with_conditional_parameters(name, conditional):
    assert len(conditional.space) == 16 + 22 + 1
    searched = run(name, conditional, 30)
    assert len(searched.path) == 30 or searched.is_enough
    run(name, conditional, 50)

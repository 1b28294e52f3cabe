"""Answers for other sizes: fitting a matrix of times, and how lookup answers by the fit.

The device of these tests is a formula: ten multiprocessors, tiles of different sizes, and waves.
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import (
    KERNEL,
    answering,
    entry,
    expecting,
    plan,
    problem,
    record,
    table_of,
    write,
)

from autotune.answers.category import MIN_ANSWERS, CategoryFit, HeldOutShares
from autotune.answers.fit import MIN_SIZES, FittedPortfolio, Launches, Winner, fitted_tables
from autotune.answers.table import (
    AnswerTable,
    Cost,
    Plan,
    Portfolio,
    Tree,
    features_of,
    fillings,
    predicted_ms,
)
from autotune.answers.trees import TREES, corrections, fitted_trees, outcomes
from autotune.devices.device import for_arch
from autotune.errors import NoAnswerError, UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import is_member
from autotune.run.recording import refitted
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.merged import build_table, pick
from autotune.tuned.reading import RecordFile, decode
from autotune.tuned.record import TunedRecord
from autotune.tuned.writing import encode
from autotune.values import Problem

SM_COUNT = 10
TILES = (32, 64, 128)
RESIDENT = {32: 4, 64: 2, 128: 1}
SIZES = [(m, n) for m in (64, 200, 520, 1280, 4096) for n in (64, 130, 300, 514, 1000, 2304)]


def tile_plan(configuration: Any, problem: Any = None) -> Plan:
    """A plan whose grid is the square tiles of a result."""
    bm = configuration["BM"]
    blocks = [["-", 0, ["//", ["-", 0, field], bm]] for field in ("m", "n")]
    return plan(bm, grid=(["*", *blocks], 1, 1))


def time_ms(bm: int, m: int, n: int, sm_count: int = SM_COUNT) -> float:
    """A launch, and waves of blocks that take longer where a row of n starts anywhere."""
    blocks = math.ceil(m / bm) * math.ceil(n / bm)
    rounds = math.ceil(blocks / sm_count)
    waves = math.ceil(blocks / sm_count / RESIDENT[bm])
    late = {32: 1.1, 64: 1.9, 128: 1.1}[bm] if n % 4 else 1.0
    return (0.004 + rounds * bm**1.8 * 1e-6 + waves * 0.0005) * late


def best(m: int, n: int) -> float:
    """Of all tiles."""
    return min(time_ms(bm, m, n) for bm in TILES)


def portfolio_of(
    sizes: Sequence[tuple[int, int]], time_of: Callable[..., float | None] = time_ms
) -> Portfolio:
    """The matrix of all tiles on some sizes."""
    return Portfolio(
        configurations=tuple(plan(bm).configuration for bm in TILES),
        problems=tuple(problem(m, n) for m, n in sizes),
        median_ms=tuple(tuple(time_of(bm, m, n) for m, n in sizes) for bm in TILES),
    )


def tile_launches(plan_of: Any = tile_plan) -> Launches:
    """Launches of tiles on the device of these tests."""
    return Launches(plan_of, SM_COUNT, {})


def tuned_record(portfolio: Portfolio, sizes: Portfolio | None = None) -> TunedRecord:
    """A record with the answers of a matrix."""
    return record(portfolio=fitted_tables(portfolio, tile_launches(), sizes).portfolio)


def only_table(known: TunedRecord) -> AnswerTable:
    """The answers of a record of one category."""
    (table,) = known.portfolio.tables
    return table


def costs_of(known: TunedRecord) -> tuple[Cost, ...]:
    """Return the parts of a record's prediction."""
    prediction = only_table(known).prediction
    assert prediction is not None
    return prediction.costs


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Lookup among given records alone."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def answer(known: TunedRecord, m: int, n: int, **where: Any) -> Any:
        write(tmp_path, known)
        clear_cache()
        return lookup(KERNEL, **(where or {"arch": 90}), **problem(m, n))

    return answer


# ---------------------------------------------------------------------- fitting


def test_sizes_between_the_measured_ones_are_answered_by_waves_and_alignment() -> None:
    fitted_record = tuned_record(portfolio_of(SIZES))
    table = only_table(fitted_record)
    nearest = record(portfolio=answering(msgspec.structs.replace(table, prediction=None)))
    rng = random.Random(3)
    asked = [(int(2 ** rng.uniform(6, 11)), int(2 ** rng.uniform(6, 11))) for _ in range(200)]
    shares = {}
    for name, known in (("predicted", fitted_record), ("nearest", nearest)):
        tiles = _tiles(known, asked)
        shares[name] = [best(*at) / time_ms(bm, *at) for at, bm in zip(asked, tiles, strict=True)]
    losses = {name: 1 - math.exp(np.log(ratios).mean()) for name, ratios in shares.items()}
    assert 3 * losses["predicted"] < losses["nearest"]
    assert table.prediction is not None and table.prediction.expected is not None
    expected = min(low for low, _ in table.prediction.expected.shares)
    assert expected > 0.8
    assert sum(ratio < expected for ratio in shares["predicted"]) < 0.1 * len(asked)


def _tiles(known: TunedRecord, asked: Sequence[tuple[int, int]]) -> list[Any]:
    table = build_table([RecordFile("test", known.device.folder, known)])
    hits = [pick(table, (m, n, "float32"), arch="sm_90") for m, n in asked]
    return [hit.plan.configuration["BM"] for hit in hits]


def test_gaps_of_the_matrix_are_no_times() -> None:
    full = costs_of(tuned_record(portfolio_of(SIZES)))
    holes = portfolio_of(SIZES, lambda bm, m, n: None if bm == 64 and m < n else time_ms(bm, m, n))
    some = costs_of(tuned_record(holes))
    assert [cost.plan for cost in some] == [cost.plan for cost in full]
    never = portfolio_of(SIZES, lambda bm, m, n: None if bm == 64 else time_ms(bm, m, n))
    tiles = [cost.plan.configuration["BM"] for cost in costs_of(tuned_record(never))]
    assert tiles == [32, 128]


@pytest.mark.parametrize("count", [MIN_SIZES - 1, MIN_SIZES, MIN_ANSWERS - 1, MIN_ANSWERS])
def test_few_sizes_have_no_fit_and_some_more_no_expectation(count: int) -> None:
    table = only_table(tuned_record(portfolio_of(SIZES[:count])))
    assert len(table.rows) == count
    if count < MIN_SIZES:
        assert table.prediction is None
    else:
        assert table.prediction is not None and table.prediction.sizes == count
        assert (table.prediction.expected is not None) == (count >= MIN_ANSWERS)


def untraced(configuration: Any, problem: Any = None) -> Plan:
    """A plan without a traced grid, which no formula has a time of."""
    return plan(configuration["BM"], grid=None)


def test_plans_without_a_grid_are_answered_by_the_nearest_row() -> None:
    portfolio = portfolio_of([(64, 64), (64, 1000), (4096, 64), (4096, 4096)])
    fitted = fitted_tables(portfolio, tile_launches(untraced))
    (table,) = fitted.portfolio.tables
    assert table.prediction is None
    fastest = [min(TILES, key=lambda bm: time_ms(bm, p["m"], p["n"])) for p in portfolio.problems]
    assert [row.plans[0].configuration["BM"] for row in table.rows] == fastest
    assert fitted.held_out.measured == 0


def test_categories_are_fitted_apart() -> None:
    half = portfolio_of(SIZES)
    both = Portfolio(
        configurations=half.configurations,
        problems=(*half.problems, *(problem(m, n, "half2") for m, n in SIZES)),
        median_ms=tuple((*row, *row[::-1]) for row in half.median_ms),
    )
    asked = []

    def planner(configuration: Any, at: Any) -> Plan:
        asked.append(at["dtype"])
        return tile_plan(configuration)

    tables = fitted_tables(both, tile_launches(planner)).portfolio.tables
    assert [{row.problem["dtype"] for row in table.rows} for table in tables] == [
        {"float32"},
        {"half2"},
    ]
    assert tables[0].prediction is not None
    assert set(asked) == {"float32", "half2"}


def test_trees_learn_from_the_errors_in_other_categories() -> None:
    """A step in the times of one category corrects the times of the other."""
    base = portfolio_of(SIZES)
    problems = (*base.problems, *(problem(m, n, "half2") for m, n in SIZES))
    times = tuple((*row, *row) for row in base.median_ms)
    stepped = tuple(
        tuple(ms * (2 if 10 < number < 20 else 1) for number, ms in enumerate(row)) for row in times
    )
    even, odd = (
        fitted_tables(
            Portfolio(configurations=base.configurations, problems=problems, median_ms=each),
            tile_launches(),
        )
        .portfolio.tables[1]
        .prediction
        for each in (times, stepped)
    )
    assert even and odd
    assert even.costs == odd.costs
    assert even.corrections != odd.corrections


# ---------------------------------------------------------------------- sizes beside the tuned problems


def fit_of(tuned: Sequence[tuple[int, int]], sizes: Sequence[tuple[int, int]]) -> FittedPortfolio:
    """A fit to random sizes of the answers of tuned problems."""
    return fitted_tables(portfolio_of(tuned), tile_launches(), portfolio_of(sizes))


def test_random_sizes_are_fitted_and_tuned_problems_are_the_rows() -> None:
    fitted = fit_of(SIZES[:2], SIZES[2:])
    (table,) = fitted.portfolio.tables
    assert [row.problem for row in table.rows] == [problem(*size) for size in SIZES[:2]]
    assert fitted.portfolio.problems == portfolio_of(SIZES[:2]).problems
    assert table.prediction is not None and table.prediction.sizes == len(SIZES) - 2
    assert fitted.held_out.measured == len(SIZES) - 2


def test_the_expectation_is_of_the_measured_sizes_alone() -> None:
    table = build_table(
        [RecordFile("given", "Test_GPU_A", record(portfolio=fit_of(SIZES[:2], SIZES).portfolio))]
    )
    near, far = (pick(table, (m, n, "float32"), arch="sm_90") for m, n in ((777, 555), (9999, 64)))
    assert near.expected_fraction is not None and near.median_fraction is not None
    assert near.expected_fraction <= near.median_fraction <= 1
    assert (far.expected_fraction, far.median_fraction) == (None, None)


def test_a_fit_to_more_sizes_stays() -> None:
    wide = fit_of(SIZES[:2], SIZES[2:]).portfolio
    again = fitted_tables(wide, tile_launches()).portfolio
    assert again == wide
    assert wide.is_far_wider(fitted_tables(portfolio_of(SIZES[:4]), tile_launches()).portfolio)
    fewer = fitted_tables(wide, tile_launches(), portfolio_of(SIZES[:9])).portfolio
    assert fewer == wide
    more = fitted_tables(wide, tile_launches(), portfolio_of(SIZES)).portfolio
    assert more.sizes == len(SIZES)


def test_a_category_that_was_not_tuned_gets_its_first_timed_size_as_a_row() -> None:
    sizes = portfolio_of(SIZES[:8])
    half = msgspec.structs.replace(
        sizes,
        problems=tuple(problem(m, n, "half2") for m, n in SIZES[:8]),
        median_ms=tuple((None, *row[1:]) for row in sizes.median_ms),
    )
    fitted = fitted_tables(portfolio_of(SIZES[:1]), tile_launches(), half).portfolio
    rows = [[row.problem for row in table.rows] for table in fitted.tables]
    assert rows == [[problem(*SIZES[0])], [problem(*SIZES[1], "half2")]]
    assert [table.prediction is not None for table in fitted.tables] == [False, True]


def test_a_configuration_that_came_late_is_chosen_for_all_sizes() -> None:
    """On sizes before it came it was not measured, which does not count against it."""
    configurations = tuple({**plan(bm).configuration} for bm in (32, 64, 128))
    sizes = [(64 + m, 64 + n) for m in range(30) for n in range(30)]

    def times(number: int) -> tuple[float | None, ...]:
        if number == 2:
            return (*(None for _ in sizes[:700]), *(0.008 for _ in sizes[700:]))
        odd = (0.2, 0.0) if number else (0.0, 0.2)
        return tuple(0.01 * (1 + odd[place % 2]) for place in range(len(sizes)))

    matrix = Portfolio(
        configurations=configurations,
        problems=tuple(problem(*size) for size in sizes),
        median_ms=tuple(map(times, range(3))),
    )
    fit = CategoryFit(matrix, [tile_plan(each) for each in configurations], SM_COUNT)
    assert 2 in fit.chosen(1)


def winner(bm: int, ms: float) -> Winner:
    """The winner of a final race."""
    return Winner(plan(bm).configuration, ms)


def test_a_winner_that_the_matrix_lacks_answers_its_row_if_it_is_faster() -> None:
    portfolio = portfolio_of(SIZES)
    without_32 = msgspec.structs.replace(
        portfolio,
        configurations=portfolio.configurations[1:],
        median_ms=portfolio.median_ms[1:],
    )
    winners = {
        Problem(problem(*SIZES[0])): winner(32, 1e-6),
        Problem(problem(*SIZES[1])): winner(32, 1e6),
        Problem(problem(*SIZES[2])): winner(64, 1e-6),
    }
    rows = only_table(
        record(portfolio=fitted_tables(without_32, tile_launches(), winners=winners).portfolio)
    ).rows
    answers = [row.plans[0].configuration["BM"] for row in rows]
    assert answers[0] == 32
    assert 32 not in answers[1:]


@pytest.mark.parametrize(("slow", "is_fitted"), [(16, False), (15, True)])
def test_a_matrix_without_most_winners_is_not_fitted(slow: int, is_fitted: bool) -> None:
    """As if there was no time to measure the winners of a category."""
    portfolio = portfolio_of(SIZES, lambda bm, m, n: None if bm == 32 else 1.0)
    portfolio = msgspec.structs.replace(
        portfolio,
        configurations=portfolio.configurations[1:],
        median_ms=portfolio.median_ms[1:],
    )
    winners = {
        Problem(problem(*size)): winner(32, 0.4 if number < slow else 0.95)
        for number, size in enumerate(SIZES)
    }
    fitted = fitted_tables(portfolio, tile_launches(), winners=winners)
    (table,) = fitted.portfolio.tables
    assert {row.plans[0].configuration["BM"] for row in table.rows} == {32}
    assert (table.prediction is not None) == is_fitted
    if is_fitted:
        assert np.sort(fitted.held_out.shares) == pytest.approx([0.4] * 15 + [0.95] * 15)


@pytest.mark.parametrize(("slower", "chosen"), [(1.018, 64), (1.022, 32)])
def test_a_deterministic_plan_answers_if_it_costs_less_than_two_percent(
    slower: float, chosen: int
) -> None:
    def planner(configuration: Any, problem: Any) -> Plan:
        return plan(configuration["BM"], grid=None, deterministic=configuration["BM"] == 64)

    portfolio = Portfolio(
        configurations=tuple(plan(bm).configuration for bm in (32, 64)),
        problems=tuple(problem(n, n) for n in (64, 128, 256)),
        median_ms=((1.0,) * 3, (slower,) * 3),
    )
    (table,) = fitted_tables(portfolio, tile_launches(planner)).portfolio.tables
    assert {row.plans[0].configuration["BM"] for row in table.rows} == {chosen}


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.floats(0.1, 10)), min_size=5, max_size=5),
        min_size=1,
        max_size=3,
    )
)
def test_rows_offer_only_configurations_that_run(times: list[list[float | None]]) -> None:
    sizes = [(8, 8), (64, 64), (100, 100), (512, 512), (5000, 5000)]
    matrix = Portfolio(
        configurations=tuple(plan(bm).configuration for bm in TILES[: len(times)]),
        problems=tuple(problem(*size) for size in sizes),
        median_ms=tuple(map(tuple, times)),
    )
    portfolio = fitted_tables(matrix, tile_launches()).portfolio
    assert decode(encode(record(portfolio=portfolio))).portfolio == portfolio
    for table in portfolio.tables:
        for row in table.rows:
            column = matrix.problems.index(row.problem)
            number = matrix.configurations.index(row.plans[0].configuration)
            assert matrix.median_ms[number][column] is not None


# ---------------------------------------------------------------------- the parts of a fit


def test_the_features_of_a_cost_are_its_blocks_and_how_full_their_rounds_are() -> None:
    assert fillings(132, 132) == [132, 32, 16, 8]
    assert fillings(133, 132) == [133, 16, 16, 8]


def test_each_tree_corrects_the_errors_that_are_left() -> None:
    features = np.arange(200)[:, None] // 10
    errors = np.where(features[:, 0] > 12, 0.5, -0.2)
    trees = fitted_trees(features, errors, np.ones(200))
    left = [
        np.abs(errors - np.log(corrections(trees[:count], features))).max()
        for count in range(TREES + 1)
    ]
    assert left == sorted(left, reverse=True) and left[-1] < 0.05 * left[0]


def test_the_fit_predicts_the_times_that_lookup_computes() -> None:
    """Times of wide results are longer than any formula says, so that trees correct them."""
    matrix = portfolio_of(SIZES, lambda bm, m, n: time_ms(bm, m, n) * (2 if n > 600 else 1))
    fit = CategoryFit(matrix, [tile_plan(each) for each in matrix.configurations], SM_COUNT)
    chosen, known = range(len(TILES)), np.arange(len(SIZES))
    fits = fit.fitted(chosen, known)
    prediction = fit.prediction(chosen, HeldOutShares(np.full(len(SIZES), np.nan)))
    assert prediction is not None
    factors = [
        factor for trees in prediction.corrections for tree in trees for factor in tree.factors
    ]
    assert max(factors) > 1.05
    computed = [
        [
            predicted_ms(
                cost, prediction.multiple, fields, trees, features_of(tuple(fields.values()))
            )
            for fields in matrix.problems
        ]
        for cost, trees in zip(prediction.costs, prediction.corrections, strict=True)
    ]
    np.testing.assert_allclose(fit.predicted(chosen, fits), computed, rtol=0.01)
    assert all(ms > 0 for cost in prediction.costs for ms, _ in cost.fixed)


def test_a_device_with_half_of_the_multiprocessors_takes_twice_the_waves() -> None:
    """As if its formula had been fitted there: rounds, waves, and how full the rounds are (feature 5)."""
    tree = Tree(splits=((5, 20),), factors=(1.5, 1.0))
    chosen = tile_plan({"BM": 64})
    waves = ((132, ((1.0, ()),)), (264, ((2.0, ("m",)),)))
    cost = Cost(plan=chosen, fixed=((0.5, ()),), waves=waves)
    halved = msgspec.structs.replace(cost, waves=tuple((n // 2, terms) for n, terms in waves))
    for fields in (
        {"m": m, "n": n, "dtype": "float32"} for m in (64, 512, 4000) for n in (64, 999)
    ):
        sizes = features_of(tuple(fields.values()))
        asked = partial(predicted_ms, multiple=4, fields=fields, trees=(tree,), sizes=sizes)
        assert asked(cost, multiprocessors=66) == asked(halved)
        assert asked(cost, multiprocessors=132) == asked(cost)
    assert asked(cost) < asked(halved)


@pytest.mark.parametrize("count", [4, 6, 16, 25])
def test_answers_for_a_gpu_of_another_size_count_its_waves(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waves take as long as those of the tuned device, so that its best tiles are known."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    made = tuned_record(portfolio_of(SIZES))
    tuned = msgspec.structs.replace(made.device, sm_count=SM_COUNT)
    write(tmp_path, msgspec.structs.replace(made, device=tuned))
    clear_cache()
    other = replace(for_arch("sm_90"), name="Another GPU", sm_count=count)
    asked = [(m, n) for m in (90, 333, 900, 2500) for n in (100, 400, 700, 1500)]

    def share(where: dict[str, Any]) -> float:
        shares = []
        for m, n in asked:
            found = lookup(KERNEL, **where, **problem(m, n))
            times = {bm: time_ms(bm, m, n, count) for bm in TILES}
            shares.append(min(times.values()) / times[found["BM"]])
        return math.prod(shares) ** (1 / len(shares))

    known, unknown = share({"device": other}), share({"device": other.name, "arch": 90})
    assert known > 0.97 and known > unknown
    assert lookup(KERNEL, device=other, **problem(90, 100)).quality == "same_arch"


def test_nine_of_ten_sizes_of_a_kind_reach_the_expectation() -> None:
    matrix = portfolio_of([(64 + m, 64 + n) for m in range(10) for n in range(20)])
    shares = (np.random.default_rng(1).permutation(200) + 700.5) / 1000
    plans = [tile_plan(each) for each in matrix.configurations]
    fit = CategoryFit(matrix, plans, SM_COUNT)
    prediction = fit.prediction([0], HeldOutShares(shares))
    assert prediction is not None and prediction.expected is not None
    kinds = outcomes(prediction.expected.splits, fit.of_problem)
    for kind, (low, median) in enumerate(prediction.expected.shares):
        found = shares[kinds == kind] if sum(kinds == kind) >= 10 else shares
        assert sum(found < low) == (len(found) + 1) // 10 - 1
        assert np.median(found) - 1e-3 < median <= np.median(found)


def test_a_configuration_that_was_left_out_is_slower_than_the_best() -> None:
    """A fit does not choose a configuration by predictions for sizes on which it was not timed."""
    portfolio = portfolio_of(SIZES)
    partial = (*portfolio.median_ms[0][:20], *(None for _ in SIZES[20:]))
    matrix = msgspec.structs.replace(portfolio, median_ms=(partial, *portfolio.median_ms[1:]))
    fit = CategoryFit(matrix, [tile_plan(each) for each in matrix.configurations], SM_COUNT)
    completed, _ = fit.completed()
    np.testing.assert_array_equal(completed[0, :20], partial[:20])
    assert (completed[0, 20:] >= 1.3 * fit.best_ms[20:]).all()
    held_out = fit.held_out([0])
    np.testing.assert_array_equal(np.isfinite(held_out.shares), np.arange(len(SIZES)) < 20)


def test_a_configuration_that_is_hard_to_predict_counts_as_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = portfolio_of(SIZES)
    fit = CategoryFit(matrix, [tile_plan(each) for each in matrix.configurations], SM_COUNT)
    times, spreads = np.ones((3, len(SIZES))) * [[1.0], [1.1], [2.0]], np.array([0.5, 0.1, 0.0])
    monkeypatch.setattr(fit, "completed", lambda: (times, spreads))
    assert fit.chosen(1) == [1]


# ---------------------------------------------------------------------- answering


def cost(chosen: Plan, ms: float, **changes: Any) -> Cost:
    """A configuration that always takes so long."""
    return Cost(**{"plan": chosen, "fixed": ((ms, ()),), "waves": (), **changes})


NEAR = expecting(0.9, 200)


def answered_by(costs: Sequence[Cost], multiple: int = 4) -> TunedRecord:
    """A record of one problem whose row names a prediction of the costs."""
    table = table_of(plan(32), costs=costs, multiple=multiple, expected=NEAR)
    return record([entry(problem(64, 64), plan(32))], portfolio=answering(table))


def test_the_least_time_that_the_problem_allows_answers(ask: Callable[..., Any]) -> None:
    even = plan(128, requires=["==", ["%", "n", 2], 0])
    costs = [cost(plan(64), 2), cost(even, 1), cost(plan(32, "auto"), 2)]
    known = answered_by(costs)
    assert (ask(known, 100, 10)["BM"], ask(known, 100, 11)["BM"]) == (128, 64)
    hit = ask(known, 100, 10)
    assert (hit.quality, hit.expected_fraction, hit.grid) == ("nearest_problem", 0.9, (1, 1, 1))
    assert (ask(known, 64, 64).quality, ask(known, 64, 64)["BM"]) == ("exact", 32)


def test_a_speed_is_expected_of_predicted_answers_only(ask: Callable[..., Any]) -> None:
    known = answered_by([cost(plan(128, requires=["==", ["%", "n", 2], 0]), 1)])
    predicted, of_row = ask(known, 100, 10), ask(known, 100, 11)
    assert (predicted["BM"], predicted.expected_fraction, predicted.median_fraction) == (
        128,
        0.9,
        1,
    )
    assert (of_row["BM"], of_row.expected_fraction, of_row.median_fraction) == (32, None, None)


def test_waves_products_and_misalignment_count(ask: Callable[..., Any]) -> None:
    steady = cost(plan(64), 10)
    waves = cost(
        plan(128), 1, waves=((2, ((4.0, ()),)),)
    )  # blocks of plan(): ceil(m / 128) * n//64
    assert [ask(answered_by([steady, waves]), 512, n)["BM"] for n in (64, 128)] == [128, 64]
    product = cost(plan(128), 1, fixed=((0.01, ("m", "n")),))
    assert [ask(answered_by([steady, product]), 10, n)["BM"] for n in (99, 101)] == [128, 64]
    late = cost(plan(128), 6, misaligned={"n": 2.0})
    assert [ask(answered_by([steady, late], 8), 10, n)["BM"] for n in (80, 84)] == [128, 64]


def test_sizes_whose_grids_no_device_has_get_no_answer(ask: Callable[..., Any]) -> None:
    known = answered_by([cost(plan(128), 1)])
    product = plan(64, grid=(["*", "m", "n"], 1, 1))
    endless = answered_by([cost(product, 1, waves=((1, ((1.0, ()),)),))])
    for table, m, n in (
        (known, 2**63 - 1, 5),
        (known, 2**63, 5),
        (known, 10**400, 5),
        (endless, 2**40, 2**40),
    ):
        with pytest.raises(NoAnswerError, match="grids are larger than CUDA allows"):
            ask(table, m, n)


def test_other_architectures_get_what_is_valid_there(ask: Callable[..., Any]) -> None:
    here = cost(plan(128, archs=("sm_90",)), 1)
    both = cost(plan(64, archs=("sm_90", "sm_100")), 2)
    known = answered_by([here, both])
    assert ask(known, 9, 9, arch=90)["BM"] == 128
    hit = ask(known, 9, 9, arch=100)
    assert (hit["BM"], hit.quality, hit.expected_fraction) == (64, "nearest_arch", None)


def test_a_shipped_fit_has_an_expectation() -> None:
    near, far, tuned = (
        lookup("sgemm", device="NVIDIA H200", m=m, n=n, k=k)
        for m, n, k in ((3072, 3072, 3072), (10**6, 64, 64), (4096, 4096, 4096))
    )
    assert re.fullmatch(r"expected 0\.\d\d to (0\.9\d|1\.00) of the best", near.expected)
    assert (far.expected, tuned.expected) == ("", "")


# ---------------------------------------------------------------------- fitting again


@pytest.fixture
def measured() -> Portfolio:
    """Seeds of a bundled kernel on some problems, as if `autotune portfolio` had measured them."""
    kernel = find_kernel("transpose")
    seeds = [kernel.completed(seed) for seed in kernel.seeds]
    configurations = [seed for seed in seeds if is_member(kernel, seed, for_arch("sm_90"))][:3]
    rng = random.Random(5)
    sizes = [(rng.randrange(1, 9000), rng.randrange(1, 9000)) for _ in range(12)]
    return Portfolio(
        configurations=tuple(configurations),
        problems=tuple(Problem(m=m, n=n) for m, n in sizes),
        median_ms=tuple(
            tuple(0.01 * position + 1e-8 * m * n / position for m, n in sizes)
            for position in range(1, len(configurations) + 1)
        ),
    )


def transpose_record(**changes: Any) -> TunedRecord:
    """A record of that kernel for which nothing is fitted."""
    kernel = find_kernel("transpose")
    return record(
        kernel=kernel.name,
        fields=dict.fromkeys(kernel.fields, "integer"),
        parameters=dict(kernel.parameters),
        default=plan(configuration=dict(kernel.default()), grid=None),
        **changes,
    )


def test_a_record_is_fitted_without_its_device(measured: Portfolio) -> None:
    found = refitted(transpose_record(), find_kernel("transpose"), measured)
    assert found.portfolio.median_ms == measured.median_ms
    assert [row.problem for row in only_table(found).rows] == list(found.portfolio.problems)
    costs = costs_of(found)
    assert len(costs) == len(measured.configurations)
    assert all(cost.plan.archs and "sm_90" in cost.plan.archs for cost in costs)
    assert decode(encode(found)).portfolio == found.portfolio


def test_records_of_another_source_are_not_fitted_again(measured: Portfolio) -> None:
    made = entry({"m": 1, "n": 2}, transpose_record().default, source="older")
    with pytest.raises(UsageError, match=r"transpose on Test GPU A: .* autotune retune transpose"):
        refitted(transpose_record(problems=(made,)), find_kernel("transpose"), measured)

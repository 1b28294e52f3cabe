"""Predictions: what is fitted to a matrix, whether it is used, and how lookups are answered by it.

The device of these tests is a formula: ten multiprocessors, tiles of different sizes, and waves.
"""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import KERNEL, answering, entry, plan, problem, record, table_of, write

from autotune.devices.device import for_arch
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import is_member
from autotune.run.recording import refitted
from autotune.tuned.fallback import (
    ENOUGH_PROBLEMS,
    FAILED,
    STEPS,
    answer_tables,
    expectations,
    lower_bound,
)
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.prediction import Predictor
from autotune.tuned.reading import RecordFile, decode
from autotune.tuned.record import (
    AnswerTable,
    Cost,
    Plan,
    Portfolio,
    TunedRecord,
)
from autotune.tuned.table import build_table, pick
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


def time_ms(bm: int, m: int, n: int) -> float:
    """A launch, and waves of blocks that take longer where a row of n starts anywhere."""
    blocks = math.ceil(m / bm) * math.ceil(n / bm)
    rounds = math.ceil(blocks / SM_COUNT)
    waves = math.ceil(blocks / SM_COUNT / RESIDENT[bm])
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


def tuned_record(portfolio: Portfolio, plan_of: Any = tile_plan) -> TunedRecord:
    """A record with what is made of a matrix."""
    tables = answer_tables(portfolio, plan_of, SM_COUNT)
    return record(portfolio=msgspec.structs.replace(portfolio, tables=tables))


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
    """Lookup among given records, of which no others are known."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def answer(known: TunedRecord, m: int, n: int, **where: Any) -> Any:
        write(tmp_path, known)
        clear_cache()
        return lookup(KERNEL, **(where or {"arch": 90}), **problem(m, n))

    return answer


# ---------------------------------------------------------------------- fitting


def test_sizes_between_those_measured_are_answered_by_waves_and_alignment() -> None:
    fitted_record = tuned_record(portfolio_of(SIZES))
    table = only_table(fitted_record)
    expected = table.expected[0][1]
    assert table.prediction is not None
    rows_alone = msgspec.structs.replace(table, prediction=None)
    nearest = record(portfolio=answering(rows_alone))
    rng = random.Random(3)
    asked = [(int(2 ** rng.uniform(5, 11)), int(2 ** rng.uniform(5, 11))) for _ in range(200)]
    shares, worse = {}, {}
    for name, each in (("predicted", fitted_record), ("nearest", nearest)):
        tiles = _tiles(each, asked)
        ratios = [best(*at) / time_ms(bm, *at) for at, bm in zip(asked, tiles, strict=True)]
        shares[name] = math.exp(sum(map(math.log, ratios)) / len(ratios))
        worse[name] = sum(ratio < expected for ratio in ratios)
    assert 3 * (1 - shares["predicted"]) < 1 - shares["nearest"]
    assert expected > 0.8
    assert worse["predicted"] < 0.1 * len(asked)


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
    plans = [tile_plan(configuration) for configuration in never.configurations]
    found = Predictor(never, range(len(SIZES)), plans, SM_COUNT).prediction()
    assert found and [cost.plan for cost in found.costs] == [plans[0], plans[2]]


def test_a_prediction_that_is_no_better_is_not_kept() -> None:
    made = tuned_record(portfolio_of(SIZES, lambda bm, m, n: bm * time_ms(64, m, n)))
    assert only_table(made).prediction is None
    assert only_table(made).expected == ((128, 1.0),)


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

    tables = answer_tables(both, planner, SM_COUNT)
    assert [{row.problem["dtype"] for row in table.rows} for table in tables] == [
        {"float32"},
        {"half2"},
    ]
    assert tables[0].prediction is not None
    assert set(asked) == {"float32", "half2"}


# ---------------------------------------------------------------------- answering


def cost(chosen: Plan, ms: float, **changes: Any) -> Cost:
    """A configuration that always takes so long."""
    return Cost(**{"plan": chosen, "fixed": ((ms, ()),), "waves": (), **changes})


#: Nine tenths of the best speed up to a distance of 200.
NEAR = ((200, 0.9),)


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


def test_sizes_beyond_64_bits_get_the_row(ask: Callable[..., Any]) -> None:
    known = answered_by([cost(plan(128), 1)])
    assert ask(known, 2**63 - 1, 5)["BM"] == 128
    assert ask(known, 2**63, 5)["BM"] == 32
    assert ask(known, 10**400, 5)["BM"] == 32
    product = plan(64, grid=(["*", "m", "n"], 1, 1))
    endless = answered_by([cost(product, 1, waves=((1, ((1.0, ()),)),))])
    assert (ask(endless, 2**40, 5)["BM"], ask(endless, 2**40, 2**40)["BM"]) == (64, 32)


def test_other_architectures_get_what_is_valid_there(ask: Callable[..., Any]) -> None:
    here = cost(plan(128, archs=("sm_90",)), 1)
    both = cost(plan(64, archs=("sm_90", "sm_100")), 2)
    known = answered_by([here, both])
    assert ask(known, 9, 9, arch=90)["BM"] == 128
    hit = ask(known, 9, 9, arch=100)
    assert (hit["BM"], hit.quality, hit.expected_fraction) == (64, "nearest_arch", None)


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


# ---------------------------------------------------------------------- Promises


def line(places: Sequence[int]) -> Callable[[int, int], int]:
    """The distance of problems that lie on a line."""
    return lambda p, q: abs(places[p] - places[q])


@pytest.mark.parametrize("count", [4, 9, 18, 35, 200])
def test_nine_of_ten_losses_like_those_seen_are_within_the_bound(count: int) -> None:
    """Of exponential losses 95 % are for few; a quantile of many is one of any distribution."""
    rng = random.Random(count)
    held = 0
    for _ in range(2000):
        *seen, new = (math.exp(-rng.expovariate(20)) for _ in range(count + 1))
        held += new >= lower_bound(seen)
    assert held >= 0.93 * 2000


def test_a_rare_great_loss_is_expected_of_many_only_where_it_was_seen_often() -> None:
    """One of 40 at half the speed is less than one of twenty; three are more."""
    steady = [0.99] * 40
    assert lower_bound([*steady[3:], 0.5, 0.5, 0.5]) == 0.5
    assert lower_bound([*steady[1:], 0.5]) == 0.99


def test_of_few_the_next_may_be_worse_than_all() -> None:
    assert lower_bound([0.95, 0.96, 0.97, 0.98]) < 0.9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_bound_is_a_share_and_below_most(shares: list[float]) -> None:
    bound = lower_bound(shares)
    assert 0 <= bound <= 1
    assert bound <= max(*shares, FAILED) + 1e-9
    assert sum(max(share, FAILED) < bound - 1e-9 for share in shares) <= 0.05 * len(shares)


def test_what_is_farther_is_promised_less_and_what_is_too_far_nothing() -> None:
    """A table that answers near itself and loses a hundredth for each step of the distance."""
    places = range(0, 480, 12)
    apart = line(places)

    def share_of(problem: int, known: Sequence[int]) -> float:
        return 1 - min(apart(problem, other) for other in known) / 200

    found = dict(expectations(range(len(places)), apart, share_of))
    # Of each step those count that are in it or in the next: 24, 36, 72 and 132 away.
    assert found == {16: 0.88, 32: 0.82, 64: 0.64, 128: 0.34}


def test_steps_that_promise_the_same_are_one() -> None:
    places = range(0, 480, 12)
    assert expectations(range(40), line(places), lambda *_: 1.0) == ((STEPS[-1], 1.0),)


@pytest.mark.parametrize("count", range(ENOUGH_PROBLEMS))
def test_few_problems_promise_nothing(count: int) -> None:
    assert expectations(range(count), line([0, 10, 20]), lambda *_: 1.0) == ()


def test_problems_far_from_each_other_promise_nothing() -> None:
    assert expectations(range(9), line([1000 * p for p in range(9)]), lambda *_: 1.0) == ()


def test_nothing_is_asked_of_nobody() -> None:
    """A table of no problems answers nothing, so none is made."""

    def share_of(problem: int, known: Sequence[int]) -> float:
        assert known
        assert problem not in known
        return 1.0

    expectations(range(6), line([0, 0, 1, 1, 40, 80]), share_of)

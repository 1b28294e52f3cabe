"""Configurations on random sizes: what is drawn, measured, continued, refused."""

import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autotune import lookup
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.measure.rotation import first_time
from autotune.run.drawing import random_sizes
from autotune.run.matrix import fitted_to_sizes
from autotune.run.plans import plan_of
from autotune.run.recording import refitted
from autotune.run.size_times import TimeMatrix
from autotune.store import SizeTimes
from autotune.tuned.correction import TREES, corrections, fitted_trees, outcomes
from autotune.tuned.dense import HeldOut, SizeFit
from autotune.tuned.reading import RecordFile, decode, read
from autotune.tuned.record import Portfolio, TunedRecord
from autotune.tuned.table import LookupTable, build_table, fillings, pick
from autotune.tuned.writing import encode
from autotune.values import Configuration, Problem

H200 = Path(__file__).parents[1] / "reports" / "NVIDIA_H200"
#: Its record has no fit to random sizes.
H100 = H200.with_name("NVIDIA_H100_80GB_HBM3")
ON_CPU = ["--device", "opencl:cpu"]


def sgemm_sizes(seed: int, count: int) -> list[tuple[int, ...]]:
    device = read(H200 / "sgemm.json").device.planned_for()
    found = islice(random_sizes(find_kernel("sgemm"), device, seed), count)
    return [(p.m, p.n, p.k) for p in found]


def sampled_matrix(count: int, seed: int = 3) -> Portfolio:
    """Return invented times of sgemm's portfolio on random sizes, which its formula does not have."""
    record, kernel = read(H100 / "sgemm.json"), find_kernel("sgemm")
    configurations = record.portfolio.configurations[:6]
    problems = [{"m": m, "n": n, "k": k} for m, n, k in sgemm_sizes(seed, count)]

    def time_ms(number: int, m: int, n: int, k: int) -> float:
        tiles = -(-m // (16 << number)) * -(-n // 64)
        odd = 1.5 if k & -k < 8 and number % 2 else 1.0
        return 0.002 + 1e-6 * (5 + number) * -(-tiles // 132) * k * odd * (
            2 if n < 100 * number else 1
        )

    return Portfolio(
        configurations=configurations,
        problems=tuple(problems),
        median_ms=tuple(
            tuple(
                time_ms(number, **problem)
                if kernel.allows(Configuration(dict(values)), Problem(problem))
                else None
                for problem in problems
            )
            for number, values in enumerate(configurations)
        ),
    )


@pytest.fixture(scope="module")
def fitted() -> tuple[TunedRecord, HeldOut]:
    """sgemm's record, whose answers are fitted to invented times."""
    return fitted_to_sizes(read(H100 / "sgemm.json"), find_kernel("sgemm"), sampled_matrix(200))


def test_a_fit_to_sizes_answers_others(fitted: tuple[TunedRecord, HeldOut]) -> None:
    record, held_out = fitted
    assert np.exp(np.log(held_out.shares).mean()) > 0.95
    (table,) = record.portfolio.tables
    assert table.prediction is not None
    assert table.prediction.sizes == 200
    assert decode(encode(record)).portfolio == record.portfolio
    lookups = build_table([RecordFile("given", record.device.folder, record)])
    hits = [pick(lookups, sizes, record.device.folder) for sizes in sgemm_sizes(4, 50)]
    known = [hit for hit in hits if hit.expected_fraction is not None]
    assert len(known) > 40
    assert all(hit.expected_fraction <= hit.median_fraction <= 1 for hit in known)
    far = pick(lookups, (10**6, 10**6, 10**6), record.device.folder)
    assert (far.expected_fraction, far.median_fraction) == (None, None)


def test_a_configuration_that_comes_later_is_chosen_by_the_sizes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many sizes before nobody measured it, and there it counts as slow."""
    monkeypatch.setattr("autotune.run.matrix.MOST_CONFIGURATIONS", 2)
    record, kernel = read(H100 / "sgemm.json"), find_kernel("sgemm")
    first, second, late = map(Configuration, sampled_matrix(1).configurations[:3])
    sizes = [Problem(m=m, n=n, k=k) for m, n, k in sgemm_sizes(3, 900)]
    matrix = TimeMatrix()

    def times_ms(place: int, count: int) -> dict[Configuration, float]:
        times = [0.01 * (1 + place % 2 / 5), 0.01 * (1.2 - place % 2 / 5), 0.008]
        return dict(zip((first, second, late), times[:count], strict=False))

    for place, size in enumerate(sizes):
        matrix.add(SizeTimes(size, times_ms(place, 2 if place < 700 else 3)))
    for deciding, is_chosen in ((set[Problem](), False), (set(sizes[700:]), True)):
        fitted, _ = fitted_to_sizes(record, kernel, matrix.portfolio(), deciding)
        assert (late in map(Configuration, fitted.portfolio.configurations)) == is_chosen


def test_sizes_of_each_category_have_a_fit_of_their_own() -> None:
    """Of two configurations one is faster for int32, the other for float16, at any size."""
    record, kernel = read(H100 / "reduce_op.json"), find_kernel("reduce_op")
    categories = [{"op": "sum", "dtype": "int32"}, {"op": "max", "dtype": "float16"}]
    configurations = [
        entry.configuration
        for entry in record.problems
        if {name: entry.problem[name] for name in ("op", "dtype")} in categories
        and entry.configuration["FINISH"] == "kernel"
    ]
    assert len(configurations) == 2
    sizes = [1000 + 997 * number for number in range(100)]
    problems = [{"n": n, **category} for category in categories for n in sizes]
    matrix = Portfolio(
        configurations=tuple(configurations),
        problems=tuple(problems),
        median_ms=tuple(
            tuple(
                (1 + (number != (p["op"] == "max"))) * (0.002 + 1e-8 * int(p["n"]))
                for p in problems
            )
            for number in range(2)
        ),
    )
    bare = msgspec.structs.replace(record, portfolio=Portfolio())
    fitted, held_out = fitted_to_sizes(record, kernel, matrix)
    assert len(held_out.shares) == 200
    assert held_out.shares.min() > 0.99
    before, after = (
        build_table([RecordFile("given", record.device.folder, each)]) for each in (record, fitted)
    )

    def answers(table: LookupTable, category: Mapping[str, str]) -> list[Mapping[str, Any]]:
        sizes = ((n, *category.values()) for n in (777, 5432))
        return [pick(table, size, record.device.folder).plan.configuration for size in sizes]

    for number, category in enumerate(categories):
        assert answers(after, category) == [configurations[number]] * 2
    # Trees of the second category learn from a step in the times of the first.
    stepped = tuple(
        tuple(ms * (2 if 50 < number < 100 else 1) for number, ms in enumerate(row))
        for row in matrix.median_ms
    )
    trees = [
        {table.rows[0].problem["op"]: table.prediction for table in found.portfolio.tables}
        for found, _ in (
            fitted_to_sizes(bare, kernel, matrix),
            fitted_to_sizes(bare, kernel, msgspec.structs.replace(matrix, median_ms=stepped)),
        )
    ]
    assert trees[0]["max"].costs == trees[1]["max"].costs
    assert trees[0]["max"].corrections != trees[1]["max"].corrections
    other = {"op": "sum", "dtype": "float64"}
    assert answers(after, other) == answers(before, other)
    # An interrupted run has no portfolio.
    alone = build_table(
        [RecordFile("given", record.device.folder, fitted_to_sizes(bare, kernel, matrix)[0])]
    )
    for category in categories:
        assert answers(alone, category) == answers(after, category)
    # The first size of each category failed.
    failed = tuple((None, *row[1:100], None, *row[101:]) for row in matrix.median_ms)
    partial = fitted_to_sizes(bare, kernel, msgspec.structs.replace(matrix, median_ms=failed))[0]
    assert [problem["n"] for problem in partial.portfolio.problems] == [sizes[1]] * 2
    assert all(table.prediction for table in partial.portfolio.tables)
    # The record has no time of what is chosen on the first category's problem.
    untimed = tuple((None, *row[1:]) for row in partial.portfolio.median_ms)
    lost = msgspec.structs.replace(partial.portfolio, median_ms=untimed)
    again = fitted_to_sizes(msgspec.structs.replace(partial, portfolio=lost), kernel, matrix)[0]
    found = {table.rows[0].problem["op"] for table in again.portfolio.tables if table.prediction}
    assert found == {"sum", "max"}


def test_what_was_not_measured_is_slower_than_the_best() -> None:
    """No fit chooses a configuration for what it foretells where nobody looked."""
    device, kernel = read(H100 / "sgemm.json").device.planned_for(), find_kernel("sgemm")
    whole = sampled_matrix(120)
    rows = [list(row) for row in whole.median_ms]
    one = max(range(len(rows)), key=lambda number: sum(ms is not None for ms in rows[number]))
    rows[one][60:] = [None] * 60
    matrix = msgspec.structs.replace(whole, median_ms=tuple(map(tuple, rows)))
    size = Problem(m=4096, n=4096, k=4096)
    plans = [plan_of(kernel, Configuration(c), size, device) for c in matrix.configurations]
    fit = SizeFit(matrix, plans, device.sm_count, kernel.layout)
    completed, _ = fit.completed()
    is_known = np.isfinite(fit.times[one])
    assert not is_known[60:].any()
    np.testing.assert_array_equal(completed[one, is_known], fit.times[one, is_known])
    assert (completed[one, 60:] >= 1.3 * fit.best_ms[60:]).all()
    held_out = fit.held_out([one])
    np.testing.assert_array_equal(np.isfinite(held_out.shares), is_known)
    assert fit.prediction([one], held_out).expected is not None


def test_few_sizes_learn_from_the_errors_of_another_category() -> None:
    device, kernel = read(H100 / "sgemm.json").device.planned_for(), find_kernel("sgemm")
    matrices = (sampled_matrix(count, seed) for count, seed in ((60, 3), (240, 5)))
    size = Problem(m=4096, n=4096, k=4096)
    configurations = sampled_matrix(1).configurations
    plans = [plan_of(kernel, Configuration(c), size, device) for c in configurations]
    few, many = (SizeFit(m, plans, device.sm_count, kernel.layout) for m in matrices)
    every = range(len(plans))
    alone = few.held_out(every).shares
    few.others = [many]
    together = few.held_out(every).shares
    assert np.log(together).mean() > np.log(alone).mean()


def promised_elsewhere(matrix: Portfolio) -> dict[str, Any]:
    """Return two configurations, each timed only where the other one's times promise that it is faster."""
    kernel = find_kernel("sgemm")
    sizes = [Problem(m=64 * n, n=64 * n, k=1024) for n in (*range(5, 40), *range(100, 135))]
    allowed = [
        each
        for each in matrix.configurations
        if all(kernel.allows(Configuration(each), size) for size in sizes)
    ]
    few, many, untimed = sizes[:35], sizes[35:], (None,) * 35
    growing = [1e-6 * size["m"] * size["n"] for size in many]
    return {
        "configurations": tuple(allowed[:2]),
        "problems": tuple(map(dict, sizes)),
        "median_ms": ((*(growing[0] / 2 for _ in few), *untimed), (*untimed, *growing)),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda matrix: {"problems": matrix.problems[:50]}, "50 sizes are too few to fit, 60 are"),
        (
            lambda matrix: {
                "problems": (*matrix.problems[1:], {**matrix.problems[0], "dtype": "half"})
            },
            "1 sizes of half are too few to fit, 20 are",
        ),
        (promised_elsewhere, "answers on sizes held out of the fit were"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    change: Callable[[Portfolio], dict[str, Any]], message: str
) -> None:
    matrix = sampled_matrix(120)
    matrix = msgspec.structs.replace(matrix, **change(matrix))
    with pytest.raises(UsageError, match=message):
        fitted_to_sizes(read(H100 / "sgemm.json"), find_kernel("sgemm"), matrix)


def test_answers_say_what_to_expect() -> None:
    """As of sizes that are held out of the fit of the shipped record."""
    near, far, tuned = (
        lookup("sgemm", device="NVIDIA H200", m=m, n=n, k=k)
        for m, n, k in ((3072, 3072, 3072), (10**6, 64, 64), (4096, 4096, 4096))
    )
    assert re.fullmatch(r"expected 0\.\d\d to (0\.9\d|1\.00) of the best", near.expected)
    assert (far.expected, tuned.expected) == ("", "")


def test_the_features_of_a_cost_are_its_blocks_and_how_full_their_rounds_are() -> None:
    assert fillings(132, 132) == [132, 32, 16, 8]
    assert fillings(133, 132) == [133, 16, 16, 8]


def test_a_configuration_that_is_hard_to_foretell_counts_as_slower() -> None:
    matrix = sampled_matrix(200)
    fit = SizeFit(matrix, [None] * len(matrix.configurations), 132, {})
    times, spreads = np.ones((3, 200)) * [[1.0], [1.1], [2.0]], np.array([0.5, 0.1, 0.0])
    assert fit.chosen(times, spreads, count=1) == [1]


def test_each_tree_corrects_what_those_before_it_leave() -> None:
    features = np.arange(200)[:, None] // 10
    errors = np.where(features[:, 0] > 12, 0.5, -0.2)
    trees = fitted_trees(features, errors, np.ones(200))
    left = [
        np.abs(errors - np.log(corrections(trees[:count], features))).max()
        for count in range(TREES + 1)
    ]
    assert left == sorted(left, reverse=True) and left[-1] < 0.05 * left[0]


def test_nine_of_ten_sizes_of_a_kind_reach_what_is_expected() -> None:
    matrix = sampled_matrix(200)
    shares = (np.random.default_rng(1).permutation(200) + 700.5) / 1000
    fit = SizeFit(matrix, [None] * len(matrix.configurations), 132, {})
    expected = fit.prediction([], HeldOut(shares)).expected
    assert expected is not None
    kinds = outcomes(expected.splits, fit.of_problem)
    for kind, (low, median) in enumerate(expected.shares):
        found = shares[kinds == kind] if sum(kinds == kind) >= 10 else shares
        assert sum(found < low) == (len(found) + 1) // 10 - 1
        assert np.median(found) - 1e-3 < median <= np.median(found)


@pytest.mark.parametrize(
    ("taken_ms", "counted_ms"), [((0.1,), 0.1), ((0.4, 0.1), 0.1), ((0.4, 0.5), 0.4)]
)
def test_a_first_call_that_takes_long_is_repeated(
    taken_ms: tuple[float, ...], counted_ms: float
) -> None:
    calls = iter(taken_ms)
    assert first_time(lambda: next(calls), 0.3) == counted_ms
    assert not list(calls)


def test_a_refit_keeps_a_fit_to_sizes(fitted: tuple[TunedRecord, HeldOut]) -> None:
    record, kernel = fitted[0], find_kernel("sgemm")
    again = refitted(record, kernel, msgspec.structs.replace(record.portfolio, tables=()))
    assert again.portfolio == record.portfolio
    without_sizes = read(H100 / "copy.json").portfolio
    assert record.portfolio.is_far_wider(without_sizes)

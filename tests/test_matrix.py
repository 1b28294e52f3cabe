"""Configurations on random sizes: what is drawn, measured, continued, refused."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autotune import lookup
from autotune.cli import run
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.measure.rotation import first_time
from autotune.run.bench import Bench
from autotune.run.matrix import (
    Binaries,
    Chooser,
    SizeMatrix,
    candidates_of,
    fitted_to_sizes,
    random_sizes,
)
from autotune.run.plans import plan_of
from autotune.run.recording import refitted
from autotune.run.request import Request
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


def test_sizes_are_of_all_kinds_and_the_same_by_seed() -> None:
    drawn = sgemm_sizes(1, 400)
    assert drawn == sgemm_sizes(1, 400)
    assert drawn != sgemm_sizes(2, 400)
    assert len(set(drawn)) == 400
    large = [sizes for sizes in drawn if min(sizes) >= 64]
    in_64 = sum(all(size % 64 == 0 for size in sizes) for sizes in large)
    odd = sum(any(size % 8 for size in sizes) for sizes in large)
    assert in_64 > len(large) / 5
    assert odd > len(large) / 5
    assert sum(16 <= k <= 70 for _, _, k in drawn) > 50
    assert any(min(sizes) < 16 for sizes in drawn)
    assert max(2 * m * n * k for m, n, k in drawn) < 1e12  # ten milliseconds and more


def test_every_category_is_drawn_about_as_often() -> None:
    """Of ten declared products eight are of halves."""
    kernel, device = find_kernel("hgemm"), read(H200 / "sgemm.json").device.planned_for()
    drawn = islice(random_sizes(kernel, device, 1), 300)
    counts = Counter((size["dtype"], size["out_dtype"]) for size in drawn)
    assert len(counts) == 3 and min(counts.values()) > 80


def test_candidates_are_portfolios_winners_and_what_tied() -> None:
    record, kernel = read(H200 / "sgemm.json"), find_kernel("sgemm")
    found = candidates_of([record, record], kernel, record.device.planned_for())
    assert kernel.default() == found[0]
    assert len(set(found)) == len(found) >= len(record.portfolio.configurations)
    assert all(dict(entry.configuration) in map(dict, found) for entry in record.problems)
    races = [entry.race for entry in record.problems if entry.race]
    finalists = [
        finalist for race in races for finalist in race.contenders if finalist.configuration
    ]
    slower = [f.configuration for f in finalists if not f.tied]
    assert all(f.configuration in map(dict, found) for f in finalists if f.tied)
    assert any(configuration not in map(dict, found) for configuration in slower)


@pytest.mark.opencl
def test_sizes_are_measured_once_and_continued(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "sizes.jsonl"
    command = ["sizes", "saxpy", *ON_CPU, "--out", str(file), "--budget"]
    assert run([*command, "60s", "--count", "3"]) == 0
    head, *rows = map(json.loads, file.read_text().splitlines())
    assert (head["kernel"], head["format"]) == ("saxpy", "autotune size matrix")
    configurations = [row["configuration"] for row in rows if "configuration" in row]
    sizes = [row for row in rows if "problem" in row]
    assert len(configurations) > 1
    assert len(sizes) == 3
    for row in sizes:
        assert set(row["ms"]) == {str(number) for number in range(len(configurations))}
        assert all(0 < ms < 100 for ms in row["ms"].values())
    assert run([*command, "60s", "--count", "5"]) == 0
    again = file.read_text().splitlines()
    assert [json.loads(line) for line in again[: len(rows) + 1]] == [head, *rows]
    assert len(again) == len(rows) + 1 + 2
    assert run([*command, "60s", "--count", "5"]) == 0
    assert file.read_text().splitlines() == again
    assert capsys.readouterr().out.endswith(f"{len(configurations)} configurations on 5 sizes\n")


@pytest.mark.opencl
def test_seeds_are_measured_where_they_are_right(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """twin is wrong where BLOCK is 1024."""
    file, space = project / "sizes.jsonl", project / "spaces" / "twin.py"
    seeds = [{"BLOCK": block, "ITEMS": 8} for block in (32, 1024)]
    space.write_text(
        space.read_text().replace("    BLOCK=(", f"    seeds={seeds},\n    BLOCK=(", 1)
    )
    command = ["sizes", "twin", *ON_CPU, "--budget", "60s", "--count", "1", "--out", str(file)]
    assert run([*command, "--seeds"]) == 0
    rows = map(json.loads, file.read_text().splitlines())
    measured = [row["configuration"] for row in rows if "configuration" in row]
    assert seeds[0] in measured and seeds[1] not in measured
    assert "BLOCK=1024, ITEMS=8 is left out: wrong_result" in capsys.readouterr().err


def test_thin_sizes_can_be_drawn_more_often() -> None:
    device = read(H200 / "sgemm.json").device.planned_for()
    drawn = list(islice(random_sizes(find_kernel("sgemm"), device, 2, thin_share=1.0), 100))
    assert all(min(p.m, p.n, p.k) <= 70 for p in drawn)


@pytest.mark.opencl
def test_sizes_that_no_configuration_allows_are_not_drawn(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, space = project / "sizes.jsonl", project / "spaces" / "saxpy.py"
    text = space.read_text()
    command = ["sizes", "saxpy", *ON_CPU, "--out", str(file), "--budget", "60s", "--count", "2"]
    rule = "\n\n@saxpy.requires\ndef requires(c, p):\n    return p.n {}\n"
    space.write_text(text + rule.format("% 64 == 0"))
    assert run(command) == 0
    rows = map(json.loads, file.read_text().splitlines())
    assert [row["problem"]["n"] % 64 for row in rows if "problem" in row] == [0, 0]
    space.write_text(text + rule.format("< 0"))
    assert run([*command[:-2], "--out", str(project / "none.jsonl")]) == 3
    assert "its configurations allow no random size" in capsys.readouterr().err


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"format": "else"}\n', "format is 'else', not 'autotune size matrix'; name another file"),
        ("no JSON\n", ":1: no row of sizes"),
    ],
)
def test_another_file_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    file = project / "sizes.jsonl"
    file.write_text(text)
    assert run(["sizes", "saxpy", *ON_CPU, "--out", str(file)]) == 2
    assert error in capsys.readouterr().err
    assert file.read_text() == text


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many sizes before nobody measured it, and there it counts as slow."""
    monkeypatch.setattr("autotune.run.matrix.MOST_CONFIGURATIONS", 2)
    record, kernel = read(H100 / "sgemm.json"), find_kernel("sgemm")
    first, second, late = map(Configuration, sampled_matrix(1).configurations[:3])
    sizes = [Problem(m=m, n=n, k=k) for m, n, k in sgemm_sizes(3, 900)]
    given = tmp_path / "sizes.jsonl", kernel, record.device.planned_for()
    matrix = SizeMatrix.opened(*given)
    matrix.add_configurations([first, second])

    def times_ms(place: int, count: int) -> dict[int, float]:
        times = {0: 0.01 * (1 + place % 2 / 5), 1: 0.01 * (1.2 - place % 2 / 5), 2: 0.008}
        return {number: times[number] for number in range(count)}

    matrix.add(sizes[:700], [times_ms(place, 2) for place in range(700)])
    matrix.add_configurations([late])
    matrix.add(sizes[700:], [times_ms(place, 3) for place in range(200)])
    matrix.add_configurations([first])  # which is there
    for each in (matrix, SizeMatrix.opened(*given)):
        assert each.after_the_last() == set(sizes[700:])
    for deciding, is_chosen in ((set[Problem](), False), (matrix.after_the_last(), True)):
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


def test_a_configuration_that_comes_later_is_measured_until_a_fit_has_it(tmp_path: Path) -> None:
    """Beside those that a fit promises; here it is the slowest by far."""
    kernel, record = find_kernel("sgemm"), read(H200 / "sgemm.json")
    device = record.device.planned_for()
    every = [c for c in candidates_of([record], kernel, device) if c["VARIANT"] == "cuda"][:30]
    sizes = [Problem(m=m, n=n, k=k) for m, n, k in sgemm_sizes(5, 600) if min(m, n, k) >= 64]
    late, first, second, third = len(every) - 1, sizes[:200], sizes[200:248], sizes[248:272]
    matrix = SizeMatrix(tmp_path / "sizes.jsonl", {}, every)

    def measure(problems: list[Problem], numbers: range) -> None:
        matrix.add(
            problems,
            [
                {n: (1 + n) * 1e-9 * size["m"] * size["n"] * size["k"] for n in numbers}
                for size in problems
            ],
        )

    measure(first, range(late))
    chooser = Chooser(matrix, kernel, device, 1)
    for problem in third:
        chosen = chooser.chosen(problem)
        assert late in chosen and len(chosen) == len(set(chosen)) <= 1 + 16 + 4
    measure(second, range(len(every)))
    assert sum(late in chooser.chosen(problem) for problem in third) < len(third)


def test_sizes_that_nothing_allows_are_left_out(tmp_path: Path) -> None:
    matrix = SizeMatrix(tmp_path / "sizes.jsonl", {}, [Configuration(BM=1)])
    matrix.add([Problem(m=1), Problem(m=2), Problem(m=3)], [{0: 1.0}, {}, {0: 3.0}])
    portfolio = matrix.portfolio()
    assert portfolio.problems == ({"m": 1}, {"m": 3})
    assert portfolio.median_ms == ((1.0, 3.0),)


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


def test_sizes_share_the_binaries_of_their_category() -> None:
    """A language compiles one for each kind of size."""
    device = read(H200 / "sgemm.json").device.planned_for()
    for name, alike, other in (
        (
            "reduce_op",
            [Problem(n=n, op="sum", dtype="int32") for n in (1000, 2001)],
            Problem(n=1000, op="sum", dtype="float16"),
        ),
        (
            "softmax",
            [Problem(rows=rows, columns=512, dtype="float32") for rows in (64, 640)],
            Problem(rows=64, columns=1024, dtype="float32"),
        ),
    ):
        kernel = find_kernel(name)
        with closing(Bench(Request(kernel, device, (other,)))) as bench:
            binaries = Binaries(bench, [kernel.default()])
            first, second, third = (binaries.of([(p, 0)])[p, 0] for p in (*alike, other))
            assert first is second
            assert first.binary != third.binary


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


def test_a_fit_needs_a_file_of_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "sizes.jsonl"
    assert run(["sizes", "sgemm", "--fit", str(H100 / "sgemm.json"), "--out", str(missing)]) == 2
    assert "no such file; run: autotune sizes sgemm --out" in capsys.readouterr().err
    assert not missing.exists()


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

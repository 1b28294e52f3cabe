"""Configurations on random sizes: what is drawn, measured, continued, refused."""

import re
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest

from autotune import lookup
from autotune.answers.category import CategoryFit, HeldOut
from autotune.answers.schema import Portfolio
from autotune.kernel.catalog import find_kernel
from autotune.measure.rotation import first_time
from autotune.run.drawing import random_sizes
from autotune.run.plans import plan_of
from autotune.run.recording import fitted_with, refitted
from autotune.tuned.merged import build_table, pick
from autotune.tuned.reading import RecordFile, decode, read
from autotune.tuned.record import TunedRecord
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
    record, kernel = read(H100 / "sgemm.json"), find_kernel("sgemm")
    bare = msgspec.structs.replace(
        record, portfolio=msgspec.structs.replace(record.portfolio, tables=())
    )
    return fitted_with(bare, kernel, bare.portfolio, sampled_matrix(200))


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
    fit = CategoryFit(matrix, plans, device.sm_count, kernel.layout)
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
    few, many = (CategoryFit(m, plans, device.sm_count, kernel.layout) for m in matrices)
    every = range(len(plans))
    alone = few.held_out(every).shares
    few.others = [many]
    together = few.held_out(every).shares
    assert np.log(together).mean() > np.log(alone).mean()


def test_answers_say_what_to_expect() -> None:
    """As of sizes that are held out of the fit of the shipped record."""
    near, far, tuned = (
        lookup("sgemm", device="NVIDIA H200", m=m, n=n, k=k)
        for m, n, k in ((3072, 3072, 3072), (10**6, 64, 64), (4096, 4096, 4096))
    )
    assert re.fullmatch(r"expected 0\.\d\d to (0\.9\d|1\.00) of the best", near.expected)
    assert (far.expected, tuned.expected) == ("", "")


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

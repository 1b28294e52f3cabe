"""benchmarks/accuracy.py: the error tells float32 from TF32, and the data sets are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from accuracy import DATA, EDGES, Exact, table  # type: ignore[import-not-found]

M, N, K = 33, 35, 257


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """Float32 with that many bits of mantissa left, rounded to nearest."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits).astype(np.float32)


@pytest.fixture(params=DATA)
def drawn(request: pytest.FixtureRequest) -> tuple[str, np.ndarray, np.ndarray]:
    """A data set and its name."""
    a, b = DATA[request.param](M, N, K, np.random.default_rng(3))
    return request.param, a, b


def test_the_error_tells_float32_from_tf32(drawn: tuple[str, np.ndarray, np.ndarray]) -> None:
    _, a, b = drawn
    exact = Exact(a, b)
    single = exact.accuracy(a @ b)
    tf32 = exact.accuracy(rounded(a, 11).astype(np.float64) @ rounded(b, 11).astype(np.float64))
    assert 1e-9 < single.rms_error < single.max_error < 1e-6
    assert tf32.rms_error > 50 * single.rms_error
    assert tf32.max_error > 50 * single.max_error


def test_a_nan_is_an_error(drawn: tuple[str, np.ndarray, np.ndarray]) -> None:
    _, a, b = drawn
    c = a @ b
    c[3, 4] = np.nan
    assert np.isnan(Exact(a, b).accuracy(c).max_error)


def test_the_data_are_float32_and_what_they_are_called(
    drawn: tuple[str, np.ndarray, np.ndarray],
) -> None:
    name, a, b = drawn
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((M, K), (K, N), np.float32, np.float32)
    if name == "exponents":
        spread = np.log2(np.abs(a))
        assert spread.min() < -29 < 29 < spread.max()
        assert len(np.unique(np.floor(spread))) == 61
    if name == "cancelling":
        left = np.abs(Exact(a[:, : K // 2], b[: K // 2]).product).mean()
        middle = np.abs(Exact(a[:, K // 2 : -(K // 2)], b[K // 2 : -(K // 2)]).product).mean()
        assert np.abs(Exact(a, b).product).mean() < 1.5 * middle < left / 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EDGES)
def test_at_the_edges_what_is_no_number_counts_apart(name: str) -> None:
    a, b = EDGES[name](M, N, 64, np.random.default_rng(3))
    exact = Exact(a, b)
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((M, 64), (64, N), np.float32, np.float32)
    c = exact.product.astype(np.float32)
    accuracy, others = exact.finite_accuracy(c)
    assert (accuracy.max_error < 2.0**-23, others) == (True, 0)
    assert np.isfinite(c).all() == (name not in ("infinite", "not_a_number"))
    assert np.isfinite(c[1:, 1:]).all()
    c[3, 4], c[5, 6] = np.nan, -np.inf
    assert exact.finite_accuracy(c)[1] == 2


def test_products_of_halves_are_furthest_off_where_all_mantissas_are_alike() -> None:
    """By 2^-22, though the sum of 64 such products is a float32."""
    a, b = EDGES["constant"](M, N, 64, np.random.default_rng(3))
    exact = Exact(a, b)
    halves = [(rounded(x, 11), x - rounded(x, 11)) for x in (a, b)]
    (a_hi, a_lo), (b_hi, b_lo) = ((hi.astype(np.float64), lo) for hi, lo in halves)
    three = (a_hi @ b_hi + a_lo @ b_hi + a_hi @ b_lo).astype(np.float32)
    assert exact.accuracy(exact.product.astype(np.float32)).max_error == 0
    assert exact.accuracy(three).max_error == pytest.approx(2.0**-22, rel=0.02)


def test_a_table_has_a_row_for_each_kernel_size_and_data() -> None:
    errors = {"ours_max": 2e-7, "ours_rms": 1e-7, "ours_others": 3}
    errors |= {"vendor_max": 1e-7, "vendor_rms": 0.0, "vendor_others": 0}
    rows = [{"kernel": name, "size": "7", "data": "normal", **errors} for name in ("one", "other")]
    lines = table(rows)
    assert [line.strip() for line in lines[::4]] == ["one", "other"]
    assert (
        lines[3]
        == "| 7 | normal | 2.0e-07 / 1.0e-07 | 1.0e-07 / 0.0e+00 | 2.00 / exact there | 3 / 0 |"
    )

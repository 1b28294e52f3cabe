"""benchmarks/accuracy.py: the error tells float32 from TF32, and the data sets are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from accuracy import DATA, Exact  # type: ignore[import-not-found]

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

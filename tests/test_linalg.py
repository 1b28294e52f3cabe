"""Functions by what they compute, on arrays of the host; and torch's, which say so where torch is not."""

import sys
from typing import Any

import numpy as np
import pytest

from autotune import linalg
from autotune.errors import MissingDependencyError, UsageError

pytestmark = [pytest.mark.opencl, pytest.mark.filterwarnings("ignore:.*default")]


@pytest.fixture(autouse=True)
def rng(opencl_device: str) -> np.random.Generator:
    """Where there is a device to compute on."""
    return np.random.default_rng(1)


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


def test_matmul(rng: np.random.Generator) -> None:
    """Of matrices, of views of them, into what is there, and scaled."""
    a, b, out = normal(rng, 33, 65), normal(rng, 65, 17), normal(rng, 33, 17)
    exact = a.astype(np.float64) @ b
    np.testing.assert_allclose(linalg.matmul(a, b), exact, atol=1e-4)
    np.testing.assert_allclose(linalg.matmul(b.T, a.T, alpha=2.0), 2 * exact.T, atol=1e-4)
    expected = 0.5 * exact - out
    assert linalg.matmul(a, b, out, alpha=0.5, beta=-1.0) is out
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_matvec(rng: np.random.Generator) -> None:
    a, x, out = normal(rng, 33, 65), normal(rng, 65), normal(rng, 33)
    exact = a.astype(np.float64) @ x
    np.testing.assert_allclose(linalg.matvec(a, x), exact, atol=1e-4)
    expected = 3 * exact + out
    assert linalg.matvec(a, x, out, alpha=3.0, beta=1.0) is out
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_transpose(rng: np.random.Generator) -> None:
    x, out = normal(rng, 33, 65), np.zeros((65, 33), np.float32)
    np.testing.assert_array_equal(linalg.transpose(x), x.T)
    assert linalg.transpose(x, out) is out
    np.testing.assert_array_equal(out, x.T)


def test_total(rng: np.random.Generator) -> None:
    """Of an array of any shape."""
    x, out = normal(rng, 5, 7, 11), np.zeros(1, np.float32)
    np.testing.assert_allclose(linalg.total(x), [x.sum(dtype=np.float64)], rtol=1e-5)
    assert linalg.total(x, out) is out
    np.testing.assert_allclose(out, [x.sum(dtype=np.float64)], rtol=1e-5)


def test_what_does_not_fit(rng: np.random.Generator) -> None:
    a = normal(rng, 5, 7)
    with pytest.raises(UsageError, match="sgemm: "):
        linalg.matmul(a, a)
    with pytest.raises(UsageError, match="float64"):
        linalg.matmul(a.astype(np.float64), a.T.astype(np.float64))
    with pytest.raises(UsageError, match=r"unknown precision 'tf32'.*known: float32, tf32x3"):
        linalg.matmul(a, a.T, precision="tf32")


def test_torch_ops_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    monkeypatch.delitem(sys.modules, "autotune.torch_ops", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[torch\]'"):
        __import__("autotune.torch_ops")

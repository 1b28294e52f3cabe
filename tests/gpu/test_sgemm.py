"""Products of views on a GPU, through `load`: strides, columns, batches, first elements, what is not read.

How a call becomes a problem is tests/test_sgemm.py; every recorded configuration is verified on the
kernel's `edge_problems` when it is tuned.
"""

from typing import Any

import numpy as np
import pytest

from autotune import load

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]

#: Sides: of slim and of many tiles, odd, and multiples of 4 that are none of 16.
SIDES = (2, 7, 33, 68, 100, 129, 260)
#: Depths: the last ones are split over a cluster, and over the grid.
DEPTHS = (1, 5, 64, 333, 1028, 8200)


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def gemm() -> Any:
    return load("sgemm")


def drawn(cupy: Any, rng: np.random.Generator, *shape: int) -> tuple[Any, Any]:
    """A matrix or a batch that is part of something larger, by rows or by columns; and that larger one."""
    transposed, first, beyond, below = (int(number) for number in rng.integers((2, 5, 5, 3)))
    *batch, rows, columns = (*shape[:-2], *shape[-2:][:: -1 if transposed else 1])
    whole = cupy.asarray(
        rng.standard_normal((*batch, rows + below, first + columns + beyond), np.float32)
    )
    piece = whole[..., :rows, first : first + columns]
    return piece.swapaxes(-1, -2) if transposed else piece, whole


@pytest.mark.parametrize("seed", range(8))
def test_views_are_multiplied_where_they_lie(cupy: Any, gemm: Any, seed: int) -> None:
    """Against float64; around the result everything stays as it was."""
    rng = np.random.default_rng(seed)
    for _ in range(25):
        m, n = (int(side) for side in rng.choice(SIDES, 2))
        k = int(rng.choice(DEPTHS))
        batch = [(), (1,), (3,)][rng.integers(3)]
        a, _ = drawn(cupy, rng, *(batch if rng.integers(3) else ()), m, k)
        b, _ = drawn(cupy, rng, *(batch if rng.integers(2) else ()), k, n)
        if b.ndim == 3 and rng.integers(3) == 0:
            b = cupy.broadcast_to(b[:1], b.shape)
        alpha, beta = float(rng.integers(3)) / 2, float(rng.integers(2))
        product = alpha * np.matmul(a.get().astype(np.float64), b.get())
        said = f"{a.shape} {a.strides} {b.shape} {b.strides} {alpha} {beta}"
        bound = 1e-6 * (4 * k + 64)
        if rng.integers(3) == 0:
            found = gemm(a, b, alpha=alpha)
            np.testing.assert_allclose(found.get(), product, atol=bound, rtol=0, err_msg=said)
            continue
        out, around = drawn(cupy, rng, *product.shape)
        expected = around.get()
        first = (out.data.ptr - around.data.ptr) // 4
        lies = np.lib.stride_tricks.as_strided(expected.reshape(-1)[first:], out.shape, out.strides)
        lies[...] = product + beta * lies
        assert gemm(a, b, out=out, alpha=alpha, beta=beta) is out
        said += f" {out.shape} {out.strides}"
        np.testing.assert_allclose(around.get(), expected, atol=bound, rtol=0, err_msg=said)


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("name", ["a", "b", "out"])
@pytest.mark.parametrize("n", [64, 1024])
def test_matrices_begin_anywhere(cupy: Any, gemm: Any, name: str, offset: int, n: int) -> None:
    """Contiguous, but not aligned: what once ended the context."""
    rng = np.random.default_rng(n)
    arrays = {}
    for other in ("a", "b", "out"):
        begin = offset if other == name else 0
        flat = cupy.asarray(rng.standard_normal(begin + n * n, np.float32))
        arrays[other] = flat[begin:].reshape(n, n)
    found = gemm(arrays["a"], arrays["b"], out=arrays["out"])
    expected = arrays["a"].get().astype(np.float64) @ arrays["b"].get()
    np.testing.assert_allclose(found.get(), expected, atol=1e-6 * (4 * n + 64), rtol=0)


def test_what_is_scaled_by_zero_is_not_read(cupy: Any, gemm: Any) -> None:
    """As BLAS has it: neither A and B where alpha is 0, nor C where beta is."""
    a = cupy.full((96, 64), np.nan, np.float32)
    b = cupy.full((64, 100), np.nan, np.float32)
    c = cupy.full((96, 100), 2.0, np.float32)
    gemm(a, b, out=c, alpha=0.0, beta=0.5)
    assert (c == 1.0).all()
    c[...] = np.nan
    gemm(a, b, out=c, alpha=0.0)
    assert (c == 0.0).all()
    gemm(cupy.ones((96, 0), np.float32), cupy.ones((0, 100), np.float32), out=c, beta=1.0)
    assert (c == 0.0).all()
    ones = cupy.ones((100, 100), np.float32)
    c[...] = np.nan
    gemm(ones[:96], ones, out=c)
    assert (c == 100.0).all()


def test_a_captured_product_of_views(cupy: Any, gemm: Any) -> None:
    rng = np.random.default_rng(5)
    a = cupy.asarray(rng.standard_normal((333, 127), np.float32)).T
    b = cupy.asarray(rng.standard_normal((333, 260), np.float32))[:, 3:132]
    out = cupy.empty((127, 129), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gemm(a, b, out=out)
        stream.begin_capture()
        gemm(a, b, out=out)
        graph = stream.end_capture()
        out[...] = np.nan
        graph.launch(stream)
    stream.synchronize()
    np.testing.assert_allclose(out.get(), a.get().astype(np.float64) @ b.get(), atol=2e-3, rtol=0)

"""Matrix products, transposes and sums with tuned kernels, on arrays of any library.

See `load` for arrays, streams and results. `torch_ops` has the same functions with gradients.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError, unknown

if TYPE_CHECKING:
    from autotune.calling.load import TunedKernel

#: Kernels of matrix products by precision.
PRODUCTS = {"float32": "sgemm", "tf32x3": "sgemm_tf32x3"}


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = "float32",
) -> Any:
    """Return the matrix product ``alpha * a @ b + beta * out``.

    Parameters
    ----------
    a : array
        float32, (m, k) or a batch, (batch, m, k). ``a.T`` and other views are not copied.
    b : array
        float32, (k, n) or a batch, (batch, k, n). A batch of ``a`` may share one matrix.
    out : array, optional
        float32, (m, n) or a batch; written, and read unless ``beta`` is 0.
    alpha : float
        Factor of the product.
    beta : float
        Factor of ``out``.
    precision : {"float32", "tf32x3"}
        ``tf32x3`` uses tensor cores: three TF32 products give the accuracy of float32.

    Returns
    -------
    array
        ``out``, or a new array of the library of ``a``.

    Raises
    ------
    UsageError
        If the arrays do not fit each other, are not float32, or there is no such precision.
    """
    if precision not in PRODUCTS:
        raise UsageError(unknown("precision", precision, PRODUCTS))
    return _kernel(PRODUCTS[precision])(a, b, out=out, alpha=alpha, beta=beta)


def matvec(a: Any, x: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Return the matrix-vector product ``alpha * a @ x + beta * out``.

    Parameters
    ----------
    a : array
        float32, (m, n). ``a.T`` and other views are not copied.
    x : array
        float32, (n,).
    out : array, optional
        float32, (m,); written, and read unless ``beta`` is 0.
    alpha : float
        Factor of the product.
    beta : float
        Factor of ``out``.

    Returns
    -------
    array
        ``out``, or a new array of the library of ``a``.

    Raises
    ------
    UsageError
        If the arrays do not fit each other or are not float32.
    """
    return _kernel("gemv")(a, x, out=out, alpha=alpha, beta=beta)


def transpose(x: Any, out: Any = None) -> Any:
    """Return a copy with the last two axes exchanged.

    Parameters
    ----------
    x : array
        float32, (m, n) or a batch, (batch, m, n).
    out : array, optional
        float32, (n, m) or (batch, n, m); written.

    Returns
    -------
    array
        ``out``, or a new contiguous array of the library of ``x``.

    Raises
    ------
    UsageError
        If the arrays do not fit each other or are not float32.
    """
    return _kernel("transpose")(x, out=out)


def total(x: Any, out: Any = None) -> Any:
    """Return the sum of all elements.

    Parameters
    ----------
    x : array
        float32, of any shape.
    out : array, optional
        float32, (1,); written.

    Returns
    -------
    array
        ``out``, or a new array (1,) of the library of ``x``, on its device.

    Raises
    ------
    UsageError
        If ``x`` is not float32.
    """
    return _kernel("reduce")(x, out=out)


@cache
def _kernel(name: str) -> TunedKernel:
    from autotune import load  # inside the call, so that its error names a missing package

    return load(name)

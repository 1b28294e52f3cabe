"""Products, transposes and sums by what they are called: tuned kernels on arrays of any library.

Knows which kernel is which function, and keeps them loaded; everything else is `load`'s, and what it
says of arrays, streams and results holds here. Nothing is differentiated: `torch_ops` is.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError, unknown

if TYPE_CHECKING:
    from autotune.calling.load import TunedKernel

#: By precision: float32 arithmetic, or three TF32 products on tensor cores with float32's accuracy.
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
    """Matrix product: ``alpha * a @ b + beta * out``.

    Parameters
    ----------
    a : array
        float32, (m, k) or a batch of such, (batch, m, k); ``a.T`` and other views are read where they are.
    b : array
        float32, (k, n) or a batch of such; a matrix, or a batch of one, goes with every matrix of a batch.
    out : array, optional
        float32, (m, n) or a batch of such; written, and read where ``beta`` is not 0.
    alpha : float
        Factor of the product.
    beta : float
        Factor of what ``out`` holds.
    precision : {"float32", "tf32x3"}
        ``tf32x3`` runs on tensor cores and is as accurate: every number is split into two of TF32.

    Returns
    -------
    array
        ``out``, or a new array of the library that ``a`` is of.

    Raises
    ------
    UsageError
        If the arrays do not fit each other, are not float32, or there is no such precision.
    """
    return product(precision)(a, b, out=out, alpha=alpha, beta=beta)


def matvec(a: Any, x: Any, out: Any = None, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Product of a matrix and a vector: ``alpha * a @ x + beta * out``.

    Parameters
    ----------
    a : array
        float32, (m, n); ``a.T`` and other views are read where they are.
    x : array
        float32, (n,).
    out : array, optional
        float32, (m,); written, and read where ``beta`` is not 0.
    alpha : float
        Factor of the product.
    beta : float
        Factor of what ``out`` holds.

    Returns
    -------
    array
        ``out``, or a new array of the library that ``a`` is of.

    Raises
    ------
    UsageError
        If the arrays do not fit each other or are not float32.
    """
    return _loaded("gemv")(a, x, out=out, alpha=alpha, beta=beta)


def transpose(x: Any, out: Any = None) -> Any:
    """A copy with the last two axes exchanged.

    Parameters
    ----------
    x : array
        float32, (m, n) or a batch of such, (batch, m, n).
    out : array, optional
        float32, (n, m) or (batch, n, m); written.

    Returns
    -------
    array
        ``out``, or a new contiguous array of the library that ``x`` is of.

    Raises
    ------
    UsageError
        If the arrays do not fit each other or are not float32.
    """
    return _loaded("transpose")(x, out=out)


def total(x: Any, out: Any = None) -> Any:
    """The sum of all elements.

    Parameters
    ----------
    x : array
        float32, of any shape.
    out : array, optional
        float32, (1,); written.

    Returns
    -------
    array
        ``out``, or a new array (1,) of the library that ``x`` is of: on a GPU it stays there.

    Raises
    ------
    UsageError
        If ``x`` is not float32.
    """
    return _loaded("reduce")(x, out=out)


def product(precision: str) -> TunedKernel:
    """The kernel of matrix products in a precision.

    Parameters
    ----------
    precision : {"float32", "tf32x3"}
        As of `matmul`.

    Returns
    -------
    TunedKernel
        Of ``(a, b, out=None, alpha=1.0, beta=0.0)``.

    Raises
    ------
    UsageError
        If there is no such precision.
    """
    if precision not in PRODUCTS:
        raise UsageError(unknown("precision", precision, PRODUCTS))
    return _loaded(PRODUCTS[precision])


@cache  # it keeps what it found out about its calls
def _loaded(kernel: str) -> TunedKernel:
    from autotune import load  # in a call, which says what is not installed

    return load(kernel)

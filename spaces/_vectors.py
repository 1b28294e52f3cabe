"""Arguments, reference, tolerance and calls of gemv and gemv_columns."""

import numpy as np

from autotune import InOut, Instead, NothingToDo, Operand, Problem, Work


def adds_to_y(p):
    """Return whether a problem adds to y. Large problems do not: their y holds NaN, which must not reach the result."""
    return p.m * p.n < 1 << 22


def arguments_of(p, rng, rows, columns):
    """Return the arguments of a problem whose A is stored as ``rows`` rows of ``columns`` floats.

    Arrays of views cover all memory from the first element to the last: gaps must keep their values.
    """
    scalars = {
        "alpha": 2.0 if adds_to_y(p) else 1.0,
        "beta": 0.5 if adds_to_y(p) else 0.0,
        "m": p.m,
        "n": p.n,
    }
    if not p.view:
        y = rng.standard_normal(p.m) if adds_to_y(p) else np.full(p.m, np.nan, np.float32)
        a, x = rng.standard_normal((rows, columns)), rng.standard_normal(p.n)
        return {"a": a, "x": x, "y": InOut(y), **scalars}
    stored = (rows, columns) if p.lda == columns else (rows - 1) * p.lda + columns
    return {
        "a": rng.standard_normal(stored),
        "x": rng.standard_normal((p.n - 1) * p.incx + 1 if p.n else 0),
        "y": InOut(rng.standard_normal((p.m - 1) * p.incy + 1)),
        **scalars,
        **{name: np.int64(p[name]) for name in ("lda", "incx", "incy")},
    }


def expected(a, x, y, alpha, beta, incy):
    """Return y after the product. The elements of y are ``incy`` floats apart in memory."""
    y = y.copy()
    rows = strided(y, (len(a), incy))
    product = alpha * (a @ x)
    rows[...] = product + beta * rows if beta else product
    return y


def strided(flat, *axes):
    """Return a strided array of flat memory; each axis is (length, stride)."""
    shape, strides = zip(*axes, strict=True)
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


def tolerance(p):
    """Return the largest rounding error of n additions of normal products, in chains of n / 4 at most.

    Their standard deviation is about 0.1 eps n. The largest of a million is six times that, doubled by alpha = 2.
    """
    return float(np.finfo(np.float32).eps) * (2 * p.n + 64)


def work(p):
    return Work(
        flops=2 * p.m * p.n,
        bytes_read=4 * (p.m * p.n + p.n + (p.m if adds_to_y(p) else 0)),
        bytes_written=4 * p.m,
    )


def answer(a, x, out, alpha, beta, trans, by_columns):
    """Return the problem and operands of y = alpha A x + beta y, where A is ``a``, or ``a.T`` with ``trans``.

    gemv reads A by rows, gemv_columns (``by_columns``) by columns. A matrix stored the other way goes to the other
    kernel. A matrix stored neither way, or with negative strides, is copied.
    """
    for name, array in {"a": a, "x": x, "out": out}.items():
        if array is not None and array.dtype != "float32":
            raise ValueError(f"{name} is {array}: it must be float32")
    matrix = a.T if trans else a
    if a.ndim != 2 or x.ndim != 1 or matrix.shape[1] != len(x):
        raise ValueError(
            f"a is {a} and x is {x}: the shapes do not fit {'a.T' if trans else 'a'} @ x"
        )
    m, n = matrix.shape
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, but there is no out to add to; pass out")
        out = Operand.new((m,))
    if out.shape != (m,):
        raise ValueError(f"out is {out}: it must have {m} elements, as {matrix} @ {x} has")
    if m == 0:
        return NothingToDo((out,))
    incx, incy = (array.strides[0] if len(array) > 1 else 1 for array in (x, out))
    if incy < 1:
        raise ValueError(f"out is {out}: its elements overlap or run backwards; pass another array")
    stored, other = (matrix.T, matrix) if by_columns else (matrix, matrix.T)
    row_stride = distance_of_rows(stored)
    operands = {"y": out, "alpha": alpha, "beta": beta}
    if alpha == 0 or n == 0:  # the kernel reads neither a nor x
        n, incx, operands["alpha"] = 0, 1, 0.0
        row_stride = m if by_columns else 0
    elif row_stride is None and distance_of_rows(other) is not None:
        kernel = "gemv" if by_columns else "gemv_columns"
        return Instead(kernel, other, x, out=out, alpha=alpha, beta=beta)
    else:
        operands |= {"a": stored, "x": x}
    columns = m if by_columns else n
    layout = {
        "lda": columns if row_stride is None else row_stride,
        "incx": incx if incx >= 0 else 1,
        "incy": incy,
    }
    is_plain = layout == {"lda": columns, "incx": 1, "incy": 1}
    return Problem(m=m, n=n, **({} if is_plain else {"view": 1, **layout})), operands


def distance_of_rows(matrix):
    """Return the distance between rows in floats; None for a matrix that is not stored row by row."""
    (rows, cols), (row_stride, step) = matrix.shape, matrix.strides
    if (cols > 1 and step != 1) or (rows > 1 and row_stride < 0):
        return None
    return row_stride if rows > 1 else cols

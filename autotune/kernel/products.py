"""Arranges the operands of a matrix product for kernels of C = alpha A B + beta C with row-major C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from autotune.kernel.operand import (
    Instead,
    InsteadIfFaster,
    NothingToDo,
    Operand,
    check_arrays,
)

#: False while `matrix_product` passes nothing on to another kernel.
_PASSES_ON: ContextVar[bool] = ContextVar("_PASSES_ON", default=True)
#: Most rows of a joined batch: kernels count them, plus one tile, in 32 bits.
MOST_ROWS = 2**30


@dataclass(frozen=True)
class Stored:
    """A matrix, or a batch, as a kernel reads it: row by row, perhaps after a copy."""

    #: The operand to pass; None where it is not read.
    operand: Operand | None
    #: True if the rows that the kernel reads are the matrix's columns.
    is_transposed: bool
    #: Elements between rows.
    apart: int
    #: Elements between the matrices of a batch; 0: one for all.
    stride: int = 0
    #: Elements past a boundary of 16 bytes.
    offset: int = 0

    @classmethod
    def of(cls, array: Operand, may_transpose: bool = True) -> Stored:
        """Return a matrix as it lies if a kernel can read it so; else without gaps, as a copy."""
        if _is_shared(array):
            array = _first(array)
        is_transposed = may_transpose and not array.is_by_rows and array.T.is_by_rows
        stored = array.T if is_transposed else array
        *batch, rows, columns = stored.shape
        if not stored.is_by_rows:
            return cls(array, False, columns, rows * columns if batch else 0)
        stride = stored.strides[0] if batch else 0
        return cls(stored, is_transposed, stored.rows_apart, stride, stored.offset)


@dataclass(frozen=True)
class MatrixProduct:
    """C = alpha A B + beta C, of matrices or of a batch; see `matrix_product`."""

    #: C is (m, n), A (m, k) and B (k, n); ``k`` is 0 where neither A nor B is read.
    m: int
    n: int
    k: int
    #: Number of products.
    batch: int
    a: Stored
    b: Stored
    c: Stored
    alpha: Any
    beta: Any

    @property
    def is_plain(self) -> bool:
        """True for one product of matrices that lie row by row without gaps."""
        found = self.batch, self.a.is_transposed, self.b.is_transposed
        apart = self.a.apart, self.b.apart, self.c.apart
        return found == (1, False, False) and apart == (self.k, self.n, self.n)

    @property
    def layout(self) -> dict[str, int]:
        """Layout fields: transposes, distances between rows and between matrices, number of products."""
        stored = {"a": self.a, "b": self.b, "c": self.c}
        return {
            "trans_a": int(self.a.is_transposed),
            "trans_b": int(self.b.is_transposed),
            **{f"ld{name}": matrix.apart for name, matrix in stored.items()},
            **{f"stride_{name}": matrix.stride for name, matrix in stored.items()},
            "batch": self.batch,
        }

    @property
    def given(self) -> dict[str, Any]:
        """The arguments ``a``, ``b``, ``c``, ``alpha`` and ``beta`` of kernels."""
        arrays = {"a": self.a.operand, "b": self.b.operand, "c": self.c.operand}
        return {**arrays, "alpha": self.alpha, "beta": self.beta}


def matrix_product(
    a: Operand,
    b: Operand,
    out: Operand | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    dtype: str = "float32",
    by_vector: str | None = "gemv",
    also_by: str | None = None,
) -> MatrixProduct | Instead | NothingToDo:
    """Return how a kernel whose C lies row by row computes ``alpha * a @ b + beta * out``.

    If C lies by columns, the transposed product is computed. A batch of one, or of one tall matrix
    times another, is one product. ``by_vector`` is the kernel for m or n of 1; it is called with a
    matrix, a vector, ``out``, ``alpha`` and ``beta``. ``also_by`` is another kernel of such products,
    for sizes at which records expect less time of it. Operands that do not fit raise `ValueError`.
    """
    given = a, b
    shape = _shape_of_product(a, b, out, dtype)
    if out is None and beta != 0:
        raise ValueError(f"beta={beta} adds to what is in out: give out")
    c = Operand.new(shape, dtype) if out is None else out
    if 0 in shape:
        return NothingToDo((c,))
    if not c.is_by_rows and c.T.is_by_rows:
        a, b, c = b.T, a.T, c.T
    a, b, c = _without_batch(a, b, c)
    factors, passes_on = {"alpha": alpha, "beta": beta}, _PASSES_ON.get()
    is_vector = c.ndim == 2 and 1 in c.shape
    if also_by is not None and passes_on:
        # A product by a vector is no work for this kernel, and the other passes it on.
        answer = Instead if is_vector and by_vector else InsteadIfFaster
        return answer(also_by, *given, out=out, **factors)
    if is_vector and by_vector is not None and passes_on:
        if c.shape[1] == 1:
            return Instead(by_vector, a, b.select(1, 0), out=c.select(1, 0), **factors)
        return Instead(by_vector, b.T, a.select(0, 0), out=c.select(0, 0), **factors)
    (m, n), batch = c.shape[-2:], len(c) if c.ndim == 3 else 1
    of_c = Stored.of(c, may_transpose=False)
    if alpha == 0 or a.shape[-1] == 0:  # as BLAS does, so that NaN in A or B do not get through
        unread = Stored(None, False, 0), Stored(None, False, n)
        return MatrixProduct(m, n, 0, batch, *unread, of_c, 0.0, beta)
    of_a, of_b = Stored.of(a), Stored.of(b)
    return MatrixProduct(m, n, a.shape[-1], batch, of_a, of_b, of_c, alpha, beta)


@contextmanager
def without_others() -> Iterator[None]:
    """Have `matrix_product` return a product where it would call another kernel."""
    token = _PASSES_ON.set(False)
    try:
        yield
    finally:
        _PASSES_ON.reset(token)


def _shape_of_product(a: Operand, b: Operand, out: Operand | None, dtype: str) -> tuple[int, ...]:
    check_arrays(dtype, a=a, b=b, **({} if out is None else {"out": out}))
    shapes = f"a {list(a.shape)} and b {list(b.shape)}"
    if not {a.ndim, b.ndim} <= {2, 3}:
        raise ValueError(f"{shapes}: matrices (2-D) or batches of them (3-D) are needed")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{shapes}: as many columns of a as rows of b are needed")
    lengths = {len(array) for array in (a, b) if array.ndim == 3}
    if len(lengths - {1}) > 1:
        raise ValueError(f"{shapes}: batches of one length are needed, or of length 1")
    batch = (next(iter(lengths - {1}), 1),) if lengths else ()
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is not None and out.shape != shape:
        raise ValueError(f"{shapes} give {list(shape)}, and out is {list(out.shape)}")
    if out is not None and out.overlaps_itself:
        raise ValueError(f"out is {out}: some elements share memory")
    return shape


def _without_batch(a: Operand, b: Operand, c: Operand) -> tuple[Operand, Operand, Operand]:
    """Return one product of matrices in place of a batch where that is possible."""
    if c.ndim == 2:
        return a, b, c
    if len(c) == 1:
        return _first(a), _first(b), _first(c)
    rows = len(c) * c.shape[1]
    if _is_tall(a) and _is_tall(c) and _is_shared(b) and rows <= MOST_ROWS:
        return _tall(a), _first(b), _tall(c)
    return a, b, c


def _is_shared(array: Operand) -> bool:
    return array.ndim == 2 or len(array) == 1 or array.strides[0] == 0


def _first(array: Operand) -> Operand:
    return array.select(0, 0) if array.ndim == 3 else array


def _is_tall(array: Operand) -> bool:
    """Return whether the matrices of a batch follow each other as their rows do."""
    if array.ndim == 2 or len(array) == 1:
        return False
    _, rows, _ = array.shape
    return array.is_by_rows and (rows == 1 or array.strides[0] == rows * array.strides[1])


def _tall(array: Operand) -> Operand:
    """Return a batch as one matrix; see `_is_tall`."""
    batch, rows, columns = array.shape
    apart = array.strides[0] if rows == 1 else array.strides[1]
    return replace(array, shape=(batch * rows, columns), strides=(apart, array.strides[2]))

"""Arranges the operands of a matrix product for kernels of C = alpha A B + beta C with row-major C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autotune.kernel.operand import Instead, NothingToDo, Operand, check_arrays
from autotune.values import Problem

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
    #: The call of another kernel that computes it; None if there is no such kernel.
    other: Instead | None = None
    #: Whether the other kernel serves if the time of this one is unknown.
    is_by_vector: bool = False

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

    def answer(self, problem: Problem) -> tuple[Problem, dict[str, Any]] | Instead:
        """Return the answer of a `call` function: this product as a problem, or the faster of two kernels."""
        if self.other is None:
            return problem, self.given
        return self.other.than(problem, self.given, by_default=self.is_by_vector)


def matrix_product(
    a: Operand,
    b: Operand,
    out: Operand | None = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    dtype: str = "float32",
    by_vector: str | None = "gemv",
    also_by: str | None = None,
) -> MatrixProduct | NothingToDo:
    """Return how a kernel whose C lies row by row computes ``alpha * a @ b + beta * out``.

    If C lies by columns, the transposed product is computed. A batch of one, or of one tall matrix
    times another, is one product. Its `MatrixProduct.answer` is the answer of a `call` function.

    Parameters
    ----------
    a, b, out : Operand
        (m, k), (k, n) and (m, n), or batches of them; ``out`` is made if it is None.
    alpha, beta : float
        Factors of the product and of the content of ``out``.
    dtype : str
        Type of all three.
    by_vector : str, optional
        Kernel for m or n of 1, called with a matrix, a vector, ``out``, ``alpha`` and ``beta``, unless
        records expect less time of the product's own kernel. None: no such kernel.
    also_by : str, optional
        Another kernel of such products, called with the same operands if records expect less time of it.

    Returns
    -------
    MatrixProduct or NothingToDo
        The product; nothing if C is empty.

    Raises
    ------
    ValueError
        If the operands do not fit each other.
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
    is_vector = by_vector is not None and c.ndim == 2 and 1 in c.shape
    factors, other = {"alpha": alpha, "beta": beta}, None
    if also_by is not None:  # it passes a product by a vector on
        other = Instead(also_by, *given, out=out, **factors)
    elif by_vector is not None and is_vector and c.shape[1] == 1:
        other = Instead(by_vector, a, b.select(1, 0), out=c.select(1, 0), **factors)
    elif by_vector is not None and is_vector:
        other = Instead(by_vector, b.T, a.select(0, 0), out=c.select(0, 0), **factors)
    (m, n), batch = c.shape[-2:], len(c) if c.ndim == 3 else 1
    of_c = Stored.of(c, may_transpose=False)
    if alpha == 0 or a.shape[-1] == 0:  # as BLAS does, so that NaN in A or B do not get through
        unread = Stored(None, False, 0), Stored(None, False, n)
        return MatrixProduct(m, n, 0, batch, *unread, of_c, 0.0, beta, other, is_vector)
    read = Stored.of(a), Stored.of(b)
    return MatrixProduct(m, n, a.shape[-1], batch, *read, of_c, alpha, beta, other, is_vector)


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

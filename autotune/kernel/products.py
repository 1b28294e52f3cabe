"""Arranges the operands of a matrix product for kernels that compute C = alpha A B + beta C, C row-major."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autotune.kernel.operand import Instead, NothingToDo, Operand, check_arrays
from autotune.values import Problem

#: Limit of rows for a batch joined into one matrix: kernels count the rows and one tile in 32 bits.
MAX_ROWS = 2**30


@dataclass(frozen=True)
class Stored:
    """A matrix or batch in the row-major form that a kernel reads, possibly a copy."""

    #: The operand to pass; None if the kernel does not read it.
    operand: Operand | None
    #: True if the rows that the kernel reads are the matrix's columns.
    is_transposed: bool
    #: Distance between rows, in elements.
    row_stride: int
    #: Distance between the matrices of a batch, in elements; 0 if all products share one matrix.
    stride: int = 0
    #: Distance of the first element from a 16-byte boundary, in elements.
    offset: int = 0

    @classmethod
    def of(cls, array: Operand, may_transpose: bool = True) -> Stored:
        """Return a matrix in place if a kernel can read its layout; else as a copy without gaps."""
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
    """The product C = alpha A B + beta C of matrices or batches; see `matrix_product`."""

    #: C is (m, n), A is (m, k) and B is (k, n). ``k`` is 0 if the kernel reads neither A nor B.
    m: int
    n: int
    k: int
    #: Number of products in the batch.
    batch: int
    a: Stored
    b: Stored
    c: Stored
    alpha: Any
    beta: Any
    #: The call of another kernel that computes the product; None if there is no such kernel.
    other: Instead | None = None
    #: Whether the other kernel serves if the time of this one is unknown.
    is_by_vector: bool = False

    @property
    def is_plain(self) -> bool:
        """True for one product of row-major matrices without gaps."""
        found = self.batch, self.a.is_transposed, self.b.is_transposed
        apart = self.a.row_stride, self.b.row_stride, self.c.row_stride
        return found == (1, False, False) and apart == (self.k, self.n, self.n)

    @property
    def layout(self) -> dict[str, int]:
        """Layout fields: transposes, distances between rows and between matrices, number of products."""
        stored = {"a": self.a, "b": self.b, "c": self.c}
        return {
            "trans_a": int(self.a.is_transposed),
            "trans_b": int(self.b.is_transposed),
            **{f"ld{name}": matrix.row_stride for name, matrix in stored.items()},
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
    """Return the operands with which a kernel computes ``alpha * a @ b + beta * out``, C row-major.

    If C is column-major, the kernel computes the transposed product. A batch becomes one product if it
    has one matrix, or if the matrices of A form one tall matrix and share one B. A `call` function returns
    `MatrixProduct.answer`.

    Parameters
    ----------
    a, b, out : Operand
        Matrices (m, k), (k, n) and (m, n), or batches of them. If ``out`` is None, it is allocated.
    alpha, beta : float
        Factors of the product and of the content of ``out``.
    dtype : str
        Type of all three arrays.
    by_vector : str, optional
        Kernel for products with m or n of 1, called with a matrix, a vector, ``out``, ``alpha`` and
        ``beta``. Records may choose the product's own kernel if it is faster. None: no such kernel.
    also_by : str, optional
        Another kernel for the same product, called with the same operands if records expect it to be
        faster.

    Returns
    -------
    MatrixProduct or NothingToDo
        The product; `NothingToDo` if C is empty.

    Raises
    ------
    ValueError
        If the operands do not fit each other.
    """
    given = a, b
    shape = _shape_of_product(a, b, out, dtype)
    if out is None and beta != 0:
        raise ValueError(f"beta={beta} adds to the content of out: give out")
    c = Operand.new(shape, dtype) if out is None else out
    if 0 in shape:
        return NothingToDo((c,))
    if not c.is_by_rows and c.T.is_by_rows:
        a, b, c = b.T, a.T, c.T
    a, b, c = _without_batch(a, b, c)
    is_vector = by_vector is not None and c.ndim == 2 and 1 in c.shape
    factors, other = {"alpha": alpha, "beta": beta}, None
    if also_by is not None:  # the other kernel also decides about products with a vector
        other = Instead(also_by, *given, out=out, **factors)
    elif by_vector is not None and is_vector and c.shape[1] == 1:
        other = Instead(by_vector, a, b.select(1, 0), out=c.select(1, 0), **factors)
    elif by_vector is not None and is_vector:
        other = Instead(by_vector, b.T, a.select(0, 0), out=c.select(0, 0), **factors)
    (m, n), batch = c.shape[-2:], len(c) if c.ndim == 3 else 1
    of_c = Stored.of(c, may_transpose=False)
    if alpha == 0 or a.shape[-1] == 0:  # as in BLAS: a NaN in A or B does not reach C
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
        raise ValueError(f"{shapes}: a must have as many columns as b has rows")
    lengths = {len(array) for array in (a, b) if array.ndim == 3}
    if len(lengths - {1}) > 1:
        raise ValueError(f"{shapes}: batches must have the same length, or length 1")
    batch = (next(iter(lengths - {1}), 1),) if lengths else ()
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is not None and out.shape != shape:
        raise ValueError(f"{shapes} give {list(shape)}, and out is {list(out.shape)}")
    if out is not None and out.overlaps_itself:
        raise ValueError(f"out is {out}: some elements share memory")
    return shape


def _without_batch(a: Operand, b: Operand, c: Operand) -> tuple[Operand, Operand, Operand]:
    """Return one product of matrices instead of a batch if possible."""
    if c.ndim == 2:
        return a, b, c
    if len(c) == 1:
        return _first(a), _first(b), _first(c)
    rows = len(c) * c.shape[1]
    if _is_tall(a) and _is_tall(c) and _is_shared(b) and rows <= MAX_ROWS:
        return _tall(a), _first(b), _tall(c)
    return a, b, c


def _is_shared(array: Operand) -> bool:
    return array.ndim == 2 or len(array) == 1 or array.strides[0] == 0


def _first(array: Operand) -> Operand:
    return array.select(0, 0) if array.ndim == 3 else array


def _is_tall(array: Operand) -> bool:
    """Return whether a batch is one tall matrix: consecutive matrices are as far apart as their rows."""
    if array.ndim == 2 or len(array) == 1:
        return False
    _, rows, _ = array.shape
    return array.is_by_rows and (rows == 1 or array.strides[0] == rows * array.strides[1])


def _tall(array: Operand) -> Operand:
    """Return a batch as one tall matrix; see `_is_tall`."""
    batch, rows, columns = array.shape
    apart = array.strides[0] if rows == 1 else array.strides[1]
    return replace(array, shape=(batch * rows, columns), strides=(apart, array.strides[2]))

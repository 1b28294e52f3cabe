"""gemv, gemv_columns, transpose, sgemm and sgemm_tf32x3 on arrays that are part of others, or lie column by column.

What their `call` functions make of such arrays. That kernels then do what the references do is for
`autotune check` and, on a GPU, for the finals of a run: both go through the edge problems.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from autotune import load
from autotune.calling.binding import ResolvedCall, bind
from autotune.calling.libraries import Numpy
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import NewArray, NothingToDo, Operand
from autotune.kernel.products import MatrixProduct, matrix_product
from autotune.kernel.spec import Kernel
from autotune.values import Problem

pytestmark = pytest.mark.filterwarnings("ignore:no tuned record")

RNG = np.random.default_rng(11)
MATRIX = RNG.standard_normal((40, 60), dtype=np.float32)
STACK = RNG.standard_normal((3, 40, 60), dtype=np.float32)
VECTOR = RNG.standard_normal(130, dtype=np.float32)
NOWHERE = np.full((40, 60), np.nan, np.float32)


def inside(shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An array of a shape, and a larger one of sevens that it is part of."""
    around = np.full([length + 3 for length in shape], 7, np.float32)
    return around[tuple(slice(1, length + 1) for length in shape)], around


def is_intact(part: np.ndarray[Any, Any], around: np.ndarray[Any, Any]) -> bool:
    """Whether nothing beside the part was written."""
    part[...] = 7
    return bool((around == 7).all())


# ---------------------------------------------------------------- gemv and gemv_columns


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize(
    ("kernel", "named"),
    [("gemv", {}), ("gemv", {"trans": True}), ("gemv_columns", {})],
    ids=["gemv", "gemv of a.T", "gemv_columns"],
)
@pytest.mark.parametrize(
    "a",
    [
        MATRIX,
        MATRIX.T,
        MATRIX[:, 3:40],
        MATRIX[3::2, 7:].T,
        MATRIX[::2, ::3],
        MATRIX[::-1],
        MATRIX[:, 5:6],
        MATRIX[5:6],
        np.broadcast_to(MATRIX[0], (30, 60)),
    ],
)
def test_gemv_reads_what_it_is_given(
    a: np.ndarray[Any, Any], kernel: str, named: dict[str, Any]
) -> None:
    is_plain = kernel == "gemv" and not named
    matrix, gemv = a if is_plain else a.T, load(kernel)
    m, n = matrix.shape
    for x in (VECTOR[:n], VECTOR[: 2 * n : 2], VECTOR[n - 1 :: -1][:n], VECTOR[:1].repeat(n)):
        assert np.allclose(gemv(a, x, **named), matrix @ x, atol=1e-4)
    around = np.full(3 * m, 7, np.float32)
    out = around[1::3]
    out[:] = VECTOR[:m]
    assert gemv(a, VECTOR[:n], out=out, alpha=2.0, beta=0.5, **named) is out
    assert np.allclose(out, 2 * (matrix @ VECTOR[:n]) + 0.5 * VECTOR[:m], atol=1e-4)
    assert is_intact(out, around)


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("kernel", ["gemv", "gemv_columns"])
def test_gemv_of_nothing_is_beta_y_and_reads_neither_a_nor_x(kernel: str) -> None:
    gemv, out = load(kernel), VECTOR[:40].copy()
    turned = np.transpose if kernel == "gemv_columns" else np.asarray
    gemv(turned(NOWHERE), NOWHERE[0], out=out, alpha=0.0, beta=0.5)
    assert np.array_equal(out, 0.5 * VECTOR[:40])
    gemv(turned(MATRIX[:20, :0]), VECTOR[:0], out=out[::2], alpha=3.0, beta=2.0)
    assert np.array_equal(out[::2], VECTOR[:40:2])
    assert np.array_equal(out[1::2], 0.5 * VECTOR[1:40:2])
    out[:] = np.nan
    gemv(turned(NOWHERE).copy(), NOWHERE[0], out=out, alpha=0.0)
    assert not out.any()
    assert gemv(turned(MATRIX[:0]), VECTOR[:60]).shape == (0,)


@pytest.mark.parametrize("kernel", ["gemv", "gemv_columns"])
@pytest.mark.parametrize(
    ("matrix", "reader"),
    [
        (MATRIX, "gemv"),
        (MATRIX.T, "gemv_columns"),
        (MATRIX[3:9, 7:], "gemv"),
        (MATRIX[3::2, 7:].T, "gemv_columns"),
        (MATRIX[::2, ::3], None),
        (MATRIX[::-1], None),
    ],
)
def test_a_matrix_goes_to_the_kernel_that_reads_it_as_it_lies(
    matrix: np.ndarray[Any, Any], reader: str | None, kernel: str
) -> None:
    """Either kernel passes it on to the other; one that lies neither way is copied."""
    x = VECTOR[: matrix.shape[1]]
    done = Called(matrix if kernel == "gemv" else matrix.T, x, of=kernel)
    assert done.kernel == (reader or kernel)
    assert done.copied == (set() if reader else {"a"})
    assert np.allclose(done.result, matrix @ x, atol=1e-4)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((MATRIX, VECTOR[:60]), {"beta": 0.5}, "beta is 0.5, but there is no out"),
        ((MATRIX, VECTOR[:60]), {"trans": True}, r"do not fit a\.T @ x"),
        ((MATRIX.astype(float), VECTOR[:60]), {}, "a is float64.*: it must be float32"),
        (
            (MATRIX, VECTOR[:60]),
            {"out": VECTOR[:40], "y": VECTOR[:40]},
            "two names of one argument",
        ),
        ((MATRIX, VECTOR[:60]), {"out": VECTOR[39::-1]}, "run backwards"),
    ],
)
def test_gemv_refuses_what_does_not_fit(
    args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load("gemv")(*args, **named)


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("columns", [slice(None), slice(3, 40)])
def test_a_product_of_one_row_ends_at_gemv_columns(columns: slice) -> None:
    """By way of gemv, which gets B.T."""
    row, b = VECTOR[:40].reshape(1, 40), MATRIX[:, columns]
    gemm, expected = load("sgemm"), row @ b
    assert Called(row, b, of="sgemm").kernel == "gemv_columns"
    assert np.allclose(gemm(row, b), expected, atol=1e-4)
    around = np.full((3, b.shape[1] + 2), 7, np.float32)
    out = around[1:2, 1:-1]
    out[...] = 1
    assert gemm(row, b, out=out, alpha=2.0, beta=0.5) is out
    assert np.allclose(out, 2 * expected + 0.5, atol=1e-4)
    assert is_intact(out, around)


# ---------------------------------------------------------------- transpose


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize(
    "x",
    [
        MATRIX,
        MATRIX.T,
        MATRIX[1:, 3:40],
        MATRIX[::2, ::3],
        MATRIX[:, :1],
        MATRIX[:1],
        STACK,
        STACK[:, 2:, 3:33],
        STACK[:1],
        STACK[::-1],
        STACK[:, :, :1],
        STACK.transpose(1, 0, 2),
        STACK.transpose(0, 2, 1),
        np.broadcast_to(MATRIX, (4, 40, 60)),
    ],
)
def test_transpose_exchanges_the_last_two_axes(x: np.ndarray[Any, Any]) -> None:
    transpose, expected = load("transpose"), np.swapaxes(x, -1, -2)
    assert np.array_equal(transpose(x), expected)
    out, around = inside(expected.shape)
    assert transpose(x, out=out) is out
    assert np.array_equal(out, expected)
    assert is_intact(out, around)


def test_transpose_of_nothing_is_nothing() -> None:
    transpose = load("transpose")
    assert transpose(MATRIX[:0]).shape == (60, 0)
    assert transpose(STACK[:0]).shape == (0, 60, 40)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (VECTOR, None, "it must be float32, with two axes"),
        (MATRIX, MATRIX, r"must be float32\[60, 40\], the transpose of float32\[40, 60\]"),
        (MATRIX, MATRIX.T, "adjacent in memory"),
        (MATRIX, np.broadcast_to(VECTOR[:1], (60, 40)), "its elements overlap"),
    ],
)
def test_transpose_refuses_what_does_not_fit(x: Any, out: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("transpose")(x, out=out)


# ---------------------------------------------------------------- products of matrices


#: Reading a space file takes longer than what is tested.
known = cache(find_kernel)


class Called:
    """A call of a kernel, done by the reference of the one that it ends at."""

    def __init__(self, *args: Any, of: str = "sgemm_tf32x3", **named: Any) -> None:
        kernel, values = known(of), {**dict(enumerate(args)), **named}
        seen = {
            place: Numpy().operand(value, place) if isinstance(value, np.ndarray) else value
            for place, value in values.items()
        }
        positional = tuple(seen.pop(place) for place in range(len(args)))
        bound = bind(kernel, positional, seen, known)
        assert not isinstance(bound, NothingToDo)
        self.kernel, self.problem = bound.kernel.name, bound.problem
        #: Names of arguments that the caller's arrays had to be copied for.
        self.copied = {name for name, passed in bound.arrays.items() if passed.is_copied}
        self.result = self._done(bound, values)

    def _done(self, bound: ResolvedCall, values: dict[Any, Any]) -> Any:
        made: dict[object, Any] = {}
        given: dict[str, Any] = {
            name: bound.scalars.get(name, argument.scalar.item())
            for name, argument in bound.arguments.items()
            if argument.kind == "scalar"
        }
        for name, argument in bound.arguments.items():
            if argument.kind == "scalar":
                continue
            if name not in bound.arrays:
                given[name] = np.empty(argument.shape)
                continue
            operand = bound.arrays[name].operand
            source: Any = operand.source
            if isinstance(source, NewArray):
                memory = made.setdefault(source, np.full(source.shape, np.nan, np.float32))
            else:
                memory = values[source]
            wanted = operand if operand.shape == argument.shape else operand.memory
            given[name] = Numpy().view(memory, wanted)
        (name,) = bound.outputs
        wide = {
            n: np.ascontiguousarray(v, float) if isinstance(v, np.ndarray) else v
            for n, v in given.items()
        }
        reference = bound.kernel.hook("reference")
        taken = reference.__code__.co_varnames[: reference.__code__.co_argcount]
        given[name][...] = reference(**{n: v for n, v in wide.items() if n in taken})
        source = bound.arrays[name].operand.source
        return made[source] if isinstance(source, NewArray) else values[source]


def lying(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An array of a shape that lies somehow."""
    if len(shape) == 3 and rng.integers(4) == 0:
        return np.broadcast_to(lying(shape[1:], rng), shape)
    order = rng.permutation(len(shape)) if rng.integers(2) else np.arange(len(shape))
    gaps, steps = rng.integers(0, 2, len(shape)), 1 + rng.integers(0, 4, len(shape)) // 3
    size = [(shape[axis] + gaps[axis]) * steps[axis] for axis in order]
    array = rng.standard_normal(size, dtype=np.float32).transpose(np.argsort(order))
    array = array[tuple(slice(0, n * step, step) for n, step in zip(shape, steps, strict=True))]
    return array[tuple(slice(None, None, 1 - 2 * (rng.integers(8) // 7)) for _ in shape)]


@pytest.mark.parametrize("kernel", ["sgemm", "sgemm_tf32x3"])
def test_products_of_any_arrays_are_right(kernel: str) -> None:
    """Whatever axis runs backwards or has gaps; what lies in no way that a kernel takes is copied."""
    rng = np.random.default_rng(3)
    kernels, copies = set(), 0
    for _ in range(500):
        m, n, k, batch = (int(size) for size in rng.integers(1, [6, 6, 6, 4]))
        stacks = rng.integers(0, 2, 2)
        a = lying((batch, m, k) if stacks[0] else (m, k), rng)
        b = lying((batch, k, n) if stacks[1] else (k, n), rng)
        expected = a.astype(float) @ b
        plain = Called(a, b, of=kernel)
        assert np.allclose(plain.result, expected, atol=1e-5)
        kernels.add(plain.kernel)
        copies += len(plain.copied)
        out, around = inside(expected.shape)
        out = np.swapaxes(out, -1, -2) if m == n and rng.integers(2) else out
        out[...] = old = rng.standard_normal(out.shape, dtype=np.float32)
        assert Called(a, b, of=kernel, out=out, alpha=2.0, beta=0.5).result is out
        assert np.allclose(out, 2 * expected + 0.5 * old, atol=1e-5)
        assert is_intact(out, around)
        if min(m, n) > 1:  # gemv takes no y that runs backwards
            out = lying(expected.shape, rng)
            if out.flags.writeable:
                assert Called(a, b, of=kernel, out=out).result is out
                assert np.allclose(out, expected, atol=1e-5)
    assert kernels == {"gemv", "gemv_columns", kernel}
    assert 0 < copies < 500


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("product_ms", "vector_ms", "is_by_vector"),
    [
        (1.0, 2.0, False),
        (2.0, 1.0, True),
        (1.0, None, False),
        (None, 1.0, True),
        (None, None, True),
    ],
)
def test_a_vector_goes_where_less_time_is_expected(
    turned: bool, product_ms: float | None, vector_ms: float | None, is_by_vector: bool
) -> None:
    arrays = [np.ones((8, 4), np.float32), np.ones((4, 1), np.float32)]
    arrays = [array.T.copy() for array in reversed(arrays)] if turned else arrays
    operands = tuple(Numpy().operand(array, i) for i, array in enumerate(arrays))
    by_vector = "gemv_columns" if turned else "gemv"
    times = {"sgemm": product_ms, by_vector: vector_ms}
    call = bind(
        find_kernel("sgemm"), operands, {}, find_kernel, True, lambda call: times[call.kernel.name]
    )
    assert isinstance(call, ResolvedCall)
    assert call.kernel.name == (by_vector if is_by_vector else "sgemm")
    assert call.results[0].size == 8


@pytest.mark.parametrize(
    ("product_ms", "other_ms", "kernel"),
    [
        (1.0, 2.0, "sgemm_tf32x3"),
        (2.0, 1.0, "sgemm"),
        (1.0, None, "sgemm_tf32x3"),
        (None, 1.0, "sgemm_tf32x3"),
    ],
)
@pytest.mark.parametrize("step", [1, 2])
def test_a_product_goes_to_another_kernel_only_where_less_time_is_expected(
    product_ms: float | None, other_ms: float | None, kernel: str, step: int
) -> None:
    """Arrays that are read where they are, and arrays in steps of 2, which are copied."""
    arrays = [np.ones((8, 4 * step), np.float32)[:, ::step], np.ones((4, 6), np.float32)]
    operands = tuple(Numpy().operand(array, i) for i, array in enumerate(arrays))
    times = {"sgemm_tf32x3": product_ms, "sgemm": other_ms}
    of = find_kernel("sgemm_tf32x3")
    call = bind(of, operands, {}, find_kernel, True, lambda call: times[call.kernel.name])
    assert isinstance(call, ResolvedCall)
    assert call.kernel.name == kernel
    assert call.problem == Problem(m=8, n=6, k=4)
    unknown = bind(of, operands, {}, find_kernel)
    assert isinstance(unknown, ResolvedCall)
    assert unknown.kernel is of


def test_a_product_stays_where_the_other_kernel_is_not_found() -> None:
    def find(name: str) -> Kernel:
        raise UsageError(f"unknown kernel {name}")

    arrays = [np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)]
    operands = tuple(Numpy().operand(array, i) for i, array in enumerate(arrays))
    of = find_kernel("sgemm_tf32x3")
    call = bind(of, operands, {}, find, True, lambda call: 1.0)
    assert isinstance(call, ResolvedCall)
    assert call.kernel is of


@pytest.mark.parametrize("times_ms", [(3.0, 2.0, 1.0), (3.0, 1.0, 2.0), (1.0, 2.0, 3.0)])
def test_a_product_by_a_vector_goes_to_the_fastest_of_three(
    times_ms: tuple[float, float, float],
) -> None:
    times = dict(zip(("sgemm_tf32x3", "sgemm", "gemv"), times_ms, strict=True))
    arrays = [np.ones((8, 4), np.float32), np.ones((4, 1), np.float32)]
    operands = tuple(Numpy().operand(array, i) for i, array in enumerate(arrays))
    of = find_kernel("sgemm_tf32x3")
    call = bind(of, operands, {}, find_kernel, True, lambda call: times[call.kernel.name])
    assert isinstance(call, ResolvedCall)
    assert call.kernel.name == min(times, key=times.__getitem__)


def test_a_product_for_kernels_of_other_types() -> None:
    """Users' own: another type, and none for vectors."""
    a, b = Operand.new((5, 7), "float16"), Operand.new((7, 1), "float16")
    found = matrix_product(a, b, dtype="float16", by_vector=None)
    assert isinstance(found, MatrixProduct)
    assert (found.m, found.n, found.k, found.is_plain) == (5, 1, 7, True)
    assert found.c.operand is not None
    assert found.c.operand.dtype == "float16"
    with pytest.raises(ValueError, match="a is float16: float32 is needed"):
        matrix_product(a, b)


def test_operands_are_read_where_they_are() -> None:
    """The same product of arrays that lie in one way or another, without a copy."""
    a, b = MATRIX, RNG.standard_normal((60, 50), dtype=np.float32)
    transposed = {"view": 1, "ldb": 50, "ldc": 50}
    problem = {"m": 40, "n": 50, "k": 60}
    for first, second, layout in (
        (a, b, {}),
        (np.asfortranarray(a), b, {**transposed, "trans_a": 1, "lda": 40}),
        (a, np.asfortranarray(b), {**transposed, "trans_b": 1, "lda": 60, "ldb": 60}),
        (np.repeat(a, 2, 0)[::2], b, {**transposed, "lda": 120}),
    ):
        called = Called(first, second)
        assert called.problem == Problem(**problem, **layout)
        assert not called.copied
    by_columns = Called(a, b, out=np.empty((50, 40), np.float32).T)
    assert by_columns.problem["m"] == 50
    assert (by_columns.problem["trans_a"], by_columns.problem["trans_b"]) == (1, 1)


def test_a_stack_times_one_matrix_is_one_product() -> None:
    assert Called(STACK, MATRIX.T.copy()).problem == Problem(m=120, n=40, k=60)
    assert Called(STACK[:, :, :1].copy(), MATRIX[:1]).problem == Problem(m=120, n=60, k=1)
    assert Called(STACK, STACK.transpose(0, 2, 1)).problem["batch"] == 3


def test_a_product_of_nothing_reads_nothing() -> None:
    out, around = inside((40, 40))
    Called(NOWHERE, NOWHERE.T, out=out, alpha=0.0, beta=0.5)
    assert (out == 3.5).all()
    Called(MATRIX[:, :0], MATRIX[:, :0].T, out=out, alpha=3.0, beta=2.0)
    assert (out == 7).all()
    assert is_intact(out, around)
    a, b = (Numpy().operand(array, number) for number, array in enumerate((MATRIX[:0], MATRIX.T)))
    nothing = bind(known("sgemm_tf32x3"), (a, b), {}, known)
    assert isinstance(nothing, NothingToDo)
    assert nothing.results[0].shape == (0, 40)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((MATRIX, MATRIX), {}, r"a \[40, 60\] and b \[40, 60\]: a must have as many columns as"),
        ((MATRIX, VECTOR[:60]), {}, "matrices .* or batches of them .* are needed"),
        ((MATRIX, MATRIX.T), {"beta": 1.0}, "beta=1.0 adds to the content of out: give out"),
        ((MATRIX, MATRIX.T), {"out": MATRIX}, r"give \[40, 40\], and out is \[40, 60\]"),
        ((MATRIX, MATRIX.T), {"out": np.broadcast_to(VECTOR[:40], (40, 40))}, "share memory"),
    ],
)
def test_products_that_are_not_possible_are_refused(
    args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Called(*args, **named)

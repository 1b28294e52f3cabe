"""9,000 random calls through `load` against float64: shapes, offsets, strides, transposes, batches,
alpha and beta, streams, arrays of CuPy and torch. Nothing beside the output may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autotune import load
from autotune.arrays import usable_cores
from autotune.calling.load import TunedKernel
from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.measure.compilers import CompilerPool

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]

#: Calls of each kernel.
COUNTS = {"sgemm": 1000, "sgemm_tf32x3": 1000, "gemv": 2000, "transpose": 1000, "reduce": 1500}
#: Calls that are enqueued before the first of them is looked at; their products are of so many sizes and
#: transposes, each of which may need a binary of its own.
BATCH, PRODUCTS = 1000, 24
SIDES = (1, 2, 7, 16, 33, 64, 100, 130, 257)
DEPTHS = (1, 3, 8, 31, 64, 300, 4100)
EPS = float(np.finfo(np.float32).eps)


@dataclass
class Placed:
    """An array somewhere in a buffer: the buffer, as it was, and the view."""

    buffer: Any
    view: Any
    before: Any = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.buffer.copy()

    def untouched(self, cupy: Any) -> Any:
        """Whether all that is not in the view is as it was: on the device, since waiting takes long."""
        changed, self.view[...] = self.view.copy(), 0
        after = self.buffer.copy()
        self.view[...] = changed
        mine = Placed.view_of(cupy, self.before, self.view, self.buffer)
        mine[...] = 0
        return (after == self.before).all()

    @staticmethod
    def view_of(cupy: Any, memory: Any, view: Any, buffer: Any) -> Any:
        """The view of another buffer that ``view`` is of ``buffer``."""
        begin = view.data.ptr - buffer.data.ptr
        return cupy.ndarray(view.shape, view.dtype, memory.data + begin, view.strides)


@dataclass
class Call:
    """One call, and what it must give."""

    kernel: TunedKernel
    args: tuple[Any, ...]
    named: dict[str, Any]
    out: Placed | None
    expected: Callable[[], tuple[Any, float]]
    uses_torch: bool = False
    result: Any = None


class Drawn:
    """Random arrays and calls, by kernel."""

    def __init__(self, cupy: Any, seed: int) -> None:
        self.cupy, self.rng = cupy, np.random.default_rng(seed)
        cupy.random.seed(seed)
        self.products: list[tuple[int, int, int, bool, bool]] = []

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def begin(self) -> None:
        """Draw the products of a batch: m, n, k, and which factor has its columns first."""
        self.products = [
            (
                self.one_of(*SIDES),
                self.one_of(*SIDES),
                self.one_of(*DEPTHS),
                *(self.rng.random(2) < 0.5),
            )
            for _ in range(PRODUCTS)
        ]

    def placed(self, *shape: int, by_columns: bool | None = None) -> Placed:
        """An array of normal deviates: any offset, padded rows, rows or columns first."""
        cupy, *batch = self.cupy, *shape[:-2]
        rows, columns = (1, *shape)[-2:]
        if by_columns is None:
            by_columns = len(shape) > 1 and self.rng.random() < 0.5
        if by_columns:
            rows, columns = columns, rows
        padding = self.one_of(0, 0, 1, 3, 4) if len(shape) > 1 else 0
        gap = self.one_of(0, 5) if batch else 0
        offset = self.one_of(0, 0, 0, 1, 2, 3)
        row = columns + padding
        matrix = rows * row + gap
        count = int(np.prod(batch, dtype=int)) * matrix if batch else matrix
        buffer = cupy.random.standard_normal(offset + count + 8, dtype=np.float32)
        strides = (row * 4, 4)
        view = cupy.ndarray(
            (*batch, rows, columns),
            np.float32,
            buffer.data + 4 * offset,
            (*([matrix * 4] if batch else []), *strides),
        )
        if len(shape) == 1:
            view = view[0]
        return Placed(buffer, view.swapaxes(-1, -2) if by_columns else view)

    def product(self, kernel: TunedKernel, roundings: float) -> Call:
        """A product, or several, of matrices that lie anywhere."""
        m, n, k, *by_columns = self.one_of(*self.products)
        batch = self.one_of((), (), (), (), (2,), (3,))
        a, b = (
            self.placed(*(batch if self.rng.random() < 0.8 else ()), *shape, by_columns=first).view
            for shape, first in zip(((m, k), (k, n)), by_columns, strict=True)
        )
        if a.ndim == b.ndim == 2:
            batch = ()
        return self._scaled(
            kernel, (a, b), (*batch, m, n), k, roundings, lambda x, y: self.cupy.matmul(x, y)
        )

    def matrix_vector(self, kernel: TunedKernel, roundings: float) -> Call:
        m, n = self.one_of(*SIDES, 2000), self.one_of(*DEPTHS)
        a, x = self.placed(m, n).view, self.placed(n).view
        return self._scaled(kernel, (a, x), (m,), n, roundings, lambda a, x: a @ x)

    def _scaled(
        self,
        kernel: TunedKernel,
        operands: tuple[Any, Any],
        shape: tuple[int, ...],
        k: int,
        roundings: float,
        product: Callable[[Any, Any], Any],
    ) -> Call:
        """With alpha, beta and an output, or without."""
        cupy = self.cupy
        alpha = self.one_of(1.0, 1.0, 0.5, -1.7, 0.0)
        out = self.placed(*shape) if self.rng.random() < 0.7 else None
        beta = self.one_of(0.0, 0.0, 1.0, 0.25) if out is not None else 0.0
        named: dict[str, Any] = {"alpha": alpha, "beta": beta}
        before = None
        if out is not None:
            if beta == 0.0:
                out.view[...] = cupy.nan  # must not get through
            else:
                before = out.view.astype(np.float64)
            out.__post_init__()
            named["out"] = out.view
        if alpha == 0.0 and self.rng.random() < 0.5:
            operands[0][...] = cupy.nan  # is not read

        def expected() -> tuple[Any, float]:
            if alpha == 0.0:
                exact = cupy.zeros(shape)
            else:
                exact = alpha * product(*(each.astype(np.float64) for each in operands))
            if before is not None:
                exact = exact + beta * before
            return exact, EPS * (roundings * k + 64) * 2

        return Call(kernel, operands, named, out, expected)

    def transposed(self, kernel: TunedKernel, roundings: float) -> Call:
        shape = self.one_of(*SIDES, 1000), self.one_of(*SIDES, 1000)
        batch = self.one_of((), (), (3,))
        x = self.placed(*batch, *shape, by_columns=False).view
        out = None
        if self.rng.random() < 0.7:
            out = self.placed(*batch, *reversed(shape), by_columns=False)
        named = {} if out is None else {"out": out.view}
        return Call(kernel, (x,), named, out, lambda: (x.swapaxes(-1, -2), 0.0))

    def sum(self, kernel: TunedKernel, roundings: float) -> Call:
        n = self.one_of(1, 2, 3, 5, 31, 1000, 4097, 65536, 65537, 1 << 20)
        x = self.placed(n).view
        if n % 4 == 0 and self.rng.random() < 0.3:
            x = x.reshape(4, n // 4)
        out = self.placed(1) if self.rng.random() < 0.5 else None
        named = {} if out is None else {"out": out.view}
        bound = EPS * (roundings * n**0.5 + n / 50)
        return Call(
            kernel, (x,), named, out, lambda: (x.astype(np.float64).sum().reshape(1), bound)
        )

    def call(self, name: str, kernel: TunedKernel) -> Call:
        """A random call of a kernel, of CuPy's arrays or of torch's."""
        make, roundings = {
            "sgemm": (self.product, 4.0),
            "sgemm_tf32x3": (self.product, 4.0),
            "gemv": (self.matrix_vector, 2.0),
            "transpose": (self.transposed, 0.0),
            "reduce": (self.sum, 16.0),
        }[name]
        call = make(kernel, roundings)
        if self.rng.random() < 0.5:
            import torch

            call.uses_torch = True
            call.args = tuple(torch.from_dlpack(array) for array in call.args)
            if "out" in call.named:
                call.named["out"] = torch.from_dlpack(call.named["out"])
        return call


def on_stream(cupy: Any, call: Call, stream: Any) -> None:
    """Enqueue a call on a stream, of its library."""
    if call.uses_torch:
        import torch

        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            call.result = call.kernel(*call.args, **call.named)
    else:
        with stream:
            call.result = call.kernel(*call.args, **call.named)


def batches(drawn: Drawn, name: str, kernel: TunedKernel) -> Iterator[list[Call]]:
    for done in range(0, COUNTS[name], BATCH):
        drawn.begin()
        yield [drawn.call(name, kernel) for _ in range(min(BATCH, COUNTS[name] - done))]


def compile_ahead(calls: list[Call], compilers: CompilerPool) -> None:
    """All that these calls need, in processes, into the disk cache."""
    device, wanted = choose_device("cuda:0"), {}
    for call in calls:
        chosen = call.kernel.choice(*call.args, **call.named)
        kernel = find_kernel(chosen.kernel)
        job = compile_job(kernel, chosen.configuration, chosen.problem, device)
        wanted[job.key] = job
    with ThreadPoolExecutor(16) as threads:
        for compiled in threads.map(compilers.result, wanted.values()):
            assert compiled.binary is not None


def about(name: str, call: Call) -> str:
    strides = [array.stride() if call.uses_torch else array.strides for array in call.args]
    shapes = [f"{tuple(a.shape)} by {s}" for a, s in zip(call.args, strides, strict=True)]
    named = {name: value for name, value in call.named.items() if name != "out"}
    return f"{name}({', '.join(shapes)}, {named}, {'out' if call.out else 'no out'})"


@pytest.mark.parametrize("name", COUNTS)
def test_random_calls_are_right_and_touch_nothing_else(
    name: str, request: pytest.FixtureRequest
) -> None:
    cupy = pytest.importorskip("cupy")
    pytest.importorskip("torch")
    kernel, drawn = load(name), Drawn(cupy, seed=1)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    wrong: list[str] = []
    worst, count = 0.0, 0
    compilers = CompilerPool(max(1, usable_cores() // 2))
    request.addfinalizer(compilers.close)
    for calls in batches(drawn, name, kernel):
        compile_ahead(calls, compilers)
        cupy.cuda.Device().synchronize()
        for position, call in enumerate(calls):
            on_stream(cupy, call, streams[position % 4])
        cupy.cuda.Device().synchronize()
        errors, untouched, bounds = [], [], []
        for call in calls:
            expected, bound = call.expected()
            result = cupy.from_dlpack(call.result)
            if result.shape != expected.shape:
                wrong.append(f"{about(name, call)} gives {result.shape}")
                expected = result
            errors.append(abs(result - expected).max())
            untouched.append(cupy.ones((), bool) if call.out is None else call.out.untouched(cupy))
            bounds.append(bound)
        found = zip(
            calls, cupy.stack(errors).get(), cupy.stack(untouched).get(), bounds, strict=True
        )
        for call, error, is_untouched, bound in found:
            if not error <= bound:
                wrong.append(f"{about(name, call)}: error {error}, bound {bound}")
            if not is_untouched:
                wrong.append(f"{about(name, call)} writes beside its output")
            worst, count = max(worst, error / bound if bound else error), count + 1
    print(f"\n{name}: {count} calls, largest error {worst:.2f} of its bound")
    assert count == COUNTS[name]
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("name", ["sgemm", "sgemm_tf32x3", "gemv"])
def test_what_has_no_elements_is_as_blas_does(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    kernel = load(name)
    is_vector = name == "gemv"

    def called(m: int, n: int, k: int, **named: Any) -> Any:
        a = cupy.full((m, k), cupy.nan, np.float32)
        b = cupy.full(k if is_vector else (k, n), cupy.nan, np.float32)
        return kernel(a, b, **named)

    assert called(0, 5, 3).shape == ((0,) if is_vector else (0, 5))
    if not is_vector:
        assert called(4, 0, 3).shape == (4, 0)
    shape = (4,) if is_vector else (4, 5)
    assert (called(4, 5, 0) == 0).all()
    for k in (0, 3):
        out = cupy.ones(shape, np.float32)
        assert called(4, 5, k, alpha=0.0, beta=0.5, out=out) is out
        assert (out == 0.5).all()
    with pytest.raises(UsageError, match="beta"):
        called(4, 5, 3, beta=0.5)


def test_arrays_of_host_and_device_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.ones(8, 8, device="cuda"), torch.ones(8, 8)
    with pytest.raises(UsageError, match=r"b is in host memory.*cuda:0"):
        load("sgemm")(a, b)


def test_factors_that_were_equal_once_may_differ_later() -> None:
    cupy = pytest.importorskip("cupy")
    gemm, a = load("sgemm"), cupy.ones((8, 8), np.float32)
    for alpha, beta in ((2.0, 2.0), (3.0, 5.0), (5.0, 3.0)):
        out = cupy.ones((8, 8), np.float32)
        assert (gemm(a, a, alpha=alpha, beta=beta, out=out) == 8 * alpha + beta).all()

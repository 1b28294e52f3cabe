"""cuBLAS answers calls of a kernel on a GPU: streams, threads, captured graphs, and the cost of the detour.

What needs no GPU is in tests/test_rivals.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import load, lookup, tune
from autotune.calling.rivals import RivalStep
from autotune.tuned.lookup import clear_cache
from autotune.vendor import PLAIN, cublas_call

pytestmark = pytest.mark.gpu

N = 512
SPACE = '''
"""c = a b, slower than cuBLAS."""
import numpy as np
from autotune import Kernel, Launch, Out, Problem, ceil_div
from autotune.vendor import PLAIN, cublas_call

product = Kernel("product.cu", problems=[Problem(n=512)], edge_problems=[Problem(n=7)],
                 backends=("cuda",), BLOCK=(32, 64))

@product.arguments
def arguments(p, rng):
    a, b = rng.standard_normal((2, p.n, p.n), dtype=np.float32)
    return {"a": a, "b": b, "c": Out((p.n, p.n)), "n": p.n}

@product.reference
def reference(a, b):
    return a @ b

@product.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n * p.n, c.BLOCK),), block=(c.BLOCK,))

@product.call
def call(a, b, c=None):
    return Problem(n=a.shape[0]), {"a": a, "b": b, "c": c, "n": a.shape[0]}

@product.baseline("cublas", answers=True)
def cublas(a, b, c, n):
    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, n, n, 1.0, b, n, a, n, 0.0, c, n)
'''
SOURCE = """
extern "C" __global__ void product(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= n * n) return;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[i / n * n + k] * b[k * n + i % n];
  c[i] = sum;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rivals")
    for kind, name, text in (("spaces", "product.py", SPACE), ("kernels", "product.cu", SOURCE)):
        (folder / kind).mkdir()
        (folder / kind / name).write_text(text)
    space = str(folder / "spaces/product.py")
    tune(space, device="cuda:0", budget="2evals", out=folder / "reports", quiet=True)
    return folder


@pytest.fixture
def product(cupy: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The kernel where cuBLAS answers; arguments are those of `load`."""
    monkeypatch.setenv("AUTOTUNE_PATH", str(folder / "spaces"))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(folder / "reports"))
    clear_cache()
    return lambda **rules: load("product", **rules)


def matrices(cupy: Any, seed: int) -> tuple[Any, Any, Any]:
    a, b = cupy.random.RandomState(seed).standard_normal((2, N, N)).astype(np.float32)
    return a, b, cupy.zeros((N, N), np.float32)


def assert_product(cupy: Any, a: Any, b: Any, c: Any) -> None:
    np.testing.assert_allclose(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b), atol=1e-2)


def test_cublas_answers_where_it_is_faster(cupy: Any, product: Any) -> None:
    rival = lookup("product", n=N).rival
    assert rival and rival.name == "cublas" and rival.pins.startswith("cuBLAS 1")
    a, b, c = matrices(cupy, 1)
    choice = product().choice(a, b)
    assert choice.rival == rival and choice.why.startswith(f"cublas ({rival.pins}) at 0.")
    for rules in ({}, {"rivals": False}, {"frozen": True}):
        c[...] = 0
        assert product(**rules)(a, b, c) is c
        assert_product(cupy, a, b, c)
    assert product(rivals=False).choice(a, b).rival is None
    assert_product(cupy, a, b, product()(a, b))  # a new output


def test_calls_of_several_streams_and_threads(cupy: Any, product: Any) -> None:
    kernel = product()

    def called(seed: int) -> None:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for turn in range(20):
                a, b, c = matrices(cupy, 100 * seed + turn)
                kernel(a, b, c)
                stream.synchronize()
                assert_product(cupy, a, b, c)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(called, range(4)))


@pytest.mark.parametrize("is_warm", [True, False])
def test_calls_are_captured(cupy: Any, product: Any, is_warm: bool) -> None:
    """Also on a stream and at addresses that no call had before."""
    kernel = product()
    kernel(*matrices(cupy, 1))  # the first call compiles, and cuBLAS makes its handles
    a, b, c = matrices(cupy, 2)
    cupy.cuda.runtime.deviceSynchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        if is_warm:
            kernel(a, b, c)
        stream.begin_capture()
        kernel(a, b, c)
        graph = stream.end_capture()
    for seed in (3, 4):
        new_a, new_b, _ = matrices(cupy, seed)
        a[...], b[...], c[...] = new_a, new_b, 0
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        assert_product(cupy, a, b, c)


def test_calls_of_torch_on_its_stream_and_in_its_graphs(cupy: Any, product: Any) -> None:
    torch = pytest.importorskip("torch")
    kernel = product()
    a, b, c = (torch.randn(N, N, device="cuda") for _ in "abc")
    with torch.cuda.stream(torch.cuda.Stream()):
        kernel(a, b, c)
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(c, a @ b, atol=1e-2, rtol=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = kernel(a, b)
    a.copy_(torch.randn(N, N))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(made, a @ b, atol=1e-2, rtol=0)


@pytest.mark.alone
def test_the_detour_costs_at_most_three_microseconds(
    cupy: Any, product: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of a call that makes the prepared call of cuBLAS, over the prepared call alone, on the host."""
    steps: list[RivalStep] = []

    class Kept(RivalStep):
        def __post_init__(self) -> None:
            super().__post_init__()
            steps.append(self)

    monkeypatch.setattr("autotune.calling.gpu.RivalStep", Kept)
    a, b, c = matrices(cupy, 1)
    kernel = product()
    kernel(a, b, c)
    (step,), pointers = steps, [a.data.ptr, b.data.ptr, c.data.ptr]
    multiply = ("cublasSgemm_v2", PLAIN, PLAIN, N, N, N, 1.0, b, N, a, N, 0.0, c, N)
    calls: dict[str, Callable[[], object]] = {
        "load": lambda: kernel(a, b, c),
        "step": lambda: step(pointers, 0, ()),
        "cublas": cublas_call(*multiply),
    }
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(9):
        for name, call in calls.items():
            cupy.cuda.runtime.deviceSynchronize()
            begun = time.perf_counter()
            for _ in range(200):
                call()
            rounds[name].append((time.perf_counter() - begun) / 200 * 1e6)
    costs = {name: statistics.median(taken) for name, taken in rounds.items()}
    print("microseconds of a call:", costs)
    assert costs["step"] - costs["cublas"] < 3

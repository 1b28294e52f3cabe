"""`load` on device arrays: CuPy and torch, streams, constants, large shared memory, and its cost.

Which configuration is launched, and host arrays, are tests/test_load.py: they need no GPU.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import load
from autotune.errors import UsageError
from autotune.tuned.lookup import clear_cache

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]

SPACE = '''
"""y = taps[0] x + taps[1], through dynamic shared memory."""
import numpy as np
from autotune import Constant, Fill, Kernel, Launch, Out, Problem, ceil_div

line = Kernel("line.cu", problems=[Problem(n=1000)], backends=("cuda",), BLOCK=(64, 128))

@line.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n), "y": Out((p.n,)), "count": Out((1,), "int32"),
            "taps": Constant(np.zeros(2, np.float32)), "n": np.int64(p.n)}

@line.scratch
def scratch(c, p):
    return {"partial": Out((ceil_div(p.n, c.BLOCK),), "int32")}

@line.reference
def reference(x, taps):
    return {"y": taps[0] * x + taps[1], "count": np.array([x.size])}

@line.launch
def launch(c, p):
    blocks = ceil_div(p.n, c.BLOCK)
    first = Launch((blocks,), (c.BLOCK,), shared_bytes=100_000, args=("x", "y", "partial", "n"))
    last = Launch((1,), (1,), entry="add", args=("partial", "count", blocks))
    return Fill("count", 0), first, last

@line.call
def call(x, taps, y=None):
    given = {"x": x, "taps": taps, "n": len(x)}
    return Problem(n=len(x)), given if y is None else {**given, "y": y}
'''
SOURCE = """
#ifndef BLOCK
#define BLOCK 64
#endif
__constant__ float taps[2];
extern "C" __global__ void line(const float* x, float* y, int* partial, long long n) {
  extern __shared__ float tile[];
  long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
  tile[24000 + threadIdx.x] = i < n ? x[i] : 0;
  int here = __syncthreads_count(i < n);
  if (threadIdx.x == 0) partial[blockIdx.x] = here;
  if (i < n) y[i] = taps[0] * tile[24000 + threadIdx.x] + taps[1];
}
extern "C" __global__ void add(const int* partial, int* count, int blocks) {
  for (int i = 0; i < blocks; ++i) *count += partial[i];
}
"""


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of two launches with a fill, a scratch buffer and a module symbol."""
    for folder in ("spaces", "kernels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "spaces/line.py").write_text(SPACE)
    (tmp_path / "kernels/line.cu").write_text(SOURCE)
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path / "spaces"))
    clear_cache()
    return load("line")


def test_a_sequence_on_cupy_arrays(cupy: Any, line: Any) -> None:
    x = cupy.arange(1000, dtype=cupy.float32)
    for taps in ([2.0, 1.0], [3.0, -1.0]):
        y, count = line(x, np.array(taps, np.float32))
        cupy.testing.assert_array_equal(y, taps[0] * x + taps[1])
        assert int(count[0]) == 1000


def test_threads_set_constants_for_themselves(cupy: Any, line: Any) -> None:
    """They share a stream, and with it the module that holds the constants."""
    x = cupy.arange(1000, dtype=cupy.float32)

    def is_right(slope: int) -> bool:
        taps = np.array([slope, 1], np.float32)
        made = [line(x, taps)[0] for _ in range(200)]
        return all(bool((y == slope * x + 1).all()) for y in made)

    assert is_right(9)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(8)))


def test_torch_tensors_stay_torch_tensors_on_their_stream(line: Any) -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(1 << 22, device="cuda")
        for _ in range(50):
            x += 1  # still queued when the kernel is
        y, count = line(x, np.array([2, 1], np.float32))
        total = y.sum()
    stream.synchronize()
    assert isinstance(y, torch.Tensor)
    assert float(total) == 101 * (1 << 22)
    assert int(count[0]) == 1 << 22


def test_what_does_not_fit_is_refused(cupy: Any, line: Any) -> None:
    taps = np.zeros(2, np.float32)
    with pytest.raises(UsageError, match="x is float64"):
        line(cupy.ones(10), taps)
    with pytest.raises(UsageError, match=r"y is float32\[9\]"):
        line(cupy.ones(10, cupy.float32), taps, cupy.ones(9, cupy.float32))


def test_lookup_knows_this_gpu_and_starts_no_cuda() -> None:
    program = """if True:
        import os, sys
        from autotune.tuned.lookup import first_gpu
        before = first_gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
        assert "libcudart" not in open("/proc/self/maps").read()
        import torch
        pid = os.fork()  # CUDA that is initialised before a fork is broken after it
        if pid == 0:
            torch.zeros(1, device="cuda")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        torch.zeros(1, device="cuda")
        from autotune.devices.choose import choose_device
        here = choose_device("cuda")
        assert (before.name, before.uuid) == (here.name, here.uuid), (before, here)
        # GeForce boards have another maximum clock in NVML than in CUDA.
        assert before.chip.difference(here.chip) == "", (before, here)
        assert before.sm_count == here.sm_count, (before, here)
        assert before.peak_gflop_per_s >= here.peak_gflop_per_s, (before, here)
    """
    pytest.importorskip("torch")
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=120)


class Interface:
    """An array of a library that nobody knows, by ``__cuda_array_interface__`` only."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self._array = array


class Exchange:
    """The same by DLPack only."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **named: Any) -> Any:
        return self._array.__dlpack__(**named)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("wrapped", [Interface, Exchange])
def test_arrays_of_unknown_libraries_are_seen_where_they_are(cupy: Any, wrapped: Any) -> None:
    x = cupy.arange(600, dtype=cupy.float32).reshape(20, 30)
    out = cupy.zeros((30, 20), cupy.float32)
    given = wrapped(out)
    assert load("transpose")(wrapped(x), out=given) is given
    cupy.testing.assert_array_equal(out, x.T)
    cupy.testing.assert_array_equal(load("transpose")(wrapped(x)), x.T)


def test_threads_and_their_first_calls(cupy: Any) -> None:
    """A thread that has used no CUDA before; many at once on one stream, with workspaces and without."""
    from concurrent.futures import ThreadPoolExecutor

    gemm, gemv = load("sgemm"), load("gemv")
    a = cupy.full((96, 4096), 2, cupy.float32)
    b, x = cupy.full((4096, 64), 0.5, cupy.float32), cupy.full(4096, 0.5, cupy.float32)
    outs = [(cupy.empty((96, 64), cupy.float32), cupy.empty(96, cupy.float32)) for _ in range(8)]
    cupy.cuda.Device().synchronize()

    def calls(mine: tuple[Any, Any]) -> None:
        for _ in range(200):
            gemm(a, b, out=mine[0])
            gemv(a, x, out=mine[1])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(calls, outs))
    cupy.cuda.Device().synchronize()
    for c, y in outs:
        assert bool((c == 4096).all()) and bool((y == 4096).all())


def test_a_captured_product_of_views(cupy: Any) -> None:
    gemm, rng = load("sgemm"), np.random.default_rng(5)
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

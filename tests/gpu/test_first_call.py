"""First calls that tune, on device arrays: streams, views, captures, torch, and what stays of them.

What needs no GPU is in tests/test_first_call.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import load, tuned_on_first_call
from autotune.calling import first_call, trial
from autotune.calling.load import TunedKernel
from autotune.files import data_path
from autotune.tuned.lookup import clear_cache

pytestmark = pytest.mark.gpu

#: Of no list, and of no record.
M, N, K = 331, 557, 773


@pytest.fixture(autouse=True)
def unknown_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the home's files decide what is known; and let compiling take the time that it takes."""
    monkeypatch.setattr(trial, "COMPILE_S", 120.0)
    clear_cache()
    yield
    first_call.forget()
    clear_cache()


@pytest.fixture
def gemm(cupy: Any) -> TunedKernel:
    kernel = load("sgemm", tune="first_call", budget="30s")
    if kernel.choice(m=M, n=N, k=K).tuned is None:
        pytest.skip("no record of sgemm answers on this GPU")
    return kernel


def quality(cupy: Any, m: int, n: int = N, k: int = K) -> str:
    tuned = load("sgemm").choice(m=m, n=n, k=k).tuned
    assert tuned is not None
    return tuned.quality


def kept() -> list[dict[str, Any]]:
    """Return all first calls of the user."""
    files = Path(data_path("tuned")).glob("*/*/sgemm.first_calls/*/answer.json")
    return [json.loads(file.read_text())["entry"] for file in files]


def matrices(cupy: Any, m: int = M) -> tuple[Any, Any]:
    cupy.random.seed(1)
    shapes = ((m, K), (K, N))
    a, b = (cupy.random.standard_normal(shape, dtype=cupy.float32) for shape in shapes)
    return a, b


def assert_product(cupy: Any, found: Any, a: Any, b: Any) -> None:
    expected = cupy.asarray(a, cupy.float64) @ cupy.asarray(b, cupy.float64)
    assert float(abs(cupy.asarray(found, cupy.float64) - expected).max()) < 1e-3


def test_a_first_call_on_a_stream_tunes_on_copies(cupy: Any, gemm: TunedKernel) -> None:
    """Inputs are still being written when it begins; the caller's stream and memory are as before."""
    a, b = matrices(cupy)
    late, out = cupy.zeros_like(a), cupy.full((M, N), 7, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    used = cupy.get_default_memory_pool().used_bytes()
    stream.use()
    busy = cupy.zeros(1 << 28, cupy.uint8)
    for _ in range(50):
        busy += 1
    late[...] = a
    assert gemm(late, b, out=out, alpha=1.0, beta=2.0) is out
    assert cupy.cuda.get_current_stream() == stream
    assert_product(cupy, out - 14, a, b)
    stream.synchronize()
    cupy.cuda.Stream.null.use()
    del busy
    assert cupy.get_default_memory_pool().used_bytes() == used
    assert quality(cupy, M) == "first_call" and len(kept()) == 1
    assert_product(cupy, load("sgemm")(a, b), a, b)


def test_views_are_tuned_as_they_lie(cupy: Any, gemm: TunedKernel) -> None:
    memory = cupy.random.standard_normal(3 + M * (K + 5), dtype=cupy.float32)
    a = memory[3:].reshape(M, K + 5)[:, :K]
    b = cupy.random.standard_normal((N, K), dtype=cupy.float32).T
    whole = cupy.full((M + 2, N + 1), 9, cupy.float32)
    gemm(a, b, out=whole[1:-1, 1:])
    assert_product(cupy, whole[1:-1, 1:], a, b)
    assert bool((whole[0] == 9).all() and (whole[-1] == 9).all() and (whole[:, 0] == 9).all())
    tuned = gemm.choice(a, b, out=whole[1:-1, 1:]).tuned
    assert tuned is not None and tuned.quality == "first_call"
    assert quality(cupy, M) != "first_call"  # arrays that lie otherwise


def test_copies_are_made_of_what_no_configuration_takes(cupy: Any, gemm: TunedKernel) -> None:
    memory = cupy.random.standard_normal((2 * M, 2 * K), dtype=cupy.float32)
    a, (_, b) = memory[::2, ::2], matrices(cupy)
    assert_product(cupy, gemm(a, b), a, b)
    assert quality(cupy, M) == "first_call"


def test_a_capture_never_tunes(cupy: Any, gemm: TunedKernel) -> None:
    """Nor does it keep a later call from it."""
    (a, b), out = matrices(cupy), cupy.zeros((M, N), cupy.float32)
    for mode in ("streamCaptureModeGlobal", "streamCaptureModeRelaxed"):
        load("sgemm")(a, b, out=out)  # loads the module, which a global capture does not allow
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(getattr(cupy.cuda.runtime, mode))
            gemm(a, b, out=out)
            graph = stream.end_capture()
        assert kept() == [] and quality(cupy, M) != "first_call"
        out.fill(0)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert_product(cupy, out, a, b)
    gemm(a, b, out=out)
    assert quality(cupy, M) == "first_call"


def test_tuning_breaks_no_capture_of_another_thread(cupy: Any, gemm: TunedKernel) -> None:
    a, b = matrices(cupy)
    x = cupy.ones(1000, cupy.float32)
    cupy.add(x, x, out=x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        thread = threading.Thread(target=gemm, args=(a, b))
        thread.start()
        thread.join()
        cupy.add(x, x, out=x)
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert float(x[0]) == 4 and quality(cupy, M) == "first_call"


def test_in_the_background_arrays_may_change_at_once(
    cupy: Any, gemm: TunedKernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, real = threading.Event(), trial.promising
    monkeypatch.setattr(trial, "promising", lambda *a, **n: real(*a, **n) if go_on.wait(60) else [])
    kernel = load("sgemm", tune="background", budget="30s")
    a, b = matrices(cupy)
    expected = cupy.asarray(a, cupy.float64) @ cupy.asarray(b, cupy.float64)
    found = kernel(a, b)
    a.fill(np.nan)
    del a
    (thread,) = (t for t in threading.enumerate() if t.name == "autotune-first-call")
    assert float(abs(found - expected).max()) < 1e-3
    go_on.set()
    thread.join(120)
    assert quality(cupy, M) == "first_call" and caplog.messages == []
    a, b = matrices(cupy)
    assert_product(cupy, kernel(a, b), a, b)


def test_host_arrays_on_the_gpu_are_tuned_too(cupy: Any, gemm: TunedKernel) -> None:
    a, b = (cupy.asnumpy(matrix) for matrix in matrices(cupy))
    assert_product(cupy, gemm(a, b), a, b)
    assert quality(cupy, M) == "first_call"


def test_tensors_of_torch_in_a_block_gradients_included(cupy: Any, gemm: TunedKernel) -> None:
    torch = pytest.importorskip("torch")
    torch_ops = pytest.importorskip("autotune.torch_ops")
    torch.manual_seed(1)
    a = torch.randn(M, K, device="cuda", requires_grad=True)
    b = torch.randn(K, N, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    with tuned_on_first_call("30s"), torch.cuda.stream(stream):
        product = torch_ops.matmul(a, b)
        product.sum().backward()
        assert torch.cuda.current_stream() == stream
    stream.synchronize()
    torch.testing.assert_close(product.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-3)
    assert quality(cupy, M) == "first_call"
    assert len(kept()) == 3  # the product, and a gradient of each factor


def test_torch_captures_and_compiles_what_a_warm_up_tuned(cupy: Any, gemm: TunedKernel) -> None:
    torch = pytest.importorskip("torch")
    torch.compiler.reset()
    torch.manual_seed(1)
    a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
    out = torch.zeros(M, N, device="cuda")
    expected = a.double() @ b.double()
    load("sgemm")(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=out)
    assert kept() == []
    graph.replay()
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)
    compiled = torch.compile(lambda x, y: gemm(x, y) + 1, fullgraph=True)
    found = compiled(a, b)
    torch.testing.assert_close(found.double() - 1, expected, rtol=1e-5, atol=1e-3)
    assert quality(cupy, M) == "first_call"


@pytest.mark.usefixtures("gemm")
def test_processes_agree_although_one_is_killed(tmp_path: Path) -> None:
    """The whole measurement is ``benchmarks/first_calls_agree.py --device cuda:0 --kernel sgemm``."""
    script = Path(__file__).parents[2] / "benchmarks/first_calls_agree.py"
    options = {"device": "cuda:0", "kernel": "sgemm", "processes": 3, "sizes": 8, "kills": 2}
    options["out"] = str(tmp_path)
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, script, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

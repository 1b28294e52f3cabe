"""Measure the host time of calls of tuned kernels, torch, CuPy and bare launches, and of whole programs.

Three tables. **Calls**: host time of one call of a small product (64 x 64 x 64, a few microseconds on
the device, so that the queue never fills), by every way to call it; all ways in turn, many rounds.
**Programs**: a loop of 1,000 products and an MLP of three layers, by torch as it is, compiled and
captured in a CUDA graph, and by ours in the same ways. **First call**: in a fresh process, after the
context is there, from a warm disk cache. torch computes in float32 without TF32 throughout.

    python benchmarks/calling.py                # some 100 s on an H100
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
from harness import ROOT, command_line, finish, provenance, write

from autotune import load
from autotune.calling.load import TunedKernel
from autotune.compiling.binaries import compiled_for
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence

Call = Callable[[], Any]

#: Sides of the product of the first table.
SMALL = 64
#: Calls between two looks at the clock: fewer than the driver queues.
BATCH = 200
FIRST = """
import time, torch
a, b, c = (torch.randn({n}, {n}, device="cuda") for _ in range(3))
torch.cuda.synchronize()
begin = time.perf_counter()
from autotune import load
imported = time.perf_counter()
gemm = load("sgemm")
gemm(a, b, out=c)
torch.cuda.synchronize()
print(imported - begin, time.perf_counter() - imported)
"""


# ---------------------------------------------------------------------- host time of a call


def raw_launch(kernel: TunedKernel, a: Any, b: Any, c: Any) -> Call:
    """The same configuration by CuPy's launcher: what a person would write by hand."""
    import cupy

    chosen = kernel.choice(a, b)
    declared, device = find_kernel(chosen.kernel), choose_device("cuda:0")
    binary = compiled_for(declared, chosen.configuration, chosen.problem, device)
    step = launch_sequence(declared, chosen.configuration, chosen.problem, device).main
    module = cupy.cuda.function.Module()
    module.load(binary.code)
    function = module.get_function(binary.symbol(str(step.entry)))
    if step.shared_bytes > 48 * 1024:
        cupy.cuda.driver.funcSetAttribute(function.ptr, 8, step.shared_bytes)
    n = np.int32(SMALL)
    args = (a, b, c, np.float32(1), np.float32(0), n, n, n)
    keep = module  # as long as the function
    return lambda: function(step.grid, step.block, args, shared_mem=step.shared_bytes) or keep


def ways(torch: Any, cupy: Any) -> dict[str, Call]:
    """Every way to call one small product, by name."""
    a, b, c = (torch.randn(SMALL, SMALL, device="cuda") for _ in range(3))
    x, y, z = (cupy.random.standard_normal((SMALL, SMALL), dtype="f") for _ in range(3))
    gemm = load("sgemm")
    found: dict[str, Call] = {
        "raw_kernel": raw_launch(gemm, x, y, z),
        "torch_mm_out": lambda: torch.mm(a, b, out=c),
        "torch_mm": lambda: torch.mm(a, b),
        "cupy_matmul_out": lambda: cupy.matmul(x, y, out=z),
        "cupy_matmul": lambda: cupy.matmul(x, y),
        "torch_out": lambda: gemm(a, b, out=c),
        "torch": lambda: gemm(a, b),
        "torch_out_beta": lambda: gemm(a, b, out=c, alpha=0.5, beta=0.25),
        "torch_out_transposed": lambda: gemm(a.T, b, out=c),
        "cupy_out": lambda: gemm(x, y, out=z),
        "cupy": lambda: gemm(x, y),
    }
    vector, total = torch.randn(1 << 16, device="cuda"), torch.empty(1, device="cuda")
    row, product = torch.randn(SMALL, device="cuda"), torch.empty(SMALL, device="cuda")
    add_up, gemv = load("reduce"), load("gemv")
    found |= {
        "reduce_torch_out": lambda: add_up(vector, out=total),
        "torch_sum": lambda: torch.sum(vector),
        "gemv_torch_out": lambda: gemv(a, row, out=product),
        "torch_mv_out": lambda: torch.mv(a, row, out=product),
    }
    import autotune.torch_ops as ops

    found |= {"custom_op": lambda: ops.matmul(a, b)}
    graph = torch.cuda.CUDAGraph()
    gemm(a, b, out=c)
    with torch.cuda.graph(graph):
        gemm(a, b, out=c)
    found["captured"] = graph.replay
    return found


def host_us(calls: Mapping[str, Call], wait: Callable[[], None], rounds: int) -> dict[str, float]:
    """Median over rounds of the host time of a call, in microseconds, all in turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            wait()
            begin = time.perf_counter()
            for _ in range(BATCH):
                call()
            taken[name].append((time.perf_counter() - begin) / BATCH * 1e6)
            wait()
    return {name: median(times[1:]) for name, times in taken.items()}


# ---------------------------------------------------------------------- programs


def products(torch: Any, n: int) -> dict[str, Call]:
    """A loop of 1,000 products of square matrices, each of the result before and another."""
    a, b = torch.randn(n, n, device="cuda") / n**0.5, torch.randn(n, n, device="cuda") / n**0.5
    c, d = torch.empty_like(a), torch.empty_like(a)
    gemm = load("sgemm")

    def loop(product: Callable[..., Any]) -> None:
        product(a, b, out=c)
        for _ in range(500):
            product(c, b, out=d)
            product(d, b, out=c)

    return {
        "torch": lambda: loop(torch.mm),
        "ours": lambda: loop(gemm),
        "torch_captured": captured(torch, lambda: loop(torch.mm)),
        "ours_captured": captured(torch, lambda: loop(gemm)),
    }


def mlp(torch: Any, batch: int, width: int) -> dict[str, Call]:
    """Three layers with ReLU between, forwards."""
    import autotune.torch_ops as ops

    x = torch.randn(batch, width, device="cuda")
    weights = [torch.randn(width, width, device="cuda") / width**0.5 for _ in range(3)]
    first, second, third = weights

    def with_torch(x: Any) -> Any:
        return torch.relu(torch.relu(x @ first) @ second) @ third

    def with_ours(x: Any, product: Callable[..., Any]) -> Any:
        return product(torch.relu(product(torch.relu(product(x, first)), second)), third)

    def with_operators(x: Any) -> Any:
        return with_ours(x, ops.matmul)

    gemm = load("sgemm")
    for result in (with_ours(x, gemm), with_operators(x)):
        torch.testing.assert_close(result, with_torch(x), rtol=1e-3, atol=1e-3)
    faster, ours_faster = (
        torch.compile(function, fullgraph=True) for function in (with_torch, with_operators)
    )
    return {
        "torch": lambda: with_torch(x),
        "ours": lambda: with_ours(x, gemm),
        "ours_operators": lambda: with_operators(x),
        "torch_compiled": lambda: faster(x),
        "ours_compiled": lambda: ours_faster(x),
        "torch_captured": captured(torch, lambda: with_torch(x)),
        "ours_captured": captured(torch, lambda: with_ours(x, gemm)),
    }


def captured(torch: Any, call: Call) -> Call:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def elapsed_ms(
    calls: Mapping[str, Call], wait: Callable[[], None], rounds: int, repeats: int
) -> dict[str, float]:
    """Median over rounds of the time from the first of ``repeats`` calls to the end of the last."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            wait()
            taken[name].append((time.perf_counter() - begin) / repeats * 1e3)
    return {name: median(times) for name, times in taken.items()}


# ---------------------------------------------------------------------- all of it


def first_call(n: int) -> dict[str, float]:
    """Seconds of import and first call in a fresh process; the second one, from the disk cache."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FIRST.format(n=n)],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    imported_s, called_s = map(float, done.stdout.split())
    return {"n": n, "import_s": round(imported_s, 3), "first_call_s": round(called_s, 3)}


def main() -> int:
    options = command_line(__doc__, "calling-<device>.json", device=None).parse_args()
    import cupy
    import torch

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_grad_enabled(False)
    device = choose_device("cuda:0")
    calls = ways(torch, cupy)
    us = host_us(calls, torch.cuda.synchronize, rounds=31)
    rows = [
        {
            "path": name,
            "us_per_call": round(took, 2),
            "us_over_raw": round(took - us["raw_kernel"], 2),
        }
        for name, took in us.items()
    ]
    for row in rows:
        print(f"{row['path']:22} {row['us_per_call']:8.2f} µs {row['us_over_raw']:+8.2f}")
    programs = []
    for name, made, rounds, repeats in (
        ("1000 products of 256", products(torch, 256), 15, 1),
        ("1000 products of 1024", products(torch, 1024), 7, 1),
        ("MLP 32 x 512", mlp(torch, 32, 512), 15, 200),
        ("MLP 512 x 1024", mlp(torch, 512, 1024), 15, 100),
        ("MLP 4096 x 1024", mlp(torch, 4096, 1024), 9, 20),
    ):
        for way, took in elapsed_ms(made, torch.cuda.synchronize, rounds, repeats).items():
            programs.append({"program": name, "path": way, "ms": round(took, 4)})
            print(f"{name:24} {way:16} {took:9.4f} ms")
    first = [first_call(n) for n in (256, 4096)]
    print(first)
    result = {
        **provenance(device),
        "torch": torch.__version__,
        "cupy": cupy.__version__,
        "rows": rows,
        "programs": programs,
        "first_call": first,
    }
    write(options.out / f"calling-{device.folder}.json", result)
    return 0


if __name__ == "__main__":
    finish(main)

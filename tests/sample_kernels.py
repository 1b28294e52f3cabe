"""Checks of bundled kernels: samples of configurations, missing elements, and compilation for GPUs."""

from __future__ import annotations

import inspect
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from autotune import Constant
from autotune.checking.kernel_check import check_kernel
from autotune.compiling.binaries import compiled_for
from autotune.data.draw import Draw
from autotune.devices.device import Device, for_arch
from autotune.kernel.catalog import bundled_folder, find_kernel, load_file
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Value

CUDA = ("sm_80", "sm_90", "sm_120")


def assert_sample_is_right(kernel: Kernel) -> None:
    """Check a sample on the CPU, also on edge problems; the data must detect each missing element."""
    report = check_kernel(kernel, (), samples=1, seed=1)
    assert report.failures == []
    assert report.unseen == []
    assert {row["result"] for row in report.samples} == {"verified"}


def assert_mutation_is_refused(kernel: Kernel, mutation: tuple[str, str], folder: Path) -> None:
    """Replace a part of the kernel's source in a copy; the check must find a wrong result."""
    assert kernel.file is not None
    source = kernel.find_source(f"{kernel.name}.cu")
    for name in ("kernels", "spaces"):
        (folder / name).mkdir()
    for header in bundled_folder("kernels").glob("*.h"):
        shutil.copy(header, folder / "kernels")
    for file in (kernel.file, *kernel.file.parent.glob("_*.py")):
        shutil.copy(file, folder / "spaces")
    text, (correct, wrong) = source.read_text(), mutation
    assert correct in text
    (folder / "kernels" / source.name).write_text(text.replace(correct, wrong))
    mutated = load_file(folder / "spaces" / kernel.file.name)
    report = check_kernel(mutated, (), samples=1, seed=1)
    assert "wrong_result" in report.samples[-1]["problem"]


def assert_default_compiles_for_gpus(name: str) -> None:
    """Compile the default for each GPU architecture; no register may spill."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    kernel = find_kernel(name)
    problem = kernel.first_problem("cuda")
    for arch in CUDA:
        binary = compiled_for(kernel, kernel.default(), problem, for_arch(arch))
        assert binary.entry(name).spill_bytes == 0


def assert_right_at_odd_sizes(name: str, chosen: dict[str, Value], device: Device) -> None:
    """Verify a configuration on all edge problems that it supports."""
    kernel = find_kernel(name)
    configuration = kernel.completed(chosen)
    edges = [edge for edge in kernel.edges_on(device) if kernel.allows(configuration, edge)]
    assert edges
    with closing(Bench(Request(kernel, device, tuple(edges)))) as bench:
        for edge in edges:
            binary = bench.compilers.result(bench.compile_job(configuration, edge)).binary
            assert binary is not None
            found = bench.worker.check(bench.job(edge), configuration, binary)
            assert found.status is Status.OK, f"{edge}: {found.message}"


def assert_vendor_calls_take_the_arguments(kernel: Kernel) -> None:
    """Bind each vendor call to the kernel's arguments without arrays in constant memory."""
    for problem in kernel.edge_problems:
        given = kernel.call_hook("arguments", problem, Draw(True, 0))
        names = [name for name, value in given.items() if not isinstance(value, Constant)]
        for call in kernel.baselines:
            inspect.signature(call.prepare).bind(**dict.fromkeys(names))

"""Bundled kernels and examples on a GPU: edges of transpose, accuracy of sgemm_tf32x3, a template, a convolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accuracy import DATA, Accuracy, Exact

from autotune import load
from autotune.cli import run
from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.data.arguments import declared_arguments
from autotune.devices.choose import choose_device
from autotune.devices.cuda_backend import CudaBackend
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import bind_arguments, launch_sequence
from autotune.kernel.space import enumerate_space
from autotune.values import Problem


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tile_y", "tile_x", "resident"), [(64, 64, 3), (128, 32, 0), (16, 128, 0)]
)
def test_bulk_stores_what_is_left_of_a_tile(tile_y: int, tile_x: int, resident: int) -> None:
    """Rows of out that are whole vectors and such that are not, on matrices with and without whole tiles."""
    kernel = find_kernel("transpose")
    device = choose_device("cuda:0")
    chosen = {"ALG": "shared", "TILE_Y": tile_y, "TILE_X": tile_x, "BLOCK": 128, "VEC": 4}
    hints = {"LAYOUT": "padded", "STORE": "bulk", "RESIDENT": resident}
    configuration = kernel.completed({**chosen, **hints})
    if configuration not in enumerate_space(kernel, device):
        pytest.skip(f"{configuration} is not for {device.arch}")
    executor = CudaBackend().open(device)
    compiled = compile_now(compile_job(kernel, configuration, Problem(m=1, n=1), device))
    assert compiled.binary is not None, compiled.message
    module = executor.load(compiled.binary, {})
    for m, n in ((4, 4), (4, 1), (132, 260), (132, 259), (127, 260), (1, 1000), (1028, 513)):
        x = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
        inputs, out = executor.allocate(x.nbytes), executor.allocate(x.nbytes)
        executor.write(inputs, x)
        executor.poison(out)
        steps = bind_arguments(
            launch_sequence(kernel, configuration, Problem(m=m, n=n), device),
            ["x", "out", "m", "n"],
            {"x": inputs, "out": out},
            {"m": np.int32(m), "n": np.int32(n)},
            declared_arguments(kernel, Problem(m=m, n=n)),
            compiled.binary,
        )
        executor.run(module, steps)
        found = executor.read(out, np.dtype(np.float32), (n, m))
        assert np.array_equal(found, x.T), f"{m} x {n}"


# ---------------------------------------------------------------------- sgemm_tf32x3 is as accurate as float32


SIZES = (1024, 2048, 4096, 8192, 1000)
#: What the largest and the root mean square error may be, of those of cublasSgemm on the same data.
FACTOR = 2.0


def errors(cupy: Any, tf32x3: Any, m: int, n: int, k: int, data: str) -> tuple[Accuracy, Accuracy]:
    """Of ours and of cublasSgemm."""
    a, b = DATA[data](m, n, k, cupy.random.default_rng(7))
    exact = Exact(a, b)
    c = cupy.full((m, n), cupy.nan, cupy.float32)
    find_kernel("sgemm_tf32x3").baselines[0].prepare(a, b, c, 1.0, 0.0, m, n, k)()
    vendor = exact.accuracy(c)
    return exact.accuracy(tf32x3(a, b)), vendor


def check(ours: Accuracy, vendor: Accuracy) -> None:
    """Also fails where something is NaN."""
    print(
        f"max {ours.max_error / vendor.max_error:.2f} rms {ours.rms_error / vendor.rms_error:.2f}"
    )
    assert ours.max_error <= FACTOR * vendor.max_error
    assert ours.rms_error <= FACTOR * vendor.rms_error


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("size", SIZES)
def test_what_load_picks_is_as_accurate_as_float32(cupy: Any, size: int, data: str) -> None:
    check(*errors(cupy, load("sgemm_tf32x3"), size, size, size, data))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", DATA)
def test_so_is_every_kind_of_configuration(
    cupy: Any, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sources, all depths of summation in the tensor core; sizes that divide nothing."""
    kernel = find_kernel("sgemm_tf32x3")
    # So that load takes the default.
    monkeypatch.setattr("autotune.calling.choice.recorded", lambda *_: None)
    space = enumerate_space(kernel, _device())
    kinds = {}
    for configuration in map(space.configuration, range(len(space))):
        mma = configuration["SOURCE"] == "mma"
        names = ("BK", "FLUSH") if mma else ("BM", "BN", "VECTORS")
        kinds.setdefault(tuple(configuration[name] for name in ("SOURCE", *names)), configuration)
    for configuration in kinds.values():
        monkeypatch.setattr(kernel, "default", lambda source="", chosen=configuration: chosen)
        print(configuration, end=" ")
        # Rows that are aligned, and not; large enough that cuBLAS does not split k, where its sums
        # are shorter: at 252 x 260 x 2052 one configuration has 2.3 times its largest error.
        for m, n, k in ((999, 1013, 4093), (1020, 1036, 2052)):
            check(*errors(cupy, load(kernel), m, n, k, data))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_an_infinity_spoils_only_its_row_and_column(cupy: Any) -> None:
    """As in float32, but that a sum which is infinite there may be NaN here."""
    a, b = DATA["normal"](300, 310, 320, cupy.random.default_rng(7))
    expected = a.astype("float64") @ b.astype("float64")
    a[7, 11], b[5, 9] = cupy.inf, cupy.nan
    c = load("sgemm_tf32x3")(a, b)
    assert not cupy.isfinite(c[7]).any()
    assert cupy.isnan(c[:, 9]).all()
    c[7], c[:, 9] = expected[7], expected[:, 9]
    assert float(abs(c - expected).max()) < 1e-4


def _device() -> Any:
    from autotune.devices.choose import backend

    return backend("cuda").devices()[0]


# ---------------------------------------------------------------------- A C++ template tuned on a GPU


SPACES = Path(__file__).parents[2] / "examples" / "rowsum" / "spaces"


@pytest.mark.gpu
def test_a_template_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--budget", "6evals", "--strategy", "random", "--problem", "rows=1003,columns=77"]
    assert run(["run", "rowsum", "--spaces", str(SPACES), "--device", "cuda:0", *short]) == 0
    assert list(tmp_path.glob("reports/*/rowsum.hpp"))


# ---------------------------------------------------------------------- The kernel of benchmarks/throughput


SPACE = Path(__file__).parents[2] / "benchmarks" / "convolution" / "convolution.py"


@pytest.mark.gpu
def test_a_kernel_that_is_all_compiling_is_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--fix", "TILE_X=1,3", "--fix", "TILE_Y=2", "--fix", "BLOCK_X=48", "--fix", "BLOCK_Y=4"]
    small = ["--problem", "width=301,height=107", "--strategy", "exhaustive", "--budget", "8evals"]
    assert run(["run", str(SPACE), "--device", "cuda:0", *few, *small]) == 0

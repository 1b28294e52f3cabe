"""Types that NumPy lacks, on a GPU: comparisons, the example with 8-bit floats, and tensors of torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import load
from autotune.cli import run
from autotune.devices.base import Comparison
from autotune.devices.choose import choose_device
from autotune.devices.cuda_backend import CudaBackend
from autotune.devices.host import host_difference
from autotune.element_types import ENCODED_TYPES
from autotune.encoding import decoded

pytestmark = pytest.mark.gpu

SPACES = Path(__file__).parents[2] / "examples" / "fp8_rows" / "spaces"


@pytest.mark.parametrize("name", ENCODED_TYPES)
def test_a_gpu_compares_as_the_host_does(name: str) -> None:
    element, rng = ENCODED_TYPES[name], np.random.default_rng(0)
    dtype, executor = np.dtype(element.stored), CudaBackend().open(choose_device("cuda:0"))
    bits = rng.integers(0, 1 << 8 * dtype.itemsize, 3001, dtype)
    values = decoded(bits, name)
    expected = values.copy() if element.values != "float32" else values.astype(np.float64)
    expected[rng.integers(0, values.size, 5)] = 1
    out, want = (executor.allocate(array.nbytes) for array in (bits, expected))
    executor.write(out, bits)
    executor.write(want, expected)
    comparison = Comparison(out, dtype, want, values.size, bound=0.5, bits_of=name)
    (found,), _, _ = executor.inspect([comparison])
    host = host_difference(values, expected, 0.5)
    assert (found.max_error, found.first_wrong) == (host.max_error, host.first_wrong)
    assert host.first_wrong is not None


def test_rows_of_eight_bit_floats_are_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for size in ("rows=1003,columns=1016", "rows=77,columns=999"):
        short = ["--budget", "6evals", "--strategy", "random", "--problem", size]
        assert run(["run", "fp8_rows", "--spaces", str(SPACES), "--device", "cuda:0", *short]) == 0


@pytest.mark.filterwarnings("ignore:no tuned record")
@pytest.mark.parametrize("shape", [(33, 4096), (3, 999)])
def test_tensors_of_torch_have_the_type_of_the_kernel(shape: tuple[int, int]) -> None:
    torch: Any = pytest.importorskip("torch")
    fp8_rows = load("fp8_rows", spaces=SPACES)
    x = torch.randn(shape, device="cuda").to(torch.bfloat16)
    q, scale = fp8_rows(x)
    assert (q.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    wide = x.float()
    expected = wide.abs().amax(1) / 448
    torch.testing.assert_close(scale, expected)
    error = (q.float() * scale[:, None] - wide).abs()
    assert (error <= wide.abs() / 16 + scale[:, None] * 2.0**-9).all(), "half an ulp"
    into = torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")
    assert fp8_rows(x, into)[0] is into
    assert torch.equal(into.view(torch.uint8), q.view(torch.uint8))
    on_host, _ = fp8_rows(x.cpu())
    assert on_host.dtype == torch.float8_e4m3fn
    assert torch.equal(on_host.view(torch.uint8), q.cpu().view(torch.uint8))

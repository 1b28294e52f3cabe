"""Kernels in Triton on a GPU: tuned, verified, timed, recorded, called."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_triton import write_two_functions

from autotune import load
from autotune.cli import run
from autotune.kernel.catalog import load_file
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import read

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]
pytest.importorskip("triton")

SPACES = Path(__file__).parents[2] / "examples" / "softmax" / "spaces"


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_a_kernel_is_tuned_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--problem", "rows=512,columns=1000", "--budget", "8evals")
    assert run(["run", "softmax_rows", "--spaces", str(SPACES), "--device", "cuda:0", *short]) == 0
    (file,) = tmp_path.glob("reports/*/softmax_rows.json")
    (entry,) = read(file).problems
    assert entry.configuration["BLOCK"] >= 1024
    assert entry.origin.toolchain.startswith("triton ")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tuned kernel, with nothing recorded."""
    monkeypatch.setenv("AUTOTUNE_PATH", str(SPACES))
    clear_cache()
    return load("softmax_rows")


@pytest.mark.parametrize("columns", [1, 16, 1000, 1024, 4099, 8192])
def test_a_call_gives_the_softmax_of_each_row(cupy: Any, rows: Any, columns: int) -> None:
    """Sizes that are specialised differently: 1, multiples of 16, others."""
    x = np.random.default_rng(1).standard_normal((33, columns)).astype(np.float32)
    np.testing.assert_allclose(rows(cupy.asarray(x)).get(), softmax(x), rtol=1e-5, atol=1e-7)


def test_rows_that_begin_anywhere(cupy: Any, rows: Any) -> None:
    """Known to be divisible by 16 are addresses that are: others are copied."""
    memory = cupy.random.standard_normal(33 * 1024 + 1, dtype=cupy.float32)
    x = memory[1:].reshape(33, 1024)
    np.testing.assert_allclose(rows(x).get(), softmax(x.get()), rtol=1e-5, atol=1e-7)


def test_two_functions_are_tuned_and_called(
    cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first function writes sums of parts, a second reads them all."""
    monkeypatch.chdir(tmp_path)
    space = write_two_functions(tmp_path)
    assert run(["run", "scaled", "--spaces", str(space.parent), "--device", "cuda:0"]) == 0
    (file,) = tmp_path.glob("reports/*/scaled.json")
    assert read(file).problems[0].problem == {"n": 1000}
    clear_cache()
    function = load(load_file(space))
    for n in (1, 1000, 1024, 5000):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        total = (x / np.sqrt(x.astype(np.float64) ** 2 + 1)).sum()
        wanted = x / np.sqrt(total**2 + 1)
        np.testing.assert_allclose(function(cupy.asarray(x)).get(), wanted, rtol=1e-4, atol=1e-6)

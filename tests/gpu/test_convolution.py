"""The kernel of benchmarks/throughput.py that is all compiling is right: every way to stage and to load."""

from pathlib import Path

import pytest

from autotune.cli import run

SPACE = Path(__file__).parents[2] / "benchmarks" / "convolution" / "convolution.py"


@pytest.mark.gpu
def test_a_kernel_that_is_all_compiling_is_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--fix", "TILE_X=1,3", "--fix", "TILE_Y=2", "--fix", "BLOCK_X=48", "--fix", "BLOCK_Y=4"]
    small = ["--problem", "width=301,height=107", "--strategy", "exhaustive", "--budget", "8evals"]
    assert run(["run", str(SPACE), "--device", "cuda:0", *few, *small]) == 0

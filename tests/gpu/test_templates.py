"""A C++ template tuned on a GPU, from an ordinary source: see examples/rowsum."""

from pathlib import Path

import pytest

from autotune.cli import run

SPACES = Path(__file__).parents[2] / "examples" / "rowsum" / "spaces"


@pytest.mark.gpu
def test_a_template_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--budget", "6evals", "--strategy", "random", "--problem", "rows=1003,columns=77"]
    assert run(["run", "rowsum", "--spaces", str(SPACES), "--device", "cuda:0", *short]) == 0
    assert list(tmp_path.glob("reports/*/rowsum.hpp"))

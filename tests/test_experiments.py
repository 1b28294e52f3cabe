"""Experiments stay apart from the records that lookup reads; no run replaces a faster entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_spaces import write_space

from autotune import lookup, tune
from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.files import data_path
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import read

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("kept_processes")]
N = {"n": 1000}


@pytest.fixture
def tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str
) -> Callable[..., int]:
    """Tune `scale` by the command line, with options."""
    space = str(write_space(tmp_path))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    fixed = ["--device", opencl_device, "--strategy", "exhaustive", "--problem", "n=1000"]
    return lambda *options: run(["run", space, *fixed, *options])


def answer(opencl_device: str) -> int:
    """BLOCK of what lookup answers."""
    clear_cache()
    return int(
        lookup("scale", device=choose_device(opencl_device), project=Path(".."), **N)["BLOCK"]
    )


def user_record() -> Path:
    (file,) = Path(data_path("tuned")).rglob("scale.json")
    return file


def test_an_experiment_answers_nobody_unless_it_is_accepted(
    tuned: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    opencl_device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever folder it writes to: that of the answers, or one that lookup is told to read."""
    assert tuned() == 0
    won = answer(opencl_device)
    other = 96 - won
    assert capsys.readouterr().err.endswith("lookup:  returns this run's winners\n")
    production = {file: file.read_bytes() for file in Path("reports").rglob("scale.*")}
    before = user_record().read_bytes()
    as_before = f"lookup:  answers as before (n=1000: BLOCK={won}); to use this run's winners, add --accept\n"
    monkeypatch.setenv("AUTOTUNE_TUNED", "reports")
    for options in (["--fix", f"BLOCK={other}"], ["--config", f"BLOCK={other}"]):
        assert tuned(*options, "--out", "reports") == 0
        assert capsys.readouterr().err.endswith(as_before)
        assert answer(opencl_device) == won
    assert user_record().read_bytes() == before
    assert all(file.read_bytes() == data for file, data in production.items())
    (written,) = Path("reports").glob("experiments/*/scale.json")
    assert read(written).problems[0].configuration == {"BLOCK": other}
    assert {"scale.md", "scale.hpp"} <= {file.name for file in written.parent.iterdir()}
    monkeypatch.delenv("AUTOTUNE_TUNED")
    for options in (["--fix", f"BLOCK={other}"], ["--config", f"BLOCK={won}"]):
        assert tuned(*options, "--accept") == 0
        assert capsys.readouterr().err.endswith("lookup:  returns this run's winners\n")
        assert answer(opencl_device) == int(options[1].removeprefix("BLOCK="))


def test_tune_keeps_experiments_apart_too(
    tuned: Callable[..., int], tmp_path: Path, opencl_device: str
) -> None:
    assert tuned() == 0
    won = answer(opencl_device)
    space = str(tmp_path / "spaces" / "scale.py")
    options: dict[str, Any] = {"problems": N, "device": opencl_device, "quiet": True}
    found = tune(space, fixed={"BLOCK": 96 - won}, **options)
    assert found.published is not None and found.published.json_file.parts[:2] == (
        "reports",
        "experiments",
    )
    assert answer(opencl_device) == won
    assert tune(space, config={"BLOCK": 96 - won}, accept=True, **options).record is not None
    assert answer(opencl_device) == 96 - won


def test_a_recorded_winner_that_loses_no_race_stays(
    tuned: Callable[..., int], opencl_device: str
) -> None:
    """It races: a search that would not have tried it cannot replace it unseen."""
    assert tuned("--fix", "BLOCK=32", "--accept") == 0
    assert tuned("--strategy", "random", "--budget", "1evals") == 0
    (entry,) = read(user_record()).problems
    assert entry.race.of({"BLOCK": 32}) and answer(opencl_device) == 32

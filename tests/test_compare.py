"""`autotune report --against`: what won in two records of one kernel, and whether it is slower now."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_records import KERNEL, entry, plan, problem, record, write

from autotune.cli import run
from autotune.errors import UsageError
from autotune.tuned.comparison import compared
from autotune.tuned.record import TunedProblem, TunedRecord

AT = problem(64, 64)


def timed(median_ms: float, about: float = 0.01, **changes: Any) -> TunedProblem:
    """An entry of one problem with a time and an interval of so much around it."""
    interval_ms = (median_ms * (1 - about), median_ms * (1 + about))
    return entry(AT, **{"median_ms": median_ms, "interval_ms": interval_ms, **changes})


def change(first: TunedRecord, second: TunedRecord, threshold: float = 0.05) -> str:
    (found,) = compared(first, second, threshold)
    return found.change


@pytest.mark.parametrize(
    ("median_ms", "about", "expected"),
    [
        (1.06, 0.01, "held"),  # 1.06 · 0.99 / 1.01 is below 1.05
        (1.08, 0.01, "slower"),
        (1.15, 0.1, "held"),
        (0.9, 0.01, "faster"),
    ],
)
def test_slower_is_what_neither_interval_explains(
    median_ms: float, about: float, expected: str
) -> None:
    made = [record([timed(1.0)]), record([timed(median_ms, about)])]
    assert change(*made) == expected
    (found,) = compared(*made, 0.05)
    assert found.ratio == pytest.approx(median_ms)
    assert found.ratio_interval == pytest.approx(
        (median_ms * (1 - about) / 1.01, median_ms * (1 + about) / 0.99)
    )


def test_two_devices_have_a_ratio_and_no_regression() -> None:
    (found,) = compared(record([timed(1.0)]), record([timed(3.0)], "Test GPU B", "sm_80"), 0.05)
    assert (found.change, found.ratio) == ("other_device", 3.0)


def test_winners_of_two_objectives_are_not_compared() -> None:
    frugal = msgspec.structs.replace(record([timed(2.0)]), objective="energy")
    with pytest.raises(UsageError, match="records of two objectives, time and energy"):
        compared(record([timed(1.0)]), frugal, 0.05)


def test_times_that_were_taken_in_two_ways_have_no_ratio() -> None:
    (found,) = compared(record([timed(1.0)]), record([timed(3.0, timing="hot")]), 0.05)
    assert (found.change, found.ratio, found.ratio_interval) == ("other_timing", None, None)


def test_parameters_in_which_the_winners_differ() -> None:
    """True is not 1, and a parameter that one space lacks is one that differs."""
    more = plan(configuration={"BM": 64, "SWIZZLE": True, "VARIANT": "simt", "DEPTH": 4})
    first = record([timed(1.0)])
    second = record([timed(1.0, **{"configuration": more.configuration})])
    (found,) = compared(first, second, 0.05)
    assert found.differing == {"SWIZZLE": (False, True), "DEPTH": (None, 4)}


def test_problems_of_one_record_only_are_listed() -> None:
    first = record([timed(1.0), entry(problem(8, 8))])
    second = record([entry(problem(9, 9)), timed(1.0)])
    found = [(dict(one.problem), one.change) for one in compared(first, second, 0.05)]
    assert found == [
        (AT, "held"),
        (problem(8, 8), "only_first"),
        (problem(9, 9), "only_second"),
    ]


def test_two_kernels_are_refused() -> None:
    with pytest.raises(UsageError, match="two kernels, demo_gemm and other"):
        compared(record([timed(1.0)]), record([timed(1.0)], kernel="other"), 0.05)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A record, and a later one of the same device that is slower by 10 %."""
    before, after = record([timed(1.0)]), record([timed(1.1, **vars_of(plan(128)))])
    return write(tmp_path / "old", before), write(tmp_path / "new", after)


def vars_of(chosen: Any) -> dict[str, Any]:
    return {"configuration": chosen.configuration}


def test_a_regression_ends_with_5(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = map(str, files)
    assert run(["report", new, "--against", old]) == 5
    printed = capsys.readouterr()
    assert "BM 64 → 128" in printed.out
    assert "1.100 (1.078 … 1.122)" in printed.out
    assert "1 of 1 problems are slower by more than 5 %" in printed.err
    assert run(["report", new, "--against", old, "--json"]) == 5
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["kernel"], row["problem"], row["verdict"]) == (KERNEL, AT, "slower")
    assert row["differing"] == {"BM": [64, 128]} and row["second"]["median_ms"] == 1.1
    assert run(["report", new, "--against", old, "--threshold", "10"]) == 0
    assert run(["report", old, "--against", new]) == 0


def test_mistakes_are_one_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(files[0])
    header = tmp_path / "sgemm.hpp"
    header.write_text("#pragma once\n")
    other = str(write(tmp_path / "other", record([timed(1.0)], kernel="other")))
    for code, wrong, message in (
        (1, str(tmp_path), "not a file, so no tuned record"),
        (1, str(header), "not a tuned record"),
        (1, str(tmp_path / "nix.json"), "No such file"),
        (2, other, "two kernels"),
    ):
        assert run(["report", wrong, "--against", old]) == code
        printed = capsys.readouterr()
        assert not printed.out
        assert printed.err.startswith("error: ")
        assert message in printed.err
        assert printed.err.count("\n") == 1
    assert run(["report", "--against", old]) == 2

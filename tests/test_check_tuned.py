"""The gate: what is recorded is verified and measured, and regressions end with exit code 5.

Thresholds are wide and records are made wrong by large factors: times of a CPU vary.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_records import change
from tuned_project import NAMES, SHORT, edit_record, no_process, record_file

from autotune import load
from autotune.cli import run
from autotune.measure.measurement import Status
from autotune.retune.retuning import Remeasured, Verdict, verdict
from autotune.tuned.reading import read
from autotune.tuned.record import ContenderResult, Estimate

#: No two measurements of one configuration differ by this on an idle or a busy machine.
WIDE = ("--threshold", "5000")
ON_CPU = ("--device", "opencl:cpu")


Check = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Run `autotune check-tuned --json` on both kernels and return its rows."""

    def check(*more: str, names: tuple[str, ...] = NAMES, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run(["check-tuned", *names, *ON_CPU, *WIDE, "--json", *more]) == code
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return check


def verdicts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """What each kernel's one entry is now."""
    return {row["kernel"]: row["verdict"] for row in rows}


def test_what_holds_passes(project: Path, check: Check) -> None:
    before = {name: record_file(name).read_bytes() for name in NAMES}
    rows = check(names=())
    assert verdicts(rows) == {"saxpy": "held", "twin": "held"}
    for row in rows:
        low, high = row["ratio_interval"]
        assert 0 < low <= row["ratio"] <= high
        assert row["layer"] == "user"
        assert row["recorded_ms"] > 0 and row["now_ms"] > 0
    assert {name: record_file(name).read_bytes() for name in NAMES} == before


def test_a_record_with_a_wrong_time_is_a_regression_and_is_mended(
    project: Path, check: Check
) -> None:
    edit_record("saxpy", median_ms=1e-6)
    before = record_file("twin").read_bytes()
    assert verdicts(check(code=5)) == {"saxpy": "slower", "twin": "held"}
    assert run(["retune", "saxpy", *SHORT]) == 0
    assert record_file("twin").read_bytes() == before
    assert verdicts(check()) == {"saxpy": "held", "twin": "held"}


def test_a_configuration_that_is_wrong_is_a_regression(project: Path, check: Check) -> None:
    edit_record("twin", configuration={"BLOCK": 1024, "ITEMS": 1})
    (found,) = check(names=("twin",), code=5)
    assert found["verdict"] == "wrong"
    assert "wrong_result" in found["message"]


def test_a_configuration_outside_the_space_is_never_compiled(project: Path, check: Check) -> None:
    edit_record("twin", configuration={"BLOCK": 7, "ITEMS": 1})
    (found,) = check(names=("twin",), code=5)
    assert (found["verdict"], found["now_ms"]) == ("wrong", None)
    assert "declared space" in found["message"]


def test_the_record_that_lookup_reads_first_is_the_one_that_is_mended(
    project: Path, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    own = record_file("saxpy")
    folder = first / own.parent.name
    folder.mkdir(parents=True)
    document = json.loads(own.read_text())
    change(document["problems"][0], median_ms=1e-6)
    (folder / "saxpy.json").write_text(json.dumps(document))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(first))
    (found,) = check(names=("saxpy",), code=5)
    assert (found["layer"], found["verdict"]) == ("AUTOTUNE_TUNED", "slower")
    assert run(["retune", "saxpy", *SHORT]) == 0
    assert read(folder / "saxpy.json").problems[0].median_ms > 1e-6


def test_what_cannot_be_compared_is_no_regression(
    project: Path, check: Check, tmp_path: Path
) -> None:
    edit_record("saxpy", timing="warm")
    with no_process(tmp_path):
        (found,) = check(names=("saxpy",))
    assert found["verdict"] == "unchecked"
    assert "another way (warm)" in found["message"]


def test_without_time_nothing_is_checked(project: Path, check: Check, tmp_path: Path) -> None:
    with no_process(tmp_path):
        assert set(verdicts(check("--max-hours", "0")).values()) == {"unchecked"}


def test_a_kernel_without_a_record_is_an_error_of_usage(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check-tuned", "sax", *ON_CPU]) == 2
    message = capsys.readouterr().err
    assert "did you mean 'saxpy'" in message
    record_file("saxpy").unlink()
    assert run(["check-tuned", "saxpy", *ON_CPU]) == 2
    assert "autotune run saxpy" in capsys.readouterr().err


@pytest.mark.usefixtures("opencl_device")
def test_where_nothing_is_tuned_nothing_regressed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-tuned", *ON_CPU]) == 0
    assert "nothing is tuned" in capsys.readouterr().err


SLOWER = ContenderResult(configuration={"BLOCK": 64}, tied=False, time_ms=Estimate(1.0))
FASTEST = ContenderResult(configuration={"BLOCK": 32}, tied=True, time_ms=Estimate(0.8))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Remeasured(Status.OK, ratio=Estimate(1.08, 1.06, 1.10)), Verdict.SLOWER),
        (Remeasured(Status.OK, ratio=Estimate(1.08, 1.04, 1.12)), Verdict.HELD),
        (Remeasured(Status.OK, ratio=Estimate(0.90, 0.88, 0.92)), Verdict.FASTER),
        (Remeasured(Status.OK, "", Estimate(1, 1, 1), SLOWER, FASTEST), Verdict.BEATEN),
        (Remeasured(Status.WRONG_RESULT, "off by one"), Verdict.WRONG),
        (Remeasured(Status.TIMED_OUT, "hangs"), Verdict.WRONG),
    ],
)  # fmt: skip
def test_verdicts(now: Remeasured, expected: Verdict) -> None:
    assert verdict(now, threshold=0.05)[0] is expected
    assert expected.is_regression == (expected in (Verdict.SLOWER, Verdict.WRONG))


def test_another_kernel_of_a_name_does_not_pass_for_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel, space = project / "kernels" / "saxpy.cu", project / "spaces" / "saxpy.py"
    kernel.write_text("// another\n" + kernel.read_text())
    assert run(["export", "saxpy"]) == 0
    assert "1 of 1 entries are stale (its source changed)" in capsys.readouterr().err
    for file in (kernel, space):
        file.write_text(file.read_text().replace("ITEMS", "UNITS"))
    said = (
        f"is of another kernel saxpy than {space}, or of what it was: parameters BLOCK, ITEMS there, "
        "BLOCK, UNITS here. Rename one of the two, or tune this one"
    )
    assert run(["report", "saxpy"]) == 0
    assert said in capsys.readouterr().err
    assert run(["export", "saxpy"]) == 2
    assert said in capsys.readouterr().err
    assert run(["export", "saxpy", "cache"]) == 2
    assert "nothing with the parameters of" in capsys.readouterr().err
    with pytest.warns(RuntimeWarning, match="that is in its space there"):
        chosen = load("saxpy").choice(n=5, device="opencl:cpu")
    assert chosen.tuned is None
    assert set(chosen.configuration) == {"BLOCK", "UNITS"}
    assert run(["run", "saxpy", "--out", "other", *SHORT]) == 0
    assert said in capsys.readouterr().err
    assert run(["results", "saxpy", "--best", "1", "--json"]) == 0
    out, _ = capsys.readouterr()
    assert {tuple(row["config"]) for row in json.loads(out)} >= {("BLOCK", "UNITS")}
    (page,) = Path("other").glob("*/saxpy.md")
    assert "ITEMS" not in page.read_text()

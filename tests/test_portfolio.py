"""`autotune retune --portfolio`: a record that was tuned in pieces gets one matrix, and keeps its winners."""

import json
from pathlib import Path
from typing import Any

import pytest
from tuned_project import edit_record, record_file

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.run.recording import request_for
from autotune.tuned.reading import read

pytestmark = pytest.mark.opencl
ON_CPU = ("--device", "opencl:cpu")
LONGER = ("--strategy", "random", "--budget", "6evals", *ON_CPU)


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record_file("saxpy").read_text())
    return found


def test_what_was_tuned_in_pieces_is_measured_on_every_problem(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (70001, 400, 20000):
        assert run(["run", "saxpy", "--problem", f"n={n}", *LONGER]) == 0
    before = record()
    assert before["portfolio"]["problems"] == []
    header = record_file("saxpy").with_suffix(".hpp")
    header.write_text("")
    # As on a machine that has compiled nothing, which is no part of the budget.
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(project / "new cache"))
    assert run(["retune", "saxpy", "--portfolio", "--budget", "60s", *ON_CPU]) == 0
    after = record()
    assert after["problems"] == before["problems"]
    matrix = after["portfolio"]
    assert matrix["problems"] == [entry["problem"] for entry in after["problems"]]
    assert len(matrix["problems"]) == 4
    assert len(matrix["configurations"]) > 4  # the least there is
    for entry in after["problems"]:
        assert entry["plans"][0]["configuration"] in matrix["configurations"]
    assert all(time_ms > 0 for row in matrix["median_ms"] for time_ms in row)
    for table in matrix["tables"]:
        # Where times are not quiet so little is sure that nothing is expected.
        assert all(0 < share <= 1 for _, share in table.get("expected", ()))
    assert "inline constexpr near_row near_rows" in header.read_text()


def test_a_matrix_that_is_far_wider_stays(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The little time that there was would cost other sizes their answers; it is said what to do."""
    assert run(["run", "saxpy", "--problem", "n=400", *LONGER]) == 0
    kernel, device = find_kernel("saxpy", project / "spaces"), choose_device("opencl:cpu")
    document = record()
    wide = [dict(configuration) for configuration in enumerate_space(kernel, device)]
    document["portfolio"] = {
        "configurations": wide,
        "problems": [entry["problem"] for entry in document["problems"]],
        "median_ms": [[1.0, 2.0]] * len(wide),
    }
    record_file("saxpy").write_text(json.dumps(document))
    capsys.readouterr()
    assert run(["retune", "saxpy", "--portfolio", "--budget", "1s", *ON_CPU]) == 0
    said = capsys.readouterr().err
    assert (
        f"more are kept; raise --budget\nportfolio: {len(wide)} configurations on 2 problems"
        in said
    )
    assert "raise --budget" in said
    assert record()["portfolio"]["configurations"] == wide


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("saxpy", "--budget", "5evals"), "--budget is a time"),
        (("transpose",), "nothing is tuned there; run: autotune run transpose"),
        (("saxpy", "--out", "nowhere"), "nothing is tuned there; run: autotune run saxpy"),
    ],
)
def test_what_cannot_be_measured_is_told(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert run(["retune", "--portfolio", *arguments, *ON_CPU]) == 2
    assert says in capsys.readouterr().err


def test_a_kernel_that_was_changed_since_is_tuned_first(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = project / "kernels" / "saxpy.cu"
    source.write_text(source.read_text() + "\n#define CHANGED\n")
    assert run(["retune", "saxpy", "--portfolio", *ON_CPU]) == 2
    assert "tuned before the kernel was changed" in capsys.readouterr().err


@pytest.mark.parametrize("timing", ["hot", "mixed", "cold:flush"])
def test_times_are_taken_as_the_winners_were(
    project: Path, opencl_device: str, timing: str
) -> None:
    edit_record("saxpy", timing=timing)
    device = choose_device(opencl_device)
    request = request_for(read(record_file("saxpy")), find_kernel("saxpy"), device)
    assert all(request.timing_of(problem) == timing for problem in request.problems)

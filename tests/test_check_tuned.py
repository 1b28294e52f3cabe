"""The gate: what is recorded is verified and measured, and regressions end with exit code 5.

Thresholds are wide and records are made wrong by large factors: times of a CPU vary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sample_records import change
from sample_spaces import write_space
from tuned_project import NAMES, SHORT, edit_record, launch_of, no_process, record_file

from autotune import load, lookup
from autotune.checking import kernel_check
from autotune.checking.kernel_check import check_kernel
from autotune.cli import run
from autotune.devices.device import for_arch
from autotune.errors import SpecError
from autotune.kernel.catalog import find_kernel, load_file
from autotune.measure.measurement import Measurement, Status
from autotune.retune.gate import Remeasurement, Verdict, remeasure, verdict
from autotune.retune.slowdown import Slowdown
from autotune.tuned.reading import read
from autotune.tuned.record import ContenderResult, Estimate
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

#: A plan that computes wrong results, where nothing else is wrong.
WRONG_PLAN = launch_of({"BLOCK": 1024, "ITEMS": 1})
#: No two measurements of one configuration differ by this on an idle or a busy machine.
WIDE = ("--threshold", "1000000")
#: A recorded time that no measurement is near, in ms.
NO_TIME = 1e-12
ON_CPU = ("--device", "opencl:cpu")


Check = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Run `autotune check-tuned --json` on both kernels and return its rows; ``others``: also of other sizes."""

    def check(
        *more: str, names: tuple[str, ...] = NAMES, code: int = 0, others: bool = False
    ) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run(["check-tuned", *names, *ON_CPU, *WIDE, "--json", *more]) == code
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return [row for row in rows if others or row["verdict"] != "verified"]

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
    edit_record("saxpy", median_ms=NO_TIME)
    before = record_file("twin").read_bytes()
    assert verdicts(check(code=5)) == {"saxpy": "slower", "twin": "held"}
    assert run(["retune", "saxpy", *SHORT]) == 0
    assert record_file("twin").read_bytes() == before
    assert verdicts(check()) == {"saxpy": "held", "twin": "held"}


def test_a_configuration_that_is_wrong_is_a_regression(project: Path, check: Check) -> None:
    edit_record("twin", configuration=WRONG_PLAN["configuration"])
    (found,) = check(names=("twin",), code=5)
    assert found["verdict"] == "wrong"
    assert "wrong_result" in found["message"]


def test_configurations_that_answer_other_sizes_are_verified(project: Path, check: Check) -> None:
    document = json.loads(record_file("twin").read_text())
    (entry,) = document["problems"]
    row = {"problem": entry["problem"], "plans": [{**entry["plans"][0], **WRONG_PLAN}]}
    document["portfolio"] = {"tables": [{"rows": [row]}]}
    record_file("twin").write_text(json.dumps(document))
    assert dict(lookup("twin", n=777)) == WRONG_PLAN["configuration"]
    held, *others = check(names=("twin",), code=5, others=True)
    assert held["verdict"] == "held"
    assert others[0]["config"] == WRONG_PLAN["configuration"]
    assert others[0]["verdict"] == "wrong" and "wrong_result" in others[0]["message"]
    assert {row["verdict"] for row in others[1:]} <= {"verified"}


@pytest.mark.parametrize("place", ["entry", "portfolio"])
def test_a_launch_that_the_kernel_does_not_compute_is_wrong_and_not_run(
    project: Path, check: Check, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(record_file("twin").read_text())
    (entry,) = document["problems"]
    wrong = {**entry["plans"][0], "grid": [7, 1, 1]}
    if place == "entry":
        entry["plans"] = [wrong]
        entry["steps"] = []
    else:
        configuration = {"BLOCK": 64, "ITEMS": 2}
        assert configuration != wrong["configuration"]
        wrong |= {"configuration": configuration, "block": [64, 1, 1]}
        document["portfolio"] = {
            "tables": [{"rows": [{"problem": entry["problem"], "plans": [wrong]}]}]
        }
    record_file("twin").write_text(json.dumps(document))
    found = [row for row in check(names=("twin",), code=5) if row["verdict"] == "wrong"]
    assert [row["config"] for row in found] == [wrong["configuration"]]
    assert "launch.grid is (7, 1, 1), expected" in found[0]["message"]
    assert run(["export", "twin"]) == 1
    assert "grid is (7, 1, 1), expected" in capsys.readouterr().err
    size = entry["problem"]["n"] + (place == "portfolio")
    assert run(["lookup", "twin", f"n={size}"]) == 0
    assert (
        "its launch was changed by hand: launches[0].grid is (7, 1, 1)" in capsys.readouterr().out
    )


def test_a_configuration_outside_the_space_is_never_compiled(project: Path, check: Check) -> None:
    document = json.loads(record_file("twin").read_text())
    document["parameters"]["BLOCK"].append(7)
    record_file("twin").write_text(json.dumps(document))
    edit_record("twin", configuration={"BLOCK": 7, "ITEMS": 1})
    (found,) = check(names=("twin",), code=5)
    assert (found["verdict"], found["now_ms"]) == ("wrong", None)
    assert "declared space" in found["message"]


@pytest.mark.full
def test_the_record_that_lookup_reads_first_is_the_one_that_is_mended(
    project: Path, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    own = record_file("saxpy")
    folder = first / own.parent.name
    folder.mkdir(parents=True)
    document = json.loads(own.read_text())
    change(document["problems"][0], median_ms=NO_TIME)
    (folder / "saxpy.json").write_text(json.dumps(document))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(first))
    (found,) = check(names=("saxpy",), code=5)
    assert (found["layer"], found["verdict"]) == ("AUTOTUNE_TUNED", "slower")
    assert run(["retune", "saxpy", *SHORT]) == 0
    assert read(folder / "saxpy.json").problems[0].median_ms > NO_TIME


def test_what_cannot_be_compared_is_no_regression(project: Path, check: Check) -> None:
    edit_record("saxpy", timing="warm")
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
    shutil.rmtree("reports")
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
        (Remeasurement(Status.OK, "", Slowdown(Estimate(1.08, 1.06, 1.10), None, True)), Verdict.SLOWER),
        (Remeasurement(Status.OK, "", Slowdown(Estimate(1.08, 1.04, 1.12))), Verdict.UNDECIDED),
        (Remeasurement(Status.OK, "", Slowdown(Estimate(1.02, 1.01, 1.03))), Verdict.HELD),
        (Remeasurement(Status.OK, "", Slowdown(Estimate(0.90, 0.88, 0.92))), Verdict.FASTER),
        (Remeasurement(Status.OK, "", Slowdown(Estimate(1, 1, 1)), SLOWER, FASTEST), Verdict.BEATEN),
        (Remeasurement(Status.WRONG_RESULT, "off by one"), Verdict.WRONG),
        (Remeasurement(Status.TIMED_OUT, "hangs"), Verdict.WRONG),
    ],
)  # fmt: skip
def test_verdicts(now: Remeasurement, expected: Verdict) -> None:
    assert verdict(now, threshold=0.05)[0] is expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("odd size", "on n=7 with other inputs: differs"),
        ("other data", "on n=1000 with other inputs: differs"),
        ("own data", "differs"),
    ],
)
def test_the_gate_verifies_odd_sizes_other_data_and_the_problem(
    tmp_path: Path, wrong: str, message: str
) -> None:
    def job(name: str, n: int = 1000) -> SimpleNamespace:
        return SimpleNamespace(name=name, problem=Problem(n=n))

    class Bench:
        kernel, device = load_file(write_space(tmp_path)), for_arch("sm_90")

        def job(self, problem: Problem) -> SimpleNamespace:
            return job("own data")

        def other_jobs(self, _: SimpleNamespace) -> list[SimpleNamespace]:
            return [job("odd size", 7), job("other data")]

        def verify(self, job: SimpleNamespace, configuration: Configuration) -> Measurement:
            status = Status.WRONG_RESULT if job.name == wrong else Status.OK
            return Measurement(configuration, status, "differs")

    entry = SimpleNamespace(problem={"n": 1000}, configuration={"BLOCK": 32})
    found = remeasure(Bench(), SimpleNamespace(), entry, 0.05)  # type: ignore[arg-type]
    assert (found.status, found.message) == (Status.WRONG_RESULT, message)


@pytest.mark.full
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
        f"does not fit the kernel saxpy of {space}: parameters BLOCK, ITEMS in the record, BLOCK, UNITS in "
        "the kernel. It is of another kernel, or of an earlier version. Rename one of the kernels, or"
    )
    assert run(["report", "saxpy"]) == 0
    assert said in capsys.readouterr().err
    assert run(["export", "saxpy"]) == 2
    assert said in capsys.readouterr().err
    assert run(["export", "saxpy", "cache"]) == 2
    assert "no measurements with the parameters of" in capsys.readouterr().err
    with pytest.warns(RuntimeWarning, match="no recorded configuration is valid"):
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


# ---------------------------------------------------------------------- `autotune


CUDA_ONLY = ('"scale.cu",', '"scale.cu",\n    backends=["cuda"],')
#: No configuration takes a problem that the space file names.
NEVER = (
    "@scale.launch",
    "@scale.requires\ndef requires(c, p):\n    return p.n <= -1\n\n\n@scale.launch",
)
WRONG = ("return factor * x", "return factor * x.reshape(7, 7)")


@pytest.mark.opencl
def test_each_row_says_whether_it_was_compiled_or_verified(
    tmp_path: Path, opencl_device: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    report = check_kernel(load_file(write_space(tmp_path)), ["sm_90"], samples=2, seed=0)
    results = {(row["target"], row["result"], row["problem"]) for row in report.samples}
    assert results == {("sm_90", "compiled", ""), ("opencl_cpu", "verified", "")}
    assert report.not_verified == ""


def test_arguments_and_reference_run_at_the_smallest_problem_of_any_kernel(tmp_path: Path) -> None:
    """Also where nothing can be launched: what they say is told, what is wrong in them an error."""
    sizes = (
        "problems=[Problem(n=1000)]",
        "problems=[Problem(n=1000)],\n    edge_problems=[Problem(n=7)]",
    )
    report = check_kernel(load_file(write_space(tmp_path, CUDA_ONLY, sizes)), [], 1, 0)
    exact, random, *_ = report.notes
    assert exact == "exact data, n=7: out is compared to the bit"
    assert random.startswith("random data, n=7: out is compared within ")
    with pytest.raises(SpecError, match=r"reference: ValueError: .*scale\.py:\d+"):
        check_kernel(load_file(write_space(tmp_path, CUDA_ONLY, WRONG)), [], 1, 0)


def test_registers_are_those_of_the_functions_that_are_launched(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    file = write_space(tmp_path, CUDA_ONLY)
    (small,) = check_kernel(load_file(file), ["sm_90"], 1, 0).samples
    sums = "".join(f"float y{i} = x[{i}]; " for i in range(64))
    stores = "".join(f"x[{i}] = y{i} * y{63 - i}; " for i in range(64))
    with (tmp_path / "kernels/scale.cu").open("a") as source:
        source.write(f'\nextern "C" __global__ void larger(float* x) {{ {sums} {stores} }}\n')
    (same,) = check_kernel(load_file(file), ["sm_90"], 1, 0).samples
    assert same["registers"] == small["registers"] < 64


def test_outputs_with_several_right_values_are_said_to_be_compared_by_their_function(tmp_path):
    matches = (
        "@scale.reference",
        "@scale.matches\ndef matches(found, expected):\n"
        "    return bool(np.allclose(found['out'], expected['out']))\n\n\n@scale.reference",
    )
    report = check_kernel(load_file(write_space(tmp_path, CUDA_ONLY, matches)), [], 1, 0)
    assert [note.split(": ")[1] for note in report.notes[:2]] == 2 * [
        "outputs are compared by @matches"
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("@scale.launch", "@scale.launch"), ""),
        ((', "n": p.n', ""), "scale takes 4 arguments and gets 3: x, out, factor;"),
        (
            ("block=(c.BLOCK,)", "block=(c.BLOCK,), args=('x', 'out')"),
            "scale takes 4 arguments and gets 2: x, out;",
        ),
    ],
)
def test_a_wrong_number_of_arguments_is_an_error_without_a_gpu(
    tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    report = check_kernel(load_file(write_space(tmp_path, CUDA_ONLY, change)), ["sm_90"], 1, 0)
    assert bool(report.failures) == bool(told)
    assert all(told in failure for failure in report.failures)


@pytest.mark.full
def test_weights_in_constant_memory_are_no_argument_and_those_of_an_array_are() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    report = check_kernel(find_kernel("conv1d"), ["sm_90"], 6, 0)
    compiled = [each for each in report.samples if each["target"] == "sm_90"]
    assert {each["result"] for each in compiled} == {"compiled"}
    assert not report.failures


def test_a_default_that_is_not_valid_is_told(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    wide = (
        "@scale.launch",
        '@scale.constraint\ndef wide(BLOCK):\n    """Wide."""\n    return BLOCK >= 64\n\n\n@scale.launch',
    )
    for changes, told in (((CUDA_ONLY,), 0), ((CUDA_ONLY, wide), 1)):
        report = check_kernel(load_file(write_space(tmp_path, *changes)), ["sm_90"], 1, 0)
        found = [note for note in report.notes if note.startswith("the default (BLOCK=32")]
        assert len(found) == told
        assert all("breaks wide" in note and "'BLOCK': 64" in note for note in found)


def test_why_nothing_was_verified_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    file = str(write_space(tmp_path, CUDA_ONLY))
    assert run(["check", file, "--arch", "sm_90", "--samples", "1"]) == 0
    told = capsys.readouterr().out
    assert "not verified: a kernel for cuda is compiled by this command, not launched; " in told
    assert "verified\n" not in told

    class NoDevice:
        def devices(self) -> list[object]:
            return []

    monkeypatch.setattr(kernel_check, "find_backend", lambda name: NoDevice())
    report = check_kernel(load_file(write_space(tmp_path)), [], 1, 0)
    assert report.failures == [] and report.not_verified.startswith("no OpenCL device")
    assert f"not verified: {report.not_verified}" in report.notes


@pytest.mark.opencl
def test_it_fails_where_nothing_was_verified_and_nothing_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opencl_device: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert run(["check", str(write_space(tmp_path, NEVER)), "--arch", "sm_90"]) == 3
    said = capsys.readouterr()
    assert "error: scale: nothing was verified: the first problem and the odd" in said.err
    assert "skipped: neither the first problem nor an odd size allows it" in said.out

"""What is stale and why, and that exactly that is tuned again; on the OpenCL device, never by the clock."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tuned_project
from tuned_project import NAMES, SHORT, edit_record, record_file

from autotune.cli import run
from autotune.devices.device import Device, for_arch
from autotune.errors import DeviceError
from autotune.kernel.catalog import project_kernels
from autotune.retune.outcomes import RetuneOptions
from autotune.retune.retuning import all_sizes, device_lock
from autotune.retune.schedule import local_schedule
from autotune.retune.slowdown import over_recorded
from autotune.retune.stale import StaleQuery, find_devices, survey
from autotune.tuned.reading import read
from autotune.tuned.record import Estimate

pytestmark = pytest.mark.usefixtures("kept_processes")

ROOT = Path(__file__).parents[1]


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `autotune retune --json` on both kernels and return its rows."""

    def ask(*more: str, names: tuple[str, ...] = NAMES, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run(["retune", *names, "--stale", *SHORT, "--json", *more]) == code
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    return ask


@pytest.fixture
def no_process(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail where a compiler or device process was started."""
    with tuned_project.no_process(tmp_path_factory.mktemp("no process")):
        yield


def without_rivals(name: str, **changes: Any) -> None:
    """Make the default the recorded winner, recorded as slow: nothing else races it or beats it."""
    configuration = json.loads(record_file(name).read_text())["defaults"][0]["plans"][0][
        "configuration"
    ]
    slow = {"median_ms": 1e4, "interval_ms": [1e4, 1e4], "runners_up": []}
    edit_record(name, **slow, configuration=configuration, **changes)


# ---------------------------------------------------------------------- what is stale


def test_where_nothing_is_stale_nothing_is_started(
    project: Path, no_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["retune", *NAMES, "--stale", *SHORT]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nothing is stale" in captured.err


def test_an_edited_source_is_searched_again_alone(project: Path, ask: Ask) -> None:
    before = record_file("twin").read_bytes()
    with open(project / "kernels" / "saxpy.cu", "a") as file:
        file.write("// another comment\n")
    (row,) = ask()
    assert (row["kernel"], row["action"], row["result"]) == ("saxpy", "search", "searched")
    assert row["why"] == "its source changed"
    assert row["before_ms"] and row["after_ms"]
    assert record_file("twin").read_bytes() == before
    assert ask() == []


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "rng.uniform(1, 4)",
            "rng.uniform(1, 3)",
            "its arguments, reference, launch or options changed",
        ),
        ("BLOCK=(32, 64, 128, 256, 512, 1024)", "BLOCK=(2048,)", "no longer in the declared space"),
        ("Problem(n=5003)", "Problem(n=5003), Problem(n=77)", "never tuned here"),
    ],
)
def test_a_changed_space_file_is_a_reason(
    project: Path, ask: Ask, old: str, new: str, why: str
) -> None:
    file = project / "spaces" / "saxpy.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    (row,) = ask("--dry-run")
    assert (row["kernel"], row["action"], row["result"]) == ("saxpy", "search", "skipped")
    assert why in row["why"]


@pytest.mark.usefixtures("no_process")
def test_changed_compiler_options_are_named(project: Path, ask: Ask) -> None:
    edit_record("saxpy", options=["-cl-fast-relaxed-math"])
    (row,) = ask("--dry-run")
    assert row["why"] == "options changed: -cl-fast-relaxed-math -> none"
    assert row["action"] == "search"


@pytest.mark.usefixtures("no_process")
def test_another_compiler_option_is_named_though_there_are_as_many(project: Path, ask: Ask) -> None:
    with open(project / "spaces" / "saxpy.py", "a") as file:
        file.write('\n\n@saxpy.options\ndef options(c, device):\n    return ["-cl-mad-enable"]\n')
    edit_record("saxpy", options=["-cl-fast-relaxed-math"])
    (row,) = ask("--dry-run")
    assert "options changed: -cl-fast-relaxed-math -> -cl-mad-enable" in row["why"]


@pytest.mark.usefixtures("no_process")
def test_a_new_value_in_a_list_makes_nothing_stale(project: Path, ask: Ask) -> None:
    file = project / "spaces" / "saxpy.py"
    file.write_text(file.read_text().replace("ITEMS=(1, 2, 4, 8)", "ITEMS=(1, 2, 4, 8, 16)"))
    assert ask() == []


# ---------------------------------------------------------------------- measured again


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"driver": "1.2.3"}, "the driver changed: 1.2.3 -> "),
        ({"toolchain": "nvrtc 1.0", "code": ""}, "the compiler changed: nvrtc 1.0 -> "),
        ({"tuned_on": "2020-01-01"}, "days ago"),
    ],
)
def test_what_only_aged_is_measured_again_and_confirmed(
    project: Path, ask: Ask, changes: dict[str, str], why: str
) -> None:
    without_rivals("saxpy", **changes)
    (row,) = ask()
    assert (row["kernel"], row["action"], row["result"]) == ("saxpy", "re-measure", "confirmed")
    assert why in row["why"]
    (found,) = read(record_file("saxpy")).problems
    assert found.median_ms == 1e4
    assert getattr(found.origin, next(iter(changes))) == next(iter(changes.values()))
    assert found.confirmed is not None and found.confirmed.ratio < 1
    assert len(found.confirmed.code) == 64  # an older record gets the hash
    assert ask() == []


def test_after_an_upgrade_of_the_compiler_the_same_code_is_not_measured(
    project: Path, ask: Ask
) -> None:
    """Of two entries, one has other code than was recorded."""
    for name in NAMES:
        edit_record(name, toolchain="nvrtc 1.0")
    edit_record("twin", code="0" * 64)
    old = read(record_file("saxpy")).problems[0]
    rows = {row["kernel"]: row for row in ask()}
    assert {name: row["action"] for name, row in rows.items()} == dict.fromkeys(NAMES, "re-compile")
    assert rows["saxpy"]["result"] == "confirmed"
    assert rows["saxpy"]["message"] == "the compiler makes the machine code that was measured"
    assert rows["saxpy"]["after_ms"] is None and rows["twin"]["after_ms"] is not None
    confirmed = read(record_file("saxpy")).problems[0].confirmed
    assert confirmed is not None and confirmed.ratio is None
    # Its age is that of the measurement.
    assert (confirmed.on, confirmed.code) == (old.origin.tuned_on, old.winner.code)
    assert confirmed.toolchain != "nvrtc 1.0"
    assert ask() == []


@pytest.mark.usefixtures("no_process")
def test_a_changed_driver_is_measured_also_after_an_upgrade_of_the_compiler(
    project: Path, ask: Ask
) -> None:
    edit_record("saxpy", toolchain="nvrtc 1.0", driver="1.2.3")
    (row,) = ask("--dry-run")
    assert (row["action"], row["result"]) == ("re-measure", "skipped")


@pytest.mark.usefixtures("no_process")
def test_where_no_time_is_left_nothing_is_compiled(project: Path, ask: Ask) -> None:
    edit_record("saxpy", toolchain="nvrtc 1.0")
    (row,) = ask("--max-hours", "0")
    assert (row["action"], row["result"]) == ("re-compile", "skipped")


@pytest.mark.parametrize(
    ("tuned_on", "why"),
    [
        ("2026-11-20T12:00:00+00:00", []),
        ("2026-11-20T10:59:59+00:00", ["it was measured 36 hours ago"]),
        ("2026-11-20", ["it was measured 47 hours ago"]),
        ("2026-11-01", ["it was measured 20 days ago"]),
        ("2026-11-22", []),  # the clock of another machine
        ("2099-01-01", ["it has a date in the future: 2099-01-01"]),
    ],
)
def test_ages_are_told_to_the_second(
    project: Path, opencl_device: str, tuned_on: str, why: list[str]
) -> None:
    edit_record("saxpy", tuned_on=tuned_on)
    now = datetime(2026, 11, 21, 23, tzinfo=UTC)
    query = StaleQuery(find_devices([opencl_device]), ("saxpy",), max_age_days=1.5, now=now)
    assert [target.why for target in survey(query, query.devices[0])[0]] == why


def test_a_winner_that_fell_is_searched_for(project: Path, ask: Ask) -> None:
    edit_record("saxpy", driver="1.2.3", median_ms=1e-12, interval_ms=[1e-12, 1e-12])
    (row,) = ask()
    assert row["result"] == "searched"
    assert "the driver changed" in row["why"] and "it is slower: " in row["why"]
    assert read(record_file("saxpy")).problems[0].median_ms > 1e-6
    assert ask() == []


def test_a_winner_that_is_wrong_is_searched_for(project: Path, ask: Ask) -> None:
    without_rivals("twin", driver="1.2.3")
    configuration = {"BLOCK": 1024, "ITEMS": 1}
    edit_record("twin", configuration=configuration)
    (row,) = ask()
    assert row["result"] == "searched"
    assert "it is wrong: wrong_result" in row["why"]
    assert read(record_file("twin")).problems[0].configuration["BLOCK"] != 1024


def test_the_ratio_to_a_record_knows_both_intervals() -> None:
    now = Estimate(1.03, 1.0, 1.06)
    sure = over_recorded(now, Estimate(1.0, 1.0, 1.0))
    wide = over_recorded(now, Estimate(1.0, 0.9, 1.1))
    halved = over_recorded(now, Estimate(0.5, 0.99, 1.01))
    assert sure.value == wide.value == pytest.approx(1.03)
    (low, high), (lower, higher) = sure.interval, wide.interval
    assert lower < low <= sure.value <= high < higher
    assert halved.interval == pytest.approx((2 * low, 2 * high))


def test_the_lower_end_of_a_ratio_is_of_the_records_upper_end() -> None:
    """Each side is the root of the summed squares of two distances, as logarithms."""
    now = Estimate(1.0, 1 / math.exp(0.3), math.exp(0.6))
    then = Estimate(1.0, 1 / math.exp(0.8), math.exp(0.4))
    low, high = over_recorded(now, then).interval
    assert math.log(low) == pytest.approx(-math.hypot(0.3, 0.4))
    assert math.log(high) == pytest.approx(math.hypot(0.6, 0.8))


# ---------------------------------------------------------------------- time, and others


def test_all_that_has_no_record_is_tuned_and_the_command_goes_on(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = Path("reports").glob("*/twin.json")
    made.unlink()
    command = ["retune", *NAMES, "--all", "--device", "opencl:cpu", "--max-hours", "0.0003"]
    assert run(command) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()[1:]] == ["twin"]
    assert read(made).problems[0].origin.effort == "quick"
    assert f"commit {made.parent}" in told.err
    assert run(command) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing is left to tune" in told.err


def test_what_limits_are_measured_by_is_tuned_first() -> None:
    device = for_arch("sm_90")
    options = RetuneOptions(command="", out=Path("reports"))
    query, _ = all_sizes(StaleQuery((device,)), options)
    assert query.kernels[:3] == ("copy", "ffma", "hmma")
    assert list(query.kernels[3:]) == sorted(query.kernels[3:])


@pytest.mark.usefixtures("no_process")
def test_without_time_nothing_is_begun(project: Path, ask: Ask) -> None:
    edit_record("saxpy", source="beef")
    edit_record("twin", driver="1.2.3")
    rows = ask("--max-hours", "0")
    assert {(row["kernel"], row["result"], row["message"]) for row in rows} == {
        ("saxpy", "skipped", "no time left"),
        ("twin", "skipped", "no time left"),
    }


def test_two_at_once_tune_once(project: Path, ask: Ask) -> None:
    """The second waits for the first, and finds nothing stale; both end with 0."""
    edit_record("saxpy", source="beef")
    command = [sys.executable, "-m", "autotune", "retune", *NAMES, "--stale", *SHORT, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    rows = [json.loads(process.communicate(timeout=100)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    results = [row["result"] for printed in rows for row in printed]
    assert results.count("searched") == 1
    assert ask() == []


def test_the_lock_of_a_killed_process_is_free() -> None:
    script = """
import time
from autotune.devices.device import Device
from autotune.retune.retuning import device_lock
with device_lock(Device('opencl', 'cpu', 'x'), print):
    print('held', flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    told: list[str] = []

    def kill(message: str) -> None:
        told.append(message)
        process.kill()

    with device_lock(Device("opencl", "cpu", "x"), kill):
        assert told == [f"cpu: waiting for process {process.pid} on {platform.node()}"]
    process.wait()


# ---------------------------------------------------------------------- what cannot be read


def test_a_damaged_record_is_set_aside_and_made_again(project: Path, ask: Ask) -> None:
    file = record_file("saxpy")
    file.write_bytes(file.read_bytes()[:100])
    shutil.rmtree("reports")
    (row,) = ask()
    assert row["result"] == "searched"
    assert row["why"] == "never tuned here"
    assert file.with_name("saxpy.json.damaged").exists()
    assert read(file).problems


@pytest.mark.usefixtures("no_process")
def test_a_date_that_is_none_hides_no_other_record(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_record("saxpy", tuned_on="yesterday")
    edit_record("twin", source="beef")
    shutil.rmtree("reports")
    assert run(["retune", *NAMES, "--stale", *SHORT, "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["kernel"]: row["why"] for row in json.loads(out)}
    assert rows == {"saxpy": "never tuned here", "twin": "its source changed"}
    assert "saxpy.json: not a tuned record, or damaged: problems[0].origin.tuned_on is" in err


@pytest.mark.usefixtures("no_process")
def test_a_record_of_a_newer_autotune_is_left_alone(project: Path, ask: Ask) -> None:
    file = record_file("saxpy")
    file.write_text(file.read_text().replace('"schema_version": 2', '"schema_version": 99'))
    before = file.read_bytes()
    (row,) = ask(code=1)
    assert (row["kernel"], row["result"]) == ("saxpy", "failed")
    assert "99" in row["message"]
    assert file.read_bytes() == before


@pytest.mark.usefixtures("no_process")
def test_a_broken_space_file_hides_no_other(project: Path, ask: Ask) -> None:
    (project / "spaces" / "saxpy.py").write_text("def")
    edit_record("twin", source="beef")
    rows = {row["kernel"]: row for row in ask("--dry-run", names=(), code=1)}
    assert rows["saxpy"]["result"] == "failed" and "syntax error" in rows["saxpy"]["message"]
    assert rows["twin"]["why"] == "its source changed"
    assert run(["retune", "saxpy", "--stale", *SHORT]) == 2


@pytest.mark.usefixtures("opencl_device")
def test_what_is_asked_wrongly_is_an_error_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([], "retune --stale"),
        (["--stale", "--max-age", "soon"], "not a valid integer"),
        (["--stale", "--max-age", "1e400"], "not a valid integer"),
        (["sgem", "--stale"], "did you mean 'sgemm'"),
        (["--stale", "--strategy", "kt:genetic"], "kt:genetic_algorithm"),
    ):
        assert run(["retune", *arguments]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.usefixtures("opencl_device")
def test_an_architecture_that_is_not_here_is_no_usable_device() -> None:
    with pytest.raises(DeviceError, match=r"no device of sm_75 here \(there is opencl_cpu\)"):
        find_devices(["opencl:cpu"], ["sm_75"])


# ---------------------------------------------------------------- which kernels


def test_a_project_owns_its_kernels_and_names_bundled_ones_by_their_records(project: Path) -> None:
    assert project_kernels(Path("reports")) == ["saxpy", "twin"]
    record = Path("reports/opencl_cpu/transpose.json")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("{}")
    assert project_kernels(Path("reports")) == ["saxpy", "transpose", "twin"]


def test_the_bundled_folder_owns_the_bundled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert {"sgemm", "transpose", "banks"} <= set(project_kernels(Path("none")))


def test_a_schedule_names_the_kernels_of_the_project(project: Path) -> None:
    schedule = local_schedule("cron", "1d", ["sm_90"], (), 2.0)
    assert schedule.kernels == ("saxpy", "twin")
    assert "retune saxpy twin --stale" in schedule.text("cron")

"""First calls that tune: on the OpenCL CPU device, on copies of host arrays."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from recorded_kernel import arrays, called, planned, prepare_kernel
from sample_records import defaults_of, tuned_problem, write

from autotune import load, lookup, tuned_on_first_call
from autotune.calling import first_call, trial
from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.files import data_path
from autotune.front import tune_call
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Kernel
from autotune.search.session import Budget
from autotune.tuned import first_calls as store
from autotune.tuned.first_calls import CalledProblem, FirstCalls
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import path_of, read, user_folder
from autotune.tuned.record import TunedProblem
from autotune.tuned.writing import update
from autotune.values import Problem

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.fixture
def device(opencl_device: str) -> Device:
    return choose_device(opencl_device)


@pytest.fixture
def record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device
) -> Callable[..., Kernel]:
    """Write the kernel; return a function that writes its record."""
    return prepare_kernel(tmp_path, monkeypatch, device)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Let no test find a size settled that another had."""
    yield
    first_call.forget()
    store.forget_unwritten()


def answers() -> list[Path]:
    """Return the files of all answers, oldest first; leave out files of killed processes."""
    found = Path(data_path("tuned")).glob("*/*/twice.first_calls/*/answer.json")
    files = [file for file in found if "." not in file.parent.name]
    return sorted(files, key=lambda file: file.parent.stat().st_mtime_ns)


def first_calls() -> list[dict[str, Any]]:
    return [json.loads(file.read_text())["entry"] for file in answers()]


def problems() -> list[dict[str, int]]:
    return [entry["problem"] for entry in first_calls()]


def quality(n: int, **options: Any) -> str:
    tuned = load("twice", **options).choice(n=n).tuned
    assert tuned is not None
    return tuned.quality


def test_a_first_call_tunes_and_later_processes_do_not_search(
    record: Callable[..., Kernel], device: Device, capfd: pytest.CaptureFixture[str]
) -> None:
    record()
    kernel = load("twice", tune="first_call", budget="60s")
    called(kernel, 1002)
    chosen = kernel.choice(n=1002)
    assert chosen.tuned is not None and chosen.tuned.quality == "first_call"
    assert "first_call of user:" in chosen.why and "the fastest of 4" in chosen.why
    assert run(["lookup", "twice", "n=1002", "--device", device.name]) == 0
    said = capfd.readouterr().out
    assert "quality: first_call" in said and "source: user:" in said and "stale" not in said
    found = lookup("twice", device=device, n=1002)
    assert dict(found) == dict(chosen.configuration) and found.quality == "first_call"
    assert found.origin is not None and found.origin.evaluations == 4
    assert quality(1000) == "exact" and quality(1004) == "nearest_problem"
    (entry,) = first_calls()
    assert entry["problem"] == {"n": 1002} and entry["origin"]["effort"] == "first_call"
    assert entry["plans"][0]["configuration"] == dict(found)
    script = """
import numpy as np, autotune.calling.trial as tuning
from autotune import load
def search(*args, **named): raise SystemExit("searched again")
tuning.promising = tuning.compile_now = search
kernel = load("twice", tune="first_call")
x, y = np.ones(1002, np.float32), np.zeros(1002, np.float32)
kernel(x, y)
assert (y == 2).all()
print(kernel.choice(n=1002).tuned.quality)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("first_call\n", "")
    assert capfd.readouterr().err == ""


def test_what_is_known_or_was_tried_is_not_tuned_again(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    kernel = load("twice", tune="first_call", budget=60)
    called(kernel, 1000)  # exact
    called(load("twice"), 1004)  # not asked
    assert first_calls() == []
    called(kernel, 1002)
    monkeypatch.setattr(trial, "promising", None)
    called(kernel, 1002)
    called(load("twice", tune="first_call"), 1002)


def test_answers_that_may_differ_are_not_compared_in_a_first_call(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    kernel = load("twice", tune="first_call", budget=60)
    kernel.kernel.matches(lambda found, expected: True)
    monkeypatch.setattr(trial, "SizeTrial", None)
    called(kernel, 1002)


@pytest.mark.parametrize("wrong", ["WRONG", "OUTSIDE"])
def test_a_wrong_configuration_is_named_and_never_chosen(
    record: Callable[..., Kernel], wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it is the records' own answer."""
    record(planned(BLOCK=32, **{wrong: True}), planned(BLOCK=256), planned(BLOCK=64))
    kernel = load("twice", tune="first_call", budget="60s")
    called(kernel, 1001)
    assert kernel.choice(n=1001).configuration[wrong] is False
    (line,) = caplog.messages
    reasons = {"WRONG": "disagrees with the majority", "OUTSIDE": "writes outside its arrays"}
    assert f"{wrong}=1" in line and reasons[wrong] in line and "\n" not in line
    assert line.endswith("verify the kernel: autotune check twice")


def test_without_a_majority_nothing_is_chosen(
    record: Callable[..., Kernel], caplog: pytest.LogCaptureFixture
) -> None:
    record(planned(BLOCK=64), planned(BLOCK=32, WRONG=True))
    called(load("twice", tune="first_call", budget="60s"), 1001)
    assert "no majority agrees" in caplog.text
    assert quality(1001) == "nearest_problem"


def test_requirements_and_determinism_are_obeyed(record: Callable[..., Kernel]) -> None:
    record(planned(BLOCK=128), planned(BLOCK=256), planned(BLOCK=32))
    called(load("twice", tune="first_call", budget="60s", deterministic=True), 1001)
    (entry,) = first_calls()
    assert entry["origin"]["deterministic"] and entry["origin"]["evaluations"] == 2
    assert entry["plans"][0]["configuration"]["BLOCK"] in (32, 64)
    assert quality(1001) == "nearest_problem"  # of calls that need not be deterministic
    assert quality(1001, deterministic=True) == "first_call"


@pytest.mark.parametrize("seconds", [1, 5, 9, 14, 25])
def test_no_step_begins_that_does_not_fit_the_budget(
    record: Callable[..., Kernel], seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which every look takes a second."""
    record()
    looks = itertools.count()
    monkeypatch.setattr(trial, "clock", lambda: next(looks))
    called(load("twice", tune="first_call", budget=seconds), 1002)
    assert next(looks) <= seconds + 3  # the last two found that no time is left
    # Four configurations are checked in eight seconds, and timed in eight more.
    assert quality(1002) == ("first_call" if seconds > 16 else "nearest_problem")


def test_an_answer_is_stale_when_the_kernel_changes(
    record: Callable[..., Kernel], tmp_path: Path, device: Device
) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    source = tmp_path / "kernels/twice.cu"
    source.write_text(source.read_text().replace("z[i] = x[i];", "z[i] = x[i] * 1;"))
    assert quality(1002) == "nearest_problem"
    first_call.forget()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    assert quality(1002) == "first_call"
    old, new = first_calls()
    assert old["origin"]["source"] != new["origin"]["source"]
    source.write_text(source.read_text().replace("z[i] = x[i] * 1;", "z[i] = x[i];"))
    assert quality(1002) == "first_call" and len(first_calls()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-100],
        lambda text: text.replace('"rounds":', '"rounds":-'),
        lambda text: text.replace('"schema_version":1', '"schema_version":2'),
        lambda text: text.replace('"n":1002', '"n":1003'),
    ],
)
def test_an_answer_that_cannot_be_read_is_left_out_and_followed_by_another(
    record: Callable[..., Kernel], damage: Callable[[str], str]
) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    (file,) = answers()
    damaged = damage(file.read_text())
    assert damaged != file.read_text()
    file.write_text(damaged)
    clear_cache()
    with pytest.warns(RuntimeWarning, match=r"-0: a first call is left out: "):
        assert quality(1002) == "nearest_problem"
    first_call.forget()
    with pytest.warns(RuntimeWarning, match=r"-0: a first call is left out: "):
        called(load("twice", tune="first_call", budget="60s"), 1002)
        assert quality(1002) == "first_call"
    assert [file.parent.name[-2:] for file in answers()] == ["-0", "-1"]
    assert file.read_text() == damaged


def test_a_first_call_only_chooses_among_the_configurations_of_runs(
    record: Callable[..., Kernel],
) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    (file,) = answers()
    text = file.read_text()
    file.write_text(text.replace('"WRONG":false', '"WRONG":true'))
    assert file.read_text() != text
    clear_cache()
    assert quality(1002) == "nearest_problem"


@pytest.mark.parametrize("source, block", [("0" * 64, 32), ("1" * 64, 64), ("2" * 64, 64)])
def test_lookup_answers_as_the_kernel_of_the_newest_record_else_with_the_last_answer(
    record: Callable[..., Kernel], device: Device, source: str, block: int
) -> None:
    """It does not know the current files."""
    kernel = record()
    added(kernel, device, 1002, block=32, source="0" * 64)
    added(kernel, device, 1002, is_valid=False, block=64, source="1" * 64)
    folder = Path(os.environ["AUTOTUNE_TUNED"])
    old = read(next(folder.glob("*/twice.json")))
    made = msgspec.structs.replace(old.provenance, source=source)
    entries = [tuned_problem(entry.problem, entry.plan, source=source) for entry in old.problems]
    write(folder, msgspec.structs.replace(old, provenance=made, problems=tuple(entries)))
    clear_cache()
    found = lookup("twice", device=device, n=1002)
    assert (found.quality, found["BLOCK"]) == ("first_call", block)
    assert bool(found.stale_reasons) == (source == "2" * 64)


def added(
    kernel: Kernel,
    device: Device,
    n: int,
    is_valid: bool = True,
    block: int = 32,
    source: str = "0" * 64,
) -> int:
    """Add an answer to the store unless there is a valid one; return the agreed block."""
    entry = tuned_problem({"n": n}, planned(BLOCK=block), source=source)
    calls, problem = FirstCalls("twice", kernel.project), CalledProblem({"n": n}, False)
    agreed, reason = calls.agree(device, problem, entry, lambda known: is_valid)
    assert reason == ""
    return int(agreed.configuration["BLOCK"])


def test_the_first_writer_of_a_valid_answer_wins(
    record: Callable[..., Kernel], device: Device
) -> None:
    kernel = record()
    assert added(kernel, device, 1002, block=32) == 32
    assert added(kernel, device, 1002, block=64) == 32
    assert added(kernel, device, 1002, block=128, is_valid=False) == 128
    calls = FirstCalls("twice", kernel.project)
    known = calls.answers(device.folder, CalledProblem({"n": 1002}, False), device)
    assert [entry.configuration["BLOCK"] for _, entry in known] == [32, 128]
    (folder,) = Path(user_folder(kernel.project)).glob("*/twice.first_calls")
    assert calls.refresh()  # a change in the same tick of the file system would not show
    os.utime(folder, (1, 1))
    assert calls.refresh() and not calls.refresh()
    assert added(kernel, device, 1004, block=64) == 64
    assert calls.refresh()


def test_answers_are_of_one_chip_although_another_one_has_its_name(
    record: Callable[..., Kernel],
) -> None:
    kernel = record()
    large = Device("cuda", "Test GPU", "sm_90", sm_count=132)
    small = replace(large, sm_count=66)
    assert added(kernel, large, 1002, block=32) == 32
    assert added(kernel, small, 1002, block=64) == 64
    assert added(kernel, small, 1002, block=128) == 64
    assert added(kernel, large, 1002, block=128) == 32
    calls, problem = FirstCalls("twice", kernel.project), CalledProblem({"n": 1002}, False)
    (found,) = calls.answers(small.folder, problem, small)
    assert found[1].configuration["BLOCK"] == 64


def test_answers_ship_with_records(record: Callable[..., Kernel]) -> None:
    kernel = record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    mine, shipped = user_folder(kernel.project), os.environ["AUTOTUNE_TUNED"]
    shutil.copytree(mine, shipped, dirs_exist_ok=True)
    shutil.rmtree(mine)
    clear_cache()
    found = load("twice").choice(n=1002)
    assert found.is_known and found.why.startswith("first_call of AUTOTUNE_TUNED:")


def test_the_problems_that_were_answered_first_are_removed_with_all_their_answers(
    record: Callable[..., Kernel], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_ANSWERS", 4)
    kernel = record()
    for n in (1, 1, 2, 3, 4):
        added(kernel, device, n, is_valid=False)
    assert problems() == [{"n": 2}, {"n": 3}, {"n": 4}]
    left = answers()[0].parent
    left.rename(left.with_name(f"{left.name}.killed"))  # by a process that was about to rename it
    for n in (5, 6):
        added(kernel, device, n)
    assert problems() == [{"n": 4}, {"n": 5}, {"n": 6}]


def test_a_run_replaces_the_first_call_of_its_problem(record: Callable[..., Kernel]) -> None:
    """Other first calls stay."""
    kernel = record()
    for n in (1002, 1004):
        called(load("twice", tune="first_call", budget="60s"), n)
    assert run(["report", "twice"]) == 2  # no report of first calls
    shipped = read(next(Path(os.environ["AUTOTUNE_TUNED"]).glob("*/twice.json")))
    tuned = tuned_problem({"n": 1002}, planned(BLOCK=32))
    update(Path(user_folder(kernel.project)), msgspec.structs.replace(shipped, problems=(tuned,)))
    clear_cache()
    assert quality(1002) == "exact" and quality(1004) == "first_call"


def test_records_of_first_calls_alone_answer_nothing(
    record: Callable[..., Kernel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions wrote them."""
    kernel = record()
    shipped = read(next(Path(os.environ["AUTOTUNE_TUNED"]).glob("*/twice.json")))
    made = msgspec.structs.replace(shipped.provenance, created="2026-11-29")
    empty = msgspec.structs.replace(shipped, problems=(), provenance=made)
    entry = tuned_problem({"n": 1002}, planned(BLOCK=256))
    old = {**msgspec.to_builtins(empty, enc_hook=dict), "first_calls": [entry]}
    file = path_of(Path(user_folder(kernel.project)), empty)
    file.parent.mkdir(parents=True)
    file.write_bytes(msgspec.json.encode(old, enc_hook=dict))
    clear_cache()
    assert quality(1000) == "exact" and quality(1002) == "nearest_problem"
    colleague = tmp_path / "twice.json"
    file.rename(colleague)
    assert run(["import", str(colleague)]) == 1
    assert "not imported: it holds no result of a run" in capsys.readouterr().err


def test_a_record_of_another_shape_is_neither_used_nor_replaced(
    record: Callable[..., Kernel], caplog: pytest.LogCaptureFixture
) -> None:
    """The newest record decides the shape."""
    kernel = record()
    newest = read(next(Path(os.environ["AUTOTUNE_TUNED"]).glob("*/twice.json")))
    parameters = {**newest.parameters, "BLOCK": ("32", "64")}
    plan = msgspec.structs.replace(
        planned(), configuration={**planned().configuration, "BLOCK": "32"}
    )
    other = msgspec.structs.replace(
        newest,
        parameters=parameters,
        defaults=defaults_of(plan, {"n": "integer"}),
        problems=(tuned_problem({"n": 1000}, plan),),
        provenance=msgspec.structs.replace(newest.provenance, created="2026-11-20"),
    )
    write(Path(user_folder(kernel.project)), other)
    file = path_of(Path(user_folder(kernel.project)), other)
    before = file.read_bytes()
    clear_cache()
    with pytest.warns(RuntimeWarning, match="left out: its problem fields or parameters differ"):
        called(load("twice", tune="first_call", budget="60s"), 1002)
        assert quality(1002) == "first_call"
    assert file.read_bytes() == before and caplog.messages == []


def test_a_folder_that_cannot_be_written_costs_later_processes_only(
    record: Callable[..., Kernel], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record()
    (tmp_path / "data").write_text("no folder")
    called(load("twice", tune="first_call", budget="60s"), 1002)
    (line,) = caplog.messages
    assert "only this process keeps the answer" in line and "Not a directory" in line
    assert quality(1002) == "first_call"


def test_one_thread_tunes_while_others_are_answered(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    begun, go_on = threading.Event(), threading.Event()

    def promising(*args: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return real(*args, **named)

    real = trial.promising
    monkeypatch.setattr(trial, "promising", promising)
    kernel = load("twice", tune="first_call", budget="60s")
    tuner = threading.Thread(target=called, args=(kernel, 1002))
    tuner.start()
    assert begun.wait(60)
    called(kernel, 1002)
    assert quality(1002) == "nearest_problem"
    go_on.set()
    tuner.join()
    assert quality(1002) == "first_call"
    called(kernel, 1002)


def test_in_the_background_a_call_answers_at_once_and_later_ones_switch(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(planned(BLOCK=32, WRONG=True), planned(BLOCK=256), planned(BLOCK=64))
    go_on = threading.Event()
    real = trial.promising
    monkeypatch.setattr(trial, "promising", lambda *a, **n: real(*a, **n) if go_on.wait(60) else [])
    kernel = load("twice", tune="background", budget="60s")

    def middle() -> float:
        x, y = arrays(1001)
        kernel(x, y)
        x.fill(0)  # the copies do not see what the caller does next
        return float(y[500])

    assert middle() == middle() == 1501  # of the wrong answer
    (thread,) = (t for t in threading.enumerate() if t.name == "autotune-first-call")
    assert thread.daemon
    go_on.set()
    thread.join(60)
    assert quality(1001) == "first_call"
    assert middle() == middle() == 1001


def test_a_block_and_the_variable_tune_what_says_nothing_itself(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    kernel, never = load("twice"), load("twice", tune="off")
    with tuned_on_first_call("60s"):
        called(never, 1002)
        assert quality(1002) == "nearest_problem"
        called(kernel, 1002)
    assert quality(1002) == "first_call"
    called(kernel, 1004)
    assert quality(1004) == "nearest_problem"
    monkeypatch.setenv("AUTOTUNE_TUNE", "first_call")
    monkeypatch.setattr(trial, "clock", lambda: 0.0)
    called(kernel, 1006)
    assert quality(1006) == "first_call"
    with tuned_on_first_call(background=True):
        called(load("twice", deterministic=True), 1008)  # whose bits would change
    assert quality(1008) == "nearest_problem"


def test_options_that_say_nothing_are_one_clear_error(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    with pytest.raises(UsageError, match=r"tune.*'firstcall'.*first_call, background, off"):
        load("twice", tune="firstcall")
    for budget in ("soon", "0s", -1, float("nan"), None):
        with pytest.raises(UsageError, match=r'budget .*for example "1s"'):
            load("twice", tune="first_call", budget=budget)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r'deterministic=True does not go with tune="background".*first_call'
    ):
        load("twice", tune="background", deterministic=True)
    monkeypatch.setenv("AUTOTUNE_TUNE", "yes")
    with pytest.raises(UsageError, match=r"AUTOTUNE_TUNE.*'yes'"):
        load("twice")(*arrays(1002))


def test_nothing_is_said_by_default_and_a_log_has_the_choice(
    record: Callable[..., Kernel], caplog: pytest.LogCaptureFixture
) -> None:
    record()
    with caplog.at_level(logging.INFO, "autotune"):
        called(load("twice", tune="first_call", budget="60s"), 1002)
    assert "first call" not in caplog.text and "times as fast" in caplog.text


# ---------------------------------------------------------------------- other processes

PROCESS = """
import json, os, signal, sys
import numpy as np
from autotune import load
from autotune.calling import trial

sizes, killed_at = json.loads(sys.argv[1]), int(sys.argv[2])
trial.COMPILE_S, events = 120.0, 0

def watched(function):
    def call(*args):
        global events
        events += 1
        if events == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)
    return call

trial.clock, os.rename = watched(trial.clock), watched(os.rename)
kernel = load("twice", tune="first_call", budget="60s")
for n in sizes:
    kernel(np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32))
plans = [ready.choice for ready in kernel._ready.values()]
print(json.dumps({choice.problem["n"]: choice.configuration["BLOCK"] for choice in plans}))
"""


def begun(
    sizes: list[int], killed_at: int = 0, environ: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Begin a process that calls sizes; it is killed at an event: a look at the clock, or a rename."""
    command = [sys.executable, "-c", PROCESS, json.dumps(sizes), str(killed_at)]
    given = {**os.environ, **(environ or {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=given)


def launched(process: subprocess.Popen[str]) -> dict[str, int]:
    found: dict[str, int] = json.loads(process.communicate(timeout=300)[0])
    return found


@pytest.mark.parametrize("killed_at", [3, 9, 21, 50])
def test_processes_agree_and_a_killed_one_changes_nothing(
    record: Callable[..., Kernel], tmp_path: Path, killed_at: int
) -> None:
    """Each has a home of its own, on one shared folder of results."""
    record()
    rng, sizes = random.Random(killed_at), list(range(2002, 8000, 500))
    homes = [
        {"HOME": str(tmp_path / home), "XDG_CACHE_HOME": str(tmp_path / home / "cache")}
        for home in ("one", "two", "three")
    ]
    *living, killed = [
        begun(rng.sample(sizes, len(sizes)), at, home)
        for at, home in zip((0, 0, killed_at), homes, strict=True)
    ]
    found = [launched(process) for process in living]
    assert killed.wait(300) == -signal.SIGKILL
    found.append(launched(begun(sizes)))
    assert found[0].keys() == set(map(str, sizes)) and found[0] == found[1] == found[2]
    assert sorted(entry["problem"]["n"] for entry in first_calls()) == sizes


def test_an_answer_of_another_process_is_taken_before_measuring(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if lookup has not looked at the files since."""
    monkeypatch.setattr("autotune.tuned.lookup.time", SimpleNamespace(monotonic=lambda: 0.0))
    record()
    assert quality(1002) == "nearest_problem"
    expected = launched(begun([1002]))["1002"]
    assert quality(1002) == "nearest_problem"
    monkeypatch.setattr(trial, "SizeTrial", None)
    called(load("twice", tune="first_call", budget="60s"), 1002)
    found = load("twice").choice(n=1002)
    assert found.is_known and found.configuration["BLOCK"] == expected


def test_an_answer_of_another_process_is_taken_after_measuring(
    record: Callable[..., Kernel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record()
    real = trial.promising

    def promising(*args: Any, **named: Any) -> Any:
        launched(begun([1002]))
        return real(*args, **named)

    monkeypatch.setattr(trial, "promising", promising)
    with caplog.at_level(logging.INFO, "autotune"):
        called(load("twice", tune="first_call", budget="60s"), 1002)
    assert "times as fast by another process" in caplog.text
    assert len(first_calls()) == 1 and quality(1002) == "first_call"


def test_a_process_without_an_answer_takes_that_of_another_one_later(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(planned(BLOCK=32, WRONG=True), planned(BLOCK=256), planned(BLOCK=64))
    now_s = [0.0]
    time = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr("autotune.tuned.lookup.time", time)
    monkeypatch.setattr(first_call, "time", time)
    kernel = load("twice", tune="first_call", budget=1)

    def middle() -> float:
        x, y = arrays(1001)
        kernel(x, y)
        return float(y[500])

    with monkeypatch.context() as patch:
        patch.setattr(trial, "clock", partial(next, itertools.count()))
        assert middle() == 1501  # of the wrong answer: no time was left
    launched(begun([1001]))
    monkeypatch.setattr(trial, "SizeTrial", None)
    assert middle() == 1501
    now_s[0] += 1.5
    assert middle() == 1001


def test_what_is_tuned_for_a_caller_is_the_entry_of_the_first_process(
    record: Callable[..., Kernel], device: Device
) -> None:
    """As the decorator tunes a call."""
    record()
    kernel, problem = find_kernel("transpose"), Problem(m=65, n=33)
    options: dict[str, Any] = {"timeout_s": 60.0, "command": "test"}

    def tuned() -> TunedProblem:
        tune_call(
            kernel, device, problem, lambda _: kernel, budget=Budget.parse("4evals"), **options
        )
        (file,) = Path(data_path("tuned")).glob("*/*/transpose.json")
        entry = read(file).tuned(problem)
        file.unlink()
        assert entry is not None
        return entry

    first = tuned()
    assert tuned() == first
    assert len(list(Path(data_path("tuned")).glob("*/*/transpose.first_calls/*"))) == 1


def test_what_the_decorator_tunes_takes_turns_with_what_load_does():
    """One thread at a time, in the background nobody waits, and what was tuned is settled."""
    begun, go_on = [], threading.Event()

    def begin(name):
        begun.append(name)
        return lambda: "" if go_on.wait(60) else "it was late"

    def asked(name):
        return first_call.in_turn(name, name, partial(begin, name), True)

    assert not asked("one") and not asked("one") and not asked("other")
    assert begun == ["one"] and first_call.is_busy()
    (thread,) = (t for t in threading.enumerate() if t.name == "autotune-first-call")
    go_on.set()
    thread.join()
    assert asked("one") and not asked("other")
    assert begun == ["one", "other"]
    assert first_call.in_turn("third", "third", partial(begin, "third"), False)  # after the other
    assert begun == ["one", "other", "third"] and asked("other")

"""First calls that tune: on the OpenCL CPU device, on copies of host arrays."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
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
from autotune.kernel.spec import Kernel
from autotune.tuned import first_calls as tuned_first_calls
from autotune.tuned import reading
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import read, user_folder
from autotune.tuned.record import TunedProblem
from autotune.tuned.writing import add_first_call, update

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
    reading.unwritten.clear()


def user_record() -> Path:
    (file,) = Path(data_path("tuned")).glob("*/*/twice.json")
    return file


def first_calls() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(user_record().read_text())["first_calls"]
    return found


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
    assert not list(Path(data_path("tuned")).glob("*/*/twice.*"))
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
    assert len(first_calls()) == 1


def test_a_damaged_record_is_a_miss_and_is_set_aside(record: Callable[..., Kernel]) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    file = user_record()
    file.write_text(file.read_text().replace('"value":', '"value":-')[:-100])
    clear_cache()
    with pytest.warns(RuntimeWarning, match=r"twice\.json: not a tuned record, or damaged"):
        assert quality(1002) == "nearest_problem"
    first_call.forget()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    assert quality(1002) == "first_call"
    assert file.with_name("twice.json.damaged").exists()


def test_a_first_call_only_chooses_among_the_configurations_of_runs(
    record: Callable[..., Kernel],
) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    text = user_record().read_text()
    user_record().write_text(text.replace('"WRONG":false', '"WRONG":true'))
    assert user_record().read_text() != text
    clear_cache()
    assert quality(1002) == "nearest_problem"
    user_record().write_text(text.replace('"rounds":', '"rounds":-'))
    clear_cache()
    with pytest.warns(RuntimeWarning, match="a first call is left out: .*rounds"):
        assert quality(1002) == "nearest_problem"


def test_a_record_keeps_its_newest_first_calls(
    record: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_first_calls, "MAX_FIRST_CALLS", 3)
    kernel = record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    old = read(user_record())
    entry = msgspec.json.decode(old.first_calls[0], type=TunedProblem)
    folder = Path(user_folder(kernel.project))
    for n in (2000, 2001, 2002, 2001):
        new = msgspec.structs.replace(entry, problem={"n": n})
        assert add_first_call(folder, new, msgspec.structs.replace(old, first_calls=())) == ""
    assert [each["problem"]["n"] for each in first_calls()] == [2000, 2002, 2001]


def test_a_run_replaces_the_first_call_of_its_problem(record: Callable[..., Kernel]) -> None:
    """Other first calls stay; `lookup` of a record without entries is as without the record."""
    kernel = record()
    for n in (1002, 1004):
        called(load("twice", tune="first_call", budget="60s"), n)
    old = read(user_record())
    assert old.problems == () and not old.is_tuned
    assert run(["report", "twice"]) == 2  # no report of first calls
    tuned = tuned_problem({"n": 1002}, planned(BLOCK=32))
    new = msgspec.structs.replace(old, problems=(tuned,), first_calls=())
    (outcome,) = update(Path(user_folder(kernel.project)), new).outcomes
    assert (outcome.action, outcome.reason) == ("added", "not tuned before")
    assert [entry["problem"] for entry in first_calls()] == [{"n": 1004}]
    clear_cache()
    assert quality(1002) == "exact" and quality(1004) == "first_call"


def test_first_calls_are_not_imported(
    record: Callable[..., Kernel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    colleague = tmp_path / "twice.json"
    user_record().rename(colleague)
    assert run(["import", str(colleague)]) == 1
    assert "not imported: it holds no result of a run" in capsys.readouterr().err


def test_a_record_of_another_shape_keeps_its_entries(
    record: Callable[..., Kernel], caplog: pytest.LogCaptureFixture
) -> None:
    """The newest record decides the shape; the user's older one is neither used nor replaced."""
    kernel = record()
    newest = read(next(Path(os.environ["AUTOTUNE_TUNED"]).glob("*/twice.json")))
    parameters = {**newest.parameters, "BLOCK": ("32", "64")}
    plan = msgspec.structs.replace(
        planned(), configuration={**planned().configuration, "BLOCK": "32"}
    )
    write(
        Path(user_folder(kernel.project)),
        msgspec.structs.replace(
            newest,
            parameters=parameters,
            defaults=defaults_of(plan, {"n": "integer"}),
            problems=(tuned_problem({"n": 1000}, plan),),
            provenance=msgspec.structs.replace(newest.provenance, created="2026-11-20"),
        ),
    )
    before = user_record().read_bytes()
    clear_cache()
    with pytest.warns(RuntimeWarning, match="left out: its problem fields or parameters differ"):
        called(load("twice", tune="first_call", budget="60s"), 1002)
        assert quality(1002) == "first_call"
    assert user_record().read_bytes() == before
    (line,) = caplog.messages
    assert (
        "only this process keeps the answer" in line
        and "its parameters, fields or objective differ" in line
    )


def test_processes_that_write_at_once_lose_no_first_call(record: Callable[..., Kernel]) -> None:
    kernel = record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    script = """
import sys
from pathlib import Path
import msgspec
from autotune.tuned.reading import read
from autotune.tuned.record import TunedProblem
from autotune.tuned.writing import add_first_call
folder, file, begin = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
old = read(file)
entries = (msgspec.json.decode(each, type=TunedProblem) for each in old.first_calls)
entry = next(each for each in entries if each.problem["n"] == 1002)
for n in range(begin, begin + 20):
    new = msgspec.structs.replace(entry, problem={"n": n})
    assert add_first_call(folder, new, msgspec.structs.replace(old, first_calls=())) == ""
"""
    arguments = [user_folder(kernel.project), str(user_record())]
    processes = [
        subprocess.Popen([sys.executable, "-c", script, *arguments, str(begin)])
        for begin in (2000, 3000, 4000)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    expected = {1002, *range(2000, 2020), *range(3000, 3020), *range(4000, 4020)}
    assert {entry["problem"]["n"] for entry in first_calls()} == expected


def test_a_folder_that_cannot_be_written_costs_later_processes_only(
    record: Callable[..., Kernel], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record()
    (tmp_path / "data").write_text("no folder")
    called(load("twice", tune="first_call", budget="60s"), 1002)
    (line,) = caplog.messages
    assert "only this process keeps the answer" in line and "twice.json: Not a directory" in line
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

"""Frozen and pinned calls: on the OpenCL CPU device, with the kernel and the records of first calls' tests."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from recorded_kernel import BLOCKS, SPACE, arrays, called, prepare_kernel

from autotune import linalg, load, tuned_on_first_call
from autotune.calling import first_call, production
from autotune.calling.binding import ResolvedCall, bind
from autotune.calling.choice import recorded_choice
from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.errors import NoAnswerError, UsageError
from autotune.export import export_records, precompiled
from autotune.files import data_path
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import Operand
from autotune.kernel.spec import Kernel
from autotune.tuned.reading import read_all
from autotune.values import Problem

Record = Callable[..., Kernel]
ROOT = Path(__file__).parents[1]


@pytest.fixture
def device(opencl_device: str) -> Device:
    return choose_device(opencl_device)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device) -> Iterator[Record]:
    """Write the kernel; yield a function that writes its record."""
    yield prepare_kernel(tmp_path, monkeypatch, device)
    first_call.forget()


# ---------------------------------------------------------------------- frozen


@pytest.mark.parametrize("given", ["yes", "true", "2", "first_call"])
def test_a_wrong_mode_is_refused_where_it_is_loaded(
    given: Any, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=f"unknown frozen '{given}'.*known: 0, 1, exact, nearest"):
        load("twice", frozen=given)
    monkeypatch.setenv("AUTOTUNE_FROZEN", given)
    with pytest.raises(UsageError, match=f"unknown AUTOTUNE_FROZEN '{given}'"):
        load("twice")
    load("twice", frozen=False)  # overrides the variable


def test_a_program_that_torch_exported_is_served_frozen(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls its kernels by keys, which variables do not change."""
    key = load("twice").key
    monkeypatch.setenv("AUTOTUNE_FROZEN", "1")
    monkeypatch.setenv("AUTOTUNE_PIN", "twice:BLOCK=64")
    assert load("twice").key == key
    others = [{"frozen": False}, {"frozen": "nearest"}, {"config": {"BLOCK": 64}}]
    assert len({key, *(load("twice", **other).key for other in others)}) == 4


@pytest.mark.parametrize("mode", [True, "exact", "nearest"])
def test_frozen_calls_run_the_recorded_answer(record: Record, mode: Any) -> None:
    record()
    kernel = load("twice", frozen=mode)
    called(kernel, 1000)
    assert kernel.choice(n=1000).configuration["BLOCK"] == 32


def test_another_size_needs_nearest(
    record: Record, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    expected = (
        rf"^twice\(n=1002\) on {device.name}: frozen calls need an exact answer; the best answer is "
        r"nearest_problem of AUTOTUNE_TUNED:\S+/twice; tune it: autotune run twice --problem n=1002; "
        "or accept this answer: AUTOTUNE_FROZEN=nearest$"
    )
    monkeypatch.setenv("AUTOTUNE_FROZEN", "1")
    kernel = load("twice")
    with pytest.raises(NoAnswerError, match=expected):
        kernel(*arrays(1002))
    with pytest.raises(NoAnswerError, match=expected):
        kernel.choice(n=1002)
    called(load("twice", frozen="nearest"), 1002)
    called(load("twice", frozen=False), 1002)


@pytest.mark.parametrize("mode", ["exact", "nearest"])
def test_no_record_is_an_error_that_names_the_command(record: Record, mode: Any) -> None:
    kernel = load("twice", frozen=mode)
    with pytest.raises(NoAnswerError, match=r"no tuned record of twice .*--problem n=1000$"):
        kernel(*arrays(1000))


def test_the_kernels_default_is_no_answer(record: Record) -> None:
    """A record of a GPU alone answers with the default on a CPU."""
    with pytest.raises(NoAnswerError, match="need a tuned answer; the best answer is the kernel's"):
        load("reduce", frozen="nearest")(np.ones(5000, np.float32))


@pytest.mark.filterwarnings("error")
def test_an_answer_that_cannot_run_is_refused_without_a_warning(
    record: Record, tmp_path: Path
) -> None:
    record()
    rule = "@twice.constraint\ndef large(BLOCK):\n    return BLOCK > 32\n"
    (tmp_path / "spaces/twice.py").write_text(f"{SPACE}\n{rule}")
    with pytest.raises(NoAnswerError, match=r"no recorded configuration is valid on .*; tune it: "):
        load("twice", frozen=True)(*arrays(1000))


def test_frozen_calls_never_tune(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    record()
    monkeypatch.setenv("AUTOTUNE_TUNE", "first_call")
    with tuned_on_first_call("60s"):
        called(load("twice", frozen="nearest", tune="first_call"), 1002)
    assert not Path(data_path("tuned")).exists()


def test_the_answer_of_a_first_call_is_accepted(record: Record) -> None:
    record()
    called(load("twice", tune="first_call", budget="60s"), 1002)
    kernel = load("twice", frozen=True)
    called(kernel, 1002)
    assert kernel.choice(n=1002).why.startswith("first_call of user:")


def test_verifying_starts_a_process_and_is_refused(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="verify=True starts a process"):
        load("twice", frozen=True, verify=True)
    monkeypatch.setenv("AUTOTUNE_FROZEN", "nearest")
    with pytest.raises(UsageError, match="verify=True starts a process"):
        load("twice", verify=True)


def test_functions_that_load_kernels_are_frozen(
    opencl_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linalg, "_kernel", linalg._kernel.__wrapped__)  # as in a new process
    monkeypatch.setenv("AUTOTUNE_FROZEN", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    x = np.ones((4, 4), np.float32)
    for function in (linalg.total, linalg.transpose, lambda x: linalg.matmul(x, x)):
        with pytest.raises(NoAnswerError, match=r"tune it: autotune run (reduce|transpose|sgemm) "):
            function(x)


def test_without_a_writable_cache_calls_compile(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", "/dev/null/cache")
    for frozen in (False, True):
        called(load("twice", frozen=frozen), 1000)


def test_frozen_calls_keep_no_binary_and_log_that_they_compile(
    record: Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record()
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING, "autotune"):
        called(load("twice", frozen=True), 1000)
    assert not (tmp_path / "cache").exists()
    (logged,) = caplog.records
    expected = "autotune: twice: BLOCK=32, WRONG=0, OUTSIDE=0 compiled, not found in "
    assert logged.getMessage() == f"{expected}{tmp_path}/cache/binaries"


def test_binaries_of_an_opencl_device_that_is_elsewhere_are_refused(
    record: Record, tmp_path: Path
) -> None:
    record()
    (known,) = read_all(tmp_path / "tuned")
    other = msgspec.structs.replace(known.device, name="Other CPU")
    with pytest.raises(UsageError, match="Other CPU is not on this machine, and a binary"):
        export_records("binaries", [msgspec.structs.replace(known, device=other)])


def test_configurations_that_the_device_lacks_are_not_exported(
    record: Record, tmp_path: Path
) -> None:
    """The default of a kernel with several sources may be of a source for other devices."""
    record()
    (known,) = read_all(tmp_path / "tuned")
    row = known.defaults[0]
    plan = row.plans[0]
    other = msgspec.structs.replace(plan, configuration={**plan.configuration, "BLOCK": 7})
    defaults = (msgspec.structs.replace(row, plans=(*row.plans, other)),)
    with_other = msgspec.structs.replace(known, defaults=defaults)
    assert export_records("binaries", [with_other]) == export_records("binaries", [known])


def test_the_records_in_a_package_answer(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a wheel has space file, source and record; no variable names them."""
    record()
    package = tmp_path / "site-packages" / "mine"
    for part, name in (("spaces", "spaces"), ("kernels", "kernels"), ("tuned", "reports")):
        shutil.copytree(tmp_path / part, package / name)
    for variable in ("AUTOTUNE_PATH", "AUTOTUNE_TUNED"):
        monkeypatch.delenv(variable)
    kernel = load(str(package / "spaces" / "twice.py"), frozen=True)
    called(kernel, 1000)
    assert kernel.choice(n=1000).why.startswith("exact of project:")


@pytest.mark.parametrize("name", ["reduce", "softmax"])
def test_calls_of_recorded_problems_find_exported_binaries(name: str) -> None:
    """On GPUs that are not here: in CUDA C++, and in Triton, where numbers of a call are compiled in."""
    kernel, problem = find_kernel(name), Problem(n=5000)
    if name == "softmax":
        pytest.importorskip("triton")
        problem = Problem(rows=1024, columns=4096, dtype="float32")
    (known,) = (r for r in read_all(ROOT / "reports", name) if r.tuned(problem))
    shape = tuple(value for value in problem.values() if isinstance(value, int))
    resolved = bind(kernel, (replace(Operand.new(shape), source=0),), {}, find_kernel)
    assert isinstance(resolved, ResolvedCall)
    device = known.device.planned_for()
    choice, _ = recorded_choice(kernel, resolved.problem, device, False)
    assert choice is not None and choice.is_known
    given = resolved.problem, device, resolved.compiled_scalars
    job = compile_job(kernel, choice.configuration, *given)
    assert job.key in {other.key for _, other in precompiled._jobs(kernel, known)}


# ---------------------------------------------------------------------- pins


def test_a_pin_overrides_the_answer(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that it leaves out have the default, not the recorded value."""
    record()
    monkeypatch.setenv("AUTOTUNE_PIN", " twice:BLOCK=128 ; reduce:BLOCK=64")
    choice = load("twice").choice(n=1000)
    assert choice.configuration == {"BLOCK": 128, "WRONG": False, "OUTSIDE": False}
    assert str(choice).endswith(" - pinned by AUTOTUNE_PIN") and choice.is_known
    called(load("twice"), 1000)
    monkeypatch.setenv("AUTOTUNE_PIN", "twice:OUTSIDE=0")
    assert load("twice").choice(n=1000).configuration["BLOCK"] == 64
    choice = load("twice", config={"BLOCK": 256}).choice(n=1000)
    assert choice.configuration["BLOCK"] == 256
    assert choice.why == "pinned by load(config=...)"


def test_a_pin_is_logged_once(record: Record, caplog: pytest.LogCaptureFixture) -> None:
    record()
    production._warn_of_pin.cache_clear()
    with caplog.at_level(logging.WARNING, "autotune"):
        for n in (1000, 1002):
            load("twice", config={"BLOCK": 256})(*arrays(n))
    assert [entry.getMessage() for entry in caplog.records] == [
        "autotune: twice is pinned to BLOCK=256, WRONG=0, OUTSIDE=0 by load(config=...)"
    ]


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("twice:BLOCK=48", r"unknown value of BLOCK: '48'.*\(known: 32, 64, 128, 256\)"),
        ("twice:BLOK=64", r"unknown parameter 'BLOK'; did you mean 'BLOCK'\?"),
        ("twice:BLOCK", "'BLOCK': expected NAME=VALUE"),
        ("twice:BLOCK=64,BLOCK=32", "BLOCK is given twice"),
        ("twice", "'twice': expected KERNEL:NAME=VALUE,.* once for a kernel"),
        ("twice:", "expected KERNEL:NAME=VALUE"),
        (":BLOCK=64", "expected KERNEL:NAME=VALUE"),
        ("twice:BLOCK=64;twice:BLOCK=32", "once for a kernel"),
    ],
)
def test_a_wrong_pin_is_refused_where_it_is_loaded(
    record: Record, monkeypatch: pytest.MonkeyPatch, pin: str, message: str
) -> None:
    monkeypatch.setenv("AUTOTUNE_PIN", pin)
    with pytest.raises(UsageError, match=f"^AUTOTUNE_PIN.*{message}"):
        load("twice")


@pytest.mark.parametrize("given", [{"BLOCK": 48}, {"BLOK": 64}, {"BLOCK": None}, ["BLOCK"], 7])
def test_a_wrong_config_is_refused_where_it_is_loaded(record: Record, given: Any) -> None:
    with pytest.raises(UsageError, match=r"^load\(config=\.\.\.\): "):
        load("twice", config=given)


def test_a_pin_must_accept_the_problem(record: Record) -> None:
    record()
    kernel = load("twice", config={"BLOCK": 128})
    called(kernel, 1000)
    expected = (
        r"^load\(config=\.\.\.\): twice\(n=1001\) on .*: BLOCK=128, WRONG=0, OUTSIDE=0 does not "
        r"accept the problem: it needs \(n % 2\) == 0; pin another configuration, or remove the pin"
    )
    for call in (lambda: kernel(*arrays(1001)), lambda: kernel.choice(n=1001)):
        with pytest.raises(UsageError, match=expected):
            call()


def test_a_pin_must_be_deterministic_where_calls_are(record: Record) -> None:
    record()
    kernel = load("twice", config={"BLOCK": 256}, deterministic=True)
    with pytest.raises(UsageError, match=r"BLOCK=256.* is not declared deterministic"):
        kernel(*arrays(1000))


def test_a_pin_must_satisfy_the_constraints(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    rule = '@twice.constraint\ndef small(BLOCK):\n    """A block has at most 64 threads."""\n    '
    (tmp_path / "spaces/twice.py").write_text(f"{SPACE}\n{rule}return BLOCK <= 64\n")
    with pytest.raises(UsageError, match=r"BLOCK=128.* breaks small \(A block has at most 64 thr"):
        load("twice", config={"BLOCK": 128})(*arrays(1000))


def test_parameters_that_do_not_apply_are_set_as_in_the_space(
    record: Record, tmp_path: Path
) -> None:
    record()
    rule = '@twice.applies("OUTSIDE")\ndef used(BLOCK):\n    return BLOCK > 64\n'
    (tmp_path / "spaces/twice.py").write_text(f"{SPACE}\n{rule}")
    kernel = load("twice", config={"BLOCK": 32, "OUTSIDE": True})
    assert not kernel.choice(n=1000).configuration["OUTSIDE"]
    called(kernel, 1000)


def test_a_pinned_size_is_neither_tuned_nor_verified(record: Record) -> None:
    record()
    called(load("twice", config={"BLOCK": 256}, tune="first_call", budget="60s"), 1002)
    assert not Path(data_path("tuned")).exists()
    # The kernel has no reference, so that verifying it would fail.
    called(load("twice", config={"BLOCK": 256}, verify=True), 1 << 20)


def test_a_pin_is_accepted_where_calls_are_frozen(record: Record) -> None:
    record()
    called(load("twice", config={"BLOCK": 256}, frozen=True), 1002)


@pytest.mark.filterwarnings("ignore:sgemm. no recorded configuration")
def test_a_pin_of_a_kernel_that_is_passed_on_to_holds(
    opencl_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("AUTOTUNE_PIN", "gemv:BLOCK=64")
    gemm = load("sgemm")
    choice = gemm.choice(np.ones((64, 64), np.float32), np.ones((64, 1), np.float32))
    assert choice.kernel == "gemv" and choice.pinned_by == "AUTOTUNE_PIN"
    assert not gemm.choice(m=64, n=64, k=64).pinned_by


# ---------------------------------------------------------------------- nothing is written or started

#: Reports events of files and processes to standard error, from before the import of autotune to after two calls.
PROGRAM = """
import _posixsubprocess, os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DENIED = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.chmod", "os.chown", "os.link",
    "os.symlink", "os.truncate", "shutil.copyfile", "sqlite3.connect", "tempfile.mkstemp",
    "tempfile.mkdtemp", "subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec",
    "os.spawn", "os.system", "pty.spawn",
}

def watch(event, arguments):
    if event in DENIED or (event == "open" and arguments[2] & WRITES):
        print("denied:", event, arguments[:2], file=sys.stderr)
        raise PermissionError(f"{event} {arguments}")

if IS_READ_ONLY:
    try:
        open("written", "w")
        sys.exit("the file system is writable")
    except OSError as error:
        assert error.errno == 30, error
sys.addaudithook(watch)
_posixsubprocess.fork_exec = lambda *_: watch("os.fork", _)  # multiprocessing raises no event
import numpy as np
from autotune import load, lookup
from autotune.devices.opencl import OpenclBackend

def compile(*_, **named):
    raise SystemExit("compiled")

OpenclBackend.compile = compile
twice = load("twice")
for n in (1000, 4000, 1000):
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    changed, _ = twice(x, y)
    assert (changed == 2 * x + 1).all()
print(twice.choice(n=1000).tuned.quality)
try:
    twice.choice(n=1002)
except Exception as error:
    print(type(error).__name__)
"""
#: Runs a command where the whole file system is read-only.
READ_ONLY = ["unshare", "-m", "sh", "-c"]
READ_ONLY += ['mount --make-rprivate / && mount -o remount,bind,ro / && exec "$@"', "sh"]


def can_mount() -> bool:
    """Return whether this machine allows a read-only mount: for root, in most containers not."""
    try:
        return subprocess.run([*READ_ONLY, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def frozen_program(folder: Path, is_read_only: bool) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("IS_READ_ONLY", str(is_read_only))
    return subprocess.run(
        [*(READ_ONLY if is_read_only else ()), sys.executable, "-B", "-c", program],
        cwd=folder,
        env={
            **os.environ,
            "AUTOTUNE_FROZEN": "1",
            "AUTOTUNE_CACHE_DIR": str(folder / "image"),
        },
        capture_output=True,
        text=True,
    )


def times_of(folder: Path) -> dict[Path, int]:
    """Return the time of the last change of each file and folder, which `os.utime` sets, too."""
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*")}


def test_a_frozen_program_writes_no_file_and_starts_no_process(
    record: Record, tmp_path: Path
) -> None:
    """With exported binaries it compiles nothing; also where all files are read-only, if that can be mounted."""
    record()
    empty = frozen_program(tmp_path, False)
    assert (empty.returncode, empty.stderr) == (1, "compiled\n")
    files = export_records("binaries", read_all(tmp_path / "tuned"))
    assert len(files) == len(BLOCKS) + 1  # and the default
    for name, data in files.items():
        (tmp_path / "image" / name).parent.mkdir(parents=True)
        (tmp_path / "image" / name).write_bytes(data)
    cached = times_of(tmp_path / "image")
    for is_read_only in [False, True][: 1 + can_mount()]:
        done = frozen_program(tmp_path, is_read_only)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "exact\nNoAnswerError\n"
    assert times_of(tmp_path / "image") == cached

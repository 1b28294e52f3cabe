"""A command ended from outside: one message, exit code 130, and nobody left behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from sample_spaces import write_space
from thinned import thinned

from autotune import __main__
from autotune.devices.choose import choose_device
from autotune.errors import KEPT, Interrupted
from autotune.kernel.catalog import load_file
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.store import RunState, Store
from autotune.tuned.reading import read
from autotune.values import Problem

ROOT = Path(__file__).parents[1]
SAXPY = str(ROOT / "examples" / "saxpy" / "spaces")


def _begun(*arguments: str) -> subprocess.Popen[str]:
    """Start a command as a terminal does: the first of a group of processes, with Ctrl-C on."""
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _session(leader: int) -> list[str]:
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(stat.parent.name)
    return found


def _await_handlers(pid: int) -> None:
    """Wait until the command has begun: before, a signal is Python's own affair."""
    ended = time.monotonic() + 60
    while time.monotonic() < ended:
        (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)
    pytest.fail("the command set no handlers")


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize(
    ("number", "seconds"),
    thinned([(signal.SIGINT, 0.5), (signal.SIGTERM, 1.5)], [(signal.SIGTERM, 1.5)]),
)
def test_two_signals_to_all_processes_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, seconds: float
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    process = _begun(
        "run", "saxpy", "--spaces", SAXPY, "--budget", "60s", "--device", "opencl:cpu",
        "--problem", "n=5003", "--out", str(tmp_path),
    )  # fmt: skip
    _await_handlers(process.pid)
    time.sleep(seconds)
    os.killpg(process.pid, number)
    begun = time.monotonic()
    time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), errors
    assert time.monotonic() - begun < 30  # two seconds on an idle machine; the budget is 60
    assert "Traceback" not in errors
    assert errors.count("interrupted") == 1
    deadline = time.monotonic() + 60
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _session(process.pid)
    with Store.open(tmp_path / "autotune" / "store.sqlite") as store:
        assert {run.ended for run in store.runs()} <= {"interrupted"}


class CutAtBegin(Store):
    """A store whose user presses Ctrl-C right after the first transaction, which adds the run."""

    is_cut = False

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with super().writing() as connection:
            yield connection
        if not self.is_cut:
            self.is_cut = True
            raise KeyboardInterrupt


class CutAtEnd(Store):
    """A store whose user presses Ctrl-C right before the end of a run is written."""

    def finish_run(self, run_id: int, state: RunState) -> None:
        if state == "done":
            raise KeyboardInterrupt
        super().finish_run(run_id, state)


@pytest.mark.opencl
@pytest.mark.parametrize("kind", [CutAtBegin, CutAtEnd])
def test_a_run_that_is_cut_short_at_its_start_or_end_counts_as_interrupted(
    tmp_path: Path, opencl_device: str, kind: type[Store]
) -> None:
    """A run without an end would count as killed."""
    kernel, device = load_file(write_space(tmp_path)), choose_device(opencl_device)
    request = Request(kernel, device, (Problem(n=1000),), goal=Search("exhaustive"))
    with kind.open(tmp_path / "store.sqlite") as store, closing(Run(request, store)) as run:
        with pytest.raises((Interrupted, KeyboardInterrupt)):  # the latter would end all tests
            run.run().require_complete()
        assert [past.ended for past in store.runs()] == ["interrupted"]


#: Ends a reference at its 16th call for n = 2003: fifteen are of the search and its bounds, the next of its finals.
ENDING = """\
if x.size == 2003:
        with open({file!r}, "a") as calls:
            calls.write("x")
            if calls.tell() == 4:
                {deed}
    return factor * x"""


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize(
    ("deed", "code", "told"),
    [
        (
            "os.kill(os.getpid(), signal.SIGINT); time.sleep(600)",
            130,
            f"scale: interrupted; {KEPT}",
        ),
        pytest.param(
            "raise ValueError('no more')",
            2,
            "scale (scale.py): reference: ValueError: no more",
            marks=pytest.mark.full,
        ),
    ],
    ids=["Ctrl-C", "error"],
)
def test_a_run_that_is_cut_short_publishes_what_it_had_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, code: int, told: str
) -> None:
    """Finals of 41 problems were lost once, and had to be held again."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    ending = ENDING.format(file=str(tmp_path / "calls"), deed=deed)
    space = write_space(
        tmp_path,
        ("import numpy", "import os, signal, time\n\nimport numpy"),
        ("return factor * x", ending),
    )

    def begun(*sizes: int) -> subprocess.Popen[str]:
        problems = [word for n in sizes for word in ("--problem", f"n={n}")]
        out = ("--out", str(tmp_path / "out"), "--device", "opencl:cpu", "--budget", "6evals")
        return _begun("run", str(space), *problems, *out)

    _, errors = begun(1000).communicate(timeout=120)
    (file,) = (tmp_path / "out").glob("*/scale.json")
    (before,) = read(file).problems
    process = begun(1000, 2003, 3001)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, ""), errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"error: {told}"), last
    assert last.endswith(f"; 1 of 3 problems are decided and in {file}"), last
    kept, decided = read(file).problems
    assert kept == before
    assert (decided.problem, decided.race.rounds > 0) == ({"n": 3001}, True)
    assert "3001" in file.with_suffix(".hpp").read_text()
    assert "3001" in file.with_suffix(".md").read_text()


def _shown(folder: Path, *lines: str) -> subprocess.Popen[str]:
    """Start to show a kernel whose space file begins with these lines."""
    space = write_space(folder, ("FACTOR = 3", "\n".join([*lines, "FACTOR = 3"])))
    return _begun("show", str(space), "--device", "sm_90")


def test_an_endless_loop_in_a_space_file_ends_by_ctrl_c(tmp_path: Path) -> None:
    process = _shown(tmp_path, f"open({str(tmp_path / 'begun')!r}, 'w')", "while True: pass")
    while process.poll() is None and not (tmp_path / "begun").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.strip() == "error: interrupted; all measurements are kept"


@pytest.mark.parametrize("where", ["in __del__", "in a weak reference's callback"])
def test_a_signal_whose_exception_is_dropped_still_ends_the_command(
    where: str,
) -> None:
    """A run on a GPU once went on for a minute after the SIGTERM of `timeout`."""
    code = """
import os, signal, sys, time, weakref
from autotune import cli

def end(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass

class Ending:
    if sys.argv[1] == "in __del__":
        __del__ = end

cli.listen()
ending = Ending()
reference = weakref.ref(ending, end if sys.argv[1] != "in __del__" else None)
try:
    del ending
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
    cli.stop_listening(signal.SIG_IGN)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, where],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_what_was_printed_is_written_before_an_interrupted_command_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at once, without Python's own ending, which writes what is buffered."""
    file = tmp_path / "printed"

    def end(code: int) -> None:
        assert file.read_text() == "kept"
        raise SystemExit(code)

    with io.TextIOWrapper(file.open("wb")) as stream:
        monkeypatch.setattr(__main__, "listen", lambda: None)
        monkeypatch.setattr(__main__, "stop_listening", lambda _: None)
        monkeypatch.setattr(__main__, "run", lambda _: stream.write("kept") and 130)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(os, "_exit", end)
        with pytest.raises(SystemExit, match="130"):
            __main__.main()

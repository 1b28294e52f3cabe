"""A command ended from outside: one message, exit code 130, and nobody left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.5, 1.5])
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
    time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), errors
    assert "Traceback" not in errors
    assert errors.count("interrupted") == 1
    deadline = time.monotonic() + 60
    while _session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _session(process.pid)

"""Frozen calls on a GPU: with exported binaries they write no file, start no process and compile nothing.

What needs no GPU is in tests/test_production.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import tune
from autotune.cli import run
from autotune.devices.choose import choose_device

pytestmark = pytest.mark.gpu

#: NVIDIA's packages start processes when they are imported or load a library (ldconfig), and CuPy looks for its
#: compiler at its first own kernel: the program does both before it is watched.
PROGRAM = """
import _posixsubprocess, os, sys
import cupy, numpy as np
from autotune.devices.nvrtc import include_options, nvrtc_version

include_options(), nvrtc_version()
host = np.arange(1 << 20, dtype=np.float32)
x, out = cupy.asarray(host) + 0, cupy.empty(1 << 20, cupy.float32)

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DENIED = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.chmod", "os.link", "os.symlink",
    "os.truncate", "sqlite3.connect", "tempfile.mkstemp", "tempfile.mkdtemp", "subprocess.Popen",
    "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.spawn", "os.system",
}

def watch(event, arguments):
    if event in DENIED or (event == "open" and arguments[2] & WRITES):
        print("denied:", event, arguments[:2], file=sys.stderr)
        raise PermissionError(f"{event} {arguments}")

sys.addaudithook(watch)
_posixsubprocess.fork_exec = lambda *_: watch("os.fork", _)  # multiprocessing raises no event
from autotune import load
from autotune.devices.cuda_backend import CudaBackend

def compile(*_, **named):
    raise SystemExit("compiled")

CudaBackend.compile = compile
copy = load("copy")
for _ in range(2):
    assert copy(x, out=out) is out
assert (cupy.asnumpy(out) == host).all()
assert (copy(host) == host).all()  # arrays of the host
print(copy.choice(x).tuned.quality)
# An array with gaps is copied by a kernel of CuPy, which stays in memory.
half = load("copy", frozen="nearest", config=copy.choice(x).configuration)(x[::2])
assert (cupy.asnumpy(half) == host[::2]).all()
try:
    copy(x[:4097])
except Exception as error:
    print(type(error).__name__)
"""


def test_a_frozen_program_writes_no_file_and_starts_no_process(cupy: Any, tmp_path: Path) -> None:
    problem = {"n": 1 << 20, "mode": "copy", "offset_in": 0, "offset_out": 0}
    tune("copy", problems=[problem], budget="5evals", out=tmp_path / "reports", quiet=True)
    export = ["export", "copy", "binaries", "--device", choose_device("cuda:0").name]
    export += ["--from", str(tmp_path / "reports")]
    assert run([*export, "--out", str(tmp_path / "image")]) == 0
    environ = {"AUTOTUNE_FROZEN": "1", "AUTOTUNE_CACHE_DIR": str(tmp_path / "image")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (logged,) = done.stderr.splitlines()
    assert logged.startswith("autotune: copy is pinned to ")
    assert done.stdout == "exact\nNoAnswerError\n"

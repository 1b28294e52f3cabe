"""A tuner killed again and again resumes: no row is lost, none is doubled."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPACES = ROOT / "examples" / "saxpy" / "spaces"
CONFIGURATIONS = 24
KILLS = 10


def _start(home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autotune", "run", "saxpy", "--spaces", str(SPACES)]
    command += ["--problem", "n=10007", "--strategy", "exhaustive", "--device", "opencl:cpu"]
    return subprocess.Popen(
        [*command, "--budget", "1000evals"],
        env={**os.environ, "XDG_DATA_HOME": str(home / "data"), "PYTHONPATH": str(ROOT)},
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def _rows(home: Path) -> Counter[str]:
    """Rows per configuration; empty while there is no store."""
    file = home / "data" / "autotune" / "store.sqlite"
    if not file.exists():
        return Counter()
    try:
        with closing(sqlite3.connect(file, timeout=10)) as database:
            rows = database.execute("select json_extract(measurement, '$.configuration') from measurements").fetchall()
    except sqlite3.OperationalError:  # being made right now
        return Counter()
    return Counter(configuration for (configuration,) in rows)


def _kill_at(home: Path, event: int) -> None:
    """Run until ``event`` rows are there, then SIGKILL the tuner."""
    process = _start(home)
    deadline = time.monotonic() + 120
    while _rows(home).total() < event:
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_tuner_killed_at_ten_points_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = 20261120
    points = sorted(random.Random(seed).sample(range(1, CONFIGURATIONS), KILLS))
    print(f"seed {seed}: killed after rows {points}")
    for event in points:
        before = _rows(tmp_path)
        _kill_at(tmp_path, event)
        after = _rows(tmp_path)
        assert before <= after, "a row was lost"
        assert set(after.values()) == {1}, "a row was doubled"
    process = _start(tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    finished = _rows(tmp_path)
    assert len(finished) == CONFIGURATIONS
    assert set(finished.values()) == {1}

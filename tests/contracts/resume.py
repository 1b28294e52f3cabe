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

ROOT = Path(__file__).parents[2]
SPACES = ROOT / "examples" / "saxpy" / "spaces"
CONFIGURATIONS = 24
KILLS = 10


def _start(home: Path, device: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autotune", "run", "saxpy", "--spaces", str(SPACES)]
    command += ["--problem", "n=10007", "--strategy", "exhaustive", "--device", device]
    return subprocess.Popen(
        [*command, "--budget", "1000evals"],
        env={
            **os.environ,
            "XDG_DATA_HOME": str(home / "data"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
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
            query = "select json_extract(measurement, '$.configuration') from measurements"
            rows = database.execute(query).fetchall()
    except sqlite3.OperationalError:  # being made right now
        return Counter()
    return Counter(configuration for (configuration,) in rows)


def _kill_at(home: Path, device: str, event: int) -> None:
    """Run until ``event`` rows are there, then SIGKILL the tuner."""
    process = _start(home, device)
    deadline = time.monotonic() + 120
    while _rows(home).total() < event:
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_ten_times_and_finish(home: Path, device: str) -> None:
    """Kill a run of every configuration after ten row counts, then let it finish."""
    seed = 20261120
    points = sorted(random.Random(seed).sample(range(1, CONFIGURATIONS), KILLS))
    print(f"seed {seed}: killed after rows {points}")
    for event in points:
        before = _rows(home)
        _kill_at(home, device, event)
        after = _rows(home)
        assert before <= after, "a row was lost"
        assert set(after.values()) == {1}, "a row was doubled"
    process = _start(home, device)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    finished = _rows(home)
    assert len(finished) == CONFIGURATIONS
    assert set(finished.values()) == {1}

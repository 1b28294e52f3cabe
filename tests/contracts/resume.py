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
#: Kills while the tuner starts, and when all is measured: in the finals.
STARTING, FINISHING = 3, 2


def start(home, device, *before):
    """Begin a search of every configuration; ``before`` is what runs the command."""
    command = [sys.executable, "-m", "autotune", "run", "saxpy", "--spaces", str(SPACES)]
    command += ["--problem", "n=10007", "--strategy", "exhaustive", "--device", device]
    return subprocess.Popen(
        [*before, *command, "--budget", "1000evals"],
        env={
            **os.environ,
            "XDG_DATA_HOME": str(home / "data"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(home, device):
    """Run to the end; rows per configuration."""
    _, errors = start(home, device).communicate(timeout=120)
    found = rows(home)
    assert len(found) == CONFIGURATIONS, errors.decode()
    return found


def rows(home):
    """Rows per configuration; empty while there is no store."""
    file = home / "data" / "autotune" / "store.sqlite"
    if not file.exists():
        return Counter()
    try:
        with closing(sqlite3.connect(file, timeout=10)) as database:
            # On a GPU whose limits nobody knows yet a run begins with those of other kernels.
            query = (
                "select json_extract(measurement, '$.configuration') from measurements "
                "join scopes on scopes.id = scope_id where kernel = 'saxpy'"
            )
            found = database.execute(query).fetchall()
    except sqlite3.OperationalError:  # being made right now
        return Counter()
    return Counter(configuration for (configuration,) in found)


def _moments(kills):
    """When to kill: after so many rows, and so many seconds more."""
    seed = 20261121
    draw = random.Random(seed)
    middle = kills - STARTING - FINISHING
    moments = [
        *((0, draw.uniform(0, 2)) for _ in range(STARTING)),
        *(
            (n, draw.uniform(0, 0.05))
            for n in sorted(draw.sample(range(1, CONFIGURATIONS), middle))
        ),
        *((CONFIGURATIONS, draw.uniform(0, 0.5)) for _ in range(FINISHING)),
    ]
    print(f"seed {seed}: killed so long after so many rows {moments}")
    return moments


def _kill_at(home, device, event, seconds):
    """Run until ``event`` rows are there and some time more, then SIGKILL the tuner."""
    process = start(home, device)
    deadline = time.monotonic() + 120
    while rows(home).total() < event:
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_and_finish(home, device, kills=20, every=1):
    """Kill a run of every configuration at the given number of moments; then let it finish."""
    for event, seconds in _moments(kills)[::every]:
        before = rows(home)
        _kill_at(home, device, event, seconds)
        after = rows(home)
        assert before <= after, "a row was lost"
        assert set(after.values()) <= {1}, "a row was doubled"
    assert set(finish(home, device).values()) == {1}

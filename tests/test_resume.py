"""A tuner that is killed, shut out of its store or short of disk resumes on the CPU device.

The same at the store's own level: tests/test_store.py. Kills: contracts/resume.py.
"""

import json
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from contracts.resume import CONFIGURATIONS, SPACES, finish, kill_and_finish, rows, start

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.errors import StoreError
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Status
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget, Measured, ignore
from autotune.store import Store
from autotune.store.access import WAITING
from autotune.values import Problem

pytestmark = pytest.mark.opencl


def test_a_tuner_killed_at_many_moments_loses_and_doubles_nothing(
    tmp_path, opencl_device, monkeypatch, capsys
):
    """And `autotune results --runs` tells how each of its runs ended."""
    kill_and_finish(tmp_path, opencl_device, kills=10)
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "data" / "autotune" / "store.sqlite"))
    capsys.readouterr()
    assert run(["results", "saxpy", "--runs", "--last", "30", "--json"]) == 0
    *killed, last = json.loads(capsys.readouterr().out)
    assert {found["ended"] for found in killed} == {"killed"}
    assert last["ended"] == "finished" and killed
    assert sum(found["rows"] for found in (*killed, last)) == CONFIGURATIONS


def test_two_tuners_on_one_store_at_once(tmp_path, opencl_device):
    both = [start(tmp_path, opencl_device) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    found = rows(tmp_path)
    assert len(found) == CONFIGURATIONS
    assert set(found.values()) <= {1, 2}
    with Store.open(tmp_path / "data" / "autotune" / "store.sqlite") as store:
        statuses = Counter(row.measurement.status for row in store.rows())
    assert set(statuses) <= {Status.OK, Status.STOPPED_EARLY}


def test_a_full_disk_ends_a_run_and_loses_nothing(tmp_path, opencl_device):
    """A limit on the size of files, which the store's journal reaches in the middle of the run."""
    limited = start(tmp_path, opencl_device, "bash", "-c", 'ulimit -f 400; exec "$@"', "bash")
    _, errors = limited.communicate(timeout=120)
    assert limited.returncode == 1
    assert "limit (ulimit -f) is reached" in errors.decode()
    assert "the same command resumes there" in errors.decode()
    kept = rows(tmp_path)
    assert 0 < len(kept) < CONFIGURATIONS
    finished = finish(tmp_path, opencl_device)
    assert kept <= finished and set(finished.values()) == {1}


def test_a_locked_store_ends_a_run_and_loses_what_waited(tmp_path, opencl_device):
    file = tmp_path / "s.sqlite"
    seen: list[Measured] = []
    with closing(sqlite3.connect(file, isolation_level=None)) as other:

        def lock(event):
            if isinstance(event, Measured):
                seen.append(event)
                if len(seen) == 5:
                    other.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError, match=r"another process has held its lock for 0\.5 s"):
            _tune(file, opencl_device, lock)
    with Store.open(file) as store:
        kept = [row.measurement.configuration for row in store.rows()]
    measured = [event.measurement.configuration for event in seen]
    assert kept == measured[: len(kept)]
    # Besides what waited, what was being written, and what the writer that was given up had taken.
    assert len(measured) - len(kept) <= 2 * WAITING
    _tune(file, opencl_device)
    with Store.open(file) as store:
        counts = Counter(row.measurement.configuration for row in store.rows())
    assert len(counts) == CONFIGURATIONS and set(counts.values()) == {1}


def _tune(file, device, listener=ignore):
    """Search every configuration of saxpy in this process, waiting half a second for locks."""
    request = Request(
        find_kernel("saxpy", SPACES),
        choose_device(device),
        (Problem(n=10007),),
        goal=Search("exhaustive"),
        budget=Budget(evaluations=1000),
    )
    with Store.open(file, wait_s=0.5) as store:
        tuning = Run(request, store, listener)
        try:
            tuning.run()
        finally:
            tuning.close()

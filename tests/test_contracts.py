"""The contracts of faults, launches at once and several devices on the CPU device; see contracts/."""

import json
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from contracts.devices import SeveralDevicesContract
from contracts.faults import FaultContract
from contracts.overlap import OverlapContract
from contracts.resume import CONFIGURATIONS, SPACES, finish, kill_and_finish, rows, start
from thinned import thinned

from autotune.cli import run
from autotune.devices.choose import backend, choose_device, choose_devices
from autotune.devices.device import Device
from autotune.errors import StoreError, UsageError
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Status
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget, Measured, ignore
from autotune.store import Store
from autotune.store.access import MAX_WAITING
from autotune.values import Problem


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestFaultsOnOpencl(FaultContract):
    selector = "opencl:cpu"
    timeout_s = 4.0  # all of which a hang takes


# ---------------------------------------------------------------------- Launches at once on the CPU device


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestLaunchesAtOnceOnOpencl(OverlapContract):
    selector = "opencl:cpu"


# ---------------------------------------------------------------------- Several devices in one run


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestSeveralOnOpencl(SeveralDevicesContract):
    selector = "opencl:cpu"


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestChoosing:
    def test_one_and_all(self):
        cpu = choose_device("opencl:cpu")
        assert choose_devices("opencl:cpu") == (cpu,)
        assert cpu in choose_devices("opencl:all")
        assert choose_devices(None) == (choose_device(None),)

    def test_a_device_named_twice(self):
        with pytest.raises(UsageError, match="named twice"):
            choose_devices("opencl:0,opencl:0")

    def test_an_unknown_one_among_several(self):
        with pytest.raises(UsageError, match="unknown device"):
            choose_devices("opencl:0,opencl:77")


def test_devices_of_different_models_are_named(monkeypatch):
    """Two cards of this machine would be needed for a real one; only their list is made up."""
    cards = tuple(
        Device("cuda", name, arch, uuid=f"GPU-{index}", index=index)
        for index, (name, arch) in enumerate(
            [("NVIDIA H100", "sm_90"), ("NVIDIA H100", "sm_90"), ("NVIDIA L4", "sm_89")]
        )
    )
    monkeypatch.setattr(type(backend("cuda")), "devices", lambda _: list(cards))
    assert choose_devices("cuda:0, cuda:1") == cards[:2]
    with pytest.raises(UsageError, match=r"cuda:0 is NVIDIA H100.*cuda:2 is NVIDIA L4"):
        choose_devices("cuda:all")


# ---------------------------------------------------------------------- A tuner that is


@pytest.mark.opencl
@pytest.mark.parametrize("every", thinned([5, 1], [5]))
def test_a_tuner_killed_at_many_moments_loses_and_doubles_nothing(
    tmp_path, opencl_device, monkeypatch, capsys, every
):
    """And `autotune results --runs` tells how each of its runs ended."""
    kill_and_finish(tmp_path, opencl_device, kills=10, every=every)
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "data" / "autotune" / "store.sqlite"))
    capsys.readouterr()
    assert run(["results", "saxpy", "--runs", "--last", "30", "--json"]) == 0
    *killed, last = json.loads(capsys.readouterr().out)
    assert {found["ended"] for found in killed} == {"killed"}
    assert last["ended"] == "finished" and killed
    assert sum(found["rows"] for found in (*killed, last)) == CONFIGURATIONS


@pytest.mark.full  # test_store has writers at once
@pytest.mark.opencl
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


@pytest.mark.full
@pytest.mark.opencl
def test_a_full_disk_ends_a_run_and_loses_nothing(tmp_path, opencl_device):
    """A limit on the size of files, which the store's journal reaches in the middle of the run."""
    first = tmp_path / "first"  # makes the inputs, which are larger
    first.mkdir()
    finish(first, opencl_device)
    limited = start(tmp_path, opencl_device, "bash", "-c", 'ulimit -f 100; exec "$@"', "bash")
    _, errors = limited.communicate(timeout=120)
    assert limited.returncode == 1
    assert "limit (ulimit -f) is reached" in errors.decode()
    assert "the same command resumes there" in errors.decode()
    kept = rows(tmp_path)
    assert 0 < len(kept) < CONFIGURATIONS
    finished = finish(tmp_path, opencl_device)
    assert kept <= finished and set(finished.values()) == {1}


@pytest.mark.opencl
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
    assert len(measured) - len(kept) <= 2 * MAX_WAITING
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

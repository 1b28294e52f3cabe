"""A fleet on this machine's CPU: two Dask workers, each with the device under a uuid of its own.

What is minimised is a metric of the configuration, so that who wins does not depend on times.
"""

import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sample_spaces import SOURCE, SPACE, changed
from thinned import thinned

from autotune import tune
from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError, FleetError, Interrupted
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Status
from autotune.report.content import from_run
from autotune.report.results import provenance
from autotune.run.request import Request, Search
from autotune.run.run import execute
from autotune.search.session import Budget, Phase
from autotune.store import Store, open_for_runs
from autotune.values import Configuration, Problem

distributed = pytest.importorskip("distributed")

from autotune.fleet import address, client  # noqa: E402
from autotune.fleet.client import Card, Fleet, Model  # noqa: E402
from autotune.fleet.site import drive  # noqa: E402
from autotune.fleet.worker import COMPILE, FleetPlugin, claim, run_task  # noqa: E402

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("opencl_device")]

BLOCKS = (32, 64, 128, 160, 256)
WINNER = 160
#: Blocks other than the winner take a hundred times as long.
SLOWED = f"""\
    unsigned z = n;
    for (int k = 0; BLOCK != {WINNER} && k < 5000; k++) z = z * 1664525u + 1013904223u;
    if (i < n) out[i] = z ? factor * x[i] : 0.0f;"""
#: A kernel's functions come with those of a module beside it, which no worker has.
BESIDE = "def covering(n, block):\n    return -(-n // block)\n"


@pytest.fixture(scope="module")
def spaces(tmp_path_factory):
    """Two kernels, in a folder that is not the project's."""
    folder = tmp_path_factory.mktemp("project") / "spaces"
    folder.mkdir()
    text = changed(
        SPACE,
        ("BLOCK=(32, 64),", f"BLOCK={BLOCKS},"),
        ("return ceil_div(p.n, c.BLOCK)", "return _beside.covering(p.n, c.BLOCK)"),
        ("from autotune import", "import _beside\nfrom autotune import"),
    )
    (folder / "_beside.py").write_text(BESIDE)
    (folder / "scale.py").write_text(text)
    source = changed(SOURCE, ("    if (i < n) out[i] = factor * x[i];", SLOWED))
    (folder / "scale.cu").write_text(source)
    (folder / "shrink.py").write_text(
        text.replace("scale", "shrink").replace("FACTOR = 3", "FACTOR = 0.5")
    )
    (folder / "shrink.cu").write_text(source.replace("scale", "shrink"))
    return folder


def card(number):
    """This machine's device as one of several."""
    device = choose_device("opencl:cpu")
    return FleetPlugin([replace(device, uuid=f"cpu-{number}")], compilers=1)


@pytest.fixture(scope="module")
def cluster():
    """Two workers, which a nanny starts again when they die."""
    address.quiet()
    workers = {
        number: {
            "cls": distributed.Nanny,
            "options": {"nthreads": 2, "plugins": (card(number),), "dashboard": False},
        }
        for number in range(2)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    with distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50) as made:
        yield made


@pytest.fixture
def fleet(cluster):
    with (
        address.connected(address.find(cluster.scheduler_address)) as reached,
        Fleet(reached) as found,
    ):
        reached.wait_for_workers(2, timeout=60)
        found.look()
        yield found


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of the test's own, where tuned records go too."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "autotune" / "store.sqlite"


def tuning(spaces, *kernels):
    command = ["run", *kernels, "--spaces", str(spaces), "--strategy", "exhaustive"]
    return [*command, "--budget", "100evals", "--out", "out", "--json"]


def rows(file):
    """How many there are of each kernel and configuration."""
    with Store.open(file) as store:
        return Counter((row.kernel, row.measurement.configuration) for row in store.rows())


def asked(*kernels):
    """One row of every configuration."""
    return Counter((name, Configuration(BLOCK=block)) for name in kernels for block in BLOCKS)


def winners(document):
    """Of each record's only problem."""
    records = document if isinstance(document, list) else [document]
    return [record["problems"][0]["plans"][0]["configuration"]["BLOCK"] for record in records]


def test_two_kernels_on_two_workers_have_the_only_right_winners(cluster, spaces, store, capsys):
    """Functions and modules travel; each configuration has one row. Each run has both cards."""
    assert run([*tuning(spaces, "scale", "shrink"), "--fleet", cluster.scheduler_address]) == 0
    document = json.loads(capsys.readouterr().out)
    assert winners(document) == [WINNER, WINNER]
    assert rows(store) == asked("scale", "shrink")
    for record in document:
        (entry,) = record["problems"]
        with Store.open(store) as kept:
            devices = {row.device_uuid for row in kept.rows() if row.kernel == record["kernel"]}
        assert entry["origin"]["device_uuid"] in devices <= {"cpu-0", "cpu-1"}


@pytest.mark.full
def test_each_card_of_a_fleet_searches_its_own_sizes(fleet, spaces, store, monkeypatch):
    """In client processes of their own, which connect to the same scheduler."""
    monkeypatch.setattr("autotune.run.run.usable_cores", lambda: 2)
    kernel, device = find_kernel("scale", spaces), fleet.usable()[0].device
    sizes = tuple(Problem(n=n) for n in (1000, 2000, 3000))
    request = Request(kernel, device, sizes, goal=Search("exhaustive"), budget=Budget())
    (done,) = drive(fleet, [request], executing(store))
    assert done.error is None
    assert [found.winner["BLOCK"] for found in done.result.problems] == [WINNER] * 3
    cards = [{row.device_uuid for row in found.measured} for found in done.result.problems]
    assert all(len(of_size) == 1 for of_size in cards)
    assert set().union(*cards) <= {"cpu-0", "cpu-1"}
    assert rows(store) == Counter(dict.fromkeys(asked("scale"), 3))


@pytest.mark.full
def test_a_fleet_checks_and_tunes_again_what_it_tuned(fleet, cluster, spaces, store, capsys):
    where = ["--fleet", cluster.scheduler_address, "--spaces", str(spaces), "--json"]
    tune("scale", spaces=spaces, strategy="exhaustive", budget="100evals", fleet=fleet.client)
    assert rows(store) == asked("scale")
    capsys.readouterr()
    # Beside other tests times are what they are; what is wrong would say so.
    assert run(["check-tuned", "scale", "--threshold", "1000000", *where]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in checked] == ["held", "verified"]  # the winner, the default
    assert run(["retune", "scale", "--budget", "100evals", *where]) == 0
    assert "scale" in capsys.readouterr().out
    with Store.open(store) as kept:
        assert {row.device_uuid for row in kept.rows()} <= {"cpu-0", "cpu-1"}


@pytest.mark.parametrize(
    "cards",
    [["cpu-1"], pytest.param(["cpu-0", "cpu-1"], marks=pytest.mark.full)],
    ids=["one", "all"],
)
def test_what_killed_workers_had_is_measured_by_others_or_once_they_are_back(
    fleet, spaces, store, cards
):
    """Both cards share a search; SIGKILL in the middle of it, of all: no card is left for seconds."""
    kernel, device = find_kernel("scale", spaces), fleet.usable()[0].device
    request = Request(
        kernel, device, kernel.problems["opencl"], goal=Search("exhaustive"), budget=Budget()
    )
    alive = [pid_of(fleet, uuid) for uuid in cards]

    def kill(event):
        while alive:
            os.kill(alive.pop(), signal.SIGKILL)

    (done,) = drive(fleet, [request], executing(store, kill))
    assert done.result is not None, done.error
    (problem,) = done.result.problems
    assert {row.status for row in problem.measured} <= {Status.OK, Status.STOPPED_EARLY}
    assert rows(store) == asked("scale")
    assert not alive and problem.result is not None


def executing(store, listener=lambda event: None):
    """Return a function for `drive` that runs a request and publishes nothing."""

    def execute_only(request, site):
        with open_for_runs(str(store)) as opened:
            return execute(request, opened, listener, site), None

    return execute_only


def pid_of(fleet, uuid):
    """Of the Dask worker that has a card."""
    (pid,) = fleet.client.run(os.getpid, workers=[fleet.cards[uuid].address]).values()
    return int(pid)


@pytest.mark.parametrize(
    ("processes", "count", "last"), thinned([(1, 2, 2), (2, 4, 3)], [(1, 2, 2)])
)
def test_an_interrupted_fleet_tells_what_its_runs_had_decided(
    fleet, spaces, store, monkeypatch, processes, count, last
):
    """Ctrl-C once the first of several problems is decided."""
    monkeypatch.setattr("autotune.run.run.usable_cores", lambda: processes)
    kernel, device = find_kernel("scale", spaces), fleet.usable()[0].device
    sizes, finals = tuple(Problem(n=1000 + size) for size in range(count)), []
    request = Request(kernel, device, sizes, budget=Budget(evaluations=2 * count))

    def interrupt(event):
        if isinstance(event, Phase) and event.name == "other inputs":
            finals.append(event.problem)
            if len(finals) == last:
                os.kill(os.getpid(), signal.SIGINT)
                while not fleet.is_stopped:
                    time.sleep(0.01)
                raise KeyboardInterrupt  # as whatever waits for a task of a fleet that is stopped

    decided = []
    with pytest.raises(Interrupted):
        for outcome in drive(fleet, [request], executing(store, interrupt)):
            decided.append(outcome.result)
    assert all(found.result is not None for found in decided[0].problems)
    assert 1 <= len(decided[0].problems) < last


@pytest.mark.full
def test_a_killed_client_goes_on_where_it_was(cluster, spaces, store, capsys):
    command = [*tuning(spaces, "shrink"), "--fleet", cluster.scheduler_address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(
        [sys.executable, "-m", "autotune", *command], env=environment, stdout=subprocess.DEVNULL
    )
    while not (store.exists() and rows(store)):
        assert started.poll() is None
        time.sleep(0.05)
    started.kill()
    started.wait()
    before = rows(store)
    assert run(command) == 0
    assert winners(json.loads(capsys.readouterr().out)) == [WINNER]
    assert rows(store) == asked("shrink") and before <= rows(store)


@contextmanager
def alone(folder):
    """A scheduler and a worker of their own, as commands: its address, and its process."""
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    file = folder / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    command += ["--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options = ["--no-nanny", "--no-dashboard", "--nthreads", "2"]
    options += ["--preload", "autotune.fleet.worker", "--device", "opencl:cpu", "--compilers", "1"]
    with subprocess.Popen(command, **quiet) as scheduler:
        try:
            while not (file.exists() and file.stat().st_size):  # Dask does not write it at once
                time.sleep(0.05)
            # By its address: options of a preload would be taken for that where it is a file's.
            where = address.find(str(file)).address
            worker = [sys.executable, "-m", "distributed.cli.dask_worker", where, *options]
            with subprocess.Popen(worker, env=own, **quiet) as working:
                try:
                    yield str(file), scheduler
                finally:
                    working.kill()
        finally:
            scheduler.kill()


def test_a_lost_scheduler_is_one_message_and_loses_nothing(
    cluster, spaces, store, tmp_path, capsys
):
    """Another fleet goes on; the worker here comes by command, with the preload."""
    with alone(tmp_path) as (file, scheduler):
        with address.connected(address.find(file)) as reached:
            reached.wait_for_workers(1, timeout=60)
        killer = threading.Thread(target=_kill_after_a_row, args=(store, scheduler))
        killer.start()
        code = run([*tuning(spaces, "scale"), "--fleet", file])
        killer.join()
    errors = capsys.readouterr().err
    assert code == 6 == FleetError.exit_code
    assert errors.count("error:") == 1
    assert "scheduler of the fleet was lost; all measurements are kept" in errors
    before = rows(store)
    assert before
    assert run([*tuning(spaces, "scale"), "--fleet", cluster.scheduler_address]) == 0
    assert before.keys() <= rows(store).keys() == asked("scale").keys()


def _kill_after_a_row(store, scheduler):
    while not (store.exists() and rows(store)):
        time.sleep(0.02)
    scheduler.kill()


# ---------------------------------------------------------------------- what is refused


def test_who_is_not_there(cluster, spaces, capsys):
    begun = time.monotonic()
    assert run([*tuning(spaces, "scale"), "--fleet", "tcp://127.0.0.1:9"]) == 6
    assert time.monotonic() - begun < 2 * address.CONNECT_TIMEOUT_S
    where = ["--fleet", cluster.scheduler_address]
    assert run([*tuning(spaces, "scale"), *where, "--device", "H100"]) == 2
    assert "unknown model of the fleet 'H100'" in capsys.readouterr().err
    assert run([*tuning(spaces, "scale"), *where, "--max-hours", "1e-9"]) == 1
    assert "not started, the time is up" in capsys.readouterr().err


def test_a_worker_refuses_a_client_of_another_version(fleet, monkeypatch):
    """And says both; a client leaves out a worker that announces another than its own."""
    other = "autotune 0.0.1 (sources 00000000) on Python 3.99"
    packed = pickle.dumps((abs, (-3,), {"timeout_s": 60}))
    answer = fleet.client.submit(run_task, other, COMPILE, packed, pure=False).result()
    assert isinstance(answer, AutotuneError)
    assert claim() in str(answer) and other in str(answer)
    monkeypatch.setattr(client, "claim", lambda: other)
    with pytest.raises(
        FleetError, match=r"has autotune .*, this client has autotune 0.0.1 .*3.99; install"
    ):
        Fleet(fleet.client)


def test_a_worker_with_a_full_disk_is_set_aside_and_the_other_goes_on(
    fleet, spaces, store, tmp_path
):
    """Its data sets cannot be written: a limit on the size of files, as a full disk would be."""
    kernel = find_kernel("scale", spaces)
    full = fleet.cards["cpu-0"]
    own = Problem(n=1 << 19)  # of which there are no data yet
    request = Request(kernel, full.device, (own,), goal=Search("exhaustive"), budget=Budget())
    elsewhere = str(tmp_path / "cache")
    fleet.client.run(_limit, 1 << 20, elsewhere, workers=[full.address])
    try:
        with pytest.warns(
            UserWarning, match="failed 3 times and gets no more tasks: .*cannot be written"
        ):
            (done,) = drive(fleet, [request], executing(store))
    finally:
        usual = os.environ["AUTOTUNE_CACHE_DIR"]
        fleet.client.run(_limit, resource.RLIM_INFINITY, usual, workers=[full.address])
    assert done.result is not None, done.error
    (problem,) = done.result.problems
    assert [row.device_uuid for row in problem.measured] == ["cpu-1"] * len(BLOCKS)
    assert fleet.usable() == [fleet.cards["cpu-1"]]
    record = done.result.record
    assert record is not None
    assert record.problems[0].origin.device_uuid == record.device.uuid == "cpu-1"
    page = from_run(done.result, record)
    assert [word for row in provenance(page).rows for word in row if "cpu-" in word] == ["cpu-1"]


def test_a_device_takes_one_task_at_a_time(fleet, cluster):
    found = fleet.client.run_on_scheduler(
        lambda dask_scheduler: [worker.resources for worker in dask_scheduler.workers.values()]
    )
    assert sorted(found, key=str) == [{COMPILE: 1, f"cpu-{number}": 1} for number in range(2)]


def test_a_card_of_another_model_takes_no_task_of_a_lost_one(fleet, monkeypatch):
    """Finals are on the model that the record is of."""
    lost = [fleet.cards[uuid] for uuid in ("cpu-0", "cpu-1")]
    other = Card(replace(lost[0].device, uuid="other", name="another model"), "elsewhere")
    monkeypatch.setitem(fleet.cards, "other", other)
    monkeypatch.setattr(fleet, "is_usable", lambda card: True)
    assert fleet.usable(Model.of(other.device)) == [other]
    gone = f"no {re.escape(lost[0].device.name)} of the fleet is left"
    with pytest.raises(AutotuneError, match=gone):
        fleet.measuring_place(Model.of(lost[0].device), "cpu-0", [card.address for card in lost])


def _limit(size, cache):
    """In the worker: no file may be larger, and what is kept is kept there."""
    os.environ["AUTOTUNE_CACHE_DIR"] = cache
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

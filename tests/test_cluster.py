"""`autotune fleet start`, `status`, `stop`: a cluster of real processes, its addresses, its certificates."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Scheduler

from autotune.cli import run
from autotune.errors import FleetError, UsageError
from autotune.fleet import address
from autotune.fleet.address import Endpoint, Tls, connected, find, refuse_open
from autotune.fleet.cluster import SlurmGroup, slurm_workers, ssh_workers

# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "open_", ["tcp://10.0.0.1:8786", "tcp://0.0.0.0:1", "tcp://[2001:db8::1]:8786"]
)
def test_an_open_scheduler_is_refused(open_: str) -> None:
    with pytest.raises(UsageError, match=r"runs code as you .* --insecure"):
        find(open_)
    assert find(open_, insecure=True).address == open_


@pytest.mark.parametrize(
    "closed",
    ["tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:8786", "tls://10.0.0.1:8786"],
)
def test_what_others_do_not_reach_or_get_into_is_not_refused(closed: str) -> None:
    refuse_open(closed, is_accepted=False)


@pytest.mark.parametrize(
    "text", ["tcp://host", "tcp://:8786", "http://127.0.0.1:8787", "tls//x:1", "://"]
)
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(UsageError, match=r"no address of a scheduler|no such scheduler file"):
        find(text, insecure=text.startswith("tcp://host"))


def test_a_scheduler_file_says_all_that_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    scheduler = Endpoint(
        "tcp://10.0.0.1:8786",
        Tls("/ca", "/cert", "/key"),
        is_open_accepted=True,
        host="login",
        asked=3,
    )
    scheduler.write(file)
    assert find(str(file)) == replace(scheduler, file=file)
    replace(scheduler, is_open_accepted=False).write(file)
    with pytest.raises(UsageError, match="--insecure"):
        find(str(file))
    file.write_text(
        json.dumps(
            {"type": "Scheduler", "address": "tcp://127.0.0.1:1", "workers": {}, "started": 1.5}
        )
    )
    assert find(str(file)) == Endpoint("tcp://127.0.0.1:1", file=file)  # Dask's own


def test_another_machines_loopback_is_not_ours(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"  # in a home that both have
    Endpoint("tcp://127.0.0.1:1", host="login7", process=1, started="today").write(file)
    with pytest.raises(
        UsageError, match=r"on login7, process 1\): of that machine alone; run this there"
    ):
        find(str(file))
    Endpoint("tls://192.0.2.1:1", host="login7").write(file)
    assert find(str(file)).host == "login7"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"address": 1}', '{"autotune": {"what": 1}}', "\xff"]
)
def test_a_damaged_scheduler_file_is_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"fleet\.json: not a scheduler file|no address of"):
        find(str(file))


def test_a_scheduler_file_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.json"
    Endpoint("tcp://127.0.0.1:1").write(file)
    file.chmod(0o666)
    with pytest.raises(UsageError, match=r"anybody may write it.*--trust"):
        find(str(file))
    monkeypatch.setenv("AUTOTUNE_TRUST", str(tmp_path))
    assert find(str(file)).file == file


# ---------------------------------------------------------------------- who answers, and with what certificate


@contextmanager
def scheduler(tls: Tls | None) -> Iterator[str]:
    """A scheduler in a thread of this process; yields its address."""
    loop, made = asyncio.new_event_loop(), []
    ended = asyncio.Event()

    async def serve() -> None:
        options: dict[str, Any] = {"security": tls.security()} if tls else {}
        protocol = "tls://" if tls else "tcp://"
        async with Scheduler(
            host="127.0.0.1", protocol=protocol, dashboard_address="127.0.0.1:0", **options
        ) as begun:
            made.append(begun.address)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        while not made and thread.is_alive():
            time.sleep(0.01)
        yield made[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, Tls]:
    """Files of two authorities that know nothing of each other."""
    return _files(tmp_path_factory.mktemp("ours")), _files(tmp_path_factory.mktemp("theirs"))


def _files(folder: Path) -> Tls:
    """As docs/fleet.md makes them."""
    page = (Path(__file__).parents[1] / "docs" / "fleet.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^openssl (?:.*\\\n)*.*$", page, re.MULTILINE)
    subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True)
    assert (folder / "fleet.key").stat().st_mode & 0o077 == 0
    return Tls(*(str(folder / name) for name in ("fleet.pem", "fleet.pem", "fleet.key")))


def test_a_wrong_certificate_is_one_message(certificates: tuple[Tls, Tls]) -> None:
    ours, theirs = certificates
    address.quiet()
    with scheduler(ours) as where:
        with connected(find(where, ours)) as client:
            assert client.scheduler_info()["workers"] == {}
        for wrong in (theirs, replace(theirs, ca=ours.ca), replace(ours, ca=theirs.ca)):
            with pytest.raises(
                UsageError, match=r"certificates do not match \([A-Z_0-9]+\); give the --tls-ca"
            ):
                connected(find(where, wrong)).__enter__()
        with pytest.raises(UsageError, match="needs the --tls-ca"):
            connected(find(where)).__enter__()


def test_a_scheduler_without_tls_is_told_from_one_with_it(certificates: tuple[Tls, Tls]) -> None:
    address.quiet()
    with (
        scheduler(None) as where,
        pytest.raises(UsageError, match="has no TLS; a scheduler without begins with tcp://"),
    ):
        connected(find(where.replace("tcp", "tls"), certificates[0])).__enter__()


def test_nobody_there_and_somebody_else_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(address, "CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        Endpoint(where, host=platform.node(), process=4, started="2026-11-22T12:00:00+00:00").write(
            tmp_path / "f.json"
        )
        with pytest.raises(
            FleetError,
            match=r"f\.json, started at 2026.*.*, process 4\): Connection refused; start",
        ):
            connected(find(str(tmp_path / "f.json"))).__enter__()
        bound.listen()
        with pytest.raises(FleetError, match=r"no scheduler answers there \(timed out\)"):
            connected(find(where)).__enter__()


@pytest.mark.parametrize("lacking", ["ca", "cert", "key"])
def test_files_of_tls_that_do_not_fit_are_said(lacking: str, certificates: tuple[Tls, Tls]) -> None:
    ours, theirs = certificates
    given = {name: getattr(ours, name) for name in ("ca", "cert", "key")}
    with pytest.raises(UsageError, match="all three"):
        Tls.given(**{**given, lacking: None})
    with pytest.raises(UsageError, match="not usable for TLS: No such file"):
        replace(ours, **{lacking: given[lacking] + ".gone"}).security()
    with pytest.raises(UsageError, match="KEY_VALUES_MISMATCH"):
        replace(ours, key=theirs.key).security()


# ---------------------------------------------------------------------- Slurm and ssh


def script(group: str, name: str, tls: Tls | None = None) -> str:
    job = slurm_workers([SlurmGroup.parse(group)], "/opt/my python", tls)[name]
    made = job["cls"]("tls://login:8786", name=name, **job["options"])
    return str(made.job_script())


def test_a_job_asks_for_one_gpu_of_its_architecture() -> None:
    text = script("partition=gpu, arch=sm_90:4, arch=sm_80:8, time=02:00:00, cores=6", "sm_80-7")
    directives = [
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")
    ]
    assert {"--gres=gpu:1", "--constraint=sm_80", "--partition=gpu", "--time=02:00:00"} < set(
        directives
    )
    assert "--cpus-per-task=6" in directives
    assert not [
        line for line in directives if line.startswith(("--mem", "-t "))
    ]  # as the partition has it
    command = text.splitlines()[-1]
    assert command.startswith(
        "'/opt/my python' -m distributed.cli.dask_worker tls://login:8786 --name sm_80-7"
    )
    assert command.endswith(
        "--nthreads 6 --memory-limit 0 --preload autotune.fleet.worker --compilers 5"
    )


def test_a_job_that_compiles_asks_for_no_gpu(certificates: tuple[Tls, Tls]) -> None:
    text = script(
        "arch=sm_90, gres=gpu:h100:1, compilers=2, cores=32, account=me",
        "compile-1",
        certificates[0],
    )
    assert "gpu:" not in text and "--constraint" not in text and "--account=me" in text
    assert f"--tls-key {certificates[0].key}" in text  # the path: a key is in no script
    assert "PRIVATE KEY" not in text
    assert "--device none --compilers 32" in text


@pytest.mark.parametrize(
    ("group", "why"),
    [
        ("partition", "expected NAME=VALUE"),
        ("partition=", "expected NAME=VALUE"),
        ("Partition=gpu", "expected NAME=VALUE"),
        ("arch=sm_90:0", "at least 1"),
        ("arch=sm_90:many", "at least 1"),
        ("arch=sm_91:1", "unknown architecture"),
        ("partition=gpu", "asks for no worker"),
        ("partition=gpu, partition=cpu, compilers=1", "given twice"),
        ("compilers=1, cores=0", "at least 1"),
    ],
)
def test_what_slurm_cannot_be_asked_is_said(group: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        SlurmGroup.parse(group)


def test_groups_of_slurm_do_not_take_each_others_names() -> None:
    groups = [
        SlurmGroup.parse("arch=sm_90:2, partition=a"),
        SlurmGroup.parse("arch=sm_90:1, partition=b"),
    ]
    assert list(slurm_workers(groups, "python", None)) == ["sm_90-0", "sm_90-1", "sm_90-0-1"]


@pytest.mark.parametrize("hosts", [["a", "b", "a"], ["a", ""]])
def test_a_host_is_named_once(hosts: list[str]) -> None:
    with pytest.raises(UsageError, match="each host once"):
        ssh_workers(hosts, "python")


# ---------------------------------------------------------------------- a cluster


#: Found by every Python that is started: the clocks of Dask's workers are a day ahead.
CLOCK = """
import sys, time
if any("spawn_main" in word for word in sys.orig_argv):
    real = time.time
    time.time = lambda: real() + 86400
"""


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_fleet_is_started_shown_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user does it; with a worker whose clock is a day off, and a store's password in the environment."""
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setenv("AUTOTUNE_STORE", "postgresql://me:secret@db/results")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("DASK_LOGGING__DISTRIBUTED", "warning")  # which a start sets
    command = [sys.executable, "-m", "autotune", "fleet", "start", "--local", "--detach"]
    options = ["--device", "opencl:cpu", "--compilers", "0"]
    begun = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert begun.returncode == 0, begun.stderr
    scheduler = find(None)
    try:
        assert f"{scheduler.address}, 1 worker; scheduler file: {tmp_path}" in begun.stdout
        for child in psutil.Process(scheduler.process).children(recursive=True):
            assert "secret" not in str(child.environ())
        assert run(["fleet", "start", "--local", *options]) == 2
        assert "a fleet runs here already" in capsys.readouterr().err
        elsewhere = [
            "--file",
            str(tmp_path / "2.json"),
            "--port",
            scheduler.address.rpartition(":")[2],
        ]
        assert run(["fleet", "start", "--local", *options, *elsewhere]) == 2
        assert re.search(r"--port \d+: taken on 127\.0\.0\.1", capsys.readouterr().err)

        with connected(scheduler) as client:
            (clock_s,) = client.run(time.time).values()
        assert clock_s > time.time() + 80_000
        assert run(["fleet", "status", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        (worker,) = said["workers"]
        (device,) = worker["devices"]
        assert (said["asked"], worker["name"], device["backend"]) == (1, "opencl:0", "opencl")
        assert (device["doing"], device["measured"], device["measured_per_busy_s"]) == ("", 0, None)
        assert run(["fleet", "status"]) == 0
        shown = capsys.readouterr().out
        assert "1 of 1 worker" in shown and "waits" in shown
    finally:
        assert run(["fleet", "stop"]) == 0
    assert capsys.readouterr().out.endswith("stopped\n")
    assert run(["fleet", "status"]) == 2
    assert "no such scheduler file; run: autotune fleet start" in capsys.readouterr().err


# ---------------------------------------------------------------------- a Slurm of one node

SLURM_CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 Gres=gpu:2 Features=sm_90
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm with one node, which has two GPUs that are none; as root, with Debian's packages."""
    if not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))) or os.geteuid():
        pytest.skip("needs root, and: apt-get install slurmctld slurmd slurm-client munge")
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        conf = folder / "slurm.conf"
        conf.write_text(SLURM_CONF.format(host=socket.gethostname().split(".")[0], folder=folder))
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        monkeypatch.setenv("SLURM_CONF", str(conf))
        munge = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        for daemon in (
            ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
            ["slurmctld", "-D", "-f", str(conf)],
            ["slurmd", "-D", "-f", str(conf)],
        ):
            process = stack.enter_context(subprocess.Popen(daemon, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            time.sleep(0.5)
        yield


@pytest.mark.slurm
def test_jobs_of_slurm_are_workers(
    slurm: None,
    tmp_path: Path,
    certificates: tuple[Tls, Tls],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Submitted, connected with TLS, started again where one is cancelled, and cancelled with the fleet."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    tls = [
        word
        for name in ("ca", "cert", "key")
        for word in (f"--tls-{name}", getattr(certificates[0], name))
    ]
    command = [sys.executable, "-m", "autotune", "fleet", "start", "--detach", *tls, "--slurm"]
    refused = subprocess.run([*command, "partition=no, arch=sm_90"], capture_output=True, text=True)
    assert refused.returncode == 6
    assert "could not be started: sbatch: error: invalid partition specified: no" in refused.stderr
    group = "partition=gpu, arch=sm_90:2, compilers=1, cores=1"
    begun = subprocess.run([*command, group], capture_output=True, text=True)
    assert begun.returncode == 0, begun.stderr

    def workers() -> set[str]:
        assert run(["fleet", "status", "--json"]) == 0
        return {worker["name"] for worker in json.loads(capsys.readouterr().out)["workers"]}

    def jobs() -> list[str]:
        return subprocess.check_output(["squeue", "-h", "-o", "%i"], text=True).split()

    everybody = {"sm_90-0", "sm_90-1", "compile-0"}
    try:
        _wait(lambda: workers() == everybody)
        cancelled, *others = jobs()
        subprocess.run(["scancel", cancelled], check=True)
        _wait(lambda: workers() != everybody)
        _wait(lambda: workers() == everybody)
        assert set(others) < set(jobs()) and cancelled not in jobs()
    finally:
        assert run(["fleet", "stop"]) == 0
    _wait(lambda: not jobs())


def _wait(is_done: Callable[[], bool]) -> None:
    for _ in range(300):
        if is_done():
            return
        time.sleep(0.5)
    pytest.fail("it did not happen")

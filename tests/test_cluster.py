"""A fleet's address and certificates, and `autotune fleet`, with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
import yaml
from distributed import Scheduler, Security
from sample_spaces import write_space

from autotune.cli import run
from autotune.errors import FleetError, UsageError
from autotune.fleet import address
from autotune.fleet.address import Endpoint, connected, find, refuse_open, write

PAGE = (Path(__file__).parents[1] / "docs" / "fleet.md").read_text(encoding="utf-8")

# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "open_", ["tcp://10.0.0.1:8786", "tcp://0.0.0.0:1", "tcp://[2001:db8::1]:8786"]
)
def test_an_open_scheduler_is_refused(open_, tmp_path):
    with pytest.raises(UsageError, match="run code as you"):
        find(open_)
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"address": open_}))
    with pytest.raises(UsageError, match="run code as you"):
        find(str(file))


@pytest.mark.parametrize(
    "closed",
    ["tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:8786", "tls://10.0.0.1:8786"],
)
def test_a_scheduler_of_this_machine_or_with_tls_is_not_refused(closed):
    refuse_open(closed)


@pytest.mark.parametrize(
    "text", ["tcp://host", "tcp://:8786", "http://127.0.0.1:8787", "tls//x:1", "://"]
)
def test_a_wrong_address_is_named(text):
    with pytest.raises(UsageError, match=r"not the address of a scheduler|no such scheduler file"):
        find(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": 1}', "\xff"])
def test_a_damaged_scheduler_file_is_named(text, tmp_path):
    file = tmp_path / "fleet.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"fleet\.json: not a scheduler file|not the address of"):
        find(str(file))


def test_a_scheduler_file_that_others_may_write_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"type": "Scheduler", "address": "tcp://127.0.0.1:1"}))
    file.chmod(0o666)
    with pytest.raises(UsageError, match=r"all users may write it.*AUTOTUNE_TRUST="):
        find(str(file))
    monkeypatch.setenv("AUTOTUNE_TRUST", str(tmp_path))
    assert find(str(file)) == Endpoint("tcp://127.0.0.1:1")


def test_a_key_that_others_may_read_is_refused(tmp_path):
    file, given = tmp_path / "fleet.json", Endpoint("tls://127.0.0.1:1", "ca", "certificate", "key")
    write(file, given)
    assert file.stat().st_mode & 0o777 == 0o600
    assert find(str(file)) == given
    file.chmod(0o640)
    with pytest.raises(
        UsageError, match=r"other users can read it.*chmod 600 .*start the fleet again"
    ):
        find(str(file))


# ---------------------------------------------------------------------- certificates


@contextmanager
def scheduler(security, protocol="tls://"):
    """A scheduler in a thread of this process; yields its address."""
    loop, made = asyncio.new_event_loop(), []
    ended = asyncio.Event()

    async def serve():
        async with Scheduler(
            host="127.0.0.1", protocol=protocol, dashboard=False, security=security
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
def certificates(tmp_path_factory):
    """Folders with the files of two authorities that know nothing of each other."""
    folders = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    (command,) = re.findall(r"^openssl (?:.*\\\n)*.*$", PAGE, re.MULTILINE)
    for folder in folders:
        subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True)
        assert (folder / "fleet.key").stat().st_mode & 0o077 == 0
    return folders


def configured(folder):
    """Dask's configuration of docs/fleet.md, with files of a folder."""
    (text,) = re.findall(r"^```yaml\n(distributed:\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text).replace("/home/me/fleet", str(folder))


def tls(folder):
    """The same, as `dask.config.set` adds it to what is there."""

    def leaves(at, value):
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from leaves(f"{at}.{name}" if at else name, inner)
        else:
            yield at, value

    return dict(leaves("", yaml.safe_load(configured(folder))))


def test_a_client_without_the_certificate_is_one_message(certificates):
    ours, theirs = certificates
    address.quiet()
    shown = {name: file for name, file in tls(theirs).items() if "client" in name}
    with dask.config.set(tls(ours)):
        security = Security()
    with scheduler(security) as where:
        with dask.config.set(tls(ours)), connected(find(where)) as client:
            assert client.scheduler_info()["workers"] == {}
        for wrong in (tls(theirs), {}, tls(ours / "gone")):
            with dask.config.set(wrong), pytest.raises(UsageError, match=r"TLS connection failed"):
                connected(find(where)).__enter__()
        # It accepts the scheduler, which does not accept it.
        with (
            dask.config.set({**tls(ours), **shown}),
            pytest.raises(
                (UsageError, FleetError), match=r"TLS connection failed|no scheduler answers"
            ),
        ):
            connected(find(where)).__enter__()


def test_a_client_passes_its_own_certificate_on(tmp_path):
    """To the tuners' processes; nobody else has it."""
    address.quiet()
    security = Security.temporary()
    with scheduler(security) as where:
        file = tmp_path / "fleet.json"
        pem = (security.tls_ca_file, security.tls_client_cert, security.tls_client_key)
        write(file, Endpoint(where, *pem))
        with connected(find(str(file))) as client:
            passed = pickle.loads(pickle.dumps(Endpoint.of(client)))
        assert passed == find(str(file)) and "PRIVATE KEY" in passed.key
        assert "PRIVATE KEY" not in repr(passed)
        with connected(passed) as client:
            assert client.scheduler_info()["workers"] == {}
        with pytest.raises(UsageError, match="name the scheduler file that autotune fleet wrote"):
            connected(find(where)).__enter__()


# ---------------------------------------------------------------------- a fleet of this machine


@contextmanager
def started(folder, monkeypatch, *options):
    """The command `autotune fleet` with a store's password in its environment; its process and first line."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    own = {**os.environ, "AUTOTUNE_STORE": "postgresql://me:secret@db/results"}
    command = [sys.executable, "-m", "autotune", "fleet", "--device", "opencl:cpu", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=own, **pipes) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_fleet_is_started_shown_and_ended_by_ctrl_c(tmp_path, monkeypatch, capsys):
    """As a user does it; other users do not have the key."""
    with started(tmp_path, monkeypatch, "--compilers", "0") as (process, line):
        found = re.match(r"fleet: (tls://127\.0\.0\.1:\d+), 1 worker\n", line)
        assert found
        for child in psutil.Process(process.pid).children(recursive=True):
            known = f"{child.environ()} {child.cmdline()}"
            assert "secret" not in known and "PRIVATE KEY" not in known
        assert run(["fleet", "--device", "opencl:cpu"]) == 2
        assert "a fleet already runs here" in capsys.readouterr().err
        run(["doctor"])
        assert re.search(
            r"fleet: opencl:0: .* \(opencl_cpu\), 0 compilers", capsys.readouterr().out
        )
        with pytest.raises(UsageError, match="TLS connection failed"):
            connected(find(found[1])).__enter__()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not (tmp_path / "autotune" / "fleet.json").exists()


@pytest.mark.full
@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_the_command_that_a_fleet_prints_works_as_it_stands(tmp_path, monkeypatch):
    folder = tmp_path / "with a blank"
    folder.mkdir()
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    with started(folder, monkeypatch, "--compilers", "1") as (process, _):
        hint = next(line for line in process.stderr if line.startswith("to use it: autotune "))
        words = shlex.split(hint.removeprefix("to use it: autotune ").replace("KERNEL", "scale"))
        assert run([*words, "--budget", "2evals", "--out", "out"]) == 0


@pytest.mark.full
@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_fleet_has_the_certificates_of_dasks_configuration(tmp_path, certificates, monkeypatch):
    (tmp_path / "fleet.yaml").write_text(configured(certificates[0]))
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path))
    with started(tmp_path, monkeypatch, "--compilers", "0") as (_, line):
        where = line.split()[1].strip(",")
        with dask.config.set(tls(certificates[0])), connected(find(where)) as client:
            assert len(client.scheduler_info()["workers"]) == 1
        with connected(find(str(tmp_path / "autotune" / "fleet.json"))) as client:
            assert len(client.scheduler_info()["workers"]) == 1


@pytest.mark.full
@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_fleet_without_a_certificate_warns(tmp_path, monkeypatch, capsys):
    with started(tmp_path, monkeypatch, "--compilers", "0", "--no-tls") as (process, line):
        assert line.startswith("fleet: tcp://127.0.0.1:")
        run(["doctor"])
        assert address.OPEN in capsys.readouterr().out
        process.send_signal(signal.SIGINT)
        assert address.OPEN in process.stderr.readline()


def test_jobs_of_slurm_load_what_a_worker_needs(certificates, monkeypatch):
    """The snippet of docs/fleet.md, as far as the script of a job."""
    pattern = r"^(from dask\.distributed import Security\n.*?)^cluster\.scale"
    (snippet,) = re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL)
    options = '{"dashboard": False, "host": "127.0.0.1"}'
    names: dict[str, Any] = {}
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(signal, "signal", lambda *_: before)  # which importing dask_jobqueue calls
    with dask.config.set(tls(certificates[0])):
        exec(snippet.replace('{"scheduler_file": "fleet.json"}', options), names)
        cluster = names["cluster"]
        script = cluster.job_script()
        cluster.close()
    assert "#SBATCH --gres=gpu:1" in script
    assert f"--tls-key {certificates[0]}/fleet.key" in script  # the path: a key is in no script
    assert "PRIVATE KEY" not in script
    assert "--preload autotune.fleet.worker --compilers 7" in script

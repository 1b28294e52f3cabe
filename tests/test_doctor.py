"""The doctor: what it says of this machine, and of machines that are ill in known ways."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest

from autotune.devices.device import Power
from autotune.devices.nvml import power_of
from autotune.doctor import Finding, State, checks, findings, hardware
from autotune.doctor.hardware import Nvidia
from autotune.errors import install

NO_GPU = Nvidia(fault="NVMLError_LibraryNotFound")


def nvml(**answers: Any) -> ModuleType:
    """A NVML with one GPU in good health, but for what is said."""
    healthy = {
        "Init": None,
        "SystemGetCudaDriverVersion": 13000,
        "SystemGetDriverVersion": "580.159.04",
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "handle",
        "DeviceGetName": "NVIDIA H100 80GB HBM3",
        "DeviceGetClockInfo": 1980,
        "DeviceGetTemperature": 40,
        "DeviceGetCurrentClocksEventReasons": 1,
        "DeviceGetComputeMode": 0,
        "DeviceGetComputeRunningProcesses": [],
        "DeviceGetUtilizationRates": SimpleNamespace(gpu=0),
    }
    module = ModuleType("pynvml")
    module.NVML_CLOCK_SM, module.NVML_TEMPERATURE_GPU = 1, 0
    module.NVML_COMPUTEMODE_PROHIBITED = 2

    def answering(value: Any) -> Callable[..., Any]:
        def answer(*_: object) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    for name, value in {**healthy, **answers}.items():
        setattr(module, f"nvml{name}", answering(value))
    return module


def seen(monkeypatch: pytest.MonkeyPatch, root: Path = Path("/"), **answers: Any) -> Nvidia:
    """What is seen of a machine with that NVML."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    return hardware.look(root)


def by_topic(found: list[Finding]) -> dict[str, Finding]:
    return {finding.topic: finding for finding in found}


def installed(**versions: str) -> Callable[[str], str]:
    """Versions where these are the only distributions; ``_`` stands for ``-``."""
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    return lambda name: known.get(name, "")


def checked(topic: str) -> list[Finding]:
    """The findings of one check."""
    return findings([check for check in checks.CHECKS if check[0] == topic])


def error_named(name: str) -> Exception:
    made: Exception = type(name, (Exception,), {})()
    return made


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings()
    assert {"python", "driver", "store", "cache"} <= {finding.topic for finding in found}
    assert all(finding.state in get_args(State) and finding.text for finding in found)
    assert [finding for finding in found if finding.state != "ok" and not finding.remedy] == []
    assert capsys.readouterr() == ("", "")


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from autotune.doctor import findings; findings(); "
        "print([m for m in ('cupy', 'torch', 'kernel_tuner', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_packages_have_their_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [found.state for found in checks.packages(NO_GPU)] == ["ok", "ok"]
    monkeypatch.setenv("AUTOTUNE_STORE", "postgresql://host/results")
    _, tune, postgres = checks.packages(NO_GPU, lambda name: name not in ("optuna", "psycopg"))
    assert (tune.state, tune.text, tune.remedy) == ("bad", "missing: optuna", install("tune"))
    assert (postgres.state, postgres.remedy) == ("bad", install("postgres"))


def test_without_pynvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    (found,) = checks.driver(hardware.look(tmp_path))
    assert (found.state, found.remedy) == ("bad", install("tune"))


def test_a_healthy_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = seen(monkeypatch)
    found = [*checks.driver(healthy), *checks.gpus(healthy)]
    assert {finding.state for finding in found} == {"ok"}
    assert "H100" in found[0].text and "CUDA 13.0" in found[0].text


@pytest.mark.parametrize(
    ("program", "admins", "user", "state", "remedy"),
    [
        ("", 1, 1000, "absent", "apt-get install cuda-nsight-compute-13-0"),
        ("/usr/bin/ncu", 1, 1000, "warn", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("/usr/bin/ncu", 1, 0, "ok", ""),
        ("/usr/bin/ncu", 0, 1000, "ok", ""),
    ],
)
def test_counters(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: str,
    admins: int,
    user: int,
    state: str,
    remedy: str,
) -> None:
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    params = tmp_path / "proc" / "driver" / "nvidia" / "params"
    params.write_text(f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {admins}\n")
    monkeypatch.setattr("autotune.measure.profile.profiler", lambda: program)
    monkeypatch.setattr("os.geteuid", lambda: user)
    (found,) = checks.counters(replace(seen(monkeypatch), root=tmp_path))
    assert found.state == state and remedy in found.remedy
    assert list(checks.counters(NO_GPU)) == []


def test_a_driver_older_than_cuda_12() -> None:
    old = Nvidia(present=True, driver="470.1", cuda=(11, 4), gpus=(("T4", None),))
    (found,) = checks.driver(old)
    assert found.state == "bad" and "apt-get install nvidia-driver" in found.remedy


@pytest.mark.parametrize(
    ("answers", "remedy"),
    [
        ({"DeviceGetCurrentClocksEventReasons": 0x44}, "PERFORMANCE"),
        ({"DeviceGetComputeMode": 2}, "-c DEFAULT"),
        ({"DeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1)]}, "kill 1"),
        ({"DeviceGetUtilizationRates": SimpleNamespace(gpu=90)}, "pmon"),
    ],
)
def test_an_ill_gpu(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], remedy: str) -> None:
    (found,) = checks.gpus(seen(monkeypatch, **answers))
    assert found.topic == "gpu 0" and found.state != "ok" and remedy in found.remedy


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("NVMLError_LibRmVersionMismatch", "sudo reboot"),
        ("NVMLError_DriverNotLoaded", "sudo modprobe nvidia"),
        ("NVMLError_LibraryNotFound", "sudo apt-get install"),
    ],
)
def test_a_driver_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, remedy: str
) -> None:
    (absent,) = checks.driver(seen(monkeypatch, tmp_path, Init=error_named(fault)))
    assert absent.state == "ok" and "no NVIDIA GPU" in absent.text
    gpu = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    (found,) = checks.driver(seen(monkeypatch, tmp_path, Init=error_named(fault)))
    assert found.state == "bad" and fault in found.text
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("wheels", "state", "remedy"),
    [
        ({}, "bad", install("cuda12")),
        ({"cupy_cuda12x": "14.2"}, "ok", ""),
        (
            {"cupy_cuda13x": "14.2"},
            "bad",
            f"pip uninstall -y cupy-cuda13x && {install('cuda12')}",
        ),
        (
            {"cupy_cuda13x": "14.2", "cupy_cuda12x": "14.2"},
            "bad",
            f"pip uninstall -y cupy-cuda13x cupy-cuda12x && {install('cuda12')}",
        ),
    ],
)
def test_cupy_against_the_driver(wheels: dict[str, str], state: str, remedy: str) -> None:
    old = Nvidia(present=True, driver="535.1", cuda=(12, 2))
    (found,) = checks.cupy(old, installed(**wheels))
    assert (found.state, found.remedy) == (state, remedy)


def test_device_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidia0").touch(mode=0o600)
    (dev / "nvidiactl").touch()
    here = Nvidia(present=True, gpus=(("H100", None),), root=tmp_path)
    (missing,) = checks.permissions(here)
    assert missing.state == "bad" and "nvidia-modprobe" in missing.remedy
    (dev / "nvidia-uvm").touch()
    assert not list(checks.permissions(here))
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "nvidia0")
    (closed,) = checks.permissions(here)
    assert closed.state == "bad" and closed.remedy == f"sudo chmod a+rw {dev / 'nvidia0'}"


def test_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "store.sqlite"
    monkeypatch.setenv("AUTOTUNE_STORE", str(file))
    (fresh,) = checked("store")
    assert fresh.state == "ok" and not file.parent.exists()
    file.parent.mkdir()
    file.write_bytes(b"this is no database" * 1000)
    (damaged,) = checked("store")
    assert damaged.state == "bad" and damaged.remedy.startswith("export AUTOTUNE_STORE=")


def test_a_store_that_does_not_answer_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("AUTOTUNE_STORE", "postgresql://me:hunter2@127.0.0.1:1/results")
    (found,) = checked("store")
    assert found.state == "bad" and "hunter2" not in found.text


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "file"))
    found = by_topic(findings())
    assert found["cache"].state == "bad"
    assert found["cache"].remedy.startswith("export AUTOTUNE_CACHE_DIR=")


def test_spaces_that_anybody_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path))
    file = tmp_path / "mine.py"
    file.touch()
    (fine,) = checks.spaces(NO_GPU)
    assert fine.state == "ok"
    for place in (tmp_path, file):
        before = place.stat().st_mode
        place.chmod(before | stat.S_IWOTH)
        (found,) = checks.spaces(NO_GPU)
        assert (found.state, found.remedy) == ("bad", f"chmod go-w {place}")
        place.chmod(before)


def test_a_check_that_fails_is_a_finding() -> None:
    def broken(_: Nvidia) -> Iterator[Finding]:
        raise RuntimeError("first\nsecond")

    first, *others = findings([("topic", broken, "remedy"), *checks.CHECKS[:1]])
    assert (first.state, first.remedy) == ("bad", "remedy")
    assert "RuntimeError: first" in first.text and "second" not in first.text
    assert [finding.topic for finding in others] == ["python", "packages [tune]"]


def test_the_power_of_a_gpu_is_in_watts(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml(DeviceGetPowerUsage=65_400)
    monkeypatch.setattr("autotune.devices.nvml._nvml", lambda: library)
    monkeypatch.setattr("autotune.devices.nvml._handle", lambda uuid: uuid)
    assert power_of("uuid") == Power(65.4, None)
    library.nvmlDeviceGetEnforcedPowerLimit = lambda _: 700_000
    assert power_of("uuid") == Power(65.4, 700.0)

"""Check this machine, in the order in which to fix problems. Imports no CuPy and no search libraries."""

from __future__ import annotations

import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version as metadata_version
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import Any, TypeAlias

from autotune import __version__
from autotune.devices.nvml import clocks
from autotune.doctor.hardware import OLDEST_DRIVER, Finding, Nvidia, look, number, tried
from autotune.errors import EXTRAS, MissingDependencyError, StoreError, install
from autotune.files import cache_folder
from autotune.fleet.address import local_fleet
from autotune.kernel.modules import TRUST, ForeignPlace, fault_of

#: Utilization in per cent above which a GPU counts as used by another program.
_BUSY_PERCENT = 10
#: Remedies by NVML's error. A driver update without a reboot causes the version mismatch.
_REMEDIES = {
    "NVMLError_LibRmVersionMismatch": "sudo reboot",
    "NVMLError_DriverNotLoaded": "sudo modprobe nvidia",
    "NVMLError_GpuIsLost": "sudo reboot",
    "pynvml is not installed": install("tune"),
}


# ---------------------------------------------------------------------- software


def packages(
    _: Nvidia, is_there: Callable[[str], bool] = lambda name: find_spec(name) is not None
) -> Iterator[Finding]:
    text = f"Python {platform.python_version()}, kernel-autotune {__version__}"
    yield Finding("python", "ok", text)
    on_server = os.environ.get("AUTOTUNE_STORE", "").startswith("postgres")
    for extra in ("tune", "postgres") if on_server else ("tune",):
        missing = [name for name, of in EXTRAS.items() if of == extra and not is_there(name)]
        if missing:
            text = f"missing: {', '.join(missing)}"
            yield Finding(f"packages [{extra}]", "bad", text, install(extra))
        else:
            yield Finding(f"packages [{extra}]", "ok", "all installed")


def version(name: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    return tried(lambda: metadata_version(name), "")


def cupy(nvidia: Nvidia, version: Callable[[str], str] = version) -> Iterator[Finding]:
    wheels = [wheel for wheel in ("cupy", "cupy-cuda13x", "cupy-cuda12x") if version(wheel)]
    text = ", ".join(f"{wheel} {version(wheel)}" for wheel in wheels)
    remedy = install(f"cuda{nvidia.major}")
    replace = f"pip uninstall -y {' '.join(wheels)} && {remedy}"
    if not wheels:
        if nvidia.present:
            yield Finding("cupy", "bad", "not installed; autotune launches kernels with it", remedy)
    elif len(wheels) > 1:
        text += " overwrite each other: each installs the package `cupy`"
        yield Finding("cupy", "bad", text, replace)
    elif 0 < nvidia.cuda[0] < number(wheels[0].removeprefix("cupy-cuda")):
        text += f" is for a newer CUDA than driver {nvidia.driver} runs ({nvidia.cuda[0]})"
        yield Finding("cupy", "bad", text, replace)
    else:
        yield Finding("cupy", "ok", text)


def nvrtc(nvidia: Nvidia) -> Iterator[Finding]:
    remedy = install(f"cuda{nvidia.major}" if nvidia.present else "nvrtc")
    try:
        from autotune.devices import nvrtc

        found, headers = nvrtc.nvrtc_version(), nvrtc.include_options()
    except Exception as error:  # the binding raises several types if the library is missing
        text = f"cannot compile CUDA code ({_first_line(error).partition('; run:')[0]})"
        yield Finding("nvrtc", "bad" if nvidia.present else "absent", text, remedy)
        return
    if 0 < nvidia.cuda[0] < number(found.removeprefix("nvrtc ")):
        text = f"{found} compiles for a newer CUDA than driver {nvidia.driver} runs"
        yield Finding("nvrtc", "bad", text, remedy)
    elif not headers:
        text = f"{found}; the CUDA headers for kernels are not found"
        yield Finding("nvrtc", "warn", text, remedy)
    else:
        yield Finding("nvrtc", "ok", f"{found}, CUDA headers found")


def opencl(nvidia: Nvidia) -> Iterator[Finding]:
    from autotune.devices.choose import backend

    try:
        opencl = backend("opencl")
        devices = opencl.devices()
        why = "" if devices else _first_line(opencl.why_unavailable()).partition("; run:")[0]
    except MissingDependencyError as error:
        devices, why = [], error.lack
    if devices:
        text = ", ".join(f"{device.selector} {device.name} ({device.arch})" for device in devices)
        yield Finding("opencl", "ok", text)
    else:
        yield Finding("opencl", "absent" if nvidia.gpus else "bad", why, install("cpu"))


# ---------------------------------------------------------------------- NVIDIA


def driver(nvidia: Nvidia) -> Iterator[Finding]:
    newest = f"sudo apt-get install nvidia-driver-{OLDEST_DRIVER[13]}-server"
    if not nvidia.present:
        yield Finding("driver", "ok", "no NVIDIA GPU in this machine; autotune uses OpenCL devices")
    elif nvidia.fault:
        text = f"this machine has an NVIDIA GPU, but its driver does not answer ({nvidia.fault})"
        yield Finding("driver", "bad", text, _REMEDIES.get(nvidia.fault, newest))
    elif not nvidia.gpus:
        yield Finding("driver", "bad", f"driver {nvidia.driver} lists no GPU", "nvidia-smi -L")
    else:
        names = ", ".join(name for name, _ in nvidia.gpus)
        text = f"driver {nvidia.driver}, CUDA {nvidia.cuda[0]}.{nvidia.cuda[1]} or older: {names}"
        if number(nvidia.driver) < min(OLDEST_DRIVER.values()):
            yield Finding("driver", "bad", f"{text}; too old for CUDA 12", newest)
        else:
            yield Finding("driver", "ok", text)


def permissions(nvidia: Nvidia) -> Iterator[Finding]:
    dev = nvidia.root / "dev"
    nodes = [*dev.glob("nvidia[0-9]*"), dev / "nvidiactl", dev / "nvidia-uvm"]
    existing = [node for node in (*nodes, *dev.glob("dri/renderD*")) if node.exists()]
    for node in existing:
        if not os.access(node, os.R_OK | os.W_OK):
            text = f"this user may not open {node}"
            yield Finding("permissions", "bad", text, f"sudo chmod a+rw {node}")
    if nvidia.gpus and dev / "nvidiactl" in existing and dev / "nvidia-uvm" not in existing:
        text = "/dev/nvidia-uvm is missing, so CUDA cannot start"
        yield Finding("permissions", "bad", text, "sudo nvidia-modprobe -u -c 0")


def gpus(nvidia: Nvidia) -> Iterator[Finding]:
    for index, (_, handle) in enumerate(nvidia.gpus):
        now = clocks(nvidia.nvml, handle)
        found = list(_faults(nvidia.nvml, index, handle, now.throttle_reasons))
        text = f"{now.sm_mhz or 0} MHz, {now.temperature_c or 0} °C, no other process uses it"
        yield from found or [Finding(f"gpu {index}", "ok", text)]


def counters(nvidia: Nvidia) -> Iterator[Finding]:
    """Check that Nsight Compute is installed and that this user may read counters."""
    if not nvidia.gpus:
        return
    from autotune.measure.profile import PERMISSION_REMEDY, profiler

    program, params = profiler(), nvidia.root / "proc" / "driver" / "nvidia" / "params"
    is_admins = "RmProfilingAdminOnly: 1" in tried(params.read_text, "")
    if not program:
        package = "cuda-nsight-compute-{}-{}".format(*nvidia.cuda)
        text = "ncu is not installed, so autotune explain shows no counters"
        yield Finding("counters", "absent", text, f"sudo apt-get install {package}")
    elif is_admins and os.geteuid():
        text = (
            f"{program} may not read counters: the driver allows only administrators to read them"
        )
        yield Finding("counters", "warn", text, PERMISSION_REMEDY)
    else:
        yield Finding("counters", "ok", f"{program} can read them")


def _faults(
    nvml: Any, index: int, handle: Any, throttle_reasons: Sequence[str]
) -> Iterator[Finding]:
    topic, smi = f"gpu {index}", f"nvidia-smi -i {index}"
    if throttle_reasons:
        text = f"throttled ({', '.join(throttle_reasons)}): measured times will be too long"
        yield Finding(topic, "warn", text, f"{smi} -q -d PERFORMANCE,POWER")
    mode = tried(lambda: int(nvml.nvmlDeviceGetComputeMode(handle)), 0)
    if mode == nvml.NVML_COMPUTEMODE_PROHIBITED:
        text = "compute mode is prohibited: no process may use this GPU"
        yield Finding(topic, "bad", text, f"sudo {smi} -c DEFAULT")
    running: Sequence[Any] = tried(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), ())
    pids = [str(process.pid) for process in running if process.pid != os.getpid()]
    busy = tried(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0)
    if pids:
        text = f"used by process {', '.join(pids)}"
        yield Finding(topic, "warn", text, f"kill {' '.join(pids)}  # if it is yours")
    elif busy > _BUSY_PERCENT:
        text = f"{busy} % busy, with processes that are not visible from here"
        yield Finding(topic, "warn", text, f"{smi} pmon -c 1")


# ---------------------------------------------------------------------- places


def environment(nvidia: Nvidia) -> Iterator[Finding]:
    if nvidia.gpus and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        text = "CUDA_VISIBLE_DEVICES hides every GPU"
        yield Finding("environment", "bad", text, "unset CUDA_VISIBLE_DEVICES")


def store(_: Nvidia) -> Iterator[Finding]:
    from autotune.store import Store, default_url
    from autotune.store.connection import Address

    address = Address.parse(default_url(), wait_s=2.0)
    if address.path is None:
        try:
            address.engine().connect().close()
        except Exception as error:  # the driver's message may contain the password
            raise StoreError(address.without_secrets(_first_line(error))) from None
    else:
        if address.path.exists():
            Store.open(address.path, wait_s=2.0).close()
        _try_writing(next(place for place in address.path.parents if place.exists()))
    yield Finding("store", "ok", str(address))


def cache(_: Nvidia) -> Iterator[Finding]:
    folder = cache_folder("binaries").parent
    _try_writing(folder)
    if fault := fault_of(folder):
        text = f"{fault.place}: {fault.reason}; the cache {folder} is not used"
        own = "export AUTOTUNE_CACHE_DIR=$HOME/.cache/autotune"
        yield Finding("cache", "bad", text, fault.remedy or own)
    else:
        yield Finding("cache", "ok", str(folder))


def spaces(_: Nvidia) -> Iterator[Finding]:
    from autotune.kernel.catalog import space_folders

    folders = space_folders()
    faults: dict[Path, ForeignPlace] = {}
    for folder in folders:
        for file in (folder, *folder.glob("*.py")):
            with suppress(OSError):  # a broken link
                if fault := fault_of(file):
                    faults.setdefault(fault.place, fault)
    for place, fault in faults.items():
        text = f"{place}: {fault.reason}; code below it is not run"
        known = f"export {TRUST}={shlex.quote(str(fault.project))}  # if you trust its content"
        yield Finding("spaces", "bad", text, fault.remedy or known)
    if not faults:
        yield Finding("spaces", "ok", ", ".join(str(folder) for folder in folders) or "none found")


def _try_writing(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as stream:
        stream.write(b"autotune")


# ---------------------------------------------------------------------- all

Check: TypeAlias = tuple[str, Callable[[Nvidia], Iterator[Finding]], str]
#: Topic, check, and the remedy if the check itself fails.
CHECKS: tuple[Check, ...] = (
    ("packages", packages, install("tune")),
    ("driver", driver, "nvidia-smi"),
    ("permissions", permissions, "ls -l /dev/nvidia* /dev/dri"),
    ("cupy", cupy, install("cuda13")),
    ("nvrtc", nvrtc, install("nvrtc")),
    ("opencl", opencl, install("cpu")),
    ("gpu", gpus, "nvidia-smi -q"),
    ("counters", counters, "ncu --version"),
    ("environment", environment, "env | grep -E 'AUTOTUNE|CUDA'"),
    ("store", store, "export AUTOTUNE_STORE=$HOME/autotune.sqlite"),
    ("cache", cache, "export AUTOTUNE_CACHE_DIR=/tmp/autotune-cache"),
    ("spaces", spaces, "autotune list"),
    ("fleet", lambda _: starmap(Finding, local_fleet()), "autotune fleet"),
)


def findings(checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Return the findings of all checks, in the order in which to fix problems.

    Every finding ``warn`` or ``bad`` has a remedy.
    """
    machine = tried(look, Nvidia())
    found: list[Finding] = []
    for topic, check, remedy in checks:
        try:
            found += check(machine)
        except MissingDependencyError as error:
            found.append(Finding(topic, "bad", error.lack, install(error.extra)))
        except Exception as error:
            text = f"the check failed ({type(error).__name__}: {_first_line(error)})"
            found.append(Finding(topic, "bad", text, remedy))
    return found


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

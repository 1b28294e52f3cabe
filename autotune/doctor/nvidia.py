"""Findings on NVIDIA's GPUs and driver, by NVML and the device files. Makes no CUDA context."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.devices.nvml import clocks
from autotune.doctor.finding import Finding, number, tried
from autotune.extras import install

#: Oldest driver branch of each CUDA major version. Source: CUDA 13.0 release notes, table 2.
OLDEST_DRIVER = {13: 580, 12: 525}
#: A GPU that is busier than this is in use by another program.
_BUSY_PERCENT = 10
#: By NVML's error; a mismatch is what an update under a running kernel leaves.
_REMEDIES = {
    "NVMLError_LibRmVersionMismatch": "sudo reboot",
    "NVMLError_DriverNotLoaded": "sudo modprobe nvidia",
    "NVMLError_GpuIsLost": "sudo reboot",
}


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    handle: Any


@dataclass(frozen=True)
class Nvidia:
    """The answers of NVML, or the reason why there are none."""

    #: Whether there is NVIDIA hardware, with or without a driver.
    present: bool = False
    nvml: Any = None
    driver: str = ""
    #: Newest CUDA version that the driver runs.
    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    #: Name of NVML's error; ``ImportError`` where its binding is not installed.
    fault: str = ""
    #: Below which ``dev``, ``proc`` and ``sys`` are.
    root: Path = Path("/")

    @property
    def major(self) -> int:
        """Return the newest CUDA major version that the driver runs."""
        branch = number(self.driver)
        return next((cuda for cuda, oldest in OLDEST_DRIVER.items() if branch >= oldest), 13)


def look(root: Path = Path("/")) -> Nvidia:
    """Ask NVML, which makes no CUDA context, and the files below a root."""
    text = tried((root / "proc/driver/nvidia/version").read_text, "")
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)", text)
    driver = match[1] if match else ""
    present = bool(driver) or (root / "dev" / "nvidiactl").exists() or _is_on_the_bus(root)
    try:
        import pynvml

        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return Nvidia(
            present=True,
            nvml=pynvml,
            root=root,
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=(cuda // 1000, cuda % 1000 // 10),
            gpus=tuple(
                Gpu(i, str(pynvml.nvmlDeviceGetName(handle)), handle)
                for i, handle in enumerate(handles)
            ),
        )
    except Exception as error:  # every NVML failure means that the driver does not answer
        fault = "ImportError" if isinstance(error, ImportError) else type(error).__name__
        return Nvidia(present, driver=driver, fault=fault, root=root)


def _is_on_the_bus(root: Path) -> bool:
    """Return whether a display or 3D controller of NVIDIA is on the PCI bus."""
    return any(
        tried((device / "vendor").read_text, "").strip() == "0x10de"
        and tried((device / "class").read_text, "").startswith("0x03")
        for device in (root / "sys" / "bus" / "pci" / "devices").glob("*")
    )


def driver(nvidia: Nvidia) -> Iterator[Finding]:
    newest = f"sudo apt-get install nvidia-driver-{OLDEST_DRIVER[13]}-server"
    if not nvidia.present:
        yield Finding("driver", "ok", "no NVIDIA GPU in this machine: OpenCL devices are used")
    elif nvidia.fault == "ImportError":
        text = (
            f"NVIDIA driver {nvidia.driver or 'unknown'}; pynvml, which reads its state, is missing"
        )
        yield Finding("driver", "warn", text, install("tune"))
    elif nvidia.fault:
        remedy = _REMEDIES.get(nvidia.fault, newest)
        text = f"there is an NVIDIA GPU, and its driver does not answer ({nvidia.fault})"
        yield Finding("driver", "bad", text, remedy)
    elif not nvidia.gpus:
        yield Finding("driver", "bad", f"driver {nvidia.driver} lists no GPU", "nvidia-smi -L")
    else:
        names = ", ".join(gpu.name for gpu in nvidia.gpus)
        text = f"driver {nvidia.driver}, up to CUDA {nvidia.cuda[0]}.{nvidia.cuda[1]}: {names}"
        if number(nvidia.driver) < min(OLDEST_DRIVER.values()):
            yield Finding("driver", "bad", f"{text}; too old for CUDA 12", newest)
        else:
            yield Finding("driver", "ok", text)


def permissions(nvidia: Nvidia) -> Iterator[Finding]:
    dev = nvidia.root / "dev"
    nodes = [*dev.glob("nvidia[0-9]*"), dev / "nvidiactl", dev / "nvidia-uvm"]
    there = [node for node in (*nodes, *dev.glob("dri/renderD*")) if node.exists()]
    closed = [node for node in there if not os.access(node, os.R_OK | os.W_OK)]
    for node in closed:
        text = f"{node} may not be opened by this user"
        yield Finding("permissions", "bad", text, f"sudo chmod a+rw {node}")
    if nvidia.gpus and dev / "nvidiactl" in there and dev / "nvidia-uvm" not in there:
        text = "/dev/nvidia-uvm is not there: CUDA cannot start"
        yield Finding("permissions", "bad", text, "sudo nvidia-modprobe -u -c 0")
    elif there and not closed:
        yield Finding("permissions", "ok", "device files may be opened")


def gpus(nvidia: Nvidia) -> Iterator[Finding]:
    for gpu in nvidia.gpus:
        yield _clocks(nvidia.nvml, gpu)
        yield from _modes(nvidia.nvml, gpu)
        yield _processes(nvidia.nvml, gpu)


def _clocks(nvml: Any, gpu: Gpu) -> Finding:
    topic = f"gpu {gpu.index} clocks"
    now = clocks(nvml, gpu.handle)
    most = tried(lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu.handle, nvml.NVML_CLOCK_SM), 0)
    text = f"{now.sm_mhz or 0} of {most} MHz, {now.temperature_c or 0} °C"
    if now.throttle_reasons:
        text += f", held down by: {', '.join(now.throttle_reasons)}; times will be too long"
        return Finding(topic, "warn", text, f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,POWER")
    return Finding(topic, "ok", text)


def _modes(nvml: Any, gpu: Gpu) -> Iterator[Finding]:
    smi = f"sudo nvidia-smi -i {gpu.index}"
    if tried(lambda: int(nvml.nvmlDeviceGetPersistenceMode(gpu.handle)), 1) == 0:
        text = "off: the driver is set up again, and clocks forgotten, between processes"
        yield Finding(f"gpu {gpu.index} persistence", "warn", text, f"{smi} -pm 1")
    mig: Sequence[int] = tried(lambda: nvml.nvmlDeviceGetMigMode(gpu.handle), (0, 0))
    if mig[0]:
        text = "on: a slice is measured, and other slices share its power and clocks"
        yield Finding(f"gpu {gpu.index} MIG", "warn", text, f"{smi} -mig 0")
    mode = tried(lambda: int(nvml.nvmlDeviceGetComputeMode(gpu.handle)), 0)
    if mode == nvml.NVML_COMPUTEMODE_PROHIBITED:
        text = "prohibited: no process may compute"
        yield Finding(f"gpu {gpu.index} compute mode", "bad", text, f"{smi} -c DEFAULT")


def _processes(nvml: Any, gpu: Gpu) -> Finding:
    """Look for other processes: two that share a GPU lengthen each other's times."""
    topic = f"gpu {gpu.index} processes"
    running: list[Any] = tried(
        lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)), []
    )
    pids = [str(process.pid) for process in running if process.pid != os.getpid()]
    busy = tried(lambda: int(nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu), 0)
    if pids:
        text = f"used by process {', '.join(pids)}"
        return Finding(topic, "warn", text, f"kill {' '.join(pids)}  # if it is yours")
    if busy > _BUSY_PERCENT:
        text = f"{busy} % busy with work that this system does not show"
        return Finding(topic, "warn", text, f"nvidia-smi -i {gpu.index} pmon -c 1")
    return Finding(topic, "ok", "no other process computes")

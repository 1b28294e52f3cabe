"""A finding; NVIDIA's driver and GPUs from NVML and device files. Creates no CUDA context."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")
#: ``absent``: not installed, but not needed here.
State = Literal["ok", "absent", "warn", "bad"]
#: Oldest driver branch of each CUDA major version. Source: CUDA 13.0 release notes, table 2.
OLDEST_DRIVER = {13: 580, 12: 525}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    topic: str
    state: State
    text: str
    #: The command that fixes the problem or installs an optional part; may be empty.
    remedy: str = ""


@dataclass(frozen=True)
class Nvidia:
    """NVML's description of the driver and GPUs, or the reason why there is no description."""

    #: Whether the machine has NVIDIA hardware, with or without a driver.
    present: bool = False
    nvml: Any = None
    driver: str = ""
    #: Newest CUDA version that the driver supports.
    cuda: tuple[int, int] = (0, 0)
    #: Name and NVML handle of each GPU.
    gpus: tuple[tuple[str, Any], ...] = ()
    #: Name of NVML's error, or "pynvml is not installed"; empty if NVML works.
    fault: str = ""
    #: Folder that contains ``dev``, ``proc`` and ``sys``.
    root: Path = Path("/")

    @property
    def major(self) -> int:
        """Return the newest CUDA major version that the driver supports; 13 if not known."""
        branch = number(self.driver)
        return next((cuda for cuda, oldest in OLDEST_DRIVER.items() if branch >= oldest), 13)


def look(root: Path = Path("/")) -> Nvidia:
    """Describe NVIDIA's hardware from NVML, without a CUDA context, and from the files below a root."""
    present = (root / "dev" / "nvidiactl").exists() or _is_on_the_bus(root)
    try:
        import pynvml

        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple((str(pynvml.nvmlDeviceGetName(handle)), handle) for handle in handles)
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        version = cuda // 1000, cuda % 1000 // 10
        return Nvidia(True, pynvml, driver, version, gpus, root=root)
    except ImportError:
        return Nvidia(present, fault="pynvml is not installed", root=root)
    except Exception as error:  # all NVML errors mean that the driver does not answer
        return Nvidia(present, fault=type(error).__name__, root=root)


def _is_on_the_bus(root: Path) -> bool:
    """Return whether the PCI bus has a display or 3D controller of NVIDIA."""
    return any(
        tried((device / "vendor").read_text, "").strip() == "0x10de"
        and tried((device / "class").read_text, "").startswith("0x03")
        for device in (root / "sys" / "bus" / "pci" / "devices").glob("*")
    )


def tried(call: Callable[[], T], otherwise: T) -> T:
    """Return the result of a call, or ``otherwise`` if the call raises."""
    with suppress(Exception):
        return call()
    return otherwise


def number(text: str) -> int:
    """Return the first integer in a text, or 0."""
    match = re.search(r"\d+", text)
    return int(match[0]) if match else 0

"""Findings on packages, compilers and tools: whether they are there and fit the driver.

Reads versions; imports neither CuPy nor the search libraries.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import requires

from autotune import __version__
from autotune.devices.nvrtc import SANITIZER_PACKAGE, find_program
from autotune.doctor.finding import Finding, first_line, number, version
from autotune.doctor.nvidia import Nvidia
from autotune.extras import DISTRIBUTION, install

#: The purpose of each extra.
PURPOSES = {
    "tune": "searching and measuring",
    "cpu": "measuring without a GPU",
    "cuda13": "measuring on an NVIDIA GPU",
    "cuda12": "measuring on an NVIDIA GPU",
    "nvrtc": "compiling CUDA without a GPU",
    "torch": "kernels as operators of torch",
    "fleet": "tuning on many machines",
    "postgres": "a results store on a server",
    "test": "the tests",
    "docs": "building the documents",
}
#: Programs, the purpose of each, and the command that installs it.
_TOOLS = {
    "ncu": ("hardware counters", "sudo apt-get install cuda-nsight-compute-13-0"),
    "compute-sanitizer": ("run --sanitize", f"pip install {SANITIZER_PACKAGE}"),
    "nvcc": ("building with the exported header", install("test")),
}


def python(_: Nvidia) -> Iterator[Finding]:
    release = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("python", "ok", f"Python {release}, kernel-autotune {__version__}")


def packages(nvidia: Nvidia, version: Callable[[str], str] = version) -> Iterator[Finding]:
    needed = {"tune", f"cuda{nvidia.major}" if nvidia.present else "cpu"}
    if os.environ.get("AUTOTUNE_STORE", "").startswith("postgres"):
        needed.add("postgres")
    other_cuda = {"cuda12", "cuda13"} - needed
    required = requires(DISTRIBUTION) or []
    for extra, purpose in PURPOSES.items():
        names = _distributions(required, extra)
        topic = f"packages [{extra}]"
        missing = [name for name in names if _is_for_here(name) and not version(name)]
        if not names:
            continue  # what is installed was built before there was such an extra
        if not missing:
            yield Finding(topic, "ok", ", ".join(f"{n} {version(n)}" for n in names if version(n)))
        elif extra in needed:
            text = f"missing: {', '.join(missing)}; needed for {purpose}"
            yield Finding(topic, "bad", text, install(extra))
        elif extra not in other_cuda:
            text = f"not installed: {', '.join(missing)}; optional, for {purpose}"
            yield Finding(topic, "absent", text, install(extra))


def cupy(nvidia: Nvidia, version: Callable[[str], str] = version) -> Iterator[Finding]:
    wheels = [wheel for wheel in ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x") if version(wheel)]
    text = ", ".join(f"{wheel} {version(wheel)}" for wheel in wheels)
    remedy = install(f"cuda{nvidia.major}")
    if not wheels and not version("cupy"):
        if nvidia.present:
            yield Finding("cupy", "bad", "not installed; launches kernels on the GPU", remedy)
    elif len(wheels) > 1:
        text += " are both `import cupy`, and overwrite each other"
        yield Finding("cupy", "bad", text, f"pip uninstall -y {' '.join(wheels)} && {remedy}")
    elif wheels and 0 < nvidia.cuda[0] < number(wheels[0].removeprefix("cupy-cuda")):
        text += f" is for a newer CUDA than driver {nvidia.driver} runs ({nvidia.cuda[0]})"
        yield Finding("cupy", "bad", text, f"pip uninstall -y {' '.join(wheels)} && {remedy}")
    else:
        yield Finding("cupy", "ok", text or f"cupy {version('cupy')}, built here")


def nvrtc(nvidia: Nvidia) -> Iterator[Finding]:
    extra = f"cuda{nvidia.major}" if nvidia.present else "nvrtc"
    try:
        from autotune.devices import nvrtc

        found, headers = nvrtc.version(), nvrtc.include_options()
    except Exception as error:  # the binding raises several types where the library is missing
        text = f"CUDA cannot be compiled here ({first_line(error).partition('; run:')[0]})"
        yield Finding("nvrtc", "bad" if nvidia.present else "absent", text, install(extra))
        return
    if 0 < nvidia.cuda[0] < number(found.removeprefix("nvrtc ")):
        text = f"{found} compiles for a newer CUDA than driver {nvidia.driver} runs"
        yield Finding("nvrtc", "bad", text, install(extra))
    elif not headers:
        text = f"{found}; the CUDA headers that kernels include are not found"
        yield Finding("nvrtc", "warn", text, install(extra))
    else:
        yield Finding("nvrtc", "ok", f"{found}, with CUDA headers")


def opencl(nvidia: Nvidia) -> Iterator[Finding]:
    from autotune.devices.choose import backend
    from autotune.errors import MissingDependencyError

    try:
        opencl = backend("opencl")
    except MissingDependencyError as error:
        yield Finding("opencl", "absent" if nvidia.gpus else "bad", error.lack, install("cpu"))
        return
    devices = opencl.devices()
    if devices:
        text = ", ".join(f"{device.selector} {device.name} ({device.arch})" for device in devices)
        yield Finding("opencl", "ok", text)
    else:
        text = first_line(opencl.why_unavailable()).partition("; run:")[0]
        yield Finding("opencl", "absent" if nvidia.gpus else "bad", text, install("cpu"))


def tools(_: Nvidia) -> Iterator[Finding]:
    for name, (purpose, remedy) in _TOOLS.items():
        if place := find_program(name):
            yield Finding(name, "ok", place)
        else:
            yield Finding(name, "absent", f"not found; optional, for {purpose}", remedy)


def _distributions(required: Sequence[str], extra: str) -> list[str]:
    """Return the distributions of an extra (PEP 508), without cuda-toolkit: the machine's own serves too."""
    of_extra = re.compile(rf"extra == ['\"]{extra}['\"]")
    names = [re.split(r"[^\w.-]", line)[0] for line in required if of_extra.search(line)]
    return [name for name in names if name != "cuda-toolkit"]


def _is_for_here(name: str) -> bool:
    """Return whether a package exists for this machine: Intel's OpenCL is for one kind only."""
    here = (sys.platform, os.uname().machine)
    return not name.startswith("intel-") or here == ("linux", "x86_64")

"""Which packages, compilers and tools are installed, and whether they fit the driver.

Reads versions; imports neither CuPy nor the search libraries.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import requires

from autotune import __version__
from autotune.devices.toolkit import find_program
from autotune.doctor.finding import Finding, first_line, number, pip, tried, version
from autotune.doctor.nvidia import Nvidia

#: The extras, and what each is for.
PURPOSES = {
    "tune": "searching and measuring",
    "cpu": "measuring without a GPU",
    "cuda13": "measuring on an NVIDIA GPU",
    "cuda12": "measuring on an NVIDIA GPU",
    "nvrtc": "compiling CUDA without a GPU",
    "torch": "kernels as operators of torch",
    "postgres": "a results store on a server",
    "test": "the tests",
}
_TOOLS = {
    "ncu": ("hardware counters", "sudo apt-get install cuda-nsight-compute-13-0"),
    "compute-sanitizer": (
        "run --sanitize or --effort full",
        "pip install nvidia-cuda-sanitizer-api",
    ),
    "nvcc": ("building with the exported header", "pip install 'kernel-autotune[test]'"),
}


def python(_: Nvidia) -> Iterator[Finding]:
    release = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("python", "ok", f"Python {release}, kernel-autotune {__version__}")


def packages(nvidia: Nvidia, version: Callable[[str], str] = version) -> Iterator[Finding]:
    needed = {"tune", f"cuda{nvidia.major}" if nvidia.present else "cpu"}
    if os.environ.get("AUTOTUNE_STORE", "").startswith("postgres"):
        needed.add("postgres")
    other_cuda = {"cuda12", "cuda13"} - needed
    required = requires("kernel-autotune") or []
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
            yield Finding(topic, "bad", text, pip(extra))
        elif extra not in other_cuda:
            text = f"not installed: {', '.join(missing)}; optional, for {purpose}"
            yield Finding(topic, "ok", text, pip(extra))


def cupy(nvidia: Nvidia, version: Callable[[str], str] = version) -> Iterator[Finding]:
    wheels = [wheel for wheel in ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x") if version(wheel)]
    text = ", ".join(f"{wheel} {version(wheel)}" for wheel in wheels)
    install = pip(f"cuda{nvidia.major}")
    if not wheels and not version("cupy"):
        if nvidia.present:
            yield Finding("cupy", "bad", "not installed; launches kernels on the GPU", install)
    elif len(wheels) > 1:
        text += " are both `import cupy`, and overwrite each other"
        yield Finding("cupy", "bad", text, f"pip uninstall -y {' '.join(wheels)} && {install}")
    elif wheels and 0 < nvidia.cuda[0] < number(wheels[0].removeprefix("cupy-cuda")):
        text += f" is for a newer CUDA than driver {nvidia.driver} runs ({nvidia.cuda[0]})"
        yield Finding("cupy", "bad", text, f"pip uninstall -y {wheels[0]} && {install}")
    else:
        yield Finding("cupy", "ok", text or f"cupy {version('cupy')}, built here")


def nvrtc(nvidia: Nvidia) -> Iterator[Finding]:
    extra = f"cuda{nvidia.major}" if nvidia.present else "nvrtc"
    try:
        from autotune.devices import nvrtc

        found, headers = nvrtc.version(), nvrtc.include_options()
    except Exception as error:  # the binding raises several types where the library is missing
        text = f"CUDA cannot be compiled here ({first_line(error)})"
        yield Finding("nvrtc", "bad" if nvidia.present else "ok", text, pip(extra))
        return
    if 0 < nvidia.cuda[0] < number(found.removeprefix("nvrtc ")):
        text = f"{found} compiles for a newer CUDA than driver {nvidia.driver} runs"
        yield Finding("nvrtc", "bad", text, pip(extra))
    elif not headers:
        text = f"{found}; the CUDA headers that kernels include are not found"
        yield Finding("nvrtc", "warn", text, pip(extra))
    else:
        yield Finding("nvrtc", "ok", f"{found}, with CUDA headers")


def opencl(nvidia: Nvidia) -> Iterator[Finding]:
    from autotune.devices.choose import backend

    opencl = backend("opencl")
    devices = opencl.devices()
    if devices:
        text = ", ".join(f"{device.selector} {device.name} ({device.arch})" for device in devices)
        yield Finding("opencl", "ok", text)
    else:
        text = first_line(opencl.why_unavailable()).partition("; run:")[0]
        yield Finding("opencl", "ok" if nvidia.gpus else "bad", text, pip("cpu"))


def tools(nvidia: Nvidia) -> Iterator[Finding]:
    for name, (purpose, remedy) in _TOOLS.items():
        place = find_program(name)
        if place:
            yield Finding(name, "ok", place)
        else:
            yield Finding(name, "ok", f"not found; optional, for {purpose}", remedy)
    params = tried((nvidia.proc / "params").read_text, "")
    if find_program("ncu") and nvidia.gpus and os.geteuid() and "RmProfilingAdminOnly: 1" in params:
        text = "only administrators may read hardware counters"
        line = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
        remedy = f"echo '{line}' | sudo tee /etc/modprobe.d/nvidia-counters.conf && sudo reboot"
        yield Finding("ncu", "warn", text, remedy)


def _distributions(required: Sequence[str], extra: str) -> list[str]:
    """Names of an extra's distributions, of all that the package requires (PEP 508).

    Without cuda-toolkit, in whose place the machine's own toolkit serves as well: the check of NVRTC
    finds out.
    """
    of_extra = re.compile(rf"extra == ['\"]{extra}['\"]")
    names = [re.split(r"[^\w.-]", line)[0] for line in required if of_extra.search(line)]
    return [name for name in names if name != "cuda-toolkit"]


def _is_for_here(name: str) -> bool:
    """Intel's run-time exists for one kind of machine only; others bring their own OpenCL."""
    here = (sys.platform, os.uname().machine)
    return not name.startswith("intel-") or here == ("linux", "x86_64")

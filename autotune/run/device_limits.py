"""A device's recorded limits, and requests that measure them with the kernels `copy`, `ffma` and `hmma`.

`measure.roofline` compares results with these limits. Only CUDA devices have them. The caches of a CPU hold
the data of most problems and cannot be flushed for certain, so the rate of a copy depends on its size: 31, 15
and 8 GB/s for 8, 128 and 512 MB on two cores of an AMD EPYC (Intel's OpenCL, 2026-11-30).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from autotune.devices.device import Device
from autotune.errors import DeviceError, NothingValidError
from autotune.kernel.catalog import bundled_folder, load_file
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.roofline import ARITHMETIC, Limits, credible
from autotune.measure.timing import Caches, Timing
from autotune.project import bundled_project
from autotune.run.request import Request, RunOptions
from autotune.tuned.reading import read_layers
from autotune.values import Problem, size_of

#: The kernel of each limit.
KERNELS = {"read": "copy", "copy": "copy", "ffma": "ffma", "tensor": "hmma"}
#: Numbers of floats to move, largest first; a run uses the first that fits. With a large size the share of
#: data in L2 is small.
_SIZES = (1 << 30, 1 << 28, 1 << 26)
#: Number of arrays that must fit the memory. A run needs half of them: x, out, copies of x, and expected
#: values of both data sets. Other programs may use the other half.
_ARRAYS = 8
#: Number of measurements of each problem: the kernel's seeds and a few others.
_EVALUATIONS = 16


def known_limits(device: Device, shipped: bool = False) -> Limits:
    """Return a device's recorded limits: the user's, else the shipped ones; with ``shipped``, only these.

    A limit is the rate at the largest recorded problem. That problem must be at least as large as
    `limit_problem`. Impossible rates are left out with a warning. Devices other than CUDA's have none.
    """
    if not device.is_cuda:
        return {}
    known = {name: rate for name in KERNELS if (rate := _rate(name, device, shipped))}
    limits, doubts = credible(known, device)
    for doubt in doubts:
        warnings.warn(doubt, RuntimeWarning, stacklevel=2)
    return limits


def limit_requests(device: Device) -> Iterator[Request]:
    """Yield requests that measure the limits of a device, each with a few measurements.

    Raise `DeviceError` if the device is an architecture, or not a CUDA device.
    """
    if not device.is_cuda:
        raise DeviceError(
            f"{device.name}: limits are measured on CUDA devices only; the rate of another device's memory "
            "depends on how much of the data its caches hold; choose a GPU: --device cuda:0"
        )
    if not device.uuid:
        raise DeviceError(
            f"{device.name} is an architecture, not a device: it has no measured limits; "
            "run: autotune doctor"
        )
    for kernel_name in dict.fromkeys(KERNELS.values()):
        # From the file, since a project may have a kernel with the same name.
        kernel = load_file(bundled_folder("spaces") / f"{kernel_name}.py")
        if not _runs_on(kernel, device):
            continue
        names = [name for name, of in KERNELS.items() if of == kernel_name]
        problems = tuple(limit_problem(name, device) for name in names)
        options = RunOptions(
            problems,
            budget=f"{_EVALUATIONS * len(problems)}evals",
            timing=Caches.COLD,
            fresh=True,
            tries_imported=False,
            command="autotune doctor --limits",
        )
        yield options.request(kernel, [device])


def _runs_on(kernel: Kernel, device: Device) -> bool:
    with suppress(NothingValidError):
        return device.backend in kernel.backends and len(enumerate_space(kernel, device)) > 0
    return False


def limit_problem(name: str, device: Device) -> Problem:
    """Return the problem that measures a limit: the largest that fits the device's memory."""
    if name == "ffma":
        return Problem(n=1 << 24, steps=4096)
    if name == "tensor":  # four tiles of 128 x 256 for each multiprocessor
        return Problem(m=128 * device.sm_count, n=1024, steps=1024, dtype="float16")
    room = device.memory_bytes or math.inf
    fitting = [size for size in _SIZES if 4 * size * _ARRAYS <= room / 2]
    n = max(fitting, default=_SIZES[-1])
    return Problem(n=n, mode=name, offset_in=0, offset_out=0)


def _rate(name: str, device: Device, shipped: bool) -> float | None:
    """Return the rate at the largest problem of the first record that has a limit of a device."""
    wanted = limit_problem(name, device)
    unit = "gflop_per_s" if name in ARITHMETIC else "gb_per_s"
    for loaded in read_layers(KERNELS[name], bundled_project()):
        is_other = not loaded.record.device.is_of(device) or (shipped and loaded.layer == "user")
        if is_other or loaded.record.objective != "time":
            continue
        entries = [
            entry
            for entry in loaded.record.problems
            if _covers(entry.problem, wanted)
            and Timing(entry.race.timing).is_cold
            and getattr(entry, unit)
        ]
        if entries:
            largest = max(entries, key=lambda entry: size_of(entry.problem))
            return cast(float, getattr(largest, unit))
    return None


def _covers(problem: Mapping[str, Any], wanted: Problem) -> bool:
    """Return whether a problem is at least as large as the wanted one, with equal other fields."""
    return problem.keys() == set(wanted) and all(
        value == problem[field] if isinstance(value, str) or not value else value <= problem[field]
        for field, value in wanted.items()
    )

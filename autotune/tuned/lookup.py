"""Finds the tuned configuration of a kernel for a problem.

Caches the table of each kernel and its answers. Production processes import this module, so it imports only
the schema of records before the first lookup.
"""

from __future__ import annotations

import dataclasses
import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import autotune.tuned.record  # noqa: F401  so that the first lookup takes less time
from autotune.devices.device import Device, arch_of_model, fp32_lanes
from autotune.errors import UsageError
from autotune.project import Project, current_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.tuned.answer import TunedConfig
    from autotune.tuned.first_calls import FirstCalls
    from autotune.tuned.kernel_files import KernelFiles
    from autotune.tuned.merged import LookupTable
    from autotune.tuned.record import TunedProblem

#: Time between two checks of the record files for changes, in seconds.
RECHECK_S = 1.0
#: Maximum number of cached answers of a kernel; a serving process may look up more and more sizes.
MAX_ANSWERS = 4096
#: Maximum number of cached tables; a process may change its current folder many times.
MAX_TABLES = 256
#: NVML_CLOCK_SM.
_SM_CLOCK = 1
#: Environment variables that select the records.
_VARIABLES = ("AUTOTUNE_TUNED", "XDG_DATA_HOME", "AUTOTUNE_PROJECT", "AUTOTUNE_PATH")


def lookup(
    kernel: str,
    *,
    arch: str | int | None = None,
    device: Any = None,
    deterministic: bool = False,
    project: str | os.PathLike[str] | Project | None = None,
    **problem: Any,
) -> TunedConfig:
    """Find the tuned configuration of a kernel for a problem.

    The answer is from a run, from a first call (`load`, ``tune=``), from results for other problems, or the
    kernel's default; `TunedConfig.quality` tells which. It is valid for the problem and the CUDA architecture;
    without a valid configuration there is no answer. Record files are read once. They, and the kernel's files
    where they are at hand, are checked for changes at most once a second. A change of the current folder,
    ``AUTOTUNE_PROJECT``, ``AUTOTUNE_PATH``, ``AUTOTUNE_TUNED`` or ``XDG_DATA_HOME`` takes effect at once.

    Parameters
    ----------
    kernel : str
        Name of the kernel, for example ``sgemm``.
    arch : str or int, optional
        Architecture: ``sm_90``, 90, or 900 as in ``__CUDA_ARCH__``. Default: the architecture of
        ``device``, else ``AUTOTUNE_ARCH``, else that of the first visible GPU.
    device : str or Device, optional
        The driver's name of a device, its uuid, or its folder among the records. Records of a `Device`, as of
        the first visible GPU, are those of its chip: of any name, and not of another chip with its name. For a
        device without records, records of its architecture answer, known from a `Device` or the name of a
        common GPU; see `TunedConfig.other_device`.
    deterministic : bool
        Answer only with configurations that the kernel declares to give the same bits in every run.
    project : str, PathLike or Project, optional
        The project whose records answer: its name, or a folder in it. Default: the project of the
        kernel's nearest space file, else of the current folder, else of the bundled kernels.
    **problem : int or str
        All problem fields of the kernel; sizes are at least 0. An empty problem may have a ``grid``
        with an extent of 0; launch nothing then. Layout fields (``offset_x``, ``lda``) are optional.

    Returns
    -------
    TunedConfig
        Parameters by name, with ``launches`` and ``quality``.

    Raises
    ------
    NoAnswerError
        If no recorded configuration is valid, or none of the valid ones is ``deterministic``. It is a
        `LookupError`.
    UsageError
        If the project has no record of the kernel, or several of its folders have one; if a problem field
        is missing or unknown, a size is negative, or ``arch`` is not an architecture.
    """
    environ = os.environ
    cached = _current(kernel, project)
    asked, visible = device, None
    if device is None and arch is None:
        arch = environ.get("AUTOTUNE_ARCH") or None
        if arch is None:
            visible = environ.get("CUDA_VISIBLE_DEVICES", "0")
            device = first_gpu(visible)
    question = (arch, asked, visible, deterministic, *problem.items())
    try:
        known = cached.answers.get(question)
    except TypeError:  # an unhashable device or field
        return cached.answer(arch, device, deterministic, problem)
    if known is not None:
        return known
    answer = cached.answer(arch, device, deterministic, problem)
    if len(cached.answers) >= MAX_ANSWERS:
        cached.answers.clear()
    cached.answers[question] = answer
    return answer


def promising(
    kernel: str,
    device: Any,
    count: int,
    *,
    deterministic: bool = False,
    project: str | os.PathLike[str] | Project | None = None,
    **problem: Any,
) -> list[Mapping[str, Any]]:
    """Return at most ``count`` recorded configurations to try for a problem, the answer of `lookup` first.

    A run verified each of them on some problem. The list is empty without a record.
    """
    from autotune.tuned.answer import promising

    table = _current(kernel, project).table
    return promising(table, device, deterministic, problem, count) if table else []


def answer_with(
    is_valid: Callable[[TunedProblem], bool],
    kernel: str,
    device: Any,
    deterministic: bool,
    project: Project,
    problem: Mapping[str, Any],
) -> TunedConfig:
    """Return the answer of `lookup`; of the first calls only valid ones answer."""
    cached = _current(kernel, project)
    return cached.answer(None, device, deterministic, dict(problem), is_valid)


def first_calls_of(kernel: str, project: Project) -> FirstCalls:
    """Return the first calls of a kernel that has a table."""
    found = _current(kernel, project).first_calls
    assert found is not None
    return found


def table_of(kernel: str, project: Project) -> LookupTable | None:
    """Return the table of a kernel's records; None if there is no record."""
    return _current(kernel, project).table


def refresh(kernel: str) -> None:
    """Clear the cached answers of a kernel, so that new first calls answer."""
    for cached in list(_cache.values()):
        if cached.kernel == kernel:
            cached.has_changed()
            cached.answers.clear()


class _Cached:
    """The table of one kernel in one environment, and its cached answers."""

    def __init__(self, kernel: str, owner: Project, state: tuple[object, ...], space: str) -> None:
        from autotune.tuned.kernel_files import KernelFiles
        from autotune.tuned.merged import build_table
        from autotune.tuned.reading import read_layers, warn

        self.kernel, self.owner, self.state = kernel, owner, state
        self.checked_at = time.monotonic()
        self.answers: dict[object, TunedConfig] = {}
        files = read_layers(kernel, owner)
        self.table = build_table(files, warn) if files else None
        #: The files of the kernel, if they are at hand and the record names them.
        self.files: KernelFiles | None = None
        if self.table is not None and space and self.table.newest.provenance.files:
            self.files = KernelFiles(space, self.table.newest)
        self.first_calls: FirstCalls | None = None
        if self.table is not None:
            from autotune.tuned.first_calls import FirstCalls

            self.first_calls = FirstCalls(kernel, owner)

    def has_changed(self) -> bool:
        """Return whether the kernel's files or the first calls changed since the last call."""
        return any(part.refresh() for part in (self.files, self.first_calls) if part)

    def answer(
        self,
        arch: Any,
        device: Any,
        deterministic: bool,
        problem: dict[str, Any],
        is_valid: Callable[[TunedProblem], bool] | None = None,
    ) -> TunedConfig:
        from dataclasses import replace

        from autotune.tuned.answer import answer
        from autotune.tuned.reading import no_record

        if self.table is None:
            raise UsageError(no_record(self.kernel, self.owner))
        asked = arch, device, deterministic, problem
        found = answer(self.table, *asked, self.first_calls, is_valid)
        reasons = self.files.stale_reasons(found) if self.files else ()
        if not reasons:
            return found
        return replace(found, stale_reasons=tuple(dict.fromkeys((*found.stale_reasons, *reasons))))


#: Tables by kernel, project, current folder and environment variables.
_cache: dict[object, _Cached] = {}


def clear_cache() -> None:
    """Clear all cached tables, answers and devices."""
    _cache.clear()
    first_gpu.cache_clear()


def _current(kernel: str, project: str | os.PathLike[str] | Project | None) -> _Cached:
    key = (kernel, project, current_folder(), *map(os.environ.get, _VARIABLES))
    cached = _cache.get(key)
    if cached is None or time.monotonic() - cached.checked_at > RECHECK_S:
        cached = _refreshed(key, kernel, project)
    return cached


def _refreshed(
    key: object, kernel: str, project: str | os.PathLike[str] | Project | None
) -> _Cached:
    from autotune.tuned.kernel_files import find_space
    from autotune.tuned.reading import owner_of, stamp

    if not isinstance(kernel, str) or not kernel.isidentifier():
        raise UsageError(f"{kernel!r} is not the name of a kernel: a name is an identifier")
    owner = owner_of(kernel, project)
    space = find_space(kernel, None if project is None else owner)
    state = owner, stamp(kernel, owner), space
    cached = _cache.get(key)
    if cached is None or cached.state != state:
        if len(_cache) >= MAX_TABLES:
            _cache.clear()
        cached = _cache[key] = _Cached(kernel, owner, state, space)
    elif cached.has_changed():
        cached.answers.clear()
    cached.checked_at = time.monotonic()
    return cached


@cache
def first_gpu(visible: str) -> Device | None:
    """Return the first GPU of a value of ``CUDA_VISIBLE_DEVICES``; None if unknown.

    Uses the management library (NVML), which does not initialise CUDA. NVML orders GPUs by bus. If the
    GPUs of a host differ, set ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` so that CUDA uses the same order.
    """
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        return _ask_nvml(nvml, visible.split(",")[0].strip())
    finally:
        nvml.nvmlShutdown()


def _ask_nvml(nvml: Any, first: str) -> Device | None:
    """Find a device by its number or uuid, or a MIG slice by its uuid; of a slice only name and architecture."""
    from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer

    def answers(function: str, *arguments: Any) -> bool:
        ask = getattr(nvml, function, None)  # an older driver lacks some
        return ask is not None and ask(*arguments) == 0

    handle, whole, major, minor = c_void_p(), c_void_p(), c_int(), c_int()
    if first.isdigit():
        is_found = answers("nvmlDeviceGetHandleByIndex_v2", int(first), byref(handle))
    else:
        is_found = answers("nvmlDeviceGetHandleByUUID", first.encode(), byref(handle))
    if not is_found:
        return None
    buffer, uuid = create_string_buffer(96), create_string_buffer(96)
    answers("nvmlDeviceGetName", handle, buffer, 96)
    answers("nvmlDeviceGetUUID", handle, uuid, 96)
    name = buffer.value.decode("utf-8", "replace")
    # NVML knows the compute capability of the whole device only, not of a MIG slice.
    is_slice = answers("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, byref(whole))
    asked = whole if is_slice else handle
    if answers("nvmlDeviceGetCudaComputeCapability", asked, byref(major), byref(minor)):
        arch = f"sm_{10 * major.value + minor.value}"
    else:
        arch = arch_of_model(name) or ""
    found = Device("cuda", name, arch, uuid.value.decode("utf-8", "replace"))
    cores, mhz, memory = c_uint(), c_uint(), (c_ulonglong * 3)()
    if not arch or is_slice or not answers("nvmlDeviceGetNumGpuCores", handle, byref(cores)):
        return found
    answers("nvmlDeviceGetMemoryInfo", handle, memory)
    answers("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK, byref(mhz))
    return dataclasses.replace(
        found,
        sm_count=cores.value // fp32_lanes(arch),
        memory_bytes=memory[0],  # total, free, used
        peak_gflop_per_s=2 * cores.value * mhz.value / 1e3,
    )

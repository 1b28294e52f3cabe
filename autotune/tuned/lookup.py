"""From a kernel and a problem to the tuned configuration.

Keeps the table made of the record files, and the answers given from it. A production process imports
this, so it imports only the record's schema before the first question.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import autotune.tuned.record  # noqa: F401  not in the time of the first question
from autotune.errors import UsageError
from autotune.project import Project, current_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.tuned.answer import TunedConfig
    from autotune.tuned.first_calls import FirstCalls
    from autotune.tuned.merged import LookupTable

#: How long a change of the record files may go unnoticed, in seconds.
RECHECK_S = 1.0
#: Answers kept per kernel; a serving process may ask for ever new sizes.
MAX_ANSWERS = 4096
#: Tables kept; a process may change its folder again and again.
MAX_TABLES = 256
#: Variables that decide which records answer.
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

    Never fails for a size: what a first call found (`load`, ``tune=``) or what was measured for others
    answers, and `TunedConfig.quality` says how good the hit is. Record files are read once, and looked
    at again when the last look is a second old; a change of the current folder, ``AUTOTUNE_PROJECT``,
    ``AUTOTUNE_PATH``, ``AUTOTUNE_TUNED`` or ``XDG_DATA_HOME`` is seen at once.

    Parameters
    ----------
    kernel : str
        Name of the kernel, for example ``sgemm``.
    arch : str or int, optional
        Architecture: ``sm_90``, 90, or 900 as in ``__CUDA_ARCH__``. Default: that of ``device``,
        else ``AUTOTUNE_ARCH``, else that of the first visible GPU.
    device : str or Device, optional
        The driver's name of a device, its uuid, or its folder among the records. One that was not
        tuned is answered by its architecture, where it tells that, or its name is a common GPU's.
    deterministic : bool
        Answer only with configurations that give the same bits in every run, as their kernel declares.
    project : str, PathLike or Project, optional
        The project whose records answer: its name, or a folder in it. Default: that of the nearest space
        file of the kernel, else of the current folder, else that of the bundled kernels.
    **problem : int or str
        All problem fields of the kernel; sizes are at least 0. Of an empty problem the ``grid`` may
        have an extent of 0: there is nothing to launch. Fields that say how arrays lie
        (``offset_x``, ``lda``) may be left out.

    Returns
    -------
    TunedConfig
        Parameters by name, with ``block``, ``shared_bytes``, ``grid`` and ``quality``.

    Raises
    ------
    UsageError
        If the project has no record of the kernel, or several of its folders have one; if the problem
        fields are not the kernel's, a size is negative, ``arch`` is no architecture, or nothing
        ``deterministic`` is known.
    """
    environ = os.environ
    cached = _current(kernel, project)
    name = None
    if device is None and arch is None:
        arch = environ.get("AUTOTUNE_ARCH") or None
        if arch is None:
            name, arch = first_gpu(environ.get("CUDA_VISIBLE_DEVICES"))
    question = (arch, device, name, deterministic, *problem.items())
    try:
        known = cached.answers.get(question)
    except TypeError:  # an unhashable device or field
        return cached.answer(arch, device or name, deterministic, problem)
    if known is not None:
        return known
    answer = cached.answer(arch, device or name, deterministic, problem)
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
    """Return the recorded configurations to try for a problem, at most ``count``, `lookup`'s answer first.

    All were verified on some problem. Empty where nothing is recorded that may answer.
    """
    from autotune.tuned.answer import promising

    table = _current(kernel, project).table
    return promising(table, device, deterministic, problem, count) if table else []


def recorded(
    kernel: str, device: Any, deterministic: bool, project: Project, problem: Mapping[str, Any]
) -> TunedConfig:
    """Return the answer of runs alone, as `lookup` does if no first call found another."""
    cached = _current(kernel, project)
    return cached.answer(None, device, deterministic, dict(problem), with_first_calls=False)


def table_of(kernel: str, project: Project) -> LookupTable | None:
    """Return the table of a kernel's records; None if there is no record."""
    return _current(kernel, project).table


def refresh(kernel: str) -> None:
    """Forget what was read for a kernel."""
    for key in [key for key, cached in list(_cache.items()) if cached.kernel == kernel]:
        _cache.pop(key, None)


class _Cached:
    """The table of one kernel in one environment, and its answers so far."""

    def __init__(self, kernel: str, owner: Project, state: tuple[object, ...]) -> None:
        from autotune.tuned.merged import build_table
        from autotune.tuned.reading import read_with_first_calls, warn

        self.kernel, self.owner, self.state = kernel, owner, state
        self.checked_at = time.monotonic()
        self.answers: dict[object, TunedConfig] = {}
        files = read_with_first_calls(kernel, owner)
        tuned = [file for file in files if file.record.is_tuned]
        self.table = build_table(tuned, warn) if tuned else None
        self.first_calls: FirstCalls | None = None
        if self.table is not None and any(file.record.first_calls for file in files):
            from autotune.tuned.first_calls import FirstCalls

            self.first_calls = FirstCalls(files, self.table)

    def answer(
        self,
        arch: Any,
        device: Any,
        deterministic: bool,
        problem: dict[str, Any],
        with_first_calls: bool = True,
    ) -> TunedConfig:
        from autotune.tuned.answer import answer
        from autotune.tuned.reading import no_record

        if self.table is None:
            raise UsageError(no_record(self.kernel, self.owner))
        first_calls = self.first_calls if with_first_calls else None
        return answer(self.table, arch, device, deterministic, problem, first_calls)


#: By kernel and all that decides where its records are.
_cache: dict[object, _Cached] = {}


def clear_cache() -> None:
    """Forget every record, answer and device that was seen."""
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
    from autotune.tuned.reading import owner_of, stamp

    if not isinstance(kernel, str) or not kernel.isidentifier():
        raise UsageError(f"the name of a kernel is an identifier, not {kernel!r}")
    owner = owner_of(kernel, project)
    state = owner, stamp(kernel, owner)
    cached = _cache.get(key)
    if cached is None or cached.state != state:
        if len(_cache) >= MAX_TABLES:
            _cache.clear()
        cached = _cache[key] = _Cached(kernel, owner, state)
    cached.checked_at = time.monotonic()
    return cached


@cache
def first_gpu(visible: str | None) -> tuple[str | None, str | None]:
    """Return name and architecture of the first GPU of ``CUDA_VISIBLE_DEVICES``; None: not known.

    Asks the management library, which starts no CUDA. Its order is that of the bus; where GPUs of
    one host differ, ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` makes CUDA count the same way.
    """
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, None
    if nvml.nvmlInit_v2() != 0:
        return None, None
    try:
        return _ask_nvml(nvml, "0" if visible is None else visible.split(",")[0].strip())
    finally:
        nvml.nvmlShutdown()


def _ask_nvml(nvml: Any, first: str) -> tuple[str | None, str | None]:
    """Find a device by its number or uuid, a MIG slice by its uuid."""
    from ctypes import byref, c_int, c_void_p, create_string_buffer

    handle, whole, major, minor = c_void_p(), c_void_p(), c_int(), c_int()
    if first.isdigit():
        status = nvml.nvmlDeviceGetHandleByIndex_v2(int(first), byref(handle))
    else:
        status = nvml.nvmlDeviceGetHandleByUUID(first.encode(), byref(handle))
    if status != 0:
        return None, None
    buffer = create_string_buffer(96)
    nvml.nvmlDeviceGetName(handle, buffer, 96)
    name = buffer.value.decode("utf-8", "replace")
    # A slice does not tell its compute capability; the device it is cut from does.
    if nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, byref(whole)) == 0:
        handle = whole
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, byref(major), byref(minor)):
        return name, None
    return name, f"sm_{10 * major.value + minor.value}"

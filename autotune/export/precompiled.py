"""Compile the recorded configurations of a kernel ahead, as files of the cache of binaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from autotune.arrays import usable_cores
from autotune.cache import BINARIES
from autotune.compiling.binaries import cached_name, compile_now, encoded_binary
from autotune.compiling.job import CompileJob, compile_job
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration, Problem


def precompiled(records: Sequence[TunedRecord]) -> dict[str, bytes]:
    """Return the binaries of the records of one kernel, by their paths in the folder of the cache.

    Each is compiled for the device of its record. A GPU need not be present; an OpenCL device must be.
    """
    kernel = find_kernel(records[0].kernel)
    found = [pair for record in records for pair in _jobs(kernel, record)]
    jobs = {job.key: job for _, job in found}
    configurations = {job.key: configuration for configuration, job in found}
    # Of the compilers only NVRTC runs in several threads.
    is_nvrtc = not kernel.language and all(job.device.is_cuda for job in jobs.values())
    files: dict[str, bytes] = {}
    with ThreadPoolExecutor(usable_cores() if is_nvrtc else 1) as pool:
        for job, compiled in zip(jobs.values(), pool.map(compile_now, jobs.values()), strict=True):
            if compiled.binary is None:
                failed = configurations[job.key]
                raise kernel.error(f"{failed} for {job.device.name}: {compiled.message}")
            files[f"{BINARIES}/{cached_name(job.key)}"] = encoded_binary(compiled.binary)
    return files


def _jobs(kernel: Kernel, record: TunedRecord) -> Iterator[tuple[Configuration, CompileJob]]:
    """Yield the jobs of a record: each answer for its problem, then each other plan for one that it allows.

    Leave out configurations that the device's space lacks, as a default that is for other devices.
    """
    device = _device(record)
    problems = [Problem(dict(entry.problem)) for entry in record.problems]
    answers = [(plan, Problem(dict(e.problem))) for e in record.problems for plan in e.plans]
    for plan in record.plans():
        allowed = (problem for problem in problems if plan.allows({**record.layout, **problem}))
        answers += [(plan, problem) for problem in allowed][:1]
    for plan, problem in answers:
        configuration = Configuration(dict(plan.configuration))
        if is_member(kernel, configuration, device):
            yield configuration, compile_job(kernel, configuration, problem, device)


def _device(record: TunedRecord) -> Device:
    if record.device.backend == "cuda":
        return record.device.planned_for()
    for device in backend(record.device.backend).devices():
        if device.folder == record.device.folder:
            return device
    raise UsageError(
        f"{record.kernel}: {record.device.name} is not on this machine, and a binary for it needs its driver; "
        "export there, or name another device: --device NAME"
    )

"""Checks a kernel without tuning it: space, traceability, a compiled sample, a verified sample.

Knows no time and no storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.devices.choose import backend
from autotune.devices.device import Device, for_arch
from autotune.errors import MissingDependencyError, NothingValidError
from autotune.kernel.launches import launch_sequence, over_limit, requirement, traced, traced_grid
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import compile_job, compile_now
from autotune.measure.data import EXACT, RANDOM, prepare
from autotune.measure.measurement import Status
from autotune.measure.tasks import Job
from autotune.measure.worker import Worker
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class SampleResult:
    """What became of one configuration for one target."""

    target: str
    configuration: Configuration
    registers: int | None
    spill_bytes: int | None
    #: Empty when all is well.
    problem: str = ""
    #: The parameters that have an effect, for a person to read.
    relevant: str = ""


@dataclass
class CheckReport:
    """Everything found; ``failures`` is empty when the kernel is fit to be tuned."""

    kernel: str
    notes: list[str] = field(default_factory=list)
    samples: list[SampleResult] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def table(self) -> list[dict[str, str]]:
        """Rows for a person."""
        return [
            {
                "target": sample.target,
                "configuration": sample.relevant,
                "registers": "" if sample.registers is None else str(sample.registers),
                "spill bytes": "" if sample.spill_bytes is None else str(sample.spill_bytes),
                "result": sample.problem or "ok",
            }
            for sample in self.samples
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "kernel": self.kernel,
            "notes": self.notes,
            "failures": self.failures,
            "samples": [
                {
                    "target": sample.target,
                    "config": dict(sample.configuration),
                    "registers": sample.registers,
                    "spill_bytes": sample.spill_bytes,
                    "problem": sample.problem,
                }
                for sample in self.samples
            ],
        }


def check_kernel(kernel: Kernel, archs: Sequence[str], samples: int, seed: int) -> CheckReport:
    """Check a kernel for CUDA architectures, and on the OpenCL device where there is one.

    Parameters
    ----------
    kernel : Kernel
        Already validated by the catalog.
    archs : sequence of str
        CUDA architectures such as ``sm_90``.
    samples : int
        Configurations to compile for each target.
    seed : int
        Of the sample.

    Raises
    ------
    SpecError
        If a hook fails.
    """
    report = CheckReport(kernel.name)
    targets = [for_arch(arch) for arch in archs] if "cuda" in kernel.backends else []
    for device in targets:
        _check_compiling(report, kernel, device, samples, seed)
    if "opencl" in kernel.backends:
        found = backend("opencl").devices()
        if found:
            _check_on_device(report, kernel, found[-1], samples, seed)
        else:
            report.notes.append(
                "not verified: no OpenCL device (pip install 'kernel-autotune[cpu]')"
            )
    return report


def _check_compiling(
    report: CheckReport, kernel: Kernel, device: Device, samples: int, seed: int
) -> None:
    space = _space(report, kernel, device)
    if space is None:
        return
    problem = kernel.first_problem(device.backend)
    for configuration in _sample(kernel, space, samples, seed):
        try:
            found = _compiled(kernel, configuration, problem, device)
            report.samples.append(_readable(found, space))
        except MissingDependencyError as error:
            report.notes.append(f"not compiled for {device.arch}: {error}")
            return
    _collect_failures(report, device.arch)


def _compiled(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> SampleResult:
    launches = launch_sequence(kernel, configuration, problem, device)
    excess = over_limit(launches, None, device)
    if excess:
        return SampleResult(device.arch, configuration, None, None, f"pruned: {excess}")
    done = compile_now(compile_job(kernel, configuration, problem, device))
    if done.binary is None:
        ended = "pruned" if done.status is Status.PRUNED else "failed"
        return SampleResult(device.arch, configuration, None, None, f"{ended}: {done.message}")
    entries = done.binary.entries
    missing = [
        launch.entry for launch in launches.launches if not done.binary.entry(launch.entry or "")
    ]
    message = f"failed: the source has no kernel function {missing[0]!r}" if missing else ""
    return SampleResult(
        device.arch,
        configuration,
        max((function.registers or 0 for function in entries), default=None),
        sum(function.spill_bytes or 0 for function in entries),
        message,
    )


def _check_on_device(
    report: CheckReport, kernel: Kernel, device: Device, samples: int, seed: int
) -> None:
    """Compile and verify a sample on odd sizes and on the smallest problem."""
    space = _space(report, kernel, device)
    if space is None:
        return
    problems = [*kernel.edge_problems, kernel.first_problem(device.backend)]
    jobs = [_job(kernel, problem, device) for problem in dict.fromkeys(problems)]
    with Worker() as worker:
        for configuration in _sample(kernel, space, samples, seed):
            found = _verified(kernel, configuration, jobs, worker)
            report.samples.append(_readable(found, space))
    _collect_failures(report, device.arch)


def _verified(
    kernel: Kernel, configuration: Configuration, jobs: Sequence[Job], worker: Worker
) -> SampleResult:
    arch = jobs[0].device.arch
    for job in jobs:
        if not kernel.allows(configuration, job.problem):
            continue
        done = compile_now(compile_job(kernel, configuration, job.problem, job.device))
        if done.binary is None:
            return SampleResult(arch, configuration, None, None, f"failed: {done.message}")
        measured = worker.check(job, configuration, done.binary)
        if measured.status is not Status.OK:
            message = f"failed: {measured.status} on {job.problem}: {measured.message}"
            return SampleResult(arch, configuration, None, None, message)
    return SampleResult(arch, configuration, None, None)


def _readable(found: SampleResult, space: Space) -> SampleResult:
    shown = Configuration(space.relevant(found.configuration))
    return replace(found, relevant=str(shown))


def _job(kernel: Kernel, problem: Problem, device: Device) -> Job:
    assert kernel.file is not None
    datasets = tuple(prepare(kernel, problem, name) for name in (EXACT, RANDOM))
    return Job(kernel.file, problem, device, datasets)


def _space(report: CheckReport, kernel: Kernel, device: Device) -> Space | None:
    """Enumerate; note what was found, and whether launches can be traced."""
    try:
        space = enumerate_space(kernel, device)
    except NothingValidError as error:
        report.failures.append(str(error))
        return None
    report.notes.append(f"{device.arch}: {len(space):,} valid of {space.cartesian:,} combinations")
    if traced_grid(traced(kernel, space.configuration(0), device)) is None:
        report.notes.append(
            f"{device.arch}: the launch function needs numbers, so record and header can carry "
            "its grid for tuned problems only (use ceil_div, minimum and maximum of autotune)"
        )
    requirement(kernel, space.configuration(0))
    return space


def _sample(kernel: Kernel, space: Space, count: int, seed: int) -> list[Configuration]:
    """The default where it is valid, then a random sample."""
    default = space.index(kernel.default())
    numbers = space.sample(np.random.default_rng(seed), count)
    chosen = ([default] if default is not None else []) + numbers
    return [space.configuration(i) for i in list(dict.fromkeys(chosen))[:count]]


def _collect_failures(report: CheckReport, target: str) -> None:
    bad = [
        sample
        for sample in report.samples
        if sample.target == target and sample.problem.startswith("failed")
    ]
    if bad:
        report.failures.append(f"{target}: {len(bad)} of the sample failed ({bad[0].problem})")

"""What a device really reaches: read and copy bandwidth, FFMA rate, launch latency.

Measured once per device uuid and driver, and kept in the user's data. Knows when that has to be
done and whether the numbers can be true; `probe_task` knows how they come about.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from autotune.devices.device import Clocks, Device
from autotune.errors import AutotuneError, DeviceError
from autotune.files import data_folder, write_atomically

if TYPE_CHECKING:
    from autotune.measure.compiler import Compiled, CompileJob, CompilerPool
    from autotune.measure.probe_task import Found
    from autotune.measure.worker import Worker

#: Bumped when the probes or this schema change: older files are measured again.
SCHEMA_VERSION = 1
#: Longest time for all probes of a device, compiling included.
PROBE_TIMEOUT_S = 300.0
#: A rate this much above the peak is a broken measurement; `limits` has the same margin.
_MOST_OF_PEAK = 1 / 0.97
#: Below this share of the peak something else used or slowed the device. Known devices reach 0.85.
_LEAST_OF_PEAK = 0.5


class MeasuredLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Measured limits of one device."""

    uuid: str
    name: str
    driver: str
    read_gb_per_s: float
    #: Bytes read plus bytes written.
    copy_gb_per_s: float
    ffma_gflop_per_s: float
    #: A launch that does nothing, timed as every configuration is: no time can be shorter.
    launch_us: float
    #: What each further launch in a sequence adds at least.
    next_launch_us: float = 0.0
    #: The variants of ``kernels/probe.cu`` that reached the rates.
    read_by: str = ""
    copy_by: str = ""
    ffma_by: str = ""
    #: Size of the buffer that was read; copied from one to a second of that size.
    buffer_bytes: int = 0
    #: Clock and throttling right after the FFMA probe, where the device says.
    sm_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    toolchain: str = ""
    #: Tells a whole GPU from a slice of it.
    sm_count: int = 0
    #: ISO date.
    measured_on: str
    schema_version: int = SCHEMA_VERSION


def limits_of(
    device: Device,
    worker: Worker | None = None,
    compilers: CompilerPool | None = None,
    remeasure: bool = False,
) -> MeasuredLimits:
    """The measured limits of a device; measures them where they are not known.

    Takes some seconds the first time. Values that are suspiciously low are returned with a warning
    and not kept, so that the next call measures again.

    Parameters
    ----------
    device : Device
        A live one: an architecture has no measured limits.
    worker : Worker, optional
        The process to measure in; default: one that ends with the call.
    compilers : CompilerPool, optional
        Compiles the variants at once; default: one after the other in the worker.
    remeasure : bool
        Measure even if they are known.

    Raises
    ------
    DeviceError
        If there is no such device.
    AutotuneError
        If the probes cannot run, or report more than the device can do.
    """
    if not device.uuid:
        raise DeviceError(
            f"{device.name} is an architecture, not a device: it has no measured limits; "
            "run: autotune doctor"
        )
    known = None if remeasure else known_limits(device)
    if known is not None:
        return known
    measured = _measured(device, worker, compilers)
    _refuse_impossible(measured, device)
    doubt = _doubt(measured, device)
    if doubt:
        _warn(f"{doubt}; not kept. See what else uses the device: autotune doctor")
    else:
        _keep(measured)
    return measured


def known_limits(device: Device) -> MeasuredLimits | None:
    """The kept limits of a device, or None where they are missing, stale or damaged.

    Only reads. A file that is not what it should be causes a warning.
    """
    if not device.uuid:
        return None
    try:
        found = _read(device)
    except ValueError as error:
        _warn(f"{error}; the device is measured again when its limits are next needed")
        return None
    is_stale = found is not None and bool(device.driver) and found.driver != device.driver
    return None if is_stale else found


def _read(device: Device) -> MeasuredLimits | None:
    """What is kept for a device; None where there is nothing, or only from an older version.

    Raises
    ------
    ValueError
        If the file is not what it should be.
    """
    try:
        file = limits_file(device.uuid)
        found = msgspec.json.decode(file.read_bytes(), type=MeasuredLimits)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"the limits of {device.name} cannot be read ({why})") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error})") from error
    if found.schema_version < SCHEMA_VERSION:
        return None
    if found.schema_version > SCHEMA_VERSION:
        raise ValueError(f"{file} is from a newer version of autotune")
    if found.uuid != device.uuid or found.sm_count != device.sm_count:
        raise ValueError(f"{file} is of another device ({found.name})")
    if not all(math.isfinite(rate) and rate > 0 for rate in _rates(found).values()):
        raise ValueError(f"{file} is damaged (a rate is not positive)")
    return found


def limits_file(uuid: str) -> Path:
    """Where the limits of a device are kept."""
    return data_folder() / "limits" / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', uuid)}.json"


def _keep(measured: MeasuredLimits) -> None:
    """Write limits; a folder that cannot be written only costs measuring again."""
    try:
        file = limits_file(measured.uuid)
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    except OSError as error:
        _warn(f"measured limits cannot be kept ({error}); run: autotune doctor")


def _rates(limits: MeasuredLimits) -> dict[str, float]:
    return {
        "read": limits.read_gb_per_s,
        "copy": limits.copy_gb_per_s,
        "ffma": limits.ffma_gflop_per_s,
        "launch": limits.launch_us,
    }


def _shares_of_peak(limits: MeasuredLimits, device: Device) -> dict[str, float]:
    """Measured rates as shares of the data sheet's; without those that the device does not know."""
    peaks = {
        "read": device.peak_gb_per_s,
        "copy": device.peak_gb_per_s,
        "ffma": device.peak_gflop_per_s,
    }
    rates = _rates(limits)
    return {name: rates[name] / peak for name, peak in peaks.items() if peak > 0}


def _refuse_impossible(limits: MeasuredLimits, device: Device) -> None:
    """Raise where a probe reports more than the device can do.

    Raises
    ------
    AutotuneError
    """
    for name, share in _shares_of_peak(limits, device).items():
        if share > _MOST_OF_PEAK:
            raise AutotuneError(
                f"{device.name}: the {name} probe reports {share:.2f} times the device's peak; "
                "the probe skips work, or the driver reports wrong clocks; "
                "run: nvidia-smi -q -d CLOCK"
            )


def _doubt(limits: MeasuredLimits, device: Device) -> str:
    """What is suspicious about limits; empty where nothing is."""
    if Clocks(throttle_reasons=tuple(limits.throttle_reasons)).is_throttled:
        reasons = ", ".join(limits.throttle_reasons)
        return f"{device.name} was throttled ({reasons}) while its limits were measured"
    low = {
        name: share
        for name, share in _shares_of_peak(limits, device).items()
        if share < _LEAST_OF_PEAK
    }
    if not low:
        return ""
    what = ", ".join(f"{name} {share:.0%}" for name, share in low.items())
    why = f", throttled: {', '.join(limits.throttle_reasons)}" if limits.throttle_reasons else ""
    return f"{device.name}: measured limits are far below the device's peak ({what}{why})"


def _measured(
    device: Device, worker: Worker | None, compilers: CompilerPool | None
) -> MeasuredLimits:
    from autotune.measure.process import ChildDied, ChildTimeout
    from autotune.measure.worker import Worker

    with ExitStack() as stack:
        if worker is None:
            worker = stack.enter_context(Worker())
        try:
            found, toolchain = _found(device, worker, compilers)
        except (ChildDied, ChildTimeout, MemoryError) as error:
            raise AutotuneError(
                f"{device.name}: the limits could not be measured: {error}"
            ) from error
    return MeasuredLimits(
        uuid=device.uuid,
        name=device.name,
        driver=device.driver,
        read_gb_per_s=found.read.per_ms / 1e6,
        copy_gb_per_s=found.copy.per_ms / 1e6,
        ffma_gflop_per_s=found.ffma.per_ms / 1e6,
        launch_us=found.launch_us,
        next_launch_us=found.next_launch_us,
        read_by=found.read.by,
        copy_by=found.copy.by,
        ffma_by=found.ffma.by,
        buffer_bytes=found.buffer_bytes,
        sm_mhz=found.clocks.sm_mhz,
        throttle_reasons=found.clocks.throttle_reasons,
        toolchain=toolchain,
        sm_count=device.sm_count,
        measured_on=datetime.now(UTC).date().isoformat(),
    )


def _found(device: Device, worker: Worker, compilers: CompilerPool | None) -> tuple[Found, str]:
    """Compile all variants and run them in the worker."""
    from autotune.devices.base import ContextLostError, LaunchError
    from autotune.measure import probe_task
    from autotune.measure.process import ChildDied

    variants = probe_task.variants(device)
    jobs = [probe_task.compile_job(one, device) for one in variants]
    compiled = _compiled(list(dict.fromkeys(jobs)), worker, compilers)
    ready = [
        (variant, binary)
        for variant, job in zip(variants, jobs, strict=True)
        if (binary := compiled[job].binary) is not None
    ]
    if not ready:
        raise AutotuneError(
            f"{device.name}: kernels/probe.cu does not compile: {compiled[jobs[0]].message}"
        )
    try:
        found = worker.run(PROBE_TIMEOUT_S, probe_task.measure, device, ready)
    except LaunchError as error:
        raise AutotuneError(f"{device.name}: the limits could not be measured: {error}") from error
    except ContextLostError as error:
        with suppress(ChildDied):  # nothing else can be done in that process
            worker.run(PROBE_TIMEOUT_S, os._exit, 1)
        raise AutotuneError(f"{device.name}: a probe broke the device context: {error}") from error
    return found, jobs[0].toolchain


def _compiled(
    jobs: list[CompileJob], worker: Worker, compilers: CompilerPool | None
) -> dict[CompileJob, Compiled]:
    from autotune.measure.compiler import compile_now

    if compilers is None:
        return {job: worker.run(PROBE_TIMEOUT_S, compile_now, job) for job in jobs}
    for job in jobs:
        compilers.submit(job)
    return {job: compilers.result(job) for job in jobs}


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)

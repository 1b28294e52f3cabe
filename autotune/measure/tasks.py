"""The tasks of a worker process: verify a configuration, time it, write its results.

Each task takes a job, a configuration and its binary, and returns a `Measurement`; a failure is its status.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from autotune.data.consensus import save_result
from autotune.data.dataset import RANDOM
from autotune.data.extremes import ExtremeData, extreme_data
from autotune.devices.base import (
    Binary,
    ContextLostError,
    Executor,
    LaunchError,
    Side,
    Timer,
)
from autotune.errors import SpecError
from autotune.kernel.launches import complete_launches
from autotune.measure import verify
from autotune.measure.launchable import Launchable
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.process import retire
from autotune.measure.roofline import implausible
from autotune.measure.timing import (
    SEARCH_S,
    Caches,
    Samples,
    StoppingRule,
    measure_energy,
    proven_slow,
    sample,
    taking_of,
)
from autotune.measure.worker_state import (
    Job,
    current,
    launchable,
    least_power_w,
    read_clocks,
    unthrottled,
)
from autotune.values import Configuration

#: Maximum number of rounds of concurrent launches; outputs are compared after each round.
_MAX_ROUNDS = 12
#: Fewest of these rounds.
_MIN_ROUNDS = 3
#: Seconds after which no further round begins.
_ROUNDS_S = 0.01
#: Maximum number of launches of each side in a round.
_MAX_LAUNCHES = 16
#: Fewest of these launches.
_MIN_LAUNCHES = 4
#: Longest time of one side's launches in a round.
_LAUNCHES_MS = 3.0


def measure(
    job: Job,
    configuration: Configuration,
    binary: Binary,
    rule: StoppingRule,
    best_samples_ms: tuple[float, ...],
    best_cost: float = math.inf,
) -> Measurement:
    """Verify a configuration on every data set, then time it.

    Measure its energy, too, if the objective needs it and its lower bound does not exceed ``best_cost``. A
    configuration that is compared with a claim is pending; if it differs from the claim, it is not timed.
    """

    def timed(draft: Measurement, ready: Launchable) -> Measurement:
        return _timed(_verified(draft, ready), ready, job, rule, best_samples_ms, best_cost)

    found = _tried(job, configuration, binary, timed)
    if job.claim is None or found.status not in (Status.OK, Status.WRONG_RESULT):
        return found
    if found.status is Status.OK:
        return replace(found, status=Status.PENDING)
    message = f"differs from {job.claim.configuration}: {found.message}"
    return replace(found, status=Status.PENDING, message=message, samples_ms=())


def verify_configuration(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Verify a configuration without timing it, for example with other seeds or on edge problems."""
    return _tried(job, configuration, binary, _verified)


def launch(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Run a configuration once on each data set; its outputs are not compared."""

    def launched(draft: Measurement, ready: Launchable) -> Measurement:
        for name in ready.data.datasets:
            ready.run_afresh(name)
        return draft

    return _tried(job, configuration, binary, launched)


def check_at_once(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Run two launches of a verified configuration at the same time: one module, separate buffers and data.

    They disturb each other if the kernel keeps state in its module, such as a counter or a partial sum. If
    the device has no room for the second side, the measurement is `OK` with a message.
    """

    def undisturbed(draft: Measurement, ready: Launchable) -> Measurement:
        try:
            _launch_at_once(ready)
        except MemoryError as error:
            return replace(draft, message=str(error))
        return draft

    return _tried(job, configuration, binary, undisturbed)


def write_results(
    job: Job, configuration: Configuration, binary: Binary, folder: Path
) -> Measurement:
    """Write the outputs that a configuration changes, for each data set without expected outputs."""

    def written(draft: Measurement, ready: Launchable) -> Measurement:
        data = ready.data
        outputs = [argument for argument in data.arguments if argument.kind in ("out", "inout")]
        for name, dataset in data.datasets.items():
            if dataset.bounds:
                continue
            ready.run_afresh(name)
            (folder / name).mkdir(parents=True, exist_ok=True)
            for output in outputs:
                if not data.is_unchanged(name, output):
                    buffer, dtype = data.buffers[output.name], np.dtype(output.dtype)
                    values = ready.executor.read(buffer, dtype, output.stored_shape)
                    save_result(folder / name, output.name, values)
        return draft

    return _tried(job, configuration, binary, written)


def write_extremes(job: Job, seed: int, folder: Path) -> list[ExtremeData]:
    """Write data with extreme values; none if the kernel's functions refuse the problem.

    The reference runs in this process, because it may not end on such values.
    """
    _, _, kernel = current()
    with suppress(SpecError):
        return extreme_data(kernel, job.problem, seed, folder)
    return []


def _tried(
    job: Job,
    configuration: Configuration,
    binary: Binary,
    measured: Callable[[Measurement, Launchable], Measurement],
) -> Measurement:
    """Complete a draft with ``measured``; turn an exception into a failed measurement."""
    draft = draft_of(job, configuration, binary)
    start = time.perf_counter()
    try:
        return measured(draft, launchable(job, configuration, binary))
    except verify.WrongResult as error:
        wrong = replace(draft, checks=error.checks, verify_s=time.perf_counter() - start)
        return _failed(wrong, Status.WRONG_RESULT, str(error))
    except (LaunchError, MemoryError) as error:  # a workspace may be too large for the device
        return _failed(draft, Status.LAUNCH_FAILED, str(error))
    except ContextLostError as error:
        retire()
        return _failed(draft, Status.CRASHED, str(error))


def _verified(draft: Measurement, ready: Launchable) -> Measurement:
    start = time.perf_counter()
    launches = complete_launches(ready.plan, ready.binary).launches
    return replace(
        draft,
        entries=ready.binary.launched([str(launch.entry) for launch in launches]),
        checks=ready.verify(),
        verify_s=time.perf_counter() - start,
        dynamic_shared_bytes=max(launch.shared_bytes for launch in launches),
    )


def draft_of(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Return the measurement of a configuration before any task has run."""
    return Measurement(
        configuration,
        Status.OK,
        entries=binary.entries,
        binary_key=binary.key,
        device_uuid=job.device.uuid,
    )


def _launch_at_once(ready: Launchable) -> None:
    """Launch on two sides at the same time; raise WrongResult if an output is wrong."""
    data, executor = ready.data, ready.executor
    first, *others = data.datasets
    # Both sides share the module, whose symbols belong to one data set.
    second = others[-1] if others and not data.constants(first) else first
    twin = verify.DeviceData(
        executor,
        data.datasets,
        pristine=data.pristine,
        expected=data.expected,
        bounds=data.bounds,
        masked=data.masked,
        matching=data.matching,
    )
    twin.declare_scratch({name: out for name, (out, _) in data.scratch.items()})
    pairs = ((data, first), (twin, second))
    module, _ = ready.bind(first)
    sides, took_ms = [], 0.0
    for side, name in pairs:
        steps = side.bind(ready.plan, name, ready.binary)
        side.refresh(name, wholly=True)
        side.poison_scratch()
        took_ms = executor.run(module, steps)  # the first launch pays for loading
        sides.append(Side(partial(_renew, side, name), steps))
    times = max(_MIN_LAUNCHES, min(_MAX_LAUNCHES, int(_LAUNCHES_MS / max(took_ms, 1e-3))))
    run, end = executor.at_once(module, sides, times), time.monotonic() + _ROUNDS_S
    for done in range(_MAX_ROUNDS):
        if done >= _MIN_ROUNDS and time.monotonic() > end:
            break
        run()
        for side, name in pairs:
            for found in verify.outputs(side, name):
                if not found.is_correct:
                    raise verify.WrongResult(
                        f"{found.output} is wrong, by up to {found.max_error:.3g}"
                    )


def _renew(data: verify.DeviceData, dataset: str) -> None:
    data.refresh(dataset, wholly=False)
    data.poison_scratch()


def _timed(
    draft: Measurement,
    ready: Launchable,
    job: Job,
    rule: StoppingRule,
    best_samples_ms: tuple[float, ...],
    best_cost: float,
) -> Measurement:
    """Time a configuration, unless the launches that verified it prove it slower.

    Those launches found inputs in the cache, so a cold launch takes as long or longer. They are compared
    only with cold samples, because a hot launch also finds outputs in the cache.
    """
    start = time.perf_counter()
    is_cold = job.caches is Caches.COLD
    slow = proven_slow(ready.verified_ms, rule, best_samples_ms) if is_cold else None
    if slow is not None and not (clocks := read_clocks(ready.executor)).is_throttled:
        return replace(
            draft,
            status=Status.STOPPED_EARLY,
            message=_why_stopped(slow, best_samples_ms, "launches that verified it"),
            samples_ms=slow.samples_ms,
            launched_by="stream",
            clocks=clocks,
        )
    timer = ready.executor.timer(*ready.bind(RANDOM), job.is_flushed)
    take = taking_of(timer, job.caches)
    ready.data.poison_outputs()
    taken, clocks = unthrottled(ready.executor, lambda: sample(take, rule, best_samples_ms))
    timed = replace(
        draft,
        samples_ms=taken.samples_ms,
        launched_by=timer.launched_by,
        clocks=clocks,
    )
    if taken.stopped_early:  # not verified again; the finals do that for finalists
        why = _why_stopped(taken, best_samples_ms, "samples")
        timed = replace(timed, status=Status.STOPPED_EARLY, message=why)
    else:
        if job.objective.needs_energy:
            timed = _with_energy(timed, ready.executor, timer, job, best_cost)
        verify_timed(timer, len(taken.samples_ms), ready.scratch, afresh=False)
    timed = replace(timed, measure_s=time.perf_counter() - start)
    return _plausible(timed, job)


def _with_energy(
    timed: Measurement, executor: Executor, timer: Timer, job: Job, best_cost: float
) -> Measurement:
    """Return a measurement with its energy; stop early if a lower bound exceeds the best cost.

    The bound is the power of the idle device times the median time: a working device draws more.
    """
    power_w, median_ms = least_power_w(executor), median(timed.samples_ms)
    least = Energy(power_w * median_ms, power_w)
    cost = job.objective.of(median_ms, least)
    if cost is None or cost <= best_cost:
        return replace(timed, energy=measure_energy(executor, timer, SEARCH_S))
    why = (
        f"takes at least {least.call_mj:.4g} mJ at the {least.power_w:.3g} W of an idle device; "
        f"the best so far costs {best_cost:.4g}"
    )
    return replace(timed, energy=least, status=Status.STOPPED_EARLY, message=why)


def verify_timed(timer: Timer, launches: int, scratch: verify.Scratch, afresh: bool) -> None:
    """Check the outputs after a timer's launches: of the last launch, or of one more launch.

    One more launch, on restored data, is needed if other configurations were launched in between
    (``afresh``), or if an argument is both read and written. Workspaces keep their contents.
    """
    _, data, _ = current()
    data.scratch = scratch
    if afresh or data.accumulates:
        data.refresh(RANDOM, wholly=afresh)
        timer.singly(1)
    verify.verify_last(data, RANDOM, launches)


def _why_stopped(taken: Samples, best_samples_ms: Sequence[float], launches: str) -> str:
    return (
        f"{median(best_samples_ms):.4g} ms is the best so far; "
        f"all {len(taken.samples_ms)} {launches} exceed {taken.bar_ms:.4g} ms"
    )


def _plausible(timed: Measurement, job: Job) -> Measurement:
    _, _, kernel = current()
    work = kernel.work_of(job.problem)
    if work is None or timed.median_ms is None:
        return timed
    why = implausible(timed.median_ms, work, job.device, job.caches is Caches.COLD)
    return _failed(timed, Status.IMPLAUSIBLE, why) if why else timed


def _failed(draft: Measurement, status: Status, message: str) -> Measurement:
    return replace(draft, status=status, message=" ".join(message.split()))

"""The tasks of the worker process, the only code that holds a device context, and who asks for them.

State that is costly to make (context, uploaded data) is kept between tasks, and made again when a
task needs another problem.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from autotune.data.consensus import save_result
from autotune.data.dataset import RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import (
    Binary,
    ContextLostError,
    Executor,
    LaunchError,
    Poison,
    Side,
    Timer,
)
from autotune.devices.device import Clocks, Device
from autotune.errors import AutotuneError
from autotune.kernel.launches import completed, launch_sequence
from autotune.kernel.snapshot import Origin, load_kernel
from autotune.kernel.spec import Kernel
from autotune.languages.registry import backend
from autotune.measure import verify
from autotune.measure.measurement import TIME, CheckResult, Energy, Measurement, Objective, Status
from autotune.measure.process import (
    PREPARE_TIMEOUT_S,
    Actor,
    ActorDied,
    ActorTimeout,
    ChildActor,
    retire,
)
from autotune.measure.roofline import implausible
from autotune.measure.timing import (
    SEARCH_S,
    Caches,
    Samples,
    StoppingRule,
    measure_energy,
    proven_slow,
    sample,
)
from autotune.values import Configuration, Problem

R = TypeVar("R")
#: A function that takes that many samples, in milliseconds.
Take = Callable[[int], list[float]]

#: Longest time one configuration may take to be verified and timed.
MEASURE_TIMEOUT_S = 20.0
#: Longest time of a task that only prepares: the preparation has a limit of its own.
_NOTHING_S = 60.0
#: Processes that stand by: one that dies without a word is replaced twice within a second, and to
#: import what a GPU needs takes longer than that.
STANDBYS = 2
#: Rests after a measurement on a throttled device, before it is taken again.
_RESTS_S = (0.1, 0.3, 1.0)
#: Longest age of a reading of the clocks that is used again before the next measurement.
_CLOCKS_S = 0.1
#: Most that launching may add to each launch of `Executor.run`: much more than the 2 to 4 µs of the
#: last column of docs/timing.md.
_LAUNCHING_MS = 0.02
#: Rounds of launches at once, after each of which outputs are compared; after the fewest no round
#: begins later than these seconds after the first.
_ROUNDS, _LEAST_ROUNDS, _ROUNDS_S = 12, 3, 0.01
#: Launches of each side in a round: at most this number, and this long, but at least a few.
_AT_ONCE, _LEAST_AT_ONCE, _AT_ONCE_MS = 16, 4, 3.0
#: Least power of a working GPU, as a share of its limit: an idle H100 draws 70 W of 700.
_IDLE_SHARE = 0.1


@dataclass(frozen=True)
class Job:
    """One kernel on one problem and device, from which the worker makes its state."""

    origin: Origin
    problem: Problem
    device: Device
    datasets: tuple[Dataset, ...]
    caches: Caches = Caches.COLD
    #: Fingerprint of the kernel's functions; empty where they are not compared.
    fingerprint: str = ""
    #: Energy is measured if it needs energy.
    objective: Objective = TIME

    @property
    def is_flushed(self) -> bool:
        """Caches are flushed before a call."""
        return self.caches is not Caches.HOT


@dataclass
class _State:
    executor: Executor | None = None
    job: Job | None = None
    kernel: Kernel | None = None
    data: verify.DeviceData | None = None
    #: Files that its inputs were uploaded from.
    inputs: list[tuple[Any, ...]] = field(default_factory=list)
    #: Last reading of the clocks, and when that was (`time.monotonic`).
    clocks: Clocks | None = None
    clocks_read_s: float = 0.0
    #: Least power of the device so far.
    least_w: float = math.inf


_state = _State()


def get_ready(device: Device) -> None:
    """Import and compile what every job on a device needs; makes no context."""
    backend(device.backend).get_ready(device)


def opened(device: Device) -> Executor:
    """Return the executor of a device, whose context is made at the first call."""
    if _state.executor is None or _state.executor.device != device:
        executor = backend(device.backend).open(device)
        executor.calibrate()
        _state.executor = executor
    return _state.executor


def open_device(device: Device) -> None:
    """Make the context of a device, which the first job needs."""
    opened(device)


def prepare(job: Job) -> None:
    """Make context, kernel and device data of a job, unless they are there."""
    try:
        if _state.job != job:
            _prepare(job)
    except ContextLostError:
        retire()
        raise


def _prepare(job: Job) -> None:
    before, data, inputs = _state.job, _state.data, _state.inputs
    _state.job, _state.data = None, None
    executor = opened(job.device)
    is_first = before is None or before.device != job.device
    functions = job.origin, job.fingerprint
    if before is None or not job.fingerprint or (before.origin, before.fingerprint) != functions:
        _state.kernel = load_kernel(job.origin, job.fingerprint)
    assert _state.kernel is not None
    # They may have been removed to make room on the disk.
    datasets = [
        known
        if known.folder.is_dir()
        else prepare_dataset(_state.kernel, job.problem, known.name, known.seed)
        for known in job.datasets
    ]
    _state.inputs = [_files(dataset) for dataset in datasets]
    is_same = data is not None and not is_first and _state.inputs == inputs
    kept = (data.buffers, data.pristine) if data and is_same else ({}, {})
    data = None  # its other buffers make room
    _state.data = verify.DeviceData(
        executor, {dataset.name: dataset for dataset in datasets}, *kept
    )
    _state.job = job
    if is_first and datasets:  # now, while the first configuration is compiled
        verify.outputs(_state.data, datasets[0].name)


def _files(dataset: Dataset) -> tuple[Any, ...]:
    """Return what decides the inputs of a data set; those of a claim of what is expected are links."""
    arrays = (o.name for o in dataset.arguments if o.kind in ("input", "inout"))
    files = [(dataset.folder / f"{name}.npy").resolve() for name in arrays]
    return dataset.name, dataset.arguments, files


def measure(
    job: Job,
    configuration: Configuration,
    binary: Binary,
    rule: StoppingRule,
    best_samples_ms: tuple[float, ...],
    best_cost: float = math.inf,
) -> Measurement:
    """Verify a configuration on every data set, then time it.

    Its energy is measured too where the objective needs it, unless a lower bound exceeds ``best_cost``.
    """

    def timed(draft: Measurement, ready: Launchable) -> Measurement:
        return _timed(_verified(draft, ready), ready, job, rule, best_samples_ms, best_cost)

    return _tried(job, configuration, binary, timed)


def check(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Verify a configuration without timing it: for other seeds and edge problems."""
    return _tried(job, configuration, binary, _verified)


def check_at_once(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Run a verified configuration twice at the same time: one module, other buffers and data.

    Launches disturb each other where the kernel keeps state in its module, such as a counter or a
    partial sum. Where the device has no room for the second side, the measurement is `OK` with a message.
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
    """Write the outputs that a configuration changes, in a new folder for each data set that expects none."""

    def written(draft: Measurement, ready: Launchable) -> Measurement:
        data = ready.data
        outputs = [argument for argument in data.arguments if argument.kind in ("out", "inout")]
        for name in (name for name, dataset in data.datasets.items() if not dataset.bounds):
            data.poison_scratch()
            data.refresh(name, wholly=True, poison=Poison.NAN)
            ready.executor.run(*ready.bind(name))
            (folder / name).mkdir(parents=True, exist_ok=True)
            for output in outputs:
                if not data.is_unchanged(name, output):
                    buffer, dtype = data.buffers[output.name], np.dtype(output.dtype)
                    values = ready.executor.read(buffer, dtype, output.shape)
                    save_result(folder / name, output.name, values)
        return draft

    return _tried(job, configuration, binary, written)


def _tried(
    job: Job,
    configuration: Configuration,
    binary: Binary,
    measured: Callable[[Measurement, Launchable], Measurement],
) -> Measurement:
    """Return what ``measured`` makes of a draft; a failure becomes the measurement."""
    draft = draft_of(job, configuration, binary)
    start = time.perf_counter()
    try:
        return measured(draft, Launchable(job, configuration, binary))
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
    launches = completed(ready.plan, ready.binary).launches
    return replace(
        draft,
        checks=ready.verify(),
        verify_s=time.perf_counter() - start,
        dynamic_shared_bytes=max(launch.shared_bytes for launch in launches),
    )


def draft_of(job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    """Return the measurement of a configuration before anything was measured."""
    return Measurement(
        configuration,
        Status.OK,
        entries=binary.entries,
        binary_key=binary.key,
        device_uuid=job.device.uuid,
    )


def _launch_at_once(ready: Launchable) -> None:
    """Launch on two sides at the same time; WrongResult if an output is wrong."""
    data, executor = ready.data, ready.executor
    first, *others = data.datasets
    # Module symbols are one data set's: on another's a side of the same module would be wrong.
    second = others[-1] if others and not data.constants(first) else first
    twin = verify.DeviceData(
        executor,
        data.datasets,
        pristine=data.pristine,
        expected=data.expected,
        bounds=data.bounds,
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
    times = max(_LEAST_AT_ONCE, min(_AT_ONCE, int(_AT_ONCE_MS / max(took_ms, 1e-3))))
    run, end = executor.at_once(module, sides, times), time.monotonic() + _ROUNDS_S
    for done in range(_ROUNDS):
        if done >= _LEAST_ROUNDS and time.monotonic() > end:
            break
        run()
        for side, name in pairs:
            for found in verify.outputs(side, name):
                if not found.is_right:
                    raise verify.WrongResult(
                        f"{found.output} is wrong, by up to {found.max_error:.3g}"
                    )


def _renew(data: verify.DeviceData, dataset: str) -> None:
    data.refresh(dataset, wholly=False)
    data.poison_scratch()


def current() -> tuple[Executor, verify.DeviceData, Kernel]:
    """Return the executor of this process, and the device data and the kernel of the last job."""
    assert _state.executor and _state.data and _state.kernel
    return _state.executor, _state.data, _state.kernel


class Launchable:
    """A configuration that is ready to be launched on the working buffers of a job."""

    def __init__(self, job: Job, configuration: Configuration, binary: Binary) -> None:
        prepare(job)
        self.executor, self.data, kernel = current()
        self.plan = launch_sequence(kernel, configuration, job.problem, job.device)
        self.data.declare_scratch(kernel.workspaces(configuration, job.problem, job.device))
        #: Its workspaces; other configurations may make theirs after it.
        self.scratch = self.data.scratch
        self.binary = binary
        self.deterministic = kernel.is_deterministic(configuration, job.problem)
        self._bound: dict[str, tuple[Any, verify.Steps]] = {}
        self._module: Any = None
        #: Lower bound in milliseconds of each launch of `verify`.
        self.verified_ms: list[float] = []

    def bind(self, dataset: str) -> tuple[Any, verify.Steps]:
        """Return module and steps on a data set."""
        if dataset not in self._bound:
            steps = self.data.bind(self.plan, dataset, self.binary)
            if constants := self.data.constants(dataset):  # they are set in a module of its own
                module = self.executor.load(self.binary, constants)
            else:
                module = self._module = self._module or self.executor.load(self.binary, {})
            self._bound[dataset] = module, steps
        return self._bound[dataset]

    def _run(self, module: Any, steps: verify.Steps) -> None:
        taken_ms = self.executor.run(module, steps)
        self.verified_ms.append(taken_ms - _LAUNCHING_MS * len(steps))

    def verify(self) -> tuple[CheckResult, ...]:
        """Check every data set, the first twice; leaves the working buffers holding the last one."""
        if not all(dataset.bounds for dataset in self.data.datasets.values()):
            raise AutotuneError(
                "the results that configurations agreed on were removed from the cache of data; run "
                "the same command again, with a larger AUTOTUNE_CACHE_SIZE if it happens again"
            )
        checks: tuple[CheckResult, ...] = ()
        for name in self.data.datasets:
            run = partial(self._run, *self.bind(name))
            is_first = not checks
            checks += verify.verify(self.data, name, run, 1 + is_first, fresh=is_first)
        return checks


def _timed(
    draft: Measurement,
    ready: Launchable,
    job: Job,
    rule: StoppingRule,
    best_samples_ms: tuple[float, ...],
    best_cost: float,
) -> Measurement:
    """Time a configuration, unless the launches that verified it prove it slower.

    Those launches found inputs in the cache, so that a cold launch takes as long or longer. They are
    compared with cold samples only: a hot launch finds the outputs in the cache, too.
    """
    start = time.perf_counter()
    is_cold = job.caches is Caches.COLD
    slow = proven_slow(ready.verified_ms, rule, best_samples_ms) if is_cold else None
    if slow is not None and not (clocks := _clocks(ready.executor)).is_throttled:
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
    if taken.stopped_early:  # it has lost; finals verify it again if they admit it
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
    """Return a measurement with its energy; stopped early where a lower bound exceeds the best.

    A working device draws more than an idle one. Its reading is a mean of the last second, in which it
    may have worked, so that at most a share of its limit counts as idle.
    """
    power, median_ms = executor.power(), median(timed.samples_ms)
    _state.least_w = min(_state.least_w, power.draw_w or 0.0, _IDLE_SHARE * (power.limit_w or 0.0))
    least = Energy(_state.least_w * median_ms, _state.least_w)
    cost = job.objective.of(median_ms, least)
    if cost is None or cost <= best_cost:
        return replace(timed, energy=measure_energy(executor, timer, SEARCH_S))
    why = (
        f"takes at least {least.call_mj:.4g} mJ, at {least.power_w:.3g} W as of an idle device; "
        f"the best so far costs {best_cost:.4g}"
    )
    return replace(timed, energy=least, status=Status.STOPPED_EARLY, message=why)


def verify_timed(timer: Timer, launches: int, scratch: verify.Scratch, afresh: bool) -> None:
    """Check the outputs after a timer's launches: of the last one, or of one more.

    One more launch, on restored data, is checked where other configurations launched in between
    (``afresh``), or where arguments are read and written. Workspaces stay as they were left.
    """
    _, data, _ = current()
    data.scratch = scratch
    if afresh or data.accumulates:
        data.refresh(RANDOM, wholly=afresh)
        timer.singly(1)
    verify.verify_last(data, RANDOM, launches)


def _why_stopped(taken: Samples, best_samples_ms: Sequence[float], what: str) -> str:
    return (
        f"{median(best_samples_ms):.4g} ms is the best so far; "
        f"all {len(taken.samples_ms)} {what} exceed {taken.bar_ms:.4g} ms"
    )


def unthrottled(executor: Executor, measure: Callable[[], R]) -> tuple[R, Clocks]:
    """Measure, and again after ever longer rests while the device is throttled; the last try counts."""
    for rest_s in (*_RESTS_S, None):
        before, result = _clocks(executor, _CLOCKS_S), measure()
        clocks = before.worst(_clocks(executor))
        if rest_s is None or not clocks.is_throttled:
            break
        time.sleep(rest_s)
    return result, clocks


def _clocks(executor: Executor, oldest_s: float = 0.0) -> Clocks:
    """Read the clocks, unless the last reading is young enough."""
    if _state.clocks is None or time.monotonic() - _state.clocks_read_s >= oldest_s:
        _state.clocks, _state.clocks_read_s = executor.clocks(), time.monotonic()
    return _state.clocks


def _plausible(timed: Measurement, job: Job) -> Measurement:
    kernel = _state.kernel
    work = kernel.work_of(job.problem) if kernel else None
    if work is None or timed.median_ms is None:
        return timed
    why = implausible(timed.median_ms, work, job.device, job.caches is Caches.COLD)
    return _failed(timed, Status.IMPLAUSIBLE, why) if why else timed


def _failed(draft: Measurement, status: Status, message: str) -> Measurement:
    return replace(draft, status=status, message=" ".join(message.split()))


def taking_of(timer: Timer, caches: Caches) -> Take:
    """Return the function that takes samples from the caches that decide.

    A mixed sample is the geometric mean of a clean call and a batch of hot calls; clean calls come first.
    """

    def mixed(count: int) -> list[float]:
        pairs = zip(timer.clean(count), timer.hot(count), strict=True)
        return [round(math.sqrt(clean_ms * hot_ms), 6) for clean_ms, hot_ms in pairs]

    return mixed if caches is Caches.MIXED else timer


# ---------------------------------------------------------------------- in the parent process


class DeviceWorker:
    """The measurements on one device, whose context an actor's process holds."""

    def __init__(self, actor: Actor, timeout_s: float = MEASURE_TIMEOUT_S) -> None:
        self.actor, self.timeout_s = actor, timeout_s
        self._is_started = False

    def start(self, device: Device) -> None:
        """Begin the process and make a context, which else happens at the first job; return at once."""
        self.actor.start()
        if not (self._is_started or self.actor.queues):
            self._is_started = True
            Thread(target=self._open, args=[device], daemon=True).start()

    def _open(self, device: Device) -> None:
        with suppress(Exception):  # the first job raises it again
            self.actor.ask(open_device, device, timeout_s=PREPARE_TIMEOUT_S)

    def measure(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        *how: Any,
        task: Callable[..., Measurement] | None = None,
    ) -> Measurement:
        """Verify and time one configuration, whatever it does to the process; see the function `measure`.

        A time-out or death of the process becomes a measurement, too. A process that dies without a
        word is tried once more in a fresh one: it may have been killed from outside.
        """
        failed = replace(draft_of(job, configuration, binary), status=Status.CRASHED)
        limit_s = self.timeout_s
        for _ in range(2):
            try:
                return self.ask(
                    task or measure, configuration, binary, *how, job=job, timeout_s=limit_s
                )
            except ActorTimeout:
                message = f"no result after {limit_s:g} s; the kernel hangs"
                return replace(failed, status=Status.TIMED_OUT, message=message)
            except ActorDied as error:
                failed = replace(failed, message=f"the process died twice: {error}")
        return failed

    def check(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Verify one configuration without timing it."""
        return self.measure(job, configuration, binary, task=check)

    def check_at_once(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Run two launches of a configuration that is right alone at the same time."""
        return self.measure(job, configuration, binary, task=check_at_once)

    def prepare(self, job: Job) -> None:
        """Make the context and upload the data of a job; raise `AutotuneError` if that fails."""
        self.ask(prepare, job=job, timeout_s=_NOTHING_S)

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Job,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
    ) -> R:
        """Run any task on a job; see `Actor.ask`. Raises `AutotuneError` if the job cannot be prepared."""
        try:
            return self.actor.ask(
                task, *args, job=job, timeout_s=timeout_s, turn_limits_s=turn_limits_s
            )
        except MemoryError as error:
            raise AutotuneError(
                f"not enough device memory: {error}; use a smaller problem, or see nvidia-smi for "
                "other processes that use the device"
            ) from error
        except (ContextLostError, LaunchError, verify.WrongResult) as error:
            raise AutotuneError(f"prepare: {error}") from error

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.actor.close()


def device_actor(device: Device | None = None) -> ChildActor:
    """Return a process that measures on a device of this machine.

    It begins with all imports that ``device`` needs. On a CPU no process stands by: one that starts
    would disturb what is timed.
    """
    if device is None:
        return ChildActor(prepare=prepare)
    standbys = STANDBYS if device.is_cuda else 0
    return ChildActor(partial(get_ready, device), prepare, standbys)

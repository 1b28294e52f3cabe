"""The half of `vendor.py` that runs in the worker: rivals that no space file declares, raced like the rest.

Each rival works on the buffers of the job that is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autotune.data.dataset import RANDOM
from autotune.devices.base import Binary, ContextLostError, Executor, LaunchError, Timer
from autotune.kernel.snapshot import load_kernel
from autotune.measure import verify, worker_state
from autotune.measure.race import Contender, interleaved, launch_alike, take
from autotune.measure.timing import Take
from autotune.measure.vendor_call import vendor_arguments
from autotune.measure.worker_state import Job
from autotune.values import Configuration

#: Rounds of the first race, among all rivals, which chooses the rivals of the row's race.
_FIRST_ROUNDS = 7
#: Maximum time of the first race.
_FIRST_SECONDS = 0.4
#: Number of fastest rivals in each state that enter the row's race, besides the rival of the space file.
_FINALISTS = 3
#: Longer calls are timed in a load of `_LOAD_S` too, after `_WARM_UP_S` of it, and the vendor's are not
#: run a hundred times more to see whether their bits change.
_LONG_MS, _LOAD_S, _WARM_UP_S = 5.0, 1.0, 0.25
#: Runs whose bits are compared.
_RUNS = 100
#: Sums whose errors are looked at, of each distribution; of large ones fewer.
_DRAWS, _LARGE, _DRAWS_OF_LARGE = 16, 1 << 26, 4


class State(StrEnum):
    """What the L2 cache holds before a call; see docs/timing.md."""

    COLD = "cold"
    CLEAN = "clean"
    HOT = "hot"

    def of(self, timer: Timer) -> Take:
        """What takes samples in this state, of a timer that was made for cold ones."""
        takes: dict[State, Take] = {
            State.COLD: timer,
            State.CLEAN: timer.clean,
            State.HOT: timer.hot,
        }
        return takes[self]


@dataclass(frozen=True)
class Entrants:
    """What is raced for one row, but for the vendor's further calls."""

    ours: Contender
    #: By name: what the space file names, and configurations that stand for a vendor.
    rivals: Mapping[str, Contender]
    #: The kernel that `rivals.further` is asked about; empty where there is no vendor.
    kernel: str = ""
    #: See `rivals.build_cub`.
    cub: Path | None = None


@dataclass(frozen=True)
class Load:
    """Calls back to back: milliseconds of one, and the clock meanwhile."""

    call_ms: float
    sm_mhz: int | None


@dataclass(frozen=True)
class RowSamples:
    """What was measured for one row. Samples are in milliseconds, round by round."""

    ours: Mapping[State, tuple[float, ...]]
    #: Samples of each rival in the race, by name and state.
    rivals: Mapping[str, Mapping[State, tuple[float, ...]]]
    #: Samples of an empty kernel, cold; empty if not known.
    launch: tuple[float, ...] = ()
    #: Largest error of every correct rival on the random data; the number of tried rivals and the reason of
    #: the last failure follow.
    errors: Mapping[str, float] = field(default_factory=dict)
    tried: int = 0
    note: str = ""
    #: How all of them were launched; see `autotune.devices.base.Timer`.
    launched_by: str = ""
    sm_mhz: int | None = None
    #: The highest that the device allows.
    most_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    #: Of ours and of the rival that was the fastest cold, where a call is long.
    load: Mapping[str, Load] = field(default_factory=dict)
    #: Whether `_RUNS` runs gave the same bits: ours, and that rival's where a call is short.
    is_deterministic: bool = True
    rival_is_deterministic: bool | None = None
    #: By data set; see `accuracy` and `accuracy_of_sums`.
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Rival:
    timer: Timer
    max_error: float


def race(job: Job, entrants: Entrants, rounds: int, seed: int, max_seconds: float) -> RowSamples:
    """Race our configuration with the fastest right rivals and an empty kernel, interleaved, in each state.

    Half of the time is for cold samples, a quarter for each of the others.
    """
    worker_state.prepare_job(job)
    executor, data, _ = worker_state.current()
    rivals, tried, note = _right_rivals(executor, data, job, entrants)
    finalists = _fastest(executor, rivals, set(entrants.rivals), seed)
    taken = take(job, entrants.ours)
    assert taken is not None and taken.run is not None
    timers = [taken.timer, *(rivals[name].timer for name in finalists)]
    cold = [*timers, *_empty(executor)]
    launch_alike(cold)
    samples = {State.COLD: interleaved(executor, cold, rounds, seed, max_seconds / 2)}
    clocks = executor.clocks()
    for state in (State.CLEAN, State.HOT):
        takes = [state.of(timer) for timer in timers]
        samples[state] = interleaved(executor, takes, rounds, seed, max_seconds / 4)
    ours, *others = (median(times) for times in samples[State.COLD])
    by_time = dict(zip(finalists, others, strict=False))
    best = rivals[min(by_time, key=by_time.__getitem__)].timer if by_time else None
    is_long = ours > _LONG_MS and executor.device.backend == "cuda"
    run = partial(taken.run, RANDOM)
    return RowSamples(
        ours={state: tuple(found[0]) for state, found in samples.items()},
        rivals={
            name: {state: tuple(found[place]) for state, found in samples.items()}
            for place, name in enumerate(finalists, 1)
        },
        launch=tuple(samples[State.COLD][-1]) if len(cold) > len(timers) else (),
        errors={name: rival.max_error for name, rival in rivals.items()},
        tried=tried,
        note=note,
        launched_by=taken.timer.launched_by,
        sm_mhz=clocks.sm_mhz,
        most_mhz=_most_mhz(executor),
        throttle_reasons=clocks.throttle_reasons,
        load=_loads(executor, taken.timer, best) if is_long else {},
        is_deterministic=has_same_bits(executor, data, run),
        rival_is_deterministic=None
        if best is None or is_long
        else has_same_bits(executor, data, partial(best.singly, 1)),
        accuracy=accuracy_of_sums(data, taken.timer, best, seed)
        if best is not None and entrants.kernel == "reduce"
        else {},
    )


def fastest(
    job: Job, contenders: Sequence[Contender], rounds: int, seed: int, max_seconds: float
) -> list[int]:
    """Positions of the configurations that are the fastest cold, and hot; they are not verified."""
    worker_state.prepare_job(job)
    executor, *_ = worker_state.current()
    timers = [taken.timer for one in contenders if (taken := take(job, one)) is not None]
    launch_alike(timers)
    best = []
    for state in (State.COLD, State.HOT):
        takes = [state.of(timer) for timer in timers]
        samples = interleaved(executor, takes, rounds, seed, max_seconds)
        best.append(int(np.argmin([median(times) for times in samples])))
    return list(dict.fromkeys(best))


def has_same_bits(executor: Executor, data: verify.DeviceData, run: Callable[[], object]) -> bool:
    """Whether `_RUNS` runs on the random data leave the same bits in every output."""
    kept = {}
    for number in range(_RUNS):
        data.refresh(RANDOM, wholly=not number)
        run()
        for argument in data.arguments:
            if argument.kind in ("out", "inout") and not number:
                kept[argument.name] = executor.allocate(argument.nbytes, argument.offset_bytes)
                executor.copy(kept[argument.name], data.buffers[argument.name])
        pairs = [(data.buffers[name], first) for name, first in kept.items()]
        if not all(executor.inspect([], [], pairs)[2]):
            return False
    return True


def accuracy_of_sums(
    data: verify.DeviceData, ours: Timer, theirs: Timer, seed: int
) -> dict[str, dict[str, float]]:
    """Errors of our sums and of the vendor's: one sum has one error, which may be 0 by luck.

    The working buffers hold other data afterwards; every check and race restores them.

    Returns
    -------
    dict of str to dict of str to float
        By distribution: ``ours_max``, ``ours_rms``, ``vendor_max``, ``vendor_rms`` of |s - s64| / sum of |x|,
        the rounding of s64 to float32 at least.
    """
    import cupy

    views, generator = _views(data), cupy.random.default_rng(seed)
    x, out = views["x"], views["out"]
    draws = {"normal": generator.standard_normal, "uniform": generator.random}
    found = {}
    for name, draw in draws.items():
        errors: dict[str, list[float]] = {"ours": [], "vendor": []}
        for _ in range(_DRAWS if x.size <= _LARGE else _DRAWS_OF_LARGE):
            x[...] = draw(x.size, dtype="float32")
            exact = float(x.sum(dtype="float64"))
            scale = float(cupy.abs(x).sum(dtype="float64"))
            for who, timer in (("ours", ours), ("vendor", theirs)):
                timer.singly(1)
                error = max(abs(float(out[0]) - exact), abs(exact) * 2.0**-25)
                errors[who].append(error / scale)
        found[name] = {
            f"{who}_{kind}": value
            for who, each in errors.items()
            for kind, value in (
                ("max", max(each)),
                ("rms", float(np.sqrt(np.mean(np.square(each))))),
            )
        }
    cupy.get_default_memory_pool().free_all_blocks()
    return found


def accuracy(
    job: Job, configuration: Configuration, binary: Binary, baseline: str, seed: int
) -> dict[str, dict[str, float]]:
    """Errors of our product and of the vendor's on data that are hard for products.

    The float64 product is made on the device: at 8192^3 three data sets would take numpy half a minute. The
    working buffers hold other data afterwards; every check and race restores them.

    Returns
    -------
    dict of str to dict of str to float
        By data set: ``ours_max``, ``ours_rms``, ``vendor_max``, ``vendor_rms`` of |C - C64| / (|A| |B|).
    """
    import cupy
    from accuracy import DATA, Exact

    ready = worker_state.launchable(job, configuration, binary)
    executor, data, _ = worker_state.current()
    data.refresh(RANDOM, wholly=True)
    module, steps = ready.bind(RANDOM)
    views = _views(data)
    kernel = load_kernel(job.origin, job.fingerprint)
    vendor = next(call for call in kernel.baselines if call.name == baseline)
    multiply = executor.time_calls(vendor.prepare, vendor_arguments(data))
    p = job.problem
    found = {}
    for name, draw in DATA.items():
        a, b = draw(p["m"], p["n"], p["k"], cupy.random.default_rng(seed))
        views["a"][...], views["b"][...] = a, b
        exact = Exact(a, b)
        errors: dict[str, float] = {}
        for who, call in (("ours", lambda: executor.run(module, steps)), ("vendor", multiply)):
            executor.poison(data.buffers["c"])
            call()
            error = exact.accuracy(views["c"])
            errors |= {f"{who}_max": error.max_error, f"{who}_rms": error.rms_error}
        found[name] = errors
        del a, b, exact
        cupy.get_default_memory_pool().free_all_blocks()
    return found


def versions() -> dict[str, str]:
    """Versions of the vendor's libraries in this process; empty where there are none."""
    try:
        import cupy
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        return {}
    handle = cublas.create()
    number = cublas.getVersion(handle)
    cublas.destroy(handle)
    build = cupy.cuda.cub.get_build_version()
    return {
        "cupy": cupy.__version__,
        "cublas": f"{number // 10000}.{number // 100 % 100}.{number % 100}",
        "cub_in_cupy": f"{build // 100000}.{build // 100 % 1000}.{build % 100}",
    }


def _views(data: verify.DeviceData) -> dict[str, Any]:
    return {
        name: value[0].inner.view(value[1]).reshape(value[2])
        for name, value in vendor_arguments(data).items()
        if isinstance(value, tuple)
    }


def _right_rivals(
    executor: Executor, data: verify.DeviceData, job: Job, entrants: Entrants
) -> tuple[dict[str, _Rival], int, str]:
    """Return all correct rivals, the number of tried rivals, and the reason of the last failure."""
    found: dict[str, _Rival] = {}
    takes = {name: take(job, contender) for name, contender in entrants.rivals.items()}
    for name, taken in takes.items():
        if taken is not None:  # already verified
            data.refresh(RANDOM, wholly=False)
            taken.timer.singly(1)
            found[name] = _Rival(taken.timer, verify.outputs(data, RANDOM)[0].max_error)
    tried, note = len(found), ""
    if not entrants.kernel:
        return found, tried, note
    from rivals import further
    from vendor_library import CallFailed

    from autotune.devices.cuda_executor import CudaExecutor
    from autotune.devices.cuda_timer import CudaTimer

    assert isinstance(executor, CudaExecutor)
    try:
        calls: Mapping[str, Callable[[], object]] = executor.time_calls(
            lambda **arguments: further(entrants.kernel, entrants.cub, arguments),
            vendor_arguments(data),
        )
    except (OSError, CallFailed) as error:
        return found, tried, str(error)
    for name, call in calls.items():
        tried += 1
        data.refresh(RANDOM, wholly=False)
        try:
            call()
            checks = verify.outputs(data, RANDOM)
            if all(check.is_correct for check in checks):
                # Not `timer_of`: these are kernels alone, and no copies that a graph slows.
                timer = CudaTimer(executor, call, cold=True)
                found[name] = _Rival(timer, checks[0].max_error)
            else:
                note = f"{name}: wrong by {checks[0].max_error:.3g}"
        except (LaunchError, RuntimeError) as error:
            note = f"{name}: {error}"
        except ContextLostError as error:
            raise RuntimeError(f"{name} broke the device context: {error}") from error
    return found, tried, note


def _fastest(
    executor: Executor, rivals: Mapping[str, _Rival], always: Set[str], seed: int
) -> list[str]:
    """Return the names of the rivals that enter the row's race, in their original order."""
    names = list(rivals)
    chosen = always & rivals.keys()
    if len(names) > len(chosen) + 1:
        launch_alike([rival.timer for rival in rivals.values()])
        for state in State:
            takes = [state.of(rivals[name].timer) for name in names]
            samples = interleaved(executor, takes, _FIRST_ROUNDS, seed, _FIRST_SECONDS)
            times = {name: median(each) for name, each in zip(names, samples, strict=True)}
            chosen |= set(sorted(names, key=times.__getitem__)[:_FINALISTS])
    else:
        chosen = set(names)
    return [name for name in names if name in chosen]


def _empty(executor: Executor) -> list[Timer]:
    """What times a kernel that does nothing: what a launch takes. None but on CUDA."""
    if executor.device.backend != "cuda":
        return []
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void empty() {}', "empty")
    kernel((1,), (32,), ())
    return [executor.timer_of(lambda: kernel((1,), (32,), ()), cold=True)]


def _most_mhz(executor: Executor) -> int | None:
    if executor.device.backend != "cuda":
        return None
    import cupy

    khz = cupy.cuda.Device(executor.device.index).attributes.get("ClockRate")
    return int(khz) // 1000 if khz else None


def _loads(executor: Executor, ours: Timer, rival: Timer | None) -> dict[str, Load]:
    found = {"rival": _loaded(executor, rival)} if rival is not None else {}
    return {**found, "ours": _loaded(executor, ours)}


def _loaded(executor: Executor, timer: Timer) -> Load:
    """What a call takes in a load, and the median of the clock meanwhile."""
    begun_s = time.monotonic()
    steps: list[tuple[float, int]] = []
    clocks: list[int] = []

    def is_enough(calls: int) -> bool:
        now_s = time.monotonic() - begun_s
        if now_s < _WARM_UP_S:
            return False
        if not steps or calls > steps[-1][1]:
            steps.append((now_s, calls))
            clocks.extend(filter(None, [executor.clocks().sm_mhz]))
        return now_s > _WARM_UP_S + _LOAD_S and len(steps) > 2

    timer.sustained(is_enough)
    # The first was seen at some moment after its call had ended.
    (first_s, first), (last_s, last) = steps[1], steps[-1]
    return Load(1e3 * (last_s - first_s) / (last - first), int(median(clocks)) if clocks else None)

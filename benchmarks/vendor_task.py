"""The half of `vendor.py` that runs in the worker: rivals that no space file declares, raced like the rest.

Each rival works on the buffers of the job that is measured: the limit reads the very bytes that the kernel reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autotune.calling.binding import declared_arguments
from autotune.devices.base import ContextLostError, Executor, LaunchError
from autotune.devices.binary import Binary
from autotune.kernel.catalog import load_file
from autotune.kernel.launches import bound, launch_sequence
from autotune.measure import tasks, verify
from autotune.measure.data import RANDOM, loaded_as
from autotune.measure.measurement import CheckResult
from autotune.measure.tasks import Contender, Job, Take
from autotune.values import Configuration, Problem

#: Rounds of the race among cublasLt's heuristics that decides which of them enters the row's race.
HEURISTIC_ROUNDS = 7


@dataclass(frozen=True)
class CopyLimit:
    """A configuration of `copy`, launched on an input of the job: how fast its bytes can move."""

    space_file: Path
    problem: Problem
    configuration: Configuration
    binary: Binary


@dataclass(frozen=True)
class Entrants:
    """Everything that is raced for one row; our configuration is the first contender."""

    contenders: tuple[Contender, ...]
    limit: CopyLimit | None = None
    with_cublaslt: bool = False


@dataclass(frozen=True)
class RowSamples:
    """Samples of one row's race in milliseconds, round by round."""

    #: By contender.
    contenders: tuple[tuple[float, ...], ...]
    limit: tuple[float, ...] = ()
    cublaslt: tuple[float, ...] = ()
    #: Right heuristics, of those that were named; and why there are none.
    heuristics: int = 0
    note: str = ""
    #: How all of them were launched; see `autotune.devices.base.Timer`.
    launched_by: str = ""
    #: Error of each vendor call on the random data.
    vendor_checks: Mapping[str, CheckResult] = field(default_factory=dict)
    sm_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()


def race(job: Job, entrants: Entrants, rounds: int, seed: int, max_seconds: float) -> RowSamples:
    """Race our configuration, vendor calls, cublasLt's best heuristic and the limit, interleaved."""
    tasks.prepare(job)
    executor, data = tasks.current()
    checks = {
        contender.baseline: check
        for contender in entrants.contenders
        if contender.baseline and (check := _vendor_check(job, contender)) is not None
    }
    ready = [tasks.take(job, contender) for contender in entrants.contenders]
    takes = [taken.timer if taken else None for taken in ready]
    limit = _take_limit(executor, data, job, entrants.limit) if entrants.limit else None
    best, right, note = None, 0, ""
    if entrants.with_cublaslt:
        best, right, note = _best_heuristic(executor, data, job, seed)
    samples = tasks.interleaved(executor, [*takes, limit, best], rounds, seed, max_seconds)
    assert takes[0] is not None
    clocks = executor.clocks()
    return RowSamples(
        contenders=tuple(map(tuple, samples[: len(takes)])),
        limit=tuple(samples[-2]),
        cublaslt=tuple(samples[-1]),
        heuristics=right,
        note=note,
        launched_by=takes[0].launched_by,
        vendor_checks=checks,
        sm_mhz=clocks.sm_mhz,
        throttle_reasons=clocks.throttle_reasons,
    )


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

    tasks.prepare(job)
    executor, data = tasks.current()
    ready = tasks.Loaded(job, configuration, binary)
    data.refresh(RANDOM, wholly=True)
    module, steps = ready.bind(RANDOM)
    views = _views(data)
    kernel = loaded_as(job.origin, job.known_by)
    vendor = next(call for call in kernel.baselines if call.name == baseline)
    multiply = executor.time_calls(vendor.prepare, tasks.vendor_arguments(data))
    p = job.problem
    found = {}
    for name, draw in DATA.items():
        a, b = draw(p["m"], p["n"], p["k"], cupy.random.default_rng(seed))
        views["a"][...], views["b"][...] = a, b
        exact = Exact(a, b)
        errors = {}
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
        "cub": f"{build // 100000}.{build // 100 % 1000}.{build % 100}",
    }


def _views(data: verify.DeviceData) -> dict[str, Any]:
    """The working buffers as CuPy arrays."""
    return {
        name: value[0].inner.view(value[1]).reshape(value[2])
        for name, value in tasks.vendor_arguments(data).items()
        if isinstance(value, tuple)
    }


def _vendor_check(job: Job, contender: Contender) -> CheckResult | None:
    """Error of a vendor call on the random data; None where it has nothing for the problem."""
    take = tasks.take(job, contender)  # makes the call once, on fresh buffers
    if take is None:
        return None
    _, data = tasks.current()
    return verify.outputs(data, RANDOM)[0]


def _take_limit(executor: Executor, data: verify.DeviceData, job: Job, limit: CopyLimit) -> Take:
    """Samples of another kernel's configuration on the largest input of the job; outputs are its own."""
    kernel = load_file(limit.space_file)
    inputs = [argument for argument in data.arguments if argument.kind == "input"]
    source = max(inputs, key=lambda argument: argument.nbytes)
    declared = declared_arguments(kernel, limit.problem)
    buffers: dict[str, Any] = {}
    for name, argument in declared.items():
        if argument.kind == "input":
            if argument.nbytes > source.nbytes:
                raise ValueError(
                    f"the limit reads {argument.nbytes} bytes, {source.name} has fewer"
                )
            buffers[name] = data.buffers[source.name]
        elif argument.kind != "scalar":
            buffers[name] = executor.allocate(argument.nbytes)
    scalars = {
        name: argument.scalar for name, argument in declared.items() if argument.kind == "scalar"
    }
    dtypes = {name: argument.dtype for name, argument in declared.items()}
    plan = launch_sequence(kernel, limit.configuration, limit.problem, job.device)
    steps = bound(plan, list(declared), buffers, scalars, dtypes, limit.binary)
    module = executor.load(limit.binary, {})
    executor.run(module, steps)
    return executor.timer(module, steps, job.cold)


def _best_heuristic(
    executor: Executor, data: verify.DeviceData, job: Job, seed: int
) -> tuple[Take | None, int, str]:
    """The fastest right heuristic of cublasLt, how many are right, and what went wrong."""
    from cublaslt import CublasLtError, products

    try:
        calls = executor.time_calls(products, tasks.vendor_arguments(data))
    except (OSError, CublasLtError) as error:
        return None, 0, f"cublasLt: {error}"
    right: list[Callable[[], None]] = []
    note = ""
    for call in calls:
        data.refresh(RANDOM, wholly=False)
        try:
            call()
            checks = verify.outputs(data, RANDOM)
        except (CublasLtError, LaunchError) as error:
            note = f"cublasLt: {error}"
            continue
        except ContextLostError as error:
            raise RuntimeError(f"cublasLt broke the device context: {error}") from error
        if all(check.is_right for check in checks):
            right.append(call)
    if not right:
        return None, 0, note or "cublasLt: no heuristic is right"
    takes: Sequence[Take] = [executor.timer_of(call, job.cold) for call in right]
    samples = tasks.interleaved(executor, takes, HEURISTIC_ROUNDS, seed, 1.0)
    return takes[int(np.argmin([np.median(times) for times in samples]))], len(right), note

"""The site of a run on a fleet (see `autotune.run.bench.Site`), and several runs at once, one per model."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from autotune.data.dataset import Dataset, without_files
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import KEPT, AutotuneError, FleetError, Interrupted, UsageError
from autotune.fleet.address import Endpoint, connected
from autotune.fleet.client import MAX_FAILURES, Fleet, Model, Place, WorkerLost
from autotune.fleet.worker import HostError
from autotune.kernel.snapshot import serialise_kernel
from autotune.kernel.spec import Kernel
from autotune.measure.compilers import CompilerPool
from autotune.measure.device_worker import DeviceWorker
from autotune.measure.process import ENDED
from autotune.measure.worker_state import Job
from autotune.run.bench import Site
from autotune.run.request import Request
from autotune.run.result import RunResult
from autotune.search.session import Budget
from autotune.values import Problem

R = TypeVar("R")

#: Maximum number of compilers of one run.
_MAX_COMPILERS = 256
#: Timeout of a query of a device's properties.
_QUERY_S = 60.0


class DaskActor:
    """An actor for a device or compiler of a fleet; see `autotune.measure.process.Actor`.

    If a worker is lost or fails, its task goes to another place. ``find`` returns a place for a task; its
    argument is the list of addresses where the task failed.
    """

    queues = True

    def __init__(self, fleet: Fleet, find: Callable[[Sequence[str]], Place]) -> None:
        self._fleet, self._find = fleet, find
        self._is_closed = False

    def start(self) -> None:
        pass

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Any = None,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
        key: str = "",
    ) -> R:
        limits = {"timeout_s": timeout_s, "turn_limits_s": turn_limits_s}
        failed: list[str] = []
        losses = 0
        while True:
            if self._is_closed:
                raise AutotuneError(ENDED)
            place = self._find(failed)
            try:
                call = task, args, limits
                answer: R = self._fleet.run(place, call, job, key, lambda: self._is_closed)
                return answer
            except WorkerLost as lost:
                losses += self._fleet.is_connected(place)
                if losses > MAX_FAILURES:
                    raise AutotuneError(f"Dask drops its tasks: {lost}") from lost
            except HostError as error:
                self._fleet.blame(error)
                failed.append(error.address)
                if len(failed) >= MAX_FAILURES or not self._fleet.has_other(place, failed):
                    raise

    def close(self) -> None:
        self._is_closed = True


class FleetSite(Site):
    """A run's cards and compilers in a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __reduce__(self) -> tuple[Callable[[Endpoint], FleetSite], tuple[Endpoint]]:
        """Pickle only the endpoint; the other process connects to the same scheduler."""
        return _joined, (Endpoint.of(self.fleet.client),)

    def shared_with(self, peers: tuple[Device, ...]) -> Site:
        return self  # `compilers` already divides by the number of cards

    def require_running(self) -> None:
        self.fleet.require_running()

    def compilers(self, request: Request) -> CompilerPool:
        """Return compilers in proportion to the number of cards that the run uses."""
        cards = max(1, len(self.fleet.usable()))
        share = self.fleet.compilers(request.device.backend) * len(request.devices) // cards
        find = partial(self.fleet.compiling_place, request.device.backend)
        return CompilerPool(
            min(max(1, share), _MAX_COMPILERS),
            lambda: DaskActor(self.fleet, find),
            on_demand=True,
        )

    def device_actor(self, device: Device) -> DaskActor:
        find = partial(self.fleet.measuring_place, Model.of(device), device.uuid)
        return DaskActor(self.fleet, find)

    def remembered(self, request: Request) -> tuple[str, ...]:
        """Return uuids of the model's other cards: their measurements may belong to this run."""
        return tuple(device.uuid for device in self.fleet.others(request.device))

    def origin_of(self, kernel: Kernel, fingerprint: str) -> bytes:
        return serialise_kernel(kernel)

    def dataset(self, kernel: Kernel, problem: Problem, name: str, seed: int) -> Dataset:
        """Return a description without files: each machine makes its own data."""
        return without_files(kernel, problem, name, seed)

    def uses_references(self, request: Request) -> bool:
        return False

    def place(self, worker: DeviceWorker, job: Job) -> None:
        worker.prepare(job)

    def require_supported(self, request: Request) -> None:
        """Raise `UsageError` for compute-sanitizer, and for a kernel without a reference."""
        name = request.kernel.name
        if request.sanitize:
            raise UsageError(
                f"{name}: compute-sanitizer does not run in a fleet; tune without --sanitize, "
                f"then run on one GPU: autotune run {name} --config … --sanitize"
            )
        if "reference" not in request.kernel.hooks:
            raise UsageError(
                f"{name}: a fleet needs a reference, because each machine makes its own data; write "
                f"@{name}.reference"
            )

    def sanitizer(self, request: Request) -> str:
        return ""

    def why_no_energy(self, device: Device) -> str:
        return self.device_actor(device).ask(_why_no_energy, device, timeout_s=_QUERY_S)


#: Connections of a tuner process to its fleet, until the process ends.
_connections = ExitStack()


@cache
def _joined(endpoint: Endpoint) -> FleetSite:
    client = _connections.enter_context(connected(endpoint))
    return FleetSite(_connections.enter_context(Fleet(client)))


def _why_no_energy(device: Device) -> str:
    return backend(device.backend).why_no_energy(device)


# ---------------------------------------------------------------------- several runs


@dataclass(frozen=True)
class FleetRun(Generic[R]):
    """A finished run: its result, its error, or both if an error cut it short."""

    request: Request
    result: RunResult | None
    #: The files of the result, as ``tune`` returned them.
    published: R | None = None
    error: AutotuneError | None = None


def drive(
    fleet: Fleet,
    requests: Sequence[Request],
    tune: Callable[[Request, Site], tuple[RunResult, R]],
    seconds: float | None = None,
) -> Iterator[FleetRun[R]]:
    """Tune requests of different models at the same time; yield each run as soon as it ends.

    Each model has a thread that calls ``tune``, which returns the result and its published files. After
    ``seconds`` no run begins and all runs end.

    Raises `UsageError` before the first run if a request cannot run in a fleet, `FleetError` if the
    scheduler is lost, and `Interrupted` on Ctrl-C. The results of interrupted runs are yielded first.
    """
    for request in requests:
        FleetSite(fleet).require_supported(request)
    end_s = math.inf if seconds is None else time.monotonic() + seconds
    by_model: defaultdict[Model, list[Request]] = defaultdict(list)
    for request in requests:
        by_model[Model.of(request.device)].append(request)
    ended: SimpleQueue[FleetRun[R] | BaseException] = SimpleQueue()

    def run(model: Model, own_requests: list[Request]) -> None:
        try:
            for request in own_requests:
                if not fleet.is_stopped:
                    ended.put(_run(fleet, model, request, tune, end_s))
        except BaseException as error:
            ended.put(error)

    running = [threading.Thread(target=run, args=args, daemon=True) for args in by_model.items()]
    try:
        for thread in running:
            thread.start()
        for _ in requests:
            done = ended.get()
            if isinstance(done, BaseException):
                raise done
            if isinstance(done.error, FleetError | Interrupted):
                if done.result is not None:
                    yield replace(done, error=None)
                raise done.error
            yield done
    except (KeyboardInterrupt, GeneratorExit, FleetError) as error:
        fleet.stop()
        for thread in running:
            thread.join()
        if not isinstance(error, GeneratorExit):
            yield from _results(ended)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; {KEPT}") from error
        raise


def _results(ended: SimpleQueue[FleetRun[R] | BaseException]) -> Iterator[FleetRun[R]]:
    while not ended.empty():
        done = ended.get()
        if isinstance(done, FleetRun) and done.result is not None:
            yield replace(done, error=None)


def _run(
    fleet: Fleet,
    model: Model,
    request: Request,
    tune: Callable[[Request, Site], tuple[RunResult, R]],
    end_s: float,
) -> FleetRun[R]:
    left_s = end_s - time.monotonic()
    try:
        if left_s <= 0:
            raise AutotuneError(
                f"{request.kernel.name} on {model.name}: not started, the time is up; all "
                "measurements are kept: run the same command again"
            )
        fleet.measuring_place(model, request.device.uuid)  # waits if all cards are lost
        first, *others = [card.device for card in fleet.usable(model)]
        if left_s < math.inf:
            budget = request.total_budget
            own_s = math.inf if budget.seconds is None else budget.seconds
            budget = Budget(min(own_s, max(1.0, left_s)), budget.evaluations)
            request = replace(request, budget=budget)
        request = replace(request, device=first, others=tuple(others))
        result, published = tune(request, FleetSite(fleet))
        return FleetRun(request, result, published, result.ended)
    except AutotuneError as error:
        return FleetRun(request, None, error=error)

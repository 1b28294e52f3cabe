"""A fleet as the site of a run; see `autotune.run.bench.Site`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.fleet.client import MOST_FAILURES, Fleet, Model, Place, WorkerLost
from autotune.fleet.worker import HostError
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import CompilerPool
from autotune.measure.data import Dataset, without_files
from autotune.measure.process import ENDED
from autotune.measure.tasks import Job
from autotune.measure.worker import DeviceWorker
from autotune.run.bench import RunData, Site
from autotune.run.request import Request
from autotune.values import Configuration, Problem

R = TypeVar("R")

#: Compilers that one run keeps busy.
_MOST_COMPILERS = 256
#: Longest time to ask a device a question.
_QUESTION_S = 60.0


class DaskActor:
    """A device or compiler of a fleet as an actor; see `autotune.measure.process.Actor`.

    ``find`` returns the place for a task, but for addresses where it failed. A task of a lost or
    failing worker is given to another place.
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
        what: Hashable = next((a for a in args if isinstance(a, Configuration)), key or task)
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
                losses += self._fleet.is_there(place)
                if losses > MOST_FAILURES:
                    raise AutotuneError(f"its tasks are dropped by Dask: {lost}") from lost
            except HostError as error:
                self._fleet.blame(error, what)
                failed.append(error.address)
                if len(failed) >= MOST_FAILURES or not self._fleet.has_other(place, failed):
                    raise

    def close(self) -> None:
        self._is_closed = True


class DescribedData(RunData):
    """Data that are described here, and made by each machine for itself."""

    def dataset(self, problem: Problem, name: str, seed: int) -> Dataset:
        return without_files(self.kernel, problem, name, seed)

    def place(self, worker: DeviceWorker, job: Job) -> None:
        worker.prepare(job)


class FleetSite(Site):
    """A run's cards and compilers in a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def compilers(self, request: Request) -> CompilerPool:
        """Return as many compilers as the run has of the fleet's cards."""
        cards = max(1, len(self.fleet.usable()))
        share = self.fleet.compilers(request.device.backend) * len(request.devices) // cards
        find = partial(self.fleet.compiling_place, request.device.backend)
        return CompilerPool(
            min(max(1, share), _MOST_COMPILERS),
            lambda: DaskActor(self.fleet, find),
            on_demand=True,
        )

    def device_actor(self, device: Device) -> DaskActor:
        find = partial(self.fleet.measuring_place, Model.of(device), device.uuid)
        return DaskActor(self.fleet, find)

    def remembered(self, request: Request) -> tuple[str, ...]:
        """Return uuids of the model's other cards, which may have measured for this run before."""
        return tuple(device.uuid for device in self.fleet.others(request.device))

    def origin_of(self, kernel: Kernel, fingerprint: str) -> bytes:
        return self.fleet.sent(kernel, fingerprint)

    def data(self, kernel: Kernel) -> DescribedData:
        return DescribedData(kernel)

    def sanitizer(self, request: Request) -> str:
        return ""  # `drive.checked` tells it

    def why_no_energy(self, device: Device) -> str:
        return self.device_actor(device).ask(_why_no_energy, device, timeout_s=_QUESTION_S)


def _why_no_energy(device: Device) -> str:
    return backend(device.backend).why_no_energy(device)

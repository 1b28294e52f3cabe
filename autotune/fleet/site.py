"""A fleet as the site of a run; see `autotune.run.bench.Site`.

A task of a card that is lost, or whose machine fails, is given to another card of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from autotune.devices.binary import Binary
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.fleet.client import MOST_FAILURES, Card, Fleet, Model, WorkerLost
from autotune.fleet.worker import HostError, applied
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import CompilerPool, write_cached
from autotune.measure.measurement import Measurement
from autotune.measure.process import ENDED, Child, Children
from autotune.measure.tasks import Job
from autotune.measure.timing import StoppingRule
from autotune.measure.worker import Worker
from autotune.run.request import Request
from autotune.values import Configuration

R = TypeVar("R")

#: Compilers that one run keeps busy.
_MOST_COMPILERS = 256


class RemoteWorker(Worker):
    """The worker of a run on a card of the fleet, or on another of the model while that is lost."""

    queues = True

    def __init__(self, fleet: Fleet, device: Device, measure_timeout_s: float):
        super().__init__(measure_timeout_s)
        self.fleet, self.device, self.model = fleet, device, Model.of(device)
        self._is_closed = False

    def start(self) -> None:
        pass

    def prepare(self, job: Job) -> None:
        self._ask(job.problem, "prepare", job)

    def measure(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        rule: StoppingRule,
        best_samples_ms: tuple[float, ...],
        best_cost: float = float("inf"),
    ) -> Measurement:
        arguments = (job, configuration, binary, rule, best_samples_ms, best_cost)
        measured: Measurement = self._ask(configuration, "measure", *arguments)
        return measured

    def check(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        checked: Measurement = self._ask(configuration, "check", job, configuration, binary)
        return checked

    def check_at_once(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        arguments = (job, configuration, binary)
        checked: Measurement = self._ask(configuration, "check_at_once", *arguments)
        return checked

    def have(self, task: Callable[..., R], *args: Any, **options: Any) -> R:
        what = next((given.problem for given in args if isinstance(given, Job)), task.__name__)
        done: R = self._ask(what, "have", applied, task, args, options)
        return done

    def run(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("what needs the process is asked where it is: Worker.have")

    def renew(self) -> None:
        pass

    def close(self) -> None:
        self._is_closed = True

    def _ask(self, what: Hashable, method: str, *arguments: Any) -> Any:
        failed: list[Card] = []
        losses = 0
        while True:
            if self._is_closed:
                raise AutotuneError(ENDED)
            card = self.fleet.card(self.model, self.device.uuid, failed)
            try:
                return self.fleet.ask(card, method, *arguments)
            except WorkerLost as lost:
                losses += self.fleet.is_usable(card)
                if losses > MOST_FAILURES:
                    raise AutotuneError(f"{card.address}: its tasks are dropped: {lost}") from lost
            except HostError as error:
                self.fleet.blame(error, what)
                failed.append(card)
                others = [other for other in self.fleet.usable(self.model) if other not in failed]
                if len(failed) >= MOST_FAILURES or not others:
                    raise


class _RemoteCompiler(Child):
    """A compiler somewhere in the fleet, as one of a `CompilerPool`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.is_gone = fleet, False
        self._is_killed = False

    @property
    def is_ready(self) -> bool:
        return not self._is_killed

    def ask(self, timeout_s: float, task: Callable[..., R], *args: Any, **others: Any) -> R:
        """Compile a job; its time counts where it is compiled."""
        (job,) = args
        for _ in range(MOST_FAILURES):
            try:
                compiled: Any = self._fleet.compile(job, lambda: self._is_killed)
                if compiled.binary is not None:
                    write_cached(compiled.binary)
                return compiled  # type: ignore[no-any-return]
            except WorkerLost:
                if self._is_killed:
                    raise AutotuneError(ENDED) from None
                failure = AutotuneError("workers of the fleet were lost while they compiled")
            except HostError as error:
                self._fleet.blame(error, job.key)
                failure = AutotuneError(str(error))
            except KeyboardInterrupt:
                raise AutotuneError(ENDED) from None
        raise failure

    def kill(self) -> None:
        self._is_killed = True

    def end(self) -> None:
        self.kill()


class _RemoteCompilers(Children):
    """The compilers that one run uses."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    def begin(self, begin: Callable[[], object] | None = None) -> Child:
        with self._lock:
            if self.is_ended:
                raise AutotuneError(ENDED)
            child = _RemoteCompiler(self._fleet)
            self._all = [child, *(known for known in self._all if known.is_ready)]
        return child


class FleetSite:
    """A run's cards and compilers in a fleet."""

    shares_disk = False

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def compilers(self, request: Request) -> CompilerPool:
        """Return as many compilers as the run has of the fleet's cards."""
        cards = max(1, len(self.fleet.usable()))
        share = self.fleet.compilers(request.device.backend) * len(request.devices) // cards
        processes = min(max(1, share), _MOST_COMPILERS)
        return CompilerPool(processes, on_demand=True, children=_RemoteCompilers(self.fleet))

    def workers(self, request: Request) -> list[Worker]:
        return [RemoteWorker(self.fleet, device, request.timeout_s) for device in request.devices]

    def remembered(self, request: Request) -> tuple[str, ...]:
        """Return uuids of the model's other cards, which may have measured for this run before."""
        return tuple(device.uuid for device in self.fleet.others(request.device))

    def origin_of(self, kernel: Kernel, known_by: str) -> bytes:
        return self.fleet.sent(kernel, known_by)

    def why_no_energy(self, device: Device) -> str:
        return RemoteWorker(self.fleet, device, 0.0).have(_why_no_energy, device)


def _why_no_energy(_: Worker, device: Device) -> str:
    return backend(device.backend).why_no_energy(device)

"""The client's view of a Dask cluster: GPUs ("cards") of each model, compilers, and their tasks."""

from __future__ import annotations

import os
import pickle
import threading
import time
import warnings
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker

from autotune.devices.device import Device
from autotune.errors import AutotuneError, FleetError, UsageError, unknown
from autotune.fleet.address import connected, find
from autotune.fleet.worker import (
    COMPILE,
    NAME,
    HostError,
    claim,
    keep,
    run_task,
    toolchain_of,
)
from autotune.kernel.spec import Kernel
from autotune.measure.process import ENDED, ActorDied
from autotune.measure.worker_state import Job

T = TypeVar("T")

#: Time between two checks of the list of workers.
_WORKERS_POLL_S = 1.0
#: Time between two checks that a task can still finish.
_TASK_POLL_S = 1.0
#: Maximum wait for a lost worker if no other worker can do its work.
RETURN_S = 120.0
#: Maximum time to fetch a finished result.
_FETCH_S = 10.0
#: Failures after which a machine gets no more tasks; also the maximum number of tries of a task.
MAX_FAILURES = 3
#: Maximum number of jobs kept for the workers: enough for all cards of several runs.
_MAX_JOBS = 1024


class WorkerLost(Exception):
    """The worker of a task is gone, and the result with it."""


@dataclass(frozen=True)
class Model:
    """The properties that all cards of one record share."""

    backend: str
    name: str
    arch: str
    sm_count: int
    driver: str

    def is_called(self, name: str) -> bool:
        """Return whether a name is the backend, the architecture or a part of this model's name."""
        return name in (self.backend, self.arch) or name.lower() in self.name.lower()

    @classmethod
    def of(cls, device: Device) -> Model:
        """Return the model of a device."""
        return cls(device.backend, device.name, device.arch, device.sm_count, device.driver)


@dataclass(frozen=True)
class Card:
    """One device of the fleet, and the address of its Dask worker."""

    device: Device
    address: str


@dataclass(frozen=True)
class Place:
    """The workers that may run a task, and the resource that the task occupies: a card or a compiler."""

    resource: str
    addresses: tuple[str, ...]


class Fleet:
    """The cards and compilers of a Dask cluster; a context manager. Any thread may use it.

    Raises `FleetError` if no worker announces a device that this client can use.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cards: dict[str, Card] = {}
        #: Why each refused worker is refused, by address.
        self.refused: dict[str, str] = {}
        self.is_stopped = False
        self._lock = threading.RLock()
        #: Failed tasks of each worker, by address.
        self._failed = Counter[str]()
        #: The last failure of each worker that gets no more tasks, by address.
        self._set_aside: dict[str, str] = {}
        #: Compiler processes of each worker, by backend.
        self._compilers: dict[str, dict[str, int]] = {}
        #: Backends that at least one worker can compile for.
        self._compiled_for: set[str] = set()
        self._alive: frozenset[str] = frozenset()
        #: Jobs by id; the job is kept so that no other object gets its id.
        self._jobs: OrderedDict[int, tuple[Job, str, Future]] = OrderedDict()
        self._ended = threading.Event()
        self._require_scheduler()
        self.look()
        if not self.cards:
            raise FleetError(self._why_no_card())
        threading.Thread(target=self._keep_looking, daemon=True).start()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock:
            self._jobs.clear()

    def stop(self) -> None:
        """End all runs, as Ctrl-C does."""
        self.is_stopped = True

    # ------------------------------------------------------------------ members

    def look(self) -> None:
        """Get the list of workers from the scheduler; warn of refused workers."""
        # Dask sometimes replaces the answer of `scheduler_info` by an answer without workers.
        workers = self.client.sync(self.client.scheduler.identity, n_workers=-1)["workers"]
        with self._lock:
            self._alive = frozenset(workers)
            self._compilers = {}
            for address, worker in workers.items():
                announced = worker["metrics"].get(NAME)
                if announced is not None and announced["claim"] != claim():
                    self._refuse(
                        address,
                        f"the worker at {address} has {announced['claim']}, this client has {claim()}; "
                        "install the same version on both",
                    )
                elif announced is not None:
                    self._admit(address, announced)

    def _admit(self, address: str, announced: dict[str, Any]) -> None:
        toolchains = announced["toolchains"]
        fitting = [name for name, tool in toolchains.items() if tool == toolchain_of(name)]
        if compilers := int(announced["compilers"]):
            self._compilers[address] = dict.fromkeys(fitting, compilers)
            self._compiled_for.update(fitting)
        for values in announced["devices"]:
            device = Device(**values)
            if device.backend not in fitting:
                self._refuse(
                    address,
                    f"{device.name} at {address} compiles with {toolchains[device.backend]}, "
                    f"this client with {toolchain_of(device.backend)}; install the same version on both",
                )
                continue
            known = self.cards.get(device.uuid)
            if known is None or known.address not in self._alive:
                self.cards[device.uuid] = Card(device, address)

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            if self.cards:
                warnings.warn(f"{why}; the worker is not used", stacklevel=2)

    def _why_no_card(self) -> str:
        where = self.client.scheduler.address if self.client.scheduler else "the scheduler"
        if self.refused:
            return next(iter(self.refused.values()))
        return (
            f"{where}: none of the {len(self._alive)} workers offers a device; start workers with: "
            "dask worker ADDRESS --preload autotune.fleet.worker, or: autotune fleet"
        )

    def _keep_looking(self) -> None:
        while not self._ended.wait(_WORKERS_POLL_S):
            with suppress(Exception):  # threads that wait for a task report a lost scheduler
                self.look()

    def is_usable(self, card: Card) -> bool:
        """Return whether a card gets tasks: its worker is connected and not excluded."""
        return card.address in self._alive and card.address not in self._set_aside

    def usable(self, model: Model | None = None) -> list[Card]:
        """Return the usable cards of a model, or of all models, by uuid."""
        with self._lock:
            return [
                card
                for _, card in sorted(self.cards.items())
                if self.is_usable(card) and model in (None, Model.of(card.device))
            ]

    def models(self, named: Sequence[str] = ()) -> list[Model]:
        """Return the models of the fleet, or only the named ones, sorted by falling number of cards.

        A name is a backend, an architecture, or a part of a device's name. A record belongs to one
        driver version. If cards of one model have different drivers, only the most common driver is used.

        Raises `UsageError` if a name matches no model.
        """
        counted = Counter(Model.of(card.device) for card in self.usable()).most_common()
        kept_models: dict[tuple[str, str, int], Model] = {}
        for model, count in counted:
            kept = kept_models.setdefault((model.backend, model.name, model.sm_count), model)
            if kept != model:
                warnings.warn(
                    f"{count} {model.name} with driver {model.driver} are not used: a record belongs to "
                    f"one driver version, and most have {kept.driver}",
                    stacklevel=2,
                )
        models = list(kept_models.values())
        for name in named:
            if not any(model.is_called(name) for model in models):
                raise UsageError(unknown("model of the fleet", name, (m.name for m in models)))
        return [m for m in models if not named or any(map(m.is_called, named))]

    def fitting(self, kernel: Kernel, models: Sequence[Model]) -> list[Model]:
        """Return the models that a kernel runs on; raise `UsageError` if there is none."""
        fitting = [model for model in models if model.backend in kernel.backends]
        if not fitting:
            available = ", ".join(f"{model.name} ({model.backend})" for model in models)
            runs_on = " and ".join(kernel.backends)
            raise UsageError(f"{kernel.name} runs only on {runs_on}; the fleet has {available}")
        return fitting

    def device_for(self, kernel: Kernel, named: Sequence[str] = ()) -> Device:
        """Return a card for a kernel: of the named models that it runs on, that with the most cards."""
        return self.device_of(self.fitting(kernel, self.models(named))[0])

    def device_of(self, model: Model) -> Device:
        """Return a card of a model; repeated calls return the same card."""
        return self.usable(model)[0].device

    def others(self, device: Device) -> list[Device]:
        """Return the other cards of a device's model."""
        cards = self.usable(Model.of(device))
        return [card.device for card in cards if card.device.uuid != device.uuid]

    def compilers(self, backend_name: str) -> int:
        """Return the number of compiler processes for a backend."""
        with self._lock:
            return sum(known.get(backend_name, 0) for known in self._compilers.values())

    def measuring_place(self, model: Model, wanted: str, excluded: Sequence[str] = ()) -> Place:
        """Return the card with the wanted uuid, or another card of the model while that card is lost.

        If all cards are lost, wait up to `RETURN_S`: Dask may restart their workers. Cards at the
        ``excluded`` addresses do not count.

        Raises `AutotuneError` if no card is left.
        """
        left = self._waited_for(
            lambda: [card for card in self.usable(model) if card.address not in excluded],
            lambda: self._all_excluded(model, excluded),
        )
        if not left:
            why = "; ".join(self._set_aside.values()) or "their workers are gone"
            raise AutotuneError(f"no {model.name} of the fleet is left: {why}")
        # Distribute runs without their own card over the remaining cards.
        spread = left[zlib.crc32(wanted.encode()) % len(left)]
        card = next((card for card in left if card.device.uuid == wanted), spread)
        return Place(card.device.uuid, (card.address,))

    def compiling_place(self, backend_name: str, excluded: Sequence[str] = ()) -> Place:
        """Return the workers that compile for a backend; wait for lost ones as `measuring_place` does.

        Raises `AutotuneError` if no worker outside the ``excluded`` addresses compiles for the backend.
        """
        fitting = self._waited_for(
            lambda: self._compiling(backend_name), lambda: backend_name not in self._compiled_for
        )
        left = tuple(address for address in fitting if address not in excluded)
        if not left:
            raise AutotuneError(
                f"no worker of the fleet compiles for {backend_name}; start one with: "
                "--preload autotune.fleet.worker --device none"
            )
        return Place(COMPILE, left)

    def _compiling(self, backend_name: str) -> list[str]:
        with self._lock:
            return [
                address
                for address, counts in self._compilers.items()
                if address not in self._set_aside and counts.get(backend_name)
            ]

    def is_connected(self, place: Place) -> bool:
        """Return whether at least one worker of a place is connected."""
        return not self._alive.isdisjoint(place.addresses)

    def has_other(self, place: Place, excluded: Sequence[str]) -> bool:
        """Return whether another worker outside the ``excluded`` addresses can do a place's work."""
        if place.resource == COMPILE:
            others = set(place.addresses)
        else:
            model = Model.of(self.cards[place.resource].device)
            others = {card.address for card in self.usable(model)}
        return bool(others - set(excluded))

    def _all_excluded(self, model: Model, excluded: Sequence[str]) -> bool:
        """Return whether all known cards of a model are excluded, so that waiting is useless."""
        with self._lock:
            known = [card for card in self.cards.values() if Model.of(card.device) == model]
        return all(card.address in excluded or card.address in self._set_aside for card in known)

    def _waited_for(self, find: Callable[[], list[T]], is_hopeless: Callable[[], bool]) -> list[T]:
        """Call ``find`` until it finds something, up to `RETURN_S`: Dask may restart workers."""
        end_s = time.monotonic() + RETURN_S
        while not (found := find()) and not is_hopeless() and time.monotonic() < end_s:
            self.require_running()
            time.sleep(_TASK_POLL_S)
        return found

    def blame(self, error: HostError) -> None:
        """Count a failed task of a worker; exclude the worker after `MAX_FAILURES`."""
        with self._lock:
            self._failed[error.address] += 1
            if self._failed[error.address] != MAX_FAILURES:
                return
            self._set_aside[error.address] = str(error)
        warnings.warn(
            f"{error.address} failed {MAX_FAILURES} times and gets no more tasks: {error}",
            stacklevel=2,
        )

    # ------------------------------------------------------------------ tasks

    def run(
        self,
        place: Place,
        content: tuple[Any, ...],
        job: Job | None,
        key: str,
        is_over: Callable[[], bool],
    ) -> Any:
        """Run a task at a place; ``content`` holds the task, arguments and limits of `Actor.ask`.

        Raises `WorkerLost` if the place is gone or ``is_over`` returns True, `HostError` if the machine
        failed, and any error of the task.
        """
        future = self._submit(
            run_task,
            claim(),
            place.resource,
            pickle.dumps(content, pickle.HIGHEST_PROTOCOL),
            *(() if job is None else self._sent_job(job)),
            key=f"{NAME}-{key or _number()}",
            workers=list(place.addresses),
            resources={place.resource: 1},
        )
        return self._waited(future, lambda: is_over() or not self.is_connected(place))

    def _sent_job(self, job: Job) -> tuple[str, Future]:
        """Return the name of a job, and a future, so that Dask sends the job to each machine once."""
        with self._lock:
            if id(job) not in self._jobs:
                # All cards of a model get the same job; each worker fills in its own device.
                device = replace(job.device, uuid="", index=0)
                packed = pickle.dumps(replace(job, device=device), pickle.HIGHEST_PROTOCOL)
                name = f"{NAME}-job-{sha256(packed).hexdigest()}"
                self._jobs[id(job)] = job, name, self._submit(keep, packed, key=name)
                while len(self._jobs) > _MAX_JOBS:
                    self._jobs.popitem(last=False)
            return self._jobs[id(job)][1:]

    def _submit(self, task: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        self._require_scheduler()
        try:
            return self.client.submit(task, *arguments, **options)
        except Exception:
            self._require_scheduler()
            raise

    def _waited(self, future: Future, is_lost: Callable[[], bool]) -> Any:
        """Wait for the result of a task as long as the fleet runs and its worker is connected."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(_TASK_POLL_S):
            self.require_running(is_lost)
        while True:
            try:
                result = future.result(timeout=_FETCH_S)
                break
            # UnboundLocalError: a bug of Dask when the timeout ends at a certain moment.
            except (TimeoutError, UnboundLocalError):
                self.require_running(is_lost)
                if future.cancelled():
                    raise WorkerLost("cancelled") from None
            except CancelledError as error:
                self._require_scheduler()
                raise WorkerLost(str(error)) from error
            except KilledWorker as error:
                raise ActorDied(f"several workers of the fleet died with it: {error}") from error
            except Exception as error:
                self._require_scheduler()
                raise AutotuneError(f"a task of the fleet failed: {error!r}") from error
        if isinstance(result, Exception):
            raise result
        return result

    def require_running(self, is_lost: Callable[[], bool] = lambda: False) -> None:
        """Raise an error if the fleet was stopped or lost; `WorkerLost` if ``is_lost`` returns True."""
        if self.is_stopped:
            raise KeyboardInterrupt
        if self._ended.is_set():
            raise AutotuneError(ENDED)
        self._require_scheduler()
        if is_lost():
            raise WorkerLost("its worker is gone")

    def _require_scheduler(self) -> None:
        if self.client.status != "running":
            raise FleetError(
                "the scheduler of the fleet was lost; all measurements are kept: start the fleet again, "
                "and repeat the command to continue"
            )


@contextmanager
def of(where: str) -> Iterator[Fleet]:
    """Connect to the fleet at an address or of a scheduler file.

    Raises the errors of `find`, `connected` and `Fleet`.
    """
    with connected(find(where)) as client, Fleet(client) as fleet:
        yield fleet


_numbers = iter(range(1 << 62))


def _number() -> str:
    """Return a key that is unique among the tasks of all clients."""
    return f"{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"

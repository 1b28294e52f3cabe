"""A Dask cluster as its client sees it: cards of each model, compilers, and their tasks."""

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

#: Time between two checks of the workers, and of whether a task can still be answered.
_LOOK_S, _GLANCE_S = 1.0, 1.0
#: Maximum wait for a lost worker if no other worker can do its work.
RETURN_S = 120.0
#: Maximum time to fetch a finished result.
_FETCH_S = 10.0
#: A machine gets no more tasks after this number of failures; a task is tried this number of times.
MOST_FAILURES = 3
#: Jobs kept for the workers: enough for all cards of several runs.
_JOBS = 1024


class WorkerLost(Exception):
    """The worker of a task is gone; the task gets no answer."""


@dataclass(frozen=True)
class Model:
    """The properties that all cards of one record share."""

    backend: str
    name: str
    arch: str
    sm_count: int
    driver: str

    def is_called(self, name: str) -> bool:
        """Return whether a name means this model: its backend, architecture or a part of its name."""
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
    """The workers that may run a task, and the resource that it takes there: a card, or a compiler."""

    resource: str
    addresses: tuple[str, ...]


class Fleet:
    """The cards and compilers of a Dask cluster; a context manager. Any thread may use it.

    Raises `FleetError` if no worker announces a device that this client can use.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cards: dict[str, Card] = {}
        #: Reasons of refused workers, by address.
        self.refused: dict[str, str] = {}
        self.is_stopped = False
        self._lock = threading.RLock()
        #: Failed tasks of each worker, by address.
        self._failed = Counter[str]()
        #: The last failure of each worker that gets no more tasks, by address.
        self._set_aside: dict[str, str] = {}
        #: Compiler processes of each worker, by backend.
        self._compilers: dict[str, dict[str, int]] = {}
        #: Backends that any worker has compiled for.
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
        """End every run as Ctrl-C does."""
        self.is_stopped = True

    # ------------------------------------------------------------------ members

    def look(self) -> None:
        """Ask the scheduler for its workers; warn of refused workers."""
        # Not `scheduler_info`, whose answer Dask itself replaces now and then by one without workers.
        workers = self.client.sync(self.client.scheduler.identity, n_workers=-1)["workers"]
        with self._lock:
            self._alive = frozenset(workers)
            self._compilers = {}
            for address, worker in workers.items():
                announced = worker["metrics"].get(NAME)
                if announced is not None and announced["claim"] != claim():
                    self._refuse(
                        address,
                        f"the worker at {address} has {announced['claim']}, this client {claim()}; "
                        "install the same on both",
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
                    f"this client with {toolchain_of(device.backend)}; install the same on both",
                )
                continue
            known = self.cards.get(device.uuid)
            if known is None or known.address not in self._alive:
                self.cards[device.uuid] = Card(device, address)

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            if self.cards:
                warnings.warn(f"{why}: it is left out", stacklevel=2)

    def _why_no_card(self) -> str:
        where = self.client.scheduler.address if self.client.scheduler else "the scheduler"
        if self.refused:
            return next(iter(self.refused.values()))
        return (
            f"{where}: none of {len(self._alive)} workers announces a device; start workers with: "
            "dask worker ADDRESS --preload autotune.fleet.worker, or: autotune fleet"
        )

    def _keep_looking(self) -> None:
        while not self._ended.wait(_LOOK_S):
            with suppress(Exception):  # the thread that waits for a task reports a lost scheduler
                self.look()

    def is_usable(self, card: Card) -> bool:
        """Return whether a card gets tasks: its worker is there and was not set aside."""
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
        """Return the models of the fleet, or those of some names, those with most cards first.

        A name is a backend, an architecture, or a part of a device's name. Of two models that
        differ by their driver alone, and would share a record, the one with fewer cards is left out.

        Raises `UsageError` if a name fits no model.
        """
        counted = Counter(Model.of(card.device) for card in self.usable()).most_common()
        there: dict[tuple[str, str, int], Model] = {}
        for model, count in counted:
            kept = there.setdefault((model.backend, model.name, model.sm_count), model)
            if kept != model:
                warnings.warn(
                    f"{count} {model.name} with driver {model.driver} are left out: a record is of one, "
                    f"and most have {kept.driver}",
                    stacklevel=2,
                )
        models = list(there.values())
        for name in named:
            if not any(model.is_called(name) for model in models):
                raise UsageError(unknown("model of the fleet", name, (m.name for m in models)))
        return [m for m in models if not named or any(map(m.is_called, named))]

    def fitting(self, kernel: Kernel, models: Sequence[Model]) -> list[Model]:
        """Return the models that a kernel runs on; raise `UsageError` if there is none."""
        fitting = [model for model in models if model.backend in kernel.backends]
        if not fitting:
            there = ", ".join(f"{model.name} ({model.backend})" for model in models)
            runs_on = " and ".join(kernel.backends)
            raise UsageError(f"{kernel.name} runs on {runs_on} only, and the fleet has {there}")
        return fitting

    def device_for(self, kernel: Kernel, named: Sequence[str] = ()) -> Device:
        """Return a card of the model with most cards, among the named models that a kernel runs on."""
        return self.device_of(self.fitting(kernel, self.models(named))[0])

    def device_of(self, model: Model) -> Device:
        """Return a card of a model, the same one every time."""
        return self.usable(model)[0].device

    def others(self, device: Device) -> list[Device]:
        """Return the other cards of a device's model."""
        cards = self.usable(Model.of(device))
        return [card.device for card in cards if card.device.uuid != device.uuid]

    def compilers(self, backend_name: str) -> int:
        """Return the number of compiler processes for a backend."""
        with self._lock:
            return sum(known.get(backend_name, 0) for known in self._compilers.values())

    def measuring_place(self, model: Model, wanted: str, but: Sequence[str] = ()) -> Place:
        """Return the card of a uuid, or another of the model while that one is lost.

        Waits up to `RETURN_S` where all are lost: Dask may start their workers again.

        Raises `AutotuneError` if none is left, but for those at some addresses.
        """
        left = self._waited_for(
            lambda: [card for card in self.usable(model) if card.address not in but],
            lambda: self._all_set_aside(model, but),
        )
        if not left:
            why = "; ".join(self._set_aside.values()) or "their workers are gone"
            raise AutotuneError(f"no {model.name} of the fleet is left: {why}")
        # Runs that share the remaining cards are spread over them.
        spread = left[zlib.crc32(wanted.encode()) % len(left)]
        card = next((card for card in left if card.device.uuid == wanted), spread)
        return Place(card.device.uuid, (card.address,))

    def compiling_place(self, backend_name: str, but: Sequence[str] = ()) -> Place:
        """Return the workers that compile for a backend; waits as `measuring_place` does.

        Raises `AutotuneError` if there is none, but for those at some addresses.
        """
        fitting = self._waited_for(
            lambda: self._compiling(backend_name), lambda: backend_name not in self._compiled_for
        )
        left = tuple(address for address in fitting if address not in but)
        if not left:
            raise AutotuneError(
                f"no worker of the fleet compiles for {backend_name}; start one with: "
                "--preload autotune.fleet.worker --device none"
            )
        return Place(COMPILE, left)

    def _compiling(self, backend_name: str) -> list[str]:
        with self._lock:
            known = {a: of for a, of in self._compilers.items() if a not in self._set_aside}
        return [address for address, count in known.items() if count.get(backend_name)]

    def is_there(self, place: Place) -> bool:
        """Return whether any worker of a place is connected."""
        return not self._alive.isdisjoint(place.addresses)

    def has_other(self, place: Place, but: Sequence[str]) -> bool:
        """Return whether there is another place like this one, outside some addresses."""
        if place.resource == COMPILE:
            others = set(place.addresses)
        else:
            model = Model.of(self.cards[place.resource].device)
            others = {card.address for card in self.usable(model)}
        return bool(others - set(but))

    def _all_set_aside(self, model: Model, but: Sequence[str]) -> bool:
        """Return whether no lost worker would help if it came back."""
        with self._lock:
            known = [card for card in self.cards.values() if Model.of(card.device) == model]
        return all(card.address in but or card.address in self._set_aside for card in known)

    def _waited_for(self, find: Callable[[], list[T]], is_hopeless: Callable[[], bool]) -> list[T]:
        """Wait up to `RETURN_S` until something is found again: Dask may restart its worker."""
        end_s = time.monotonic() + RETURN_S
        while not (found := find()) and not is_hopeless() and time.monotonic() < end_s:
            self.require_running()
            time.sleep(_GLANCE_S)
        return found

    def blame(self, error: HostError) -> None:
        """Note a failed task of a worker; set the worker aside after `MOST_FAILURES`."""
        with self._lock:
            self._failed[error.address] += 1
            if self._failed[error.address] != MOST_FAILURES:
                return
            self._set_aside[error.address] = str(error)
        warnings.warn(
            f"{error.address} failed {MOST_FAILURES} times and is set aside: {error}", stacklevel=2
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
        """Run a task at a place; ``content`` is task, arguments and limits of `Actor.ask`.

        Raises `WorkerLost` if the place is gone or ``is_over``, `HostError` if its machine failed, and
        what the task raises.
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
        return self._waited(future, lambda: is_over() or not self.is_there(place))

    def _sent_job(self, job: Job) -> tuple[str, Future]:
        """Return the name of a job, and the future by which Dask sends it to each machine once."""
        with self._lock:
            if id(job) not in self._jobs:
                # The same for all cards of a model: each puts itself in.
                device = replace(job.device, uuid="", index=0)
                packed = pickle.dumps(replace(job, device=device), pickle.HIGHEST_PROTOCOL)
                name = f"{NAME}-job-{sha256(packed).hexdigest()}"
                self._jobs[id(job)] = job, name, self._submit(keep, packed, key=name)
                while len(self._jobs) > _JOBS:
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
        """Wait for the result of a task, while it can still come."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(_GLANCE_S):
            self.require_running(is_lost)
        while True:
            try:
                result = future.result(timeout=_FETCH_S)
                break
            # Dask fails on a variable of its own if this time ends at the wrong moment.
            except (TimeoutError, UnboundLocalError):
                self.require_running(is_lost)
                if future.cancelled():
                    raise WorkerLost("cancelled") from None
            except CancelledError as error:
                self._require_scheduler()
                raise WorkerLost(str(error)) from error
            except KilledWorker as error:
                raise ActorDied(f"with it several workers of the fleet: {error}") from error
            except Exception as error:
                self._require_scheduler()
                raise AutotuneError(f"a task of the fleet failed: {error!r}") from error
        if isinstance(result, Exception):
            raise result
        return result

    def require_running(self, is_lost: Callable[[], bool] = lambda: False) -> None:
        """Raise the error that ended the fleet or this use of it; `WorkerLost` if ``is_lost``."""
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
                "the scheduler of the fleet was lost; what was measured is kept: start the fleet again, "
                "and the same command goes on where this one stopped"
            )


@contextmanager
def of(where: str) -> Iterator[Fleet]:
    """Connect to the fleet of an address or a scheduler file.

    Raises as `find`, `connected` and `Fleet` do.
    """
    with connected(find(where)) as client, Fleet(client) as fleet:
        yield fleet


_numbers = iter(range(1 << 62))


def _number() -> str:
    """Return a key that no other task has, of other clients neither."""
    return f"{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"

"""A fleet as its client sees it: cards of each model, compilers, and runs that use them.

`FleetSite` is where a `Run` compiles and measures: its loop, its finals and its store are those of one
machine. What is asked of a card that is lost, or whose machine fails, is asked of another.
"""

from __future__ import annotations

import io
import pickle
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from typing import Any, TypeVar

from distributed import Client, Future, KilledWorker

from autotune.devices.binary import Binary
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.errors import AutotuneError, FleetError, UsageError, unknown
from autotune.fleet.address import connected, find
from autotune.fleet.cards import Card, Model, lease
from autotune.fleet.worker import (
    COMPILE,
    NAME,
    Claim,
    HostError,
    Packer,
    applied,
    call,
    claim,
    compile_,
    keep,
)
from autotune.kernel.snapshot import travelling
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import (
    Compiled,
    CompileJob,
    CompilerPool,
    write_cached,
)
from autotune.measure.measurement import Measurement
from autotune.measure.process import ENDED, Child, ChildDied, Children
from autotune.measure.tasks import Job
from autotune.measure.timing import StoppingRule
from autotune.measure.worker import Worker
from autotune.run.request import Request
from autotune.values import Configuration

R = TypeVar("R")

#: Between two looks at who is there, and at whether what is waited for can still come.
_LOOK_S, _GLANCE_S = 1.0, 1.0
#: Longest time to fetch a result that is there.
_FETCH_S = 10.0
#: A machine whose tasks fail for so many configurations gets no more.
_FAILURES = 3
#: Compilers that one run keeps busy.
_MOST_COMPILERS = 256
#: Jobs that are kept for whoever measures: those of all cards of several runs.
_JOBS = 1024


class _Lost(Exception):
    """What was asked will not be answered: its worker is gone."""


@dataclass
class _Machine:
    """What is known against a Dask worker."""

    #: Of configurations and problems for which its tasks failed.
    failed: set[Hashable] = field(default_factory=set)
    #: Why it gets no more; empty while it does.
    set_aside: str = ""


class Fleet:
    """The cards and compilers of a Dask cluster; a context manager.

    ``client`` stays its owner's. Any thread may ask.

    Raises
    ------
    FleetError
        If no worker announces itself that understands this client.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cards: dict[str, Card] = {}
        #: Why the workers that are left out are.
        self.refused: dict[str, str] = {}
        self.is_stopped = False
        self._lock = threading.RLock()
        self._machines: dict[str, _Machine] = {}
        #: Compiler processes of each worker, by backend.
        self._compilers: dict[str, dict[str, int]] = {}
        self._alive: frozenset[str] = frozenset()
        #: By id, with the job itself so that no other gets it.
        self._jobs: OrderedDict[int, tuple[Job, str, Future]] = OrderedDict()
        self._kernels: dict[str, bytes] = {}
        self._ended = threading.Event()
        self._require_scheduler()
        self.look()
        if not self.cards:
            raise FleetError(self._why_nobody())
        self._watch = threading.Thread(target=self._keep_looking, daemon=True)
        self._watch.start()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock:
            self._jobs.clear()

    def stop(self) -> None:
        """Let every run end as if each had been interrupted."""
        self.is_stopped = True

    # ------------------------------------------------------------------ who is there

    def look(self) -> None:
        """Learn who is there now; warns of whoever is refused."""
        # Not `scheduler_info`, whose answer Dask itself replaces now and then by one without workers.
        workers = self.client.sync(self.client.scheduler.identity, n_workers=-1)["workers"]
        with self._lock:
            self._alive = frozenset(workers)
            self._compilers = {}
            for address, worker in workers.items():
                said = worker["metrics"].get(NAME)
                if said is not None and not self._refusal(address, said):
                    self._admit(address, said)

    def _admit(self, address: str, said: dict[str, Any]) -> None:
        fitting = [name for name, tool in said["toolchains"].items() if tool == _toolchain(name)]
        self._compilers[address] = dict.fromkeys(fitting, int(said["compilers"]))
        for announced in said["devices"]:
            device = Device(**announced["device"])
            if device.backend not in fitting:
                self._refuse(
                    address,
                    f"{device.name} at {address} compiles with {said['toolchains'][device.backend]}, "
                    f"this client with {_toolchain(device.backend)}; install the same on both",
                )
                continue
            card = self.cards.setdefault(device.uuid, Card(device, address))
            if card.address not in self._alive:
                card.device, card.address = device, address

    def _refusal(self, address: str, said: dict[str, Any]) -> bool:
        its = Claim(said["version"], said["python"])
        if its != claim():
            self._refuse(
                address,
                f"the worker at {address} has {its}, this client {claim()}; install the same on both",
            )
        return its != claim()

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            if self.cards:
                warnings.warn(f"{why}: it is left out", stacklevel=2)

    def _why_nobody(self) -> str:
        where = self.client.scheduler.address if self.client.scheduler else "the scheduler"
        if self.refused:
            return next(iter(self.refused.values()))
        return (
            f"{where}: none of {len(self._alive)} workers announces a device; start workers with: "
            "dask worker ADDRESS --preload autotune.fleet.worker, or: autotune fleet start"
        )

    def _keep_looking(self) -> None:
        while not self._ended.wait(_LOOK_S):
            with suppress(Exception):  # whoever waits sees that the scheduler is gone
                self.look()

    def is_usable(self, card: Card) -> bool:
        """Whether a card may be asked for something."""
        return card.address in self._alive and not self._is_set_aside(card.address)

    def _is_set_aside(self, address: str) -> bool:
        machine = self._machines.get(address)
        return machine is not None and bool(machine.set_aside)

    def usable(self, model: Model | None = None) -> list[Card]:
        """The cards of a model, or of all, that may be used, by uuid."""
        with self._lock:
            return [
                card
                for _, card in sorted(self.cards.items())
                if self.is_usable(card) and model in (None, Model.of(card.device))
            ]

    def models(self, named: Sequence[str] = ()) -> list[Model]:
        """The models that are there, or those of some names, those with most cards first.

        A name is a backend, an architecture, or a part of what the device calls itself. Of two that
        differ by their driver alone, and would share a record, the one with fewer cards is left out.

        Raises
        ------
        UsageError
            If a name fits none.
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
        """The models that a kernel runs on.

        Raises
        ------
        UsageError
            If there is none.
        """
        fitting = [model for model in models if model.backend in kernel.backends]
        if not fitting:
            there = ", ".join(f"{model.name} ({model.backend})" for model in models)
            runs_on = " and ".join(kernel.backends)
            raise UsageError(f"{kernel.name} runs on {runs_on} only, and the fleet has {there}")
        return fitting

    def device_for(self, kernel: Kernel, named: Sequence[str] = ()) -> Device:
        """A card of the model that has most, of those that a kernel runs on and that are named."""
        return self.device_of(self.fitting(kernel, self.models(named))[0])

    def device_of(self, model: Model) -> Device:
        """A card of a model, the same one every time."""
        return self.usable(model)[0].device

    def others(self, device: Device) -> list[Device]:
        """The other cards of a device's model."""
        cards = self.usable(Model.of(device))
        return [card.device for card in cards if card.uuid != device.uuid]

    def compilers(self, backend_name: str) -> int:
        """Compiler processes of the fleet for a backend."""
        with self._lock:
            return sum(known.get(backend_name, 0) for known in self._compilers.values())

    def lease(self, model: Model, owner: object, wanted: str) -> Card:
        """A card for one of a run's workers, who gives it back by `release`; see `autotune.fleet.cards.lease`.

        Raises
        ------
        AutotuneError
            If none is left.
        """
        with self._lock:
            return lease(self._left(model), owner, wanted)

    def release(self, card: Card) -> None:
        """Give a card back."""
        with self._lock:
            card.users -= 1

    def another(self, model: Model, but: Sequence[Card], wanted: str = "") -> Card:
        """A card of a model for one task, beside whose it is: the wanted one, or one that few use.

        Raises
        ------
        AutotuneError
            If no other is left.
        """
        with self._lock:
            return min(self._left(model, but), key=lambda card: (card.uuid != wanted, card.users))

    def _left(self, model: Model, but: Sequence[Card] = ()) -> list[Card]:
        left = [card for card in self.usable(model) if card not in but]
        if not left:
            aside = [machine.set_aside for machine in self._machines.values()]
            why = "; ".join(filter(None, aside)) or "their workers are gone"
            raise AutotuneError(f"no {model.name} of the fleet is left: {why}")
        return left

    def blame(self, error: HostError, what: Hashable) -> None:
        """Note that a machine failed at something; set it aside when that is enough."""
        with self._lock:
            machine = self._machines.setdefault(error.address, _Machine())
            machine.failed.add(what)
            if len(machine.failed) >= _FAILURES and not machine.set_aside:
                machine.set_aside = str(error)
                warnings.warn(
                    f"{error.address} failed {_FAILURES} times and is set aside: {error}",
                    stacklevel=2,
                )
                aside = {address: why.set_aside for address, why in self._machines.items()}
                with suppress(Exception):  # for `autotune fleet status`
                    self.client.set_metadata([NAME, "set_aside"], aside)

    # ------------------------------------------------------------------ asking

    def ask(self, card: Card, method: str, *arguments: Any) -> Any:
        """Have a method of a card's process called, and wait for the answer.

        Raises
        ------
        _Lost
            If its worker is gone.
        AutotuneError
            If its machine, or what was asked, failed.
        """
        parts: dict[str, Future] = {}
        written = io.BytesIO()
        Packer(written, lambda given: self._sent_by_itself(given, parts)).dump(arguments)
        address = card.address
        future = self._submit(
            call,
            claim(),
            card.uuid,
            method,
            written.getvalue(),
            list(parts),
            *parts.values(),
            key=f"{NAME}-{method}-{_number()}",
            workers=[address],
            resources={card.uuid: 1},
        )
        return self._waited(future, lambda: address not in self._alive)

    def compile(self, job: CompileJob, is_over: Callable[[], bool]) -> Compiled:
        """Have something compiled once in the fleet, wherever there is a compiler for it.

        Raises
        ------
        _Lost
            If the workers that tried are gone.
        ChildDied
            If what is compiled ends one worker after another.
        AutotuneError
            If there is no compiler.
        """
        with self._lock:
            fitting = [
                address
                for address, known in self._compilers.items()
                if known.get(job.device.backend) and not self._is_set_aside(address)
            ]
            if not fitting:
                raise AutotuneError(
                    f"no worker of the fleet compiles for {job.device.backend}; start one with: "
                    "--preload autotune.fleet.worker --device none"
                )
            future = self._submit(
                compile_,
                claim(),
                pickle.dumps(job, pickle.HIGHEST_PROTOCOL),
                key=f"{NAME}-binary-{job.key}",
                workers=fitting if len(fitting) < len(self._alive) else None,
                resources={COMPILE: 1},
            )
        compiled: Compiled = self._waited(
            future, lambda: is_over() or self._alive.isdisjoint(fitting)
        )
        return compiled

    def sent(self, kernel: Kernel, known_by: str) -> bytes:
        """A kernel by value."""
        with self._lock:
            if known_by not in self._kernels:
                self._kernels[known_by] = travelling(kernel)
            return self._kernels[known_by]

    def _sent_by_itself(self, given: object, parts: dict[str, Future]) -> str | None:
        """The name under which a job travels; it is noted among the parts."""
        if not isinstance(given, Job):
            return None
        with self._lock:
            if id(given) not in self._jobs:
                # The same for all cards of a model: each puts itself in.
                device = replace(given.device, uuid="", index=0)
                packed = pickle.dumps(replace(given, device=device), pickle.HIGHEST_PROTOCOL)
                key = f"{NAME}-job-{sha256(packed).hexdigest()}"
                self._jobs[id(given)] = given, key, self._submit(keep, packed, key=key)
                while len(self._jobs) > _JOBS:
                    self._jobs.popitem(last=False)
            _, key, parts[key] = self._jobs[id(given)]
            return key

    def _submit(self, task: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        self._require_scheduler()
        try:
            return self.client.submit(task, *arguments, **options)
        except Exception:
            self._require_scheduler()
            raise

    def _waited(self, future: Future, is_lost: Callable[[], bool]) -> Any:
        """The result of a task, unless nobody will give one."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(_GLANCE_S):
            self._look_after(is_lost)
        while True:
            try:
                result = future.result(timeout=_FETCH_S)
                break
            # Dask trips over its own variable where this time is up in the wrong moment.
            except (TimeoutError, UnboundLocalError):
                self._look_after(is_lost)
                if future.cancelled():
                    raise _Lost("cancelled") from None
            except CancelledError as error:
                self._require_scheduler()
                raise _Lost(str(error)) from error
            except KilledWorker as error:
                raise ChildDied(f"with it several workers of the fleet: {error}") from error
            except Exception as error:
                self._require_scheduler()
                raise AutotuneError(f"a task of the fleet failed: {error!r}") from error
        if isinstance(result, AutotuneError):
            raise result
        return result

    def _look_after(self, is_lost: Callable[[], bool]) -> None:
        """Raise what ends the wait for a task, if anything does."""
        if self.is_stopped:
            raise KeyboardInterrupt
        self._require_scheduler()
        if is_lost():
            raise _Lost("its worker is gone")

    def _require_scheduler(self) -> None:
        if self.client.status != "running":
            raise FleetError(
                "the scheduler of the fleet was lost; what was measured is kept: start the fleet again, "
                "and the same command goes on where this one stopped"
            )


@contextmanager
def of(where: str) -> Iterator[Fleet]:
    """The fleet of an address, or of a scheduler file.

    Raises
    ------
    FleetError
        If nobody answers there, or no worker is of use to this client.
    UsageError
        See `autotune.fleet.address.find`.
    """
    with connected(find(where)) as client, Fleet(client) as fleet:
        yield fleet


@cache
def _toolchain(name: str) -> str:
    """Name and version of this machine's compiler; empty where there is none."""
    try:
        return backend(name).toolchain()
    except AutotuneError:
        return ""


_numbers = iter(range(1 << 62))


def _number() -> str:
    """What tells one task of this client from another, and from those of others."""
    import os

    return f"{os.getpid()}-{os.urandom(4).hex()}-{next(_numbers)}"


class RemoteWorker(Worker):
    """The worker of a run on a card of the fleet: on another of the model when that is lost."""

    queues = True

    def __init__(self, fleet: Fleet, device: Device, measure_timeout_s: float, owner: object):
        super().__init__(measure_timeout_s)
        #: The run that it works for.
        self._owner = owner
        self.fleet, self.model = fleet, Model.of(device)
        self._wanted = device.uuid
        self._card: Card | None = None
        self._is_closed = False
        self._leasing = threading.Lock()

    @property
    def card(self) -> Card:
        """The card that is asked next.

        Raises
        ------
        AutotuneError
            If none of the model is left, or its run has ended.
        """
        with self._leasing:
            if self._is_closed:
                raise AutotuneError(ENDED)
            card = self._card
            is_kept = card is not None and card.users == 1 and card.owner is self._owner
            if card is None or not is_kept or not self.fleet.is_usable(card):
                self._release()
                self._card = card = self.fleet.lease(self.model, self._owner, self._wanted)
                self._wanted = card.uuid
            return card

    def _release(self) -> None:
        if self._card is not None:
            self.fleet.release(self._card)
            self._card = None

    def start(self) -> None:
        """Nothing: what a card is measured by is begun over there."""

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
        """Whoever has the process renews it."""

    def close(self) -> None:
        with self._leasing:
            self._is_closed = True
            self._release()

    def _ask(self, what: Hashable, method: str, *arguments: Any) -> Any:
        """Ask the card; elsewhere, if its worker is lost or its machine fails."""
        card, failed, losses = self.card, list[Card](), 0
        while True:
            try:
                return self.fleet.ask(card, method, *arguments)
            except _Lost as lost:
                losses += self.fleet.is_usable(card)
                if losses > _FAILURES:
                    raise AutotuneError(f"{card.address}: its tasks are dropped: {lost}") from lost
                card = self.card
            except HostError as error:
                self.fleet.blame(error, what)
                failed.append(card)
                try:
                    card = self.fleet.another(self.model, failed)
                except AutotuneError:
                    raise error from None
                if len(failed) >= _FAILURES:
                    raise


class _Guest(RemoteWorker):
    """Asks a card that stays another run's, which no other card can stand in for."""

    def __init__(self, fleet: Fleet, card: Card, measure_timeout_s: float) -> None:
        super().__init__(fleet, card.device, measure_timeout_s, self)
        self._host = card

    def _ask(self, what: Hashable, method: str, *arguments: Any) -> Any:
        try:
            return self.fleet.ask(self._host, method, *arguments)
        except _Lost as lost:
            raise AutotuneError(f"{self._host.address}: {lost}") from lost


class _RemoteCompiler(Child):
    """A compiler somewhere in the fleet, as one of a `CompilerPool`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.is_gone = fleet, False
        self._is_killed = False

    @property
    def is_ready(self) -> bool:
        return not self._is_killed

    def ask(self, timeout_s: float, task: Callable[..., R], *args: Any, **others: Any) -> R:
        """Compile a job, which is what is asked; its time counts where it is compiled."""
        (job,) = args
        for _ in range(_FAILURES):
            try:
                compiled: Any = self._fleet.compile(job, lambda: self._is_killed)
                if compiled.binary is not None:
                    write_cached(compiled.binary)
                return compiled  # type: ignore[no-any-return]
            except _Lost:
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
    """Where a run measures that has some cards of a fleet; see `autotune.run.bench.Site`."""

    shares_disk = False

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def compilers(self, request: Request) -> CompilerPool:
        """As many as the run has of the fleet's cards."""
        cards = max(1, len(self.fleet.usable()))
        share = self.fleet.compilers(request.device.backend) * len(request.devices) // cards
        processes = min(max(1, share), _MOST_COMPILERS)
        return CompilerPool(processes, on_demand=True, children=_RemoteCompilers(self.fleet))

    def workers(self, request: Request) -> list[Worker]:
        timeout_s = request.timeout_s
        return [RemoteWorker(self.fleet, device, timeout_s, self) for device in request.devices]

    def remembered(self, request: Request) -> tuple[str, ...]:
        """Uuids of whoever else may have measured for this run when it was begun before."""
        return tuple(device.uuid for device in self.fleet.others(request.device))

    def origin_of(self, kernel: Kernel, known_by: str) -> bytes:
        return self.fleet.sent(kernel, known_by)

    def why_no_energy(self, device: Device) -> str:
        card = self.fleet.another(Model.of(device), (), device.uuid)
        return _Guest(self.fleet, card, 0.0).have(_why_no_energy, device)


def _why_no_energy(_: Worker, device: Device) -> str:
    return backend(device.backend).why_no_energy(device)

"""The bench of one run: its compilers, its workers, and the keys of its measurements.

Search, finals and the check of recorded winners share it. It searches nothing and stores nothing.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune import cache
from autotune.arrays import in_threads, usable_cores
from autotune.compiling.binaries import Compiled
from autotune.compiling.job import CompileJob, compile_job
from autotune.data.bounds import is_large
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import drawn_dataset, prepare_dataset
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.devices.nvrtc import find_program
from autotune.errors import SpecError
from autotune.kernel.snapshot import Origin, origin_of
from autotune.kernel.source import (
    arguments_fingerprint,
    definition_of,
    frozen_sources,
    own_fingerprint,
)
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.languages.registry import compiler
from autotune.measure import sanitize
from autotune.measure.compilers import CompilerPool, begin_for
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.measurement import Measurement, Status
from autotune.measure.process import Actor, ChildActor
from autotune.measure.references import Need, References, make_all, make_datasets
from autotune.measure.tasks import verify_configuration
from autotune.measure.timing import StoppingRule
from autotune.measure.worker_state import Job
from autotune.run.agreement import N_VOTERS, agreed, claimed, voters
from autotune.run.request import Request
from autotune.store import Scope
from autotune.values import Configuration, Problem


class Site:
    """The machines on which a run compiles and measures. This class: the local machine.

    `autotune.fleet.site` has the site of a fleet.
    """

    #: Devices that other processes of the run have, and that need their share of the cores.
    peers: tuple[Device, ...] = ()

    def shared_with(self, peers: tuple[Device, ...]) -> Site:
        """Return the site for a process with some devices of a run; other processes have the ``peers``."""
        shared = copy(self)
        shared.peers = peers
        return shared

    def require_running(self) -> None:
        """Raise the error that ended the site."""

    def require_supported(self, request: Request) -> None:
        """Raise `UsageError` if the site cannot run a request."""

    def compilers(self, request: Request) -> CompilerPool:
        """Return the compilers of a run."""
        # One core per device stays free, so that compiling does not disturb timing. On the CPU the
        # evaluator does not compile while it measures.
        own, devices = len(request.devices), len(request.devices) + len(self.peers)
        spare = devices if request.device.is_cuda else 0
        processes = max(1, (usable_cores() - spare) * own // devices)
        language = request.kernel.language_on(request.device.backend)
        make_actor = partial(ChildActor, begin_for(language))
        return CompilerPool(processes, make_actor, on_demand=not spare)

    def device_actor(self, device: Device) -> Actor:
        """Return the actor that runs tasks on a device."""
        return device_actor(device)

    def remembered(self, request: Request) -> tuple[str, ...]:
        """Return the uuids of other devices whose rows this run may use."""
        return tuple(device.uuid for device in (*request.others, *self.peers))

    def origin_of(self, kernel: Kernel, fingerprint: str) -> Origin:
        """Return the source from which workers load a kernel."""
        return origin_of(kernel)

    def why_no_energy(self, device: Device) -> str:
        """Return the reason why a device's energy cannot be read; see `autotune.devices.base.Backend`."""
        return backend(device.backend).why_no_energy(device)

    def dataset(self, kernel: Kernel, problem: Problem, name: str, seed: int) -> Dataset:
        """Return the exact or the random data set of a problem."""
        return prepare_dataset(kernel, problem, name, seed)

    def uses_references(self, request: Request) -> bool:
        """Return whether a process of its own evaluates references while the run measures.

        On a CPU it would disturb timing.
        """
        return request.device.is_cuda

    def place(self, worker: DeviceWorker, job: Job) -> None:
        """Bring the data of a job to a worker; a local worker reads the files."""

    def sanitizer(self, request: Request) -> str:
        """Return the path of compute-sanitizer; empty if finalists do not run under it."""
        if request.sanitize:
            return sanitize.required_program(request.device)
        if not request.sanitizes or not request.device.is_cuda:
            return ""
        found = find_program("compute-sanitizer")
        if not found:
            warnings.warn(
                f"{request.kernel.name}: finalists do not run under compute-sanitizer, which is missing; "
                f"run: {sanitize.REMEDY}, or run without it",
                stacklevel=2,
            )
        return found


LOCAL = Site()


class BegunSite(Site):
    """The local machine with the processes of a request, which start in the constructor.

    The run of the request ends them, or `close` does. Data are the caller's own, so `close` removes them.
    """

    def __init__(self, request: Request) -> None:
        self._made = set[Path]()
        self._compilers = super().compilers(request)
        self._actor = super().device_actor(request.device)
        DeviceWorker(self._actor).start(request.device)
        self._compilers.start()

    def compilers(self, request: Request) -> CompilerPool:
        """Return the compilers that were started."""
        return self._compilers

    def device_actor(self, device: Device) -> Actor:
        """Return the process that was started."""
        return self._actor

    def uses_references(self, request: Request) -> bool:
        return False

    def dataset(self, kernel: Kernel, problem: Problem, name: str, seed: int) -> Dataset:
        """Return the exact or the random data set of a problem."""
        made = super().dataset(kernel, problem, name, seed)
        self._made.add(made.folder)
        return made

    def close(self) -> None:
        """End the processes and remove the data."""
        self._compilers.close()
        self._actor.close()
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """The processes of one run, and the jobs and keys of its problems."""

    def __init__(self, request: Request, site: Site = LOCAL) -> None:
        self.request, self.site = request, site
        self.kernel, self.device = request.kernel, request.device
        # Files may be edited during the run: its results belong to the files at this moment.
        own_fingerprint(self.kernel)
        self.kernel.texts = frozen_sources(self.kernel)
        self.definition = definition_of(self.kernel)
        self._stack = ExitStack()
        self._stack.callback(self.kernel.texts.clear)
        cache.limit_bytes(cache.DATA)  # raises at the beginning of a run, not at its end
        self._stack.callback(cache.tidy)
        self._off_budget_s = 0.0
        #: The process that evaluates references; None if this process does.
        self.references = self._open_references()
        self.compilers = self._stack.enter_context(site.compilers(request))
        #: The worker of each device of the request, in order.
        self.workers = [
            self._stack.enter_context(DeviceWorker(site.device_actor(device), request.timeout_s))
            for device in request.devices
        ]

    @property
    def worker(self) -> DeviceWorker:
        """The worker of the first device, on which finals take place."""
        return self.workers[0]

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    @cached_property
    def toolchain(self) -> str:
        """Name and version of the compiler."""
        return compiler(self.kernel.language_on(self.device.backend)).toolchain()

    def clock_s(self) -> float:
        """Return the time in seconds that counts for budgets; `off_budget` stops it."""
        return time.monotonic() - self._off_budget_s

    @cached_property
    def space(self) -> Space:
        """The configurations to search."""
        space = enumerate_space(self.kernel, self.device)
        return space.restricted(self.request.goal.fixed) if self.request.goal.fixed else space

    @contextmanager
    def off_budget(self) -> Iterator[None]:
        """Stop the clock of the budgets while the context lasts."""
        begun_s = self.clock_s()
        try:
            yield
        finally:
            self._off_budget_s += self.clock_s() - begun_s

    def start(self) -> None:
        """Start the processes, which come up while inputs are made."""
        self.compilers.start()
        for device, worker in zip(self.request.devices, self.workers, strict=True):
            worker.start(device)

    def job(
        self, problem: Problem, seed: int | None = None, names: Sequence[str] = (EXACT, RANDOM)
    ) -> Job:
        """Return the worker's job for a problem; make missing inputs and references.

        The time for making them does not count for budgets. ``names`` are the data sets of the job.
        """
        self.start()
        chosen = self.request.seed if seed is None else seed
        make = partial(self._dataset, problem, seed=chosen)
        with self.off_budget():
            if (
                "reference" in self.kernel.hooks
            ):  # the bounds of the random data set depend on the exact one
                datasets = tuple(map(make, names))
            else:
                datasets = tuple(in_threads(make, names, len(names)))
            job = self._agreed(self._job_of(problem, datasets))
            self.site.place(self.worker, job)
        return job

    def job_to_search(
        self, problem: Problem, waiting: Callable[[], object]
    ) -> tuple[Job, Future[None] | None]:
        """Return the job of a problem's search, which may begin before its reference is evaluated.

        The job then has a claim, and the future tells when `job` need not wait for the reference. ``waiting``
        is called if there is no claim to search with, because most configurations differ.
        """
        if self.references is None or not self.searches_first:
            return self.job(problem), None
        self.references.start()
        self.start()
        candidates = self._voters(problem)
        for configuration in candidates[:N_VOTERS]:  # compilers work while inputs are drawn
            self._submit_compile(problem, configuration)
        names, seed = (EXACT, RANDOM), self.request.seed
        draw = partial(drawn_dataset, self.kernel, problem, seed=seed)
        drawn = tuple(in_threads(draw, names, len(names)))
        made = self._submit(Need.SEARCH, {problem: names}, seed)
        self._expect(problem)
        if all(dataset.bounds for dataset in drawn):
            return self.job(problem), None
        with self.off_budget():
            job = claimed(
                self._job_of(problem, drawn),
                candidates,
                self.verify,
                partial(self._submit_compile, problem),
                lambda configuration: self.compiled(configuration, problem).binary,
            )
        if job is not None:
            return job, made
        waiting()
        return self.job(problem), None

    @property
    def searches_first(self) -> bool:
        """True if searches begin before the reference is evaluated.

        A search of one configuration has nothing to do meanwhile. A search for the least energy waits, too,
        and one for a kernel with several correct answers, whose configurations may differ from each other.
        """
        is_search = self.request.goal.writes_record and not self.request.objective.needs_energy
        has_one_answer = "matches" not in self.kernel.hooks
        return is_search and has_one_answer and self.references is not None

    def _open_references(self) -> References | None:
        if "reference" not in self.kernel.hooks or not self.site.uses_references(self.request):
            return None
        fingerprint = own_fingerprint(self.kernel)
        origin = self.site.origin_of(self.kernel, fingerprint)
        references = References(origin, fingerprint, self.device)
        return self._stack.enter_context(closing(references))

    def _submit(
        self, need: Need, wanted: Mapping[Problem, Sequence[str]], seed: int
    ) -> Future[None]:
        assert self.references is not None
        return self.references.submit(need, make_datasets, wanted, seed)

    def _expect(self, problem: Problem) -> None:
        """Let the references that come after a problem's search be evaluated: of its finals, of the next problem."""
        request = self.request
        if not self.site.peers:  # other processes search the other problems
            following = request.problems[request.problems.index(problem) + 1 :][:1]
            for other in following:
                self._submit(Need.NEXT, {other: (EXACT, RANDOM)}, request.seed)
        if not request.has_callers_data:
            self._submit(Need.FINALS, self._data_of_finals(problem), request.seed + 1)

    def _data_of_finals(self, problem: Problem) -> dict[Problem, Sequence[str]]:
        """Return the data sets with another seed on which the finals of a problem verify."""
        edges = self.kernel.edges_like(problem, self.device)
        return {**dict.fromkeys(edges, (EXACT, RANDOM)), problem: (RANDOM,)}

    def _job_of(self, problem: Problem, datasets: tuple[Dataset, ...]) -> Job:
        _require_equal_shapes(self.kernel, problem, datasets)
        fingerprint = own_fingerprint(self.kernel)
        origin = self.site.origin_of(self.kernel, fingerprint)
        caches, objective = self.request.caches_of(problem), self.request.objective
        return Job(origin, problem, self.device, datasets, caches, fingerprint, objective)

    def _dataset(self, problem: Problem, name: str, seed: int) -> Dataset:
        """Return a data set; if searches begin first or it is large, the process of references makes it."""
        if self.references is not None:
            drawn = drawn_dataset(self.kernel, problem, name, seed)
            if not drawn.bounds and (self.searches_first or is_large(drawn)):
                self._submit(Need.NOW, {problem: (name,)}, seed).result()
        return self.site.dataset(self.kernel, problem, name, seed)

    def make_data(self, wanted: Mapping[Problem, Sequence[str]], seed: int | None = None) -> None:
        """Make the data sets of several problems at once; later `job` uses them."""
        chosen = self.request.seed if seed is None else seed
        with self.off_budget():
            if self.searches_first:
                self._submit(Need.NOW, wanted, chosen).result()
            else:
                make_all(self._dataset, wanted, chosen)

    def _agreed(self, job: Job) -> Job:
        """Return a job with expected outputs, also for a kernel without a reference."""
        if "reference" in self.kernel.hooks or all(dataset.bounds for dataset in job.datasets):
            return job
        submit = partial(self._submit_compile, job.problem)
        return agreed(self.kernel, job, self._voters(job.problem), self.verify, submit)

    def _voters(self, problem: Problem) -> list[Configuration]:
        return voters(self.kernel, problem, self.space, self.device)

    def _submit_compile(self, problem: Problem, configuration: Configuration) -> None:
        self.compilers.submit(self.compile_job(configuration, problem))

    def compile_job(self, configuration: Configuration, problem: Problem) -> CompileJob:
        """Return the compiler's job for a configuration on a problem."""
        return compile_job(self.kernel, configuration, problem, self.device)

    def compiled(self, configuration: Configuration, problem: Problem) -> Compiled:
        """Compile a configuration for a problem, or wait for a compile that was submitted."""
        return self.compilers.result(self.compile_job(configuration, problem))

    def verify(
        self,
        job: Job,
        configuration: Configuration,
        task: Callable[..., Measurement] = verify_configuration,
        *args: Any,
    ) -> Measurement:
        """Compile a configuration, then verify it on a job's data.

        ``task`` may be another task of the worker that runs the configuration, with arguments ``args``.
        """
        compiled = self.compiled(configuration, job.problem)
        if compiled.binary is None:
            return Measurement(configuration, Status.COMPILE_FAILED, compiled.message)
        return self.worker.measure(job, configuration, compiled.binary, *args, task=task)

    def other_jobs(self, job: Job) -> list[Job]:
        """Return jobs with another seed for the odd sizes, and one for the problem, which comes last.

        The problem's exact data are used again, since any exact data show a lost or doubled element. A
        caller's own data are used again, too.
        """
        if self.request.has_callers_data:
            return [job]
        other, wanted = self.request.seed + 1, self._data_of_finals(job.problem)
        self.make_data(wanted, other)
        edges = self.kernel.edges_like(job.problem, self.device)
        jobs = [self.job(problem, other) for problem in edges]
        with self.off_budget():
            drawn = self._dataset(job.problem, RANDOM, other)
            datasets = tuple(
                drawn if dataset.name == RANDOM else dataset for dataset in job.datasets
            )
            own = self._agreed(replace(job, datasets=datasets))
            self.site.place(self.worker, own)
        return [*jobs, own]

    def scope(self, problem: Problem) -> Scope:
        """Return the key of remembered measurements of a problem."""
        return Scope(
            kernel=self.kernel.name,
            problem=problem,
            device_uuid=self.device.uuid,
            device_name=self.device.name,
            driver=self.device.driver,
            toolchain=self.toolchain,
            source=self.definition.source,
            arguments=arguments_fingerprint(self.kernel, problem),
            timing=self.request.timing_of(problem).value,
            arch=self.device.arch,
        )


def stopping_rule(device: Device) -> StoppingRule:
    """Return the rule that ends timing on a device.

    A CPU shares its cores with other programs. Slow samples in a row prove nothing there, and times do
    not settle within 1 %, so the time limit ends most measurements. Verification has loaded the binary,
    so the first sample of a long launch counts. A few samples of a launch of several milliseconds are
    enough, since finals compare the best configurations.
    """
    if device.is_cuda:
        return StoppingRule(longest_discarded_ms=1.0, max_seconds=0.03)
    return StoppingRule(false_stop=0.0, longest_discarded_ms=1.0, max_seconds=0.1)


def _require_equal_shapes(kernel: Kernel, problem: Problem, datasets: Sequence[Dataset]) -> None:
    """Raise `SpecError` if an argument has another shape or type in another data set of the problem."""
    for first, other in pairwise(datasets):
        for here, there in zip(first.arguments, other.arguments, strict=False):
            if (here.name, here.shape, here.dtype) != (there.name, there.shape, there.dtype):
                raise SpecError(
                    f"{kernel.name} ({problem}): {here.name} is {here.dtype}{list(here.shape)} on {first.name} "
                    f"data, and {there.name} is {there.dtype}{list(there.shape)} on {other.name} data; names, "
                    "shapes and types must not depend on rng: draw as many elements as the problem says"
                )

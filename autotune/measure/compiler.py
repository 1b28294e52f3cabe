"""Compile configurations in parallel processes, through a cache on the disk.

A binary's key in the cache is the sha256 of all that decides its code.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from autotune.devices.base import Binary, CompileError, ResourceError
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.files import cache_folder, write_atomically
from autotune.kernel.includes import Header, SourceText
from autotune.kernel.launches import LaunchSequence, launch_sequence
from autotune.kernel.modules import fault_of
from autotune.kernel.source import source_text
from autotune.kernel.spec import Kernel
from autotune.languages.choose import LANGUAGES, compiler
from autotune.measure.cache import BINARIES, touch
from autotune.measure.declared import compiled_in
from autotune.measure.measurement import Status
from autotune.measure.process import ENDED, Actor, ActorDied, ActorTimeout, ChildActor
from autotune.values import Configuration, Problem

#: A compile that takes longer is given up.
COMPILE_TIMEOUT_S = 60.0
#: Suggested jobs that wait, and finished ones that are kept in memory.
LIKELY = 256
#: Niceness of compilers. The processes that measure and decide wake up often and for short, and
#: would else wait a tick of the scheduler (4 ms) for a core now and then.
_NICENESS = 10
#: Logarithm of the factor by which an unseen value of a symbol may lengthen a compile: unknown
#: compiles begin early, since those that are done first are the short ones.
_DOUBT = 1.0
#: Bumped when the stored form of a binary changes.
_CACHE_VERSION = 4
#: Bytes of the checksum before a stored binary: `load` runs it, and looks at no result.
_SUM_BYTES = 4


@lru_cache(64)
def _begun_key(source: str, headers: tuple[Header, ...]) -> Any:
    """Return the hash of a source, which many configurations share; what follows is their own."""
    text = json.dumps([_CACHE_VERSION, SourceText(source, headers).identity])
    return hashlib.sha256(f"{text[:-1]}, ".encode())


@dataclass(frozen=True)
class CompileJob:
    """All that decides one binary."""

    source: str
    defines: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    device: Device
    #: Language of the source; a backend's name stands for its dialect of C.
    language: str
    toolchain: str
    #: Functions that will be launched, as launches name them.
    entries: tuple[str, ...] = ()
    #: Files that the compiler itself finds by the source's includes.
    headers: tuple[Header, ...] = ()
    #: sha256 of source with includes, defines, options, architecture and compiler version.
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Now: later many threads ask for it at once, under a lock.
        key = _begun_key(self.source, self.headers).copy()
        text = json.dumps(
            [
                sorted(self.defines),
                self.options,
                self.device.backend,
                self.device.arch,
                "" if self.device.is_cuda else self.device.driver,
                self.toolchain,
                self.entries,
            ]
        )
        key.update(text[1:].encode())
        object.__setattr__(self, "key", key.hexdigest())


@dataclass(frozen=True)
class Compiled:
    """The end of a compile: a binary, or why there is none."""

    binary: Binary | None
    #: One line for a person; empty when all is well.
    message: str
    seconds: float
    #: Of a configuration without a binary: `PRUNED` where only the architecture has too little of
    #: some resource.
    status: Status = Status.COMPILE_FAILED
    #: Whether the binary was read from the cache.
    is_cached: bool = False


def compile_job(
    kernel: Kernel,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    scalars: Mapping[str, Any] = MappingProxyType({}),
    plan: LaunchSequence | None = None,
) -> CompileJob:
    """Return all that is needed to compile one configuration.

    ``scalars`` replace declared ones; ``plan`` is the configuration's, where the caller has it.
    """
    plan = plan or launch_sequence(kernel, configuration, problem, device)
    language = kernel.language_on(device.backend)
    source = source_text(kernel, configuration, device)
    if kernel.language:
        symbols = compiled_in(kernel, configuration, problem, device, plan, source.text, scalars)
    else:
        symbols = kernel.macros(configuration, problem)
    return CompileJob(
        source=source.text,
        defines=tuple(symbols.items()),
        options=kernel.compiler_options(configuration, device),
        device=device,
        language=language,
        toolchain=compiler(language).toolchain(),
        entries=tuple(dict.fromkeys(str(launch.entry) for launch in plan.launches)),
        headers=source.headers,
    )


def compile_now(job: CompileJob) -> Compiled:
    """Compile in this process, through the cache; raise AutotuneError if a header changed since the job was made."""
    before = compiled_before(job.key)
    if before is not None:
        return before
    if job.language in LANGUAGES and (here := compiler(job.language).toolchain()) != job.toolchain:
        raise AutotuneError(
            f"{here} is installed here, {job.toolchain} where the run is; install the same"
        )
    start = time.perf_counter()
    try:
        binary = compiler(job.language).compile(
            job.source, dict(job.defines), job.options, job.device, job.entries
        )
    except CompileError as error:
        _refuse_changed(job.headers)
        status = Status.PRUNED if isinstance(error, ResourceError) else Status.COMPILE_FAILED
        return Compiled(None, first_error(str(error)), time.perf_counter() - start, status)
    _refuse_changed(job.headers)
    binary = replace(binary, key=job.key)
    write_cached(binary)
    return Compiled(binary, "", time.perf_counter() - start)


def _refuse_changed(headers: Iterable[Header]) -> None:
    if changed := next((header for header in headers if header.is_changed), None):
        raise AutotuneError(
            f"{changed.path} changed while it was in use; measurements so far are kept: run the command "
            "again"
        )


def compiled_before(key: str) -> Compiled | None:
    """Read the binary of a key from the cache; None where it is not there.

    A damaged file is a miss, and so is one that others may write.
    """
    start = time.perf_counter()
    try:
        file = _cached_file(key)
        if fault_of(file):
            return None
        data = file.read_bytes()
        if zlib.crc32(data[_SUM_BYTES:]).to_bytes(_SUM_BYTES, "big") != data[:_SUM_BYTES]:
            return None
        binary = msgspec.msgpack.decode(data[_SUM_BYTES:], type=Binary)
    except (OSError, msgspec.MsgspecError):
        return None
    touch(file)
    return Compiled(binary, "", time.perf_counter() - start, is_cached=True)


def first_error(log: str) -> str:
    """Return the line of a compile log that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = lines[0] if lines else "the compiler gave no reason"
    return next((line for line in lines if "error" in line.lower()), first)


class CompileTimes:
    """The expected duration of compiles, learned from finished ones by the symbols they are given.

    A symbol's value counts as its mean deviation from the mean of all, in logarithms of seconds, and
    as if it had been seen once more, `_DOUBT` above: parameters act by factors, as unrolled loops do.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0
        #: By symbol and value, and of all: how often seen, and the sum of its logarithms.
        self._seen: dict[tuple[str, str] | None, tuple[int, float]] = {None: (0, 0.0)}

    def add(self, job: CompileJob, seconds: float) -> None:
        """Learn from a finished compile."""
        self._longest_s = max(self._longest_s, seconds)
        for key in (None, *job.defines):
            count, total = self._seen.get(key, (0, 0.0))
            self._seen[key] = count + 1, total + math.log(max(seconds, 1e-3))

    def expected(self, job: CompileJob) -> float:
        """Return the expected logarithm of seconds, too high where little is known."""
        mean = self._mean
        seen = [self._seen.get(define, (0, 0.0)) for define in job.defines]
        return mean + sum((total - count * mean + _DOUBT) / (count + 1) for count, total in seen)

    @property
    def longest_in_typical(self) -> float:
        """The longest compile so far over the typical one; 1 where nothing is known."""
        return self._longest_s / math.exp(self._mean) if self._longest_s else 1.0

    @property
    def _mean(self) -> float:
        count, total = self._seen[None]
        return total / max(1, count)


class CompilerPool:
    """Compiler processes that work ahead of the search. Any thread may use it.

    Submitted jobs are compiled first: in that order while more follow, and once `is_all_asked` the
    longest first, as far as can be told, so that no process ends long after the others. Idle
    processes compile what was suggested, the newest suggestions first. No process has a second job
    in store, so that a submitted job waits until the first of them is free and no longer.

    ``make_actor`` makes each process; default: one of this machine, for any backend. ``on_demand``
    only the first begins before there is work for more.
    """

    def __init__(
        self,
        processes: int,
        make_actor: Callable[[], Actor] | None = None,
        timeout_s: float = COMPILE_TIMEOUT_S,
        on_demand: bool = False,
    ) -> None:
        self.processes, self._on_demand = processes, on_demand
        self._make_actor = make_actor or partial(ChildActor, begin_for(""))
        self._timeout_s = timeout_s
        #: Entered by itself: a Ctrl-C while a condition is entered can leave its lock locked.
        self._lock = threading.RLock()
        #: Notified when there is more to do.
        self._changed = threading.Condition(self._lock)
        #: Jobs that wait, by key: submitted and suggested ones.
        self._asked: dict[str, CompileJob] = {}
        self._likely: dict[str, CompileJob] = {}
        #: By key: of submitted jobs, of those being compiled, and of the last that were.
        self._futures: dict[str, Future[Compiled]] = {}
        #: Whether nothing follows soon on what was asked for.
        self.is_all_asked = False
        self._times = CompileTimes()
        self._actors: list[Actor] = []
        self._is_closed = False

    def start(self) -> None:
        """Start the processes, which else happens at the first job; return at once."""
        with self._lock:
            if self._is_closed or len(self._actors) == self.processes:
                return
            unfinished = sum(not future.done() for future in self._futures.values())
            work = max(1, unfinished + len(self._likely))
            wanted = min(work, self.processes) if self._on_demand else self.processes
            while len(self._actors) < wanted:
                self._actors.append(self._make_actor())
                threading.Thread(target=self._work, args=self._actors[-1:], daemon=True).start()

    @property
    def has_enough(self) -> bool:
        """True where the waiting jobs last as long as the longest compile.

        Then all processes end at about the same time, whatever comes.
        """
        with self._lock:
            return len(self._asked) >= self.processes * max(2.0, self._times.longest_in_typical)

    def submit(self, job: CompileJob) -> Future[Compiled]:
        """Compile a job, or read its binary from the cache; return at once, with the future of it."""
        with self._lock:
            known = self._futures.get(job.key)
        if known is not None:
            return known
        before = compiled_before(job.key)
        with self._lock:
            if self._is_closed:
                raise AutotuneError(ENDED)
            future = self._futures.get(job.key) or Future()
            if before is not None and job.key not in self._futures:
                future.set_result(before)
            elif job.key not in self._futures:
                self._likely.pop(job.key, None)
                self._asked[job.key], self._futures[job.key] = job, future
                self.start()
                self._changed.notify()
            return future

    def suggest(self, jobs: Iterable[CompileJob]) -> None:
        """Compile jobs that will likely be submitted next, best first; return at once."""
        suggested = {job.key: job for job in jobs}
        with self._lock:
            wanted = {**suggested, **self._likely}
            new = ((key, job) for key, job in wanted.items() if key not in self._futures)
            self._likely = dict(islice(new, LIKELY))
            self.start()
            self._changed.notify_all()

    def result(self, job: CompileJob) -> Compiled:
        """Wait for a binary; compile it next if it was not submitted before."""
        with self._lock:
            future = self.submit(job)
            if job.key in self._asked:
                self._asked = {job.key: self._asked.pop(job.key), **self._asked}
        return future.result()

    def drop(self) -> None:
        """Give up the jobs that wait; those that are being compiled are finished, for later."""
        with self._lock:
            for key in self._asked:
                self._futures.pop(key).set_exception(AutotuneError(ENDED))
            self._asked.clear()
            self._likely.clear()
            self.is_all_asked = False

    def close(self) -> None:
        """End the processes, whatever they do, for good. Any thread may, and twice."""
        self._is_closed = True
        try:
            for actor in list(self._actors):
                actor.close()
        finally:
            with self._lock:
                self.drop()
                self._changed.notify_all()

    def _work(self, actor: Actor) -> None:
        """Compile in one process, until the pool is closed."""
        with suppress(AutotuneError):  # closed
            actor.start()
        while (job := self._next()) is not None:
            compiled = self._compiled(actor, job)
            with self._lock:
                if isinstance(compiled, Compiled):
                    if not compiled.is_cached:
                        self._times.add(job, compiled.seconds)
                    self._futures[job.key].set_result(compiled)
                else:
                    self._futures.pop(job.key).set_exception(compiled)
                # The oldest are forgotten; their binaries are in the cache on the disk.
                done = [key for key, future in self._futures.items() if future.done()]
                for key in done[:-LIKELY]:
                    del self._futures[key]

    def _next(self) -> CompileJob | None:
        with self._lock:
            while not (self._asked or self._likely or self._is_closed):
                self._changed.wait()
            if self._is_closed:
                self.drop()
                return None
            waiting = self._asked or self._likely
            key = next(iter(waiting))
            if waiting is self._asked and self.is_all_asked:
                key = max(waiting, key=lambda key: self._times.expected(waiting[key]))
            self._futures.setdefault(key, Future())
            return waiting.pop(key)

    def _compiled(self, actor: Actor, job: CompileJob) -> Compiled | Exception:
        try:
            compiled = actor.ask(compile_now, job, timeout_s=self._timeout_s, key=job.key)
            if actor.queues and compiled.binary:  # it is in the cache of another machine
                write_cached(compiled.binary)
            return compiled
        except ActorTimeout:
            message = f"compiling took longer than {self._timeout_s:.0f} s"
            return Compiled(None, message, self._timeout_s, Status.TIMED_OUT)
        except ActorDied as error:
            return Compiled(None, f"the compiler process died ({error})", 0.0)
        except KeyboardInterrupt:  # the fleet was stopped
            return AutotuneError(ENDED)
        except Exception as error:  # for the thread that waits
            return error

    def __enter__(self) -> CompilerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def begin_for(language: str) -> Callable[[], object]:
    """Return the function that a compiler process begins with: it loads the compiler of a language."""
    return partial(_begin_compiler, language)


def _begin_compiler(language: str) -> None:
    os.nice(_NICENESS)
    if language:
        compiler(language).load_compiler()


def _cached_file(key: str) -> Path:
    return cache_folder(BINARIES) / key[:2] / f"{key}.msgpack"


def write_cached(binary: Binary) -> None:
    """Keep a binary on this machine, if the cache can be written."""
    data = msgspec.msgpack.encode(binary)
    checked = zlib.crc32(data).to_bytes(_SUM_BYTES, "big") + data
    with suppress(OSError):
        file = _cached_file(binary.key)
        file.parent.mkdir(0o700, exist_ok=True)
        write_atomically(file, checked)


def compiled_for(
    kernel: Kernel,
    configuration: Mapping[str, Any],
    problem: Problem,
    device: Device,
    scalars: Mapping[str, Any] = MappingProxyType({}),
) -> Binary:
    """Compile one configuration in this process; raise `SpecError` if the compiler rejects it."""
    chosen = Configuration(configuration)
    compiled = compile_now(compile_job(kernel, chosen, problem, device, scalars))
    if compiled.binary is None:
        raise kernel.error(f"configuration {chosen} for {device.name}: {compiled.message}")
    return compiled.binary

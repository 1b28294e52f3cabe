"""Source + configuration + architecture -> `Binary`, in parallel processes, through a cache.

The cache is addressed by content: a binary's key is the sha256 of all that decides its code. Knows
nothing of time or correctness.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from autotune.devices.base import CompileError, ResourceError
from autotune.devices.binary import Binary
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.files import cache_folder, write_atomically
from autotune.kernel.launches import launch_sequence
from autotune.kernel.source import flattened
from autotune.kernel.spec import Kernel
from autotune.measure.pool import ChildPool
from autotune.measure.process import awaited, begin_child
from autotune.values import Configuration, Problem

#: A compile that takes longer is given up.
COMPILE_TIMEOUT_S = 60.0
#: Jobs that wait because they are likely to be asked for, and binaries kept in memory for the same reason.
LIKELY = 256
#: How far compilers stand back for the processes that measure and decide, which wake up often and for
#: short, and would else wait a tick of the scheduler (4 ms) for a core now and then.
_NICENESS = 10
#: Bumped when the stored form of a binary changes.
_CACHE_VERSION = 2


@dataclass(frozen=True)
class CompileJob:
    """All that decides one binary. Crosses to a compiler process."""

    source: str
    defines: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    device: Device
    toolchain: str
    #: Functions that will be launched, as launches name them.
    entries: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """sha256 of source with includes, defines, options, architecture and compiler version."""
        text = json.dumps(
            [
                _CACHE_VERSION,
                self.source,
                sorted(self.defines),
                self.options,
                self.device.backend,
                self.device.arch,
                "" if self.device.compiles_for_arch else self.device.driver,
                self.toolchain,
                self.entries,
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Compiled:
    """How a compile ended: a binary, or why there is none."""

    binary: Binary | None
    #: One line for a person; empty when all is well.
    message: str
    #: The compiler's own words.
    log: str
    seconds: float
    timed_out: bool = False
    #: Whether it failed only because the architecture has less of some resource.
    over_limit: bool = False


def compile_job(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> CompileJob:
    """Everything needed to compile one configuration.

    Raises
    ------
    SpecError
        If the source is missing or the options hook fails.
    """
    launches = launch_sequence(kernel, configuration, problem, device).launches
    return CompileJob(
        source=_flattened_cached(kernel.source_file(configuration)),
        defines=tuple(kernel.defines(configuration, problem).items()),
        options=kernel.compiler_options(configuration, device),
        device=device,
        toolchain=backend(device.backend).toolchain(),
        entries=tuple(dict.fromkeys(str(one.entry) for one in launches)),
    )


_sources: dict[tuple[Path, int], str] = {}


def _flattened_cached(file: Path) -> str:
    """A source's text, read again only when the file changed."""
    key = (file, file.stat().st_mtime_ns)
    if key not in _sources:
        _sources[key] = flattened(file)
    return _sources[key]


def compile_now(job: CompileJob) -> Compiled:
    """Compile in this process, through the cache."""
    start = time.perf_counter()
    cached = _read_cached(job.key)
    if cached is not None:
        return Compiled(cached, "", cached.log, time.perf_counter() - start)
    try:
        binary = backend(job.device.backend).compile(
            job.source, dict(job.defines), job.options, job.device, job.entries
        )
    except CompileError as error:
        log = str(error)
        return Compiled(
            None,
            first_error(log),
            log,
            time.perf_counter() - start,
            over_limit=isinstance(error, ResourceError),
        )
    binary = replace(binary, key=job.key)
    _write_cached(binary)
    return Compiled(binary, "", binary.log, time.perf_counter() - start)


def first_error(log: str) -> str:
    """The line of a compile log that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["the compiler gave no reason"])[0]


class CompilerPool:
    """Compiler processes that work ahead of whoever waits for a binary.

    What was asked for is compiled first, in that order. Processes that this leaves idle work on what
    is likely to be asked for next, the newest word first; of that at most `LIKELY` jobs wait, and
    what newer words push out is dropped. No process has a second job in store, so that what is asked
    for waits until the first of them is free and no longer. Any thread may ask.

    Parameters
    ----------
    processes : int
        How many compile at once.
    backend_name : str, optional
        Whose compiler each process loads when it begins; without, at its first job.
    """

    def __init__(self, processes: int, backend_name: str = "") -> None:
        self.processes = processes
        self._backend_name = backend_name
        self._lock = threading.RLock()
        self._closed = False
        #: What will be compiled next, and then, by key.
        self._asked: dict[str, _Wish] = {}
        self._likely: dict[str, _Wish] = {}
        #: What was begun and not fetched, by key; of that, what nobody asked for, oldest first.
        self._begun: dict[str, Future[Compiled]] = {}
        self._unasked: dict[str, None] = {}
        self._at_work = 0
        self._pool = self._new_pool()

    def start(self) -> None:
        """Start the processes, which else happens at the first job; returns at once."""
        with self._lock:
            self._feed()

    def submit(self, job: CompileJob) -> None:
        """Have something compiled that will be fetched; returns at once."""
        with self._lock:
            self._unasked.pop(job.key, None)
            if job.key not in self._begun and job.key not in self._asked:
                self._likely.pop(job.key, None)
                self._asked[job.key] = _Wish(job)
            self._feed()

    def suggest(self, jobs: Iterable[CompileJob]) -> None:
        """Say what will likely be asked for next, best first; returns at once."""
        with self._lock:
            wishes = {**{job.key: _Wish(job) for job in jobs}, **self._likely}
            known = {*self._begun, *self._asked}
            new = ((key, wish) for key, wish in wishes.items() if key not in known)
            self._likely = dict(islice(new, LIKELY))
            self._feed()

    def result(self, job: CompileJob) -> Compiled:
        """Wait for a binary; compiles it next if nobody asked before."""
        message = ""
        for _ in range(2):
            try:
                return awaited(self._fetched(job), lambda: self._closed)
            except FutureTimeout:
                message = f"compiling took longer than {COMPILE_TIMEOUT_S:.0f} s"
                return Compiled(None, message, message, COMPILE_TIMEOUT_S, timed_out=True)
            except BrokenExecutor as error:  # an idle process was killed: try in a new pool
                message = f"the compiler processes died ({error})"
            except OSError as error:  # pebble's ProcessExpired
                message = f"the compiler process died ({error})"
                break
        return Compiled(None, message, message, 0.0)

    def ready(self, job: CompileJob) -> bool:
        """Whether `result` would answer at once."""
        with self._lock:
            future = self._begun.get(job.key)
            return future is not None and future.done()

    def forget(self) -> None:
        """Give up what nobody waits for any more.

        In new processes: pebble loses a task that a process takes up while it is being stopped.
        """
        with self._lock:
            for waiting in (self._asked, self._likely, self._begun, self._unasked):
                waiting.clear()
            busy = self._at_work > 0
            stopped = self._renewed() if busy else None
        if stopped:
            stopped.end()

    def close(self) -> None:
        """Stop the processes; whatever they do is given up."""
        with self._lock:
            self._closed = True
            self._asked.clear()
            self._likely.clear()
        self._pool.end()

    def _fetched(self, job: CompileJob) -> Future[Compiled]:
        """The future of a job, which is then nobody else's; one that waits is begun next."""
        with self._lock:
            self.submit(job)
            if job.key in self._begun:
                return self._begun.pop(job.key)
            wish = self._asked.pop(job.key)
            self._asked = {job.key: replace(wish, is_fetched=True), **self._asked}
            return wish.future

    def _feed(self) -> None:
        """Give idle processes something to do."""
        if self._closed:
            return
        if not self._pool.active:  # pebble gives up the pool when an idle process is killed
            threading.Thread(target=self._renewed().end, daemon=True).start()
        while self._at_work < self.processes and (self._asked or self._likely):
            waiting = self._asked or self._likely
            key = next(iter(waiting))
            wish = waiting.pop(key)
            if not wish.is_fetched:
                self._begun[key] = wish.future
            if waiting is self._likely:
                self._unasked[key] = None
            self._begin(wish)

    def _begin(self, wish: _Wish) -> None:
        try:
            task = self._pool.schedule(compile_now, args=[wish.job], timeout=COMPILE_TIMEOUT_S)
        except RuntimeError as error:  # pebble gave it up just now
            wish.future.set_exception(BrokenExecutor(str(error)))
            return
        self._at_work += 1
        task.add_done_callback(partial(self._ended, self._pool, wish.future))

    def _ended(self, pool: ChildPool, future: Future[Compiled], task: Future[Compiled]) -> None:
        """Pass a task's end on to who waits for it, and go on; called in a thread of pebble's."""
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())
        with self._lock:
            if pool is self._pool:
                self._at_work -= 1
                self._drop_oldest()
                self._feed()

    def _drop_oldest(self) -> None:
        """Keep only so much of what nobody asked for; the rest is in the cache on disk."""
        for key in list(self._unasked)[: max(0, len(self._unasked) - LIKELY)]:
            del self._unasked[key]
            self._begun.pop(key, None)

    def _renewed(self) -> ChildPool:
        """Go on with new processes; returns the old pool, for the caller to stop."""
        old, self._pool = self._pool, self._new_pool()
        self._at_work = 0
        return old

    def _new_pool(self) -> ChildPool:
        # Initialized from this module, which is what takes time to import.
        begin = partial(_begin_compiler, self._backend_name)
        return ChildPool(self.processes, begin, "compiling in parallel")

    def __enter__(self) -> CompilerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, eq=False)
class _Wish:
    """A job that waits for a process, and the future that whoever waits for it holds."""

    job: CompileJob
    future: Future[Compiled] = field(default_factory=Future)
    #: Whether the future was fetched before the job was begun.
    is_fetched: bool = False


def _begin_compiler(backend_name: str, parent: int) -> None:
    begin_child(parent)
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    if backend_name:
        with suppress(Exception):  # whatever is wrong, the first job will tell
            backend(backend_name).toolchain()


def _cached_file(key: str) -> Path:
    folder = cache_folder("binaries") / key[:2]
    folder.mkdir(exist_ok=True)
    return folder / f"{key}.msgpack"


def _read_cached(key: str) -> Binary | None:
    """The binary of a key; a damaged file is a miss."""
    try:
        data = _cached_file(key).read_bytes()
        binary = msgspec.msgpack.decode(data, type=Binary)
    except (OSError, msgspec.MsgspecError):
        return None
    return binary if binary.key == key else None


def _write_cached(binary: Binary) -> None:
    """Keep a binary; a cache that cannot be written only costs time."""
    with suppress(OSError):
        write_atomically(_cached_file(binary.key), msgspec.msgpack.encode(binary))


def compiled_for(
    kernel: Kernel, configuration: Mapping[str, Any], problem: Problem, device: Device
) -> Binary:
    """Compile one configuration in this process.

    Raises
    ------
    SpecError
        If the compiler rejects it; the message has the compiler's first error.
    """
    job = compile_job(kernel, Configuration(dict(configuration)), problem, device)
    compiled = compile_now(job)
    if compiled.binary is None:
        raise kernel.error(
            f"configuration {Configuration(dict(configuration))} for "
            f"{device.name}: {compiled.message}"
        )
    return compiled.binary

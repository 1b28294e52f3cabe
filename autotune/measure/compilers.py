"""Compiler processes that work ahead of the search and fill the cache of binaries on the disk."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice

from autotune.compiling.binaries import (
    Compiled,
    CompileFailure,
    compile_now,
    read_cached,
    write_cached,
)
from autotune.compiling.job import CompileJob
from autotune.errors import AutotuneError
from autotune.languages.registry import compiler
from autotune.measure.process import ENDED, Actor, ActorDied, ActorTimeout, ChildActor

#: A compile that takes longer is given up.
COMPILE_TIMEOUT_S = 60.0
#: Maximum number of suggested jobs that wait, and of finished jobs in memory.
MAX_SUGGESTED = 256
#: Niceness of compilers. The processes that measure and decide wake up often and briefly. At the same
#: niceness they would sometimes wait a tick of the scheduler (4 ms) for a core.
_NICENESS = 10
#: Logarithm of the factor by which an unseen value of a symbol may lengthen a compile. Unknown compiles thus
#: count as long and begin early.
_DOUBT = 1.0


class CompileTimes:
    """The expected duration of compiles, learned from finished ones by their symbols.

    The estimate is the mean of all compiles plus the mean deviation of each symbol's value, which includes
    one observation of `_DOUBT`. It adds logarithms of seconds, because the effects of parameters multiply,
    as those of unrolled loops do.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0
        #: Number of compiles and sum of their logarithms, by symbol and value; None stands for all compiles.
        self._seen: dict[tuple[str, str] | None, tuple[int, float]] = {None: (0, 0.0)}

    def add(self, job: CompileJob, seconds: float) -> None:
        """Learn from a finished compile."""
        self._longest_s = max(self._longest_s, seconds)
        for key in (None, *job.defines):
            count, total = self._seen.get(key, (0, 0.0))
            self._seen[key] = count + 1, total + math.log(max(seconds, 1e-3))

    def expected(self, job: CompileJob) -> float:
        """Return the expected logarithm of seconds, on the high side if little is known."""
        mean = self._mean
        seen = [self._seen.get(define, (0, 0.0)) for define in job.defines]
        return mean + sum((total - count * mean + _DOUBT) / (count + 1) for count, total in seen)

    @property
    def longest_in_typical(self) -> float:
        """Longest compile so far over the typical compile; 1 if there is none."""
        return self._longest_s / math.exp(self._mean) if self._longest_s else 1.0

    @property
    def _mean(self) -> float:
        count, total = self._seen[None]
        return total / max(1, count)


class CompilerPool:
    """Compiler processes that work ahead of the search. Any thread may use it.

    Submitted jobs are compiled first, in the order of submission while more follow. Once
    `is_all_submitted`, jobs with the longest expected time come first, so that no process ends long after
    the others. Idle processes compile suggested jobs, the newest suggestions first. A process has one job
    at a time, so that a submitted job waits only for the first free process.

    Parameters
    ----------
    processes : int
        Number of compiler processes.
    make_actor : callable, optional
        Makes a process; by default a process of this machine, for any backend.
    timeout_s : float
        Longest time of a compile.
    on_demand : bool
        Start only the first process until there is work for more.
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
        #: Acquired directly: a Ctrl-C while a condition is entered can leave its lock locked.
        self._lock = threading.RLock()
        #: Notified when there is more work.
        self._changed = threading.Condition(self._lock)
        #: Submitted jobs that wait, by key.
        self._submitted: dict[str, CompileJob] = {}
        #: Suggested jobs that wait, by key.
        self._suggested: dict[str, CompileJob] = {}
        #: Futures by key, of submitted jobs, running jobs and the last finished jobs.
        self._futures: dict[str, Future[Compiled]] = {}
        #: True if no more jobs are submitted soon.
        self.is_all_submitted = False
        self._times = CompileTimes()
        self._actors: list[Actor] = []
        self._is_closed = False

    def start(self) -> None:
        """Start the processes before the first job does; return at once."""
        with self._lock:
            if self._is_closed or len(self._actors) == self.processes:
                return
            unfinished = sum(not future.done() for future in self._futures.values())
            work = max(1, unfinished + len(self._suggested))
            wanted = min(work, self.processes) if self._on_demand else self.processes
            while len(self._actors) < wanted:
                self._actors.append(self._make_actor())
                threading.Thread(target=self._work, args=self._actors[-1:], daemon=True).start()

    @property
    def has_enough(self) -> bool:
        """True if the waiting jobs last as long as the longest compile.

        Then all processes end at about the same time, whatever jobs follow.
        """
        with self._lock:
            return len(self._submitted) >= self.processes * max(2.0, self._times.longest_in_typical)

    def submit(self, job: CompileJob) -> Future[Compiled]:
        """Compile a job, or read its binary from the cache; return its future at once."""
        with self._lock:
            known = self._futures.get(job.key)
        if known is not None:
            return known
        cached = read_cached(job.key)
        with self._lock:
            if self._is_closed:
                raise AutotuneError(ENDED)
            future = self._futures.get(job.key) or Future()
            if cached is not None and job.key not in self._futures:
                future.set_result(cached)
            elif job.key not in self._futures:
                self._suggested.pop(job.key, None)
                self._submitted[job.key], self._futures[job.key] = job, future
                self.start()
                self._changed.notify()
            return future

    def suggest(self, jobs: Iterable[CompileJob]) -> None:
        """Compile jobs that are likely to be submitted next, best first; return at once."""
        suggested = {job.key: job for job in jobs}
        with self._lock:
            wanted = {**suggested, **self._suggested}
            new = ((key, job) for key, job in wanted.items() if key not in self._futures)
            self._suggested = dict(islice(new, MAX_SUGGESTED))
            self.start()
            self._changed.notify_all()

    def result(self, job: CompileJob) -> Compiled:
        """Wait for a binary, which is compiled before all other waiting jobs."""
        with self._lock:
            future = self.submit(job)
            if job.key in self._submitted:
                self._submitted = {job.key: self._submitted.pop(job.key), **self._submitted}
        return future.result()

    def drop(self) -> None:
        """Give up the waiting jobs; running compiles end and are cached."""
        with self._lock:
            for key in self._submitted:
                self._futures.pop(key).set_exception(AutotuneError(ENDED))
            self._submitted.clear()
            self._suggested.clear()
            self.is_all_submitted = False

    def close(self) -> None:
        """End the processes for good. Any thread may call this, also twice."""
        self._is_closed = True
        try:
            for actor in list(self._actors):
                actor.close()
        finally:
            with self._lock:
                self.drop()
                self._changed.notify_all()

    def _work(self, actor: Actor) -> None:
        """Compile in one process until the pool is closed."""
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
                # Forget the oldest futures; their binaries are in the cache on the disk.
                done = [key for key, future in self._futures.items() if future.done()]
                for key in done[:-MAX_SUGGESTED]:
                    del self._futures[key]

    def _next(self) -> CompileJob | None:
        with self._lock:
            while not (self._submitted or self._suggested or self._is_closed):
                self._changed.wait()
            if self._is_closed:
                self.drop()
                return None
            waiting = self._submitted or self._suggested
            key = next(iter(waiting))
            if waiting is self._submitted and self.is_all_submitted:
                key = max(waiting, key=lambda key: self._times.expected(waiting[key]))
            self._futures.setdefault(key, Future())
            return waiting.pop(key)

    def _compiled(self, actor: Actor, job: CompileJob) -> Compiled | Exception:
        try:
            compiled = actor.ask(compile_now, job, timeout_s=self._timeout_s, key=job.key)
            if actor.queues and compiled.binary:  # the actor cached it on another machine
                write_cached(compiled.binary)
            return compiled
        except ActorTimeout:
            message = f"compiling took longer than {self._timeout_s:.0f} s"
            return Compiled(None, message, self._timeout_s, CompileFailure.TIMED_OUT)
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
    """Return the function that a compiler process calls first: it loads the compiler of a language."""
    return partial(_begin_compiler, language)


def _begin_compiler(language: str) -> None:
    os.nice(_NICENESS)
    if language:
        compiler(language).load_compiler()

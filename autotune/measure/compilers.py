"""Compiler processes that work ahead of the search, through the cache of binaries on the disk."""

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
#: Suggested jobs that wait, and finished ones that are kept in memory.
LIKELY = 256
#: Niceness of compilers. The processes that measure and decide wake up often and briefly; otherwise they
#: would sometimes wait a tick of the scheduler (4 ms) for a core.
_NICENESS = 10
#: Logarithm of the factor by which an unseen value of a symbol may lengthen a compile. Unknown compiles begin
#: early, because the short ones are done first.
_DOUBT = 1.0


class CompileTimes:
    """The expected duration of compiles, learned from finished ones by their symbols.

    A symbol's value counts as its mean deviation from the mean of all, in logarithms of seconds, with one
    more observation of `_DOUBT`. Parameters act by factors, as unrolled loops do.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0
        #: Number of compiles and sum of their logarithms, by symbol and value; None: of all compiles.
        self._seen: dict[tuple[str, str] | None, tuple[int, float]] = {None: (0, 0.0)}

    def add(self, job: CompileJob, seconds: float) -> None:
        """Learn from a finished compile."""
        self._longest_s = max(self._longest_s, seconds)
        for key in (None, *job.defines):
            count, total = self._seen.get(key, (0, 0.0))
            self._seen[key] = count + 1, total + math.log(max(seconds, 1e-3))

    def expected(self, job: CompileJob) -> float:
        """Return the expected logarithm of seconds, too high if little is known."""
        mean = self._mean
        seen = [self._seen.get(define, (0, 0.0)) for define in job.defines]
        return mean + sum((total - count * mean + _DOUBT) / (count + 1) for count, total in seen)

    @property
    def longest_in_typical(self) -> float:
        """Longest compile so far over the typical one; 1 if nothing is known."""
        return self._longest_s / math.exp(self._mean) if self._longest_s else 1.0

    @property
    def _mean(self) -> float:
        count, total = self._seen[None]
        return total / max(1, count)


class CompilerPool:
    """Compiler processes that work ahead of the search. Any thread may use it.

    Submitted jobs are compiled first, in the order of submission while more follow. Once `is_all_asked`,
    those with the longest expected time come first, so that no process ends long after the others. Idle
    processes compile suggested jobs, the newest suggestions first. A process has one job at a time, so
    that a submitted job waits for the first free process only.

    Parameters
    ----------
    processes : int
        Number of compiler processes.
    make_actor : callable, optional
        Makes a process; default: one of this machine, for any backend.
    timeout_s : float
        Longest time of a compile.
    on_demand : bool
        Start the first process only, until there is work for more.
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
        #: Entered directly: a Ctrl-C while a condition is entered can leave its lock locked.
        self._lock = threading.RLock()
        #: Notified when there is more to do.
        self._changed = threading.Condition(self._lock)
        #: Jobs that wait, by key: submitted and suggested ones.
        self._asked: dict[str, CompileJob] = {}
        self._likely: dict[str, CompileJob] = {}
        #: Futures by key: of submitted jobs, of running ones, and of the last finished ones.
        self._futures: dict[str, Future[Compiled]] = {}
        #: True if no more jobs follow soon on the submitted ones.
        self.is_all_asked = False
        self._times = CompileTimes()
        self._actors: list[Actor] = []
        self._is_closed = False

    def start(self) -> None:
        """Start the processes before the first job does; return at once."""
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
        """True if the waiting jobs last as long as the longest compile.

        Then all processes end at about the same time, whatever jobs follow.
        """
        with self._lock:
            return len(self._asked) >= self.processes * max(2.0, self._times.longest_in_typical)

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
                self._likely.pop(job.key, None)
                self._asked[job.key], self._futures[job.key] = job, future
                self.start()
                self._changed.notify()
            return future

    def suggest(self, jobs: Iterable[CompileJob]) -> None:
        """Compile jobs that are likely to be submitted next, best first; return at once."""
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
        """Give up the waiting jobs; running compiles are finished and cached."""
        with self._lock:
            for key in self._asked:
                self._futures.pop(key).set_exception(AutotuneError(ENDED))
            self._asked.clear()
            self._likely.clear()
            self.is_all_asked = False

    def close(self) -> None:
        """End the processes for good. Any thread may call this, and more than once."""
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
                # The oldest futures are forgotten; their binaries are in the cache on the disk.
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
    """Return the initial function of a compiler process: it loads the compiler of a language."""
    return partial(_begin_compiler, language)


def _begin_compiler(language: str) -> None:
    os.nice(_NICENESS)
    if language:
        compiler(language).load_compiler()

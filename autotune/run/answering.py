"""Times the configurations that may answer other sizes: on the tuned problems, then on random sizes.

This is the last step of a run, and `autotune sizes` continues it. `autotune.measure.rotation` takes the
times. They go into the store, with a row for each size. The times on tuned problems are also the matrix
of the record.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from autotune.answers.table import Portfolio
from autotune.compiling.job import CompileJob
from autotune.errors import AutotuneError, StoreError
from autotune.kernel.source import arguments_fingerprint
from autotune.kernel.space import is_member
from autotune.measure.measurement import Status
from autotune.measure.process import ActorFailed
from autotune.measure.rotation import CompiledEntrant, SizeTask, time_sizes
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.run.drawing import can_draw, random_sizes
from autotune.run.size_times import Chooser, TimeMatrix
from autotune.search.session import Listener, Phase
from autotune.store import ROTATED, Scope, SizeTimes, Store
from autotune.values import Configuration, Problem

#: Number of configurations that are verified and timed on a tuned problem even if no time is left.
_MIN_CONFIGURATIONS = 4
#: Maximum time in seconds for the samples on a problem.
_MAX_S = 10.0
#: Minimum time in seconds for the samples on a tuned problem.
_MIN_S = 2.0
#: Number of random sizes in one task.
_SIZES_PER_TASK = 8
#: Number of tasks whose configurations compile ahead.
_TASKS_AHEAD = 4
#: Maximum number of random sizes in a row that no configuration allows; then drawing ends.
_MAX_REFUSED = 1000

_Pair: TypeAlias = tuple[Problem, Configuration]


class AnswerTimer:
    """Times the configurations of a run on tuned problems and on random sizes."""

    def __init__(self, bench: Bench, store: Store, run_id: int, listener: Listener) -> None:
        self._bench, self._store, self._run_id = bench, store, run_id
        self._listener, self._binaries = listener, Binaries(bench)

    # ------------------------------------------------------------------ tuned problems

    def portfolio(
        self,
        problems: Mapping[Problem, float],
        candidates: Sequence[Configuration],
        seconds: float,
    ) -> Portfolio | None:
        """Verify and time candidates, the most important first, on tuned problems.

        ``problems`` maps each problem to the time of its winner in ms. The quickest problem comes first, and
        verification on it may take half of the time. Candidates that are not reached by then are dropped for
        all problems. Each later problem gets an equal share of the remaining time. Once most problems are
        timed, a problem is left out if its share of candidates is too small and the matrix would shrink.

        If the device process fails, warn and return None: the record then has no portfolio.
        """
        bench, columns = self._bench, dict[Problem, dict[Configuration, float | None]]()
        quickest_first = sorted(problems, key=problems.__getitem__)
        try:
            end = bench.clock_s() + seconds
            for problem in quickest_first:
                left_s = end - bench.clock_s()
                share_s = left_s / (len(problems) - len(columns))
                # The first problem also pays one-off start-up, and its cut-off applies to all later problems.
                verify_s = share_s / 2 if columns else left_s / 2
                column = self._column(problem, candidates, share_s, verify_s)
                times = len(columns) * len(candidates)
                times_with_it = (len(columns) + 1) * len(column)
                if times_with_it < times and 2 * len(columns) > len(problems):
                    break
                columns[problem] = column
                candidates = list(column)
        except StoreError:
            raise
        except AutotuneError as error:
            warnings.warn(
                f"{bench.kernel.name}: the best configurations were not compared on every problem, so "
                f"lookup answers other problems with the nearest winner: {error}",
                stacklevel=2,
            )
            return None
        timed = [problem for problem in problems if problem in columns]
        return Portfolio(
            configurations=tuple(map(dict, candidates)),
            problems=tuple(map(dict, timed)),
            median_ms=tuple(
                tuple(columns[problem][configuration] for problem in timed)
                for configuration in candidates
            ),
        )

    def _column(
        self,
        problem: Problem,
        configurations: Sequence[Configuration],
        seconds: float,
        verify_s: float,
    ) -> dict[Configuration, float | None]:
        """Return the times in ms of configurations on one problem; None for a wrong configuration.

        After ``verify_s``, only the first `_MIN_CONFIGURATIONS` are still verified.
        """
        bench = self._bench
        self._listener(Phase(problem, "portfolio"))
        job = bench.job(problem)
        allowed = [chosen for chosen in configurations if bench.kernel.allows(chosen, problem)]
        self._binaries.begin([(problem, configuration) for configuration in allowed])
        bench.worker.prepare(job)  # the start of the process does not count for the problem's share
        begun = bench.clock_s()
        times: dict[Configuration, float | None] = {}
        correct = []
        for configuration in configurations:
            if len(times) >= _MIN_CONFIGURATIONS and bench.clock_s() > begun + verify_s:
                break
            times[configuration] = None
            if configuration in allowed and bench.verify(job, configuration).status is Status.OK:
                correct.append((problem, configuration))
        bench.compilers.drop()
        left_s = begun + seconds - bench.clock_s()
        size_s = min(_MAX_S, max(_MIN_S, left_s))
        (row,) = self._timed([problem], correct, size_s, job)
        return {**times, **row.times_ms}

    # ------------------------------------------------------------------ random sizes

    def time_random_sizes(self, matrix: TimeMatrix, seed: int, seconds: float) -> None:
        """Time the configurations of a matrix on new random sizes, and add the times to the matrix.

        No task but the first begins after ``seconds``. A run with the same seed continues the same series of sizes.
        """
        bench = self._bench
        kernel, device = bench.kernel, bench.device
        if not can_draw(kernel, device):
            return
        end = bench.clock_s() + seconds
        drawn, chooser = self._new_sizes(matrix, seed), Chooser(matrix, kernel, device, seed)
        ahead = deque[tuple[list[Problem], list[_Pair]]]()
        has_begun = False
        while not has_begun or bench.clock_s() < end:
            has_begun = True
            while len(ahead) < _TASKS_AHEAD and (part := list(islice(drawn, _SIZES_PER_TASK))):
                ahead.append((part, [(p, chosen) for p in part for chosen in chooser.chosen(p)]))
                self._binaries.begin(ahead[-1][1])
            if not ahead:
                return
            part, pairs = ahead.popleft()
            self._listener(Phase(part[0], "random sizes"))
            try:
                rows = self._timed(part, pairs)
            except StoreError:
                raise
            except AutotuneError as error:
                warnings.warn(f"{kernel.name}: no more sizes are timed: {error}", stacklevel=2)
                return
            for row in rows:
                matrix.add(row)

    def _new_sizes(self, matrix: TimeMatrix, seed: int) -> Iterator[Problem]:
        kernel, refused = self._bench.kernel, 0
        for problem in random_sizes(kernel, self._bench.device, seed):
            if any(kernel.allows(c, problem) for c in matrix.configurations):
                refused = 0
                if problem not in matrix:
                    yield problem
            elif (refused := refused + 1) > _MAX_REFUSED:
                return

    # ------------------------------------------------------------------ the device process

    def _timed(
        self,
        problems: Sequence[Problem],
        pairs: Sequence[_Pair],
        size_s: float = _MAX_S,
        job: Job | None = None,
    ) -> list[SizeTimes]:
        """Time pairs of problem and configuration, and store the times.

        If ``job`` is given, its problem is timed on the job's data sets. A pair that kills or hangs the
        process is left out, and the other pairs begin again.
        """
        bench, entrants = self._bench, self._binaries.of(pairs)
        job, left = job or bench.job(problems[0], names=()), list(entrants)
        pair_s = bench.worker.timeout_s
        while left:
            sent = list(dict.fromkeys(entrants[pair] for pair in left))
            places = {entrant: place for place, entrant in enumerate(sent)}
            tasks = [
                SizeTask(problem, tuple(places[entrants[p]] for p in left if p[0] == problem))
                for problem in problems
            ]
            try:
                found = bench.worker.ask(
                    time_sizes,
                    sent,
                    tasks,
                    size_s,
                    job=job,
                    timeout_s=pair_s * len(left) + size_s * len(problems),
                    turn_limits_s=[pair_s] * len(left),
                )
            except ActorFailed as error:
                if error.turn < 0:
                    raise AutotuneError(f"the device process failed: {error}") from error
                problem, configuration = left.pop(error.turn)
                warnings.warn(
                    f"{bench.kernel.name} ({problem}): {configuration} is not timed: {error}",
                    stacklevel=2,
                )
                continue
            rows = [
                SizeTimes(task.problem, {sent[n].configuration: ms for n, ms in times.items()})
                for task, times in zip(tasks, found, strict=True)
            ]
            scoped = [(self._scope(row.problem), row) for row in rows if row.times_ms]
            self._store.add_sizes(self._run_id, scoped)
            return rows
        return [SizeTimes(problem, {}) for problem in problems]

    def _scope(self, problem: Problem) -> Scope:
        return replace(self._bench.scope(problem), timing=ROTATED)


class Binaries:
    """The binaries of configurations; in some languages they also depend on the problem."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._jobs = dict[Hashable, CompileJob]()
        self._entrants = dict[tuple[Configuration, str], CompiledEntrant]()

    def begin(self, pairs: Iterable[_Pair]) -> None:
        """Submit the pairs that are not compiled yet, and return at once."""
        for pair in pairs:
            self._bench.compilers.submit(self._job(*pair))

    def of(self, pairs: Sequence[_Pair]) -> dict[_Pair, CompiledEntrant]:
        """Wait for the compiles; return the pairs that compiled, with their binaries."""
        self.begin(pairs)
        found = dict[_Pair, CompiledEntrant]()
        for problem, configuration in pairs:
            job = self._job(problem, configuration)
            if binary := self._bench.compilers.result(job).binary:
                entrant = CompiledEntrant(configuration, binary)
                key = configuration, job.key
                found[problem, configuration] = self._entrants.setdefault(key, entrant)
        return found

    def _job(self, problem: Problem, configuration: Configuration) -> CompileJob:
        kernel = self._bench.kernel
        key = configuration, problem if kernel.language else kernel.static_of(problem)
        if key not in self._jobs:
            self._jobs[key] = self._bench.compile_job(configuration, problem)
        return self._jobs[key]


def stored_sizes(
    bench: Bench, store: Store, wrong: Set[Configuration] = frozenset()
) -> list[SizeTimes]:
    """Return the store's times on problem sizes for the current files of the kernel and this device model.

    Wrong configurations and configurations outside the space are left out.
    """
    kernel, device = bench.kernel, bench.device
    arguments = {arguments_fingerprint(kernel, problem) for problem in kernel.all_problems()}
    rows = store.sizes(kernel.name, bench.definition.source, device.name, arguments)
    every = {configuration for row in rows for configuration in row.times_ms}
    members = {c for c in every - wrong if is_member(kernel, c, device)}
    return [
        replace(row, times_ms={c: ms for c, ms in row.times_ms.items() if c in members})
        for row in rows
    ]

"""Times the configurations that may answer other sizes: on the tuned problems, then on random sizes.

This is the last step of a run, and `autotune sizes` goes on with it. All times are of `autotune.measure.rotation`
and go into the store, a row for each size; those on tuned problems are the matrix of the record, too.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from autotune.answers.schema import Portfolio
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

#: Configurations that are verified and timed on a tuned problem, however little time there is.
_LEAST = 4
#: Longest and shortest time for the samples on a tuned problem.
_MOST_S, _LEAST_S = 10.0, 2.0
#: Random sizes of one task, and tasks that compilers work on ahead.
_SIZES_PER_TASK, _TASKS_AHEAD = 8, 4
#: Sizes in a row that no configuration allows, after which no more are drawn.
_MAX_REFUSED = 1000

_Pair: TypeAlias = tuple[Problem, Configuration]


class AnswerTimer:
    """Times the configurations of one run that may answer other sizes."""

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
        """Verify and time configurations on tuned problems; ``problems`` have the times of their winners, in ms.

        The quickest problem comes first. Verifying there may take half of the time, and the configurations that
        have no turn by then are left out everywhere; candidates begin with the most important one. Each later
        problem has an equal share of the time that is left. Once most problems are timed, a problem is left out
        if it has time for so few configurations that the matrix would shrink.

        Returns None, with a warning, if the device process fails: the winners stand without a portfolio.
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
                f"{bench.kernel.name}: the best were not compared on every problem, so "
                f"lookup of other problems uses the nearest winner: {error}",
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
        """Return the time of configurations on one problem; None for one that fails verification there.

        Later configurations than the first `_LEAST` are left out if ``verify_s`` are over.
        """
        bench = self._bench
        self._listener(Phase(problem, "portfolio"))
        job = bench.job(problem)
        allowed = [chosen for chosen in configurations if bench.kernel.allows(chosen, problem)]
        self._binaries.begin([(problem, configuration) for configuration in allowed])
        bench.worker.prepare(job)  # starting the process takes no problem's share
        begun = bench.clock_s()
        times: dict[Configuration, float | None] = {}
        correct = []
        for configuration in configurations:
            if len(times) >= _LEAST and bench.clock_s() > begun + verify_s:
                break
            times[configuration] = None
            if configuration in allowed and bench.verify(job, configuration).status is Status.OK:
                correct.append((problem, configuration))
        bench.compilers.drop()
        left_s = begun + seconds - bench.clock_s()
        size_s = min(_MOST_S, max(_LEAST_S, left_s))
        (row,) = self._timed([problem], correct, size_s, job)
        return {**times, **row.times_ms}

    # ------------------------------------------------------------------ random sizes

    def time_random_sizes(self, matrix: TimeMatrix, seed: int, seconds: float) -> None:
        """Time the configurations of a matrix on random sizes that it does not have, and add them.

        No task begins after ``seconds``. The same seed goes on with the same sizes.
        """
        bench = self._bench
        kernel, device = bench.kernel, bench.device
        if not can_draw(kernel, device):
            return
        end = bench.clock_s() + seconds
        drawn, chooser = self._new_sizes(matrix, seed), Chooser(matrix, kernel, device, seed)
        ahead = deque[tuple[list[Problem], list[_Pair]]]()
        while bench.clock_s() < end:
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
                warnings.warn(f"{kernel.name}: no further sizes are timed: {error}", stacklevel=2)
                return
            for row in rows:
                matrix.add(row)

    def _new_sizes(self, matrix: TimeMatrix, seed: int) -> Iterator[Problem]:
        kernel, refused = self._bench.kernel, 0
        for problem in random_sizes(kernel, self._bench.device, seed):
            if any(kernel.allows(each, problem) for each in matrix.configurations):
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
        size_s: float = _MOST_S,
        job: Job | None = None,
    ) -> list[SizeTimes]:
        """Time pairs of problem and configuration, and store the times.

        The problem of a job with data sets is timed on these. A pair that kills or hangs the process is left
        out, and the others begin again.
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
    """Configurations with their binaries, which differ by the problem in some languages."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._jobs = dict[Hashable, CompileJob]()
        self._entrants = dict[tuple[Configuration, str], CompiledEntrant]()

    def begin(self, pairs: Iterable[_Pair]) -> None:
        """Begin to compile what is not compiled yet, and return at once."""
        for pair in pairs:
            self._bench.compilers.submit(self._job(*pair))

    def of(self, pairs: Sequence[_Pair]) -> dict[_Pair, CompiledEntrant]:
        """Return the pairs that compile, once they are compiled."""
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
    """Return the store's times on problem sizes that are of the kernel as it is now, on this device model.

    Wrong configurations are left out, and those that are not in the space any more.
    """
    kernel, device = bench.kernel, bench.device
    arguments = {arguments_fingerprint(kernel, problem) for problem in kernel.all_problems()}
    rows = store.sizes(kernel.name, bench.source, device.name, arguments)
    every = {configuration for row in rows for configuration in row.times_ms}
    members = {each for each in every - wrong if is_member(kernel, each, device)}
    return [
        replace(row, times_ms={c: ms for c, ms in row.times_ms.items() if c in members})
        for row in rows
    ]

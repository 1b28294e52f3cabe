"""Goes on with the last step of a run for a record: `autotune sizes`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec

from autotune import __version__
from autotune.answers.category import HeldOut
from autotune.answers.schema import Portfolio
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.measure.worker_state import Job
from autotune.run import verdict
from autotune.run.answering import AnswerTimer, stored_sizes
from autotune.run.bench import Bench
from autotune.run.drawing import can_draw
from autotune.run.recording import fitted_with, is_current, request_for, require_current
from autotune.run.result import RunResult
from autotune.run.size_times import TimeMatrix
from autotune.search.session import Listener, Phase, ignore
from autotune.store import RunInfo, Store
from autotune.tuned.record import TIME, TunedRecord, key_of
from autotune.values import Configuration, Problem

#: Winners of other devices that are tried.
_MOST_OF_OTHERS = 32
#: Shares of the time: for the tuned problems, and for verifying configurations that this record does not have.
_TUNED_SHARE, _VERIFYING_SHARE = 0.5, 0.3


@dataclass(frozen=True)
class Continuation:
    """A record whose answers for other sizes are to be improved, and the time for it."""

    kernel: Kernel
    device: Device
    record: TunedRecord
    seconds: float
    #: Further records of this device model, whose configurations enter.
    own: Sequence[TunedRecord] = ()
    #: Records of other devices: what wins there is verified first.
    others: Sequence[TunedRecord] = ()
    #: Of the random sizes; the same seed goes on with the same sizes.
    seed: int = 1
    #: Time the tuned problems again.
    fresh: bool = False
    command: str = ""


@dataclass(frozen=True)
class ContinuedRun:
    """The result of a continuation: a run without searches."""

    result: RunResult
    #: The number of random sizes in the store.
    sizes: int
    #: The speed of answers on sizes that the fit did not have.
    held_out: HeldOut


def continued(asked: Continuation, store: Store, listener: Listener = ignore) -> ContinuedRun:
    """Time configurations of a record on its problems, if they are not timed, and on random sizes; fit answers.

    Raises
    ------
    UsageError
        If the record is not tuned for time, or was tuned before the kernel changed.
    """
    kernel, device, record = asked.kernel, asked.device, asked.record
    if record.objective != TIME:
        raise UsageError(
            f"{record.kernel} on {record.device.name} is tuned for {record.objective}; answers for other "
            "sizes are chosen by time"
        )
    require_current(record, kernel)
    request = replace(request_for(record, kernel, device), command=asked.command)
    info = RunInfo(
        kernel=kernel.name,
        device_name=device.name,
        strategy="sizes",
        seed=asked.seed,
        version=__version__,
        command=asked.command,
    )
    with closing(Bench(request)) as bench:
        run_id = store.begin_run(info)
        try:
            found = _Continuing(asked, bench, store, run_id, listener).done()
        except BaseException as error:
            is_stopped = isinstance(error, KeyboardInterrupt)
            store.finish_run(run_id, "interrupted" if is_stopped else "failed")
            raise
        store.finish_run(run_id, "done")
    return found


class _Continuing:
    def __init__(
        self, asked: Continuation, bench: Bench, store: Store, run_id: int, listener: Listener
    ) -> None:
        self.asked, self.bench, self.store, self.run_id = asked, bench, store, run_id
        self.listener = listener
        self.timer = AnswerTimer(bench, store, run_id, listener)
        entries = asked.record.problems
        self.problems = {Problem(dict(entry.problem)): entry.median_ms for entry in entries}

    def done(self) -> ContinuedRun:
        asked, bench = self.asked, self.bench
        kernel = asked.kernel
        end = bench.clock_s() + asked.seconds
        has_sizes = can_draw(kernel, asked.device)
        measured = asked.record.portfolio
        if asked.fresh or not _is_whole(asked.record):
            measured = self._portfolio(asked.seconds * (_TUNED_SHARE if has_sizes else 1.0))
        rows = stored_sizes(bench, self.store)
        current = [record for record in asked.own if is_current(record, kernel)]
        entrants = dict.fromkeys(candidates_of([asked.record, *current], kernel, asked.device))
        if has_sizes:
            known = {*entrants, *TimeMatrix((), rows).configurations}
            entrants |= dict.fromkeys(self._verified(known))
        matrix = TimeMatrix(entrants, rows)
        if has_sizes:
            self.timer.time_random_sizes(matrix, asked.seed, end - bench.clock_s())
        sizes = matrix.portfolio()
        record, held_out = fitted_with(asked.record, kernel, measured, sizes)
        result = RunResult(
            request=bench.request,
            problems=(),
            space=bench.space,
            run_id=self.run_id,
            source=bench.source,
            toolchain=bench.toolchain,
            portfolio=measured,
            sizes=sizes,
            record=record,
        )
        random = [
            problem for problem in sizes.problems if Problem(dict(problem)) not in self.problems
        ]
        return ContinuedRun(result, len(random), held_out)

    def _portfolio(self, seconds: float) -> Portfolio:
        """Time the best of each race and the default on all tuned problems; compiling does not count."""
        asked, old = self.asked, self.asked.record.portfolio
        races = [entry.race for entry in asked.record.problems]
        entrants = [
            entrant
            for entrant in verdict.portfolio_entrants(races, asked.kernel.default())
            if is_member(asked.kernel, entrant, asked.device)
        ]
        self._compile(entrants)
        found = self.timer.portfolio(self.problems, entrants, seconds)
        if found is None:
            raise AutotuneError(f"{asked.kernel.name}: the tuned problems could not be timed")
        if old.is_far_wider(msgspec.structs.replace(found, tables=old.tables)):
            warnings.warn(
                f"{asked.kernel.name}: there was time for {len(found.configurations)} configurations on "
                f"{len(found.problems)} problems; the record's {len(old.configurations)} on "
                f"{len(old.problems)} are kept; raise --budget",
                stacklevel=2,
            )
            return old
        return found

    def _compile(self, configurations: Sequence[Configuration]) -> None:
        bench, kernel, problems = self.bench, self.bench.kernel, list(self.problems)
        self.listener(Phase(problems[0], "compiling"))
        compiled_for = problems if kernel.static or kernel.language else problems[:1]
        jobs = [bench.compile_job(c, problem) for problem in compiled_for for c in configurations]
        with bench.off_budget():
            for act in (bench.compilers.submit, bench.compilers.result):
                for job in jobs:
                    act(job)

    def _verified(self, known: set[Configuration]) -> list[Configuration]:
        """Return winners of other devices and seeds that are correct on all odd sizes and a tuned problem."""
        asked, bench = self.asked, self.bench
        others = [
            *_winners(asked.others)[:_MOST_OF_OTHERS],
            *map(asked.kernel.completed, asked.kernel.seeds),
        ]
        new = [
            other
            for other in dict.fromkeys(others)
            if other not in known and is_member(asked.kernel, other, asked.device)
        ]
        if not new:
            return []
        quickest = min(self.problems, key=self.problems.__getitem__)
        self.listener(Phase(quickest, "other inputs"))
        jobs = [bench.job(problem) for problem in (*asked.kernel.edges_on(asked.device), quickest)]
        until, correct = bench.clock_s() + _VERIFYING_SHARE * asked.seconds, list[Configuration]()
        for configuration in new:
            if bench.clock_s() > until:
                break
            if self._is_correct(configuration, jobs):
                correct.append(configuration)
        return correct

    def _is_correct(self, configuration: Configuration, jobs: Sequence[Job]) -> bool:
        kernel = self.asked.kernel
        allowed = [job for job in jobs if kernel.allows(configuration, job.problem)]
        for job in allowed:
            checked = self.bench.verify(job, configuration)
            if checked.status is not Status.OK:
                warnings.warn(
                    f"{kernel.name} ({job.problem}): {configuration} is left out: {checked.status}: "
                    f"{checked.message}",
                    stacklevel=2,
                )
                return False
        return bool(allowed)


def candidates_of(
    records: Iterable[TunedRecord], kernel: Kernel, device: Device
) -> list[Configuration]:
    """Return the default, and the portfolios, winners, ties and answers of records of this device model.

    All of them were verified when they were tuned.
    """
    found = [kernel.default()]
    for record in records:
        found += map(Configuration, record.portfolio.configurations)
        found += [Configuration(dict(plan.configuration)) for plan in record.plans()]
        races = [entry.race for entry in record.problems if entry.race]
        tied = [finalist for race in races for finalist in race.contenders if finalist.tied]
        found += [Configuration(dict(each.configuration)) for each in tied if each.configuration]
    return [each for each in dict.fromkeys(found) if is_member(kernel, each, device)]


def _winners(records: Iterable[TunedRecord]) -> list[Configuration]:
    """Return the winners of records, those of the most problems first."""
    entries = (entry for record in records for entry in record.problems)
    counts = Counter(Configuration(dict(entry.configuration)) for entry in entries)
    return [configuration for configuration, _ in counts.most_common()]


def _is_whole(record: TunedRecord) -> bool:
    """Return whether the matrix of a record has all its problems, with their winners where it has room."""
    matrix = record.portfolio
    problems = {key_of(problem) for problem in matrix.problems}
    configurations = set(map(Configuration, matrix.configurations))
    winners = {Configuration(dict(entry.configuration)) for entry in record.problems}
    has_winners = winners <= configurations or len(configurations) >= verdict.PORTFOLIO_SIZE
    return has_winners and all(key_of(entry.problem) in problems for entry in record.problems)

"""Continues the last step of a run for a record: `autotune sizes`."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from autotune import __version__
from autotune.answers.category import HeldOutShares
from autotune.answers.table import Portfolio
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.sizes import cost_of, ranges_of
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.race import Contender
from autotune.run import verdict
from autotune.run.answering import AnswerTimer, stored_sizes
from autotune.run.bench import Bench
from autotune.run.drawing import can_draw
from autotune.run.other_sizes import OtherSizes, verified_on
from autotune.run.recording import current_part, fitted_with, is_current, request_for
from autotune.run.result import RunResult
from autotune.run.size_times import TimeMatrix
from autotune.search.session import Listener, Phase, ignore
from autotune.store import RunInfo, Store
from autotune.tuned.record import TIME, TunedRecord, key_of
from autotune.values import Configuration, Problem

#: Maximum number of other devices' winners that are tried.
_MAX_OF_OTHERS = 32
#: Share of the time for the tuned problems.
_TUNED_SHARE = 0.5
#: Share of the time for the verification of configurations that this record does not contain.
_VERIFYING_SHARE = 0.3
#: Number of these configurations that are verified together.
_AT_ONCE = 8


@dataclass(frozen=True)
class Continuation:
    """A request to improve a record's answers for other sizes within a time."""

    kernel: Kernel
    device: Device
    record: TunedRecord
    seconds: float
    #: Other records of this device model, whose configurations take part.
    own: Sequence[TunedRecord] = ()
    #: Records of other devices, whose winners take part if they pass verification.
    others: Sequence[TunedRecord] = ()
    #: Seed of the random sizes; the same seed continues the same series of sizes.
    seed: int = 1
    #: Whether to time the tuned problems again.
    fresh: bool = False
    command: str = ""


@dataclass(frozen=True)
class ContinuedRun:
    """The result of a continuation: a run without searches."""

    result: RunResult
    #: Number of random sizes in the store.
    sizes: int
    #: The speed of answers on sizes that the fit did not have.
    held_out: HeldOutShares


def continued(
    continuation: Continuation, store: Store, listener: Listener = ignore
) -> ContinuedRun:
    """Time the configurations of a record on its problems and on random sizes, and fit its answers.

    Problems that are timed already are not timed again, unless the request says so. Entries that were tuned
    before the kernel changed take no part and stay in the record.

    Raises
    ------
    UsageError
        If the record is not tuned for time, or the kernel changed since its newest run.
    """
    kernel, device, record = continuation.kernel, continuation.device, continuation.record
    if record.objective != TIME:
        raise UsageError(
            f"{record.kernel} on {record.device.name} is tuned for {record.objective}, but answers for other "
            "sizes are chosen by time; tune it for time"
        )
    current = current_part(record, kernel)
    if count := len(record.problems) - len(current.problems):
        warnings.warn(
            f"{kernel.name}: {count} of {len(record.problems)} tuned problems take no part, because they were "
            f"tuned before the kernel changed; run: autotune retune {kernel.name} --stale",
            stacklevel=2,
        )
    continuation, record = replace(continuation, record=current), current
    request = replace(request_for(record, kernel, device), command=continuation.command)
    info = RunInfo(
        kernel=kernel.name,
        device_name=device.name,
        strategy="sizes",
        seed=continuation.seed,
        version=__version__,
        command=continuation.command,
    )
    with closing(Bench(request)) as bench:
        run_id = store.begin_run(info)
        try:
            found = _Continuing(continuation, bench, store, run_id, listener).done()
        except BaseException as error:
            is_stopped = isinstance(error, KeyboardInterrupt)
            store.finish_run(run_id, "interrupted" if is_stopped else "failed")
            raise
        store.finish_run(run_id, "done")
    return found


class _Continuing:
    def __init__(
        self,
        continuation: Continuation,
        bench: Bench,
        store: Store,
        run_id: int,
        listener: Listener,
    ) -> None:
        self.continuation, self.bench, self.store, self.run_id = continuation, bench, store, run_id
        self.listener = listener
        self.timer = AnswerTimer(bench, store, run_id, listener)
        entries = continuation.record.problems
        self.problems = {Problem(dict(entry.problem)): entry.median_ms for entry in entries}

    def done(self) -> ContinuedRun:
        continuation, bench = self.continuation, self.bench
        kernel = continuation.kernel
        end = bench.clock_s() + continuation.seconds
        has_sizes = can_draw(kernel, continuation.device)
        measured = continuation.record.portfolio
        if continuation.fresh or not _is_whole(continuation.record):
            measured = self._portfolio(continuation.seconds * (_TUNED_SHARE if has_sizes else 1.0))
        rows = stored_sizes(bench, self.store)
        current = [record for record in continuation.own if is_current(record, kernel)]
        entrants = dict.fromkeys(
            candidates_of([continuation.record, *current], kernel, continuation.device)
        )
        if has_sizes:
            known = {*entrants, *TimeMatrix((), rows).configurations}
            entrants |= dict.fromkeys(self._verified(known))
        matrix = TimeMatrix(entrants, rows)
        if has_sizes:
            self.timer.time_random_sizes(matrix, continuation.seed, end - bench.clock_s())
        sizes = matrix.portfolio()
        record, held_out = fitted_with(continuation.record, kernel, measured, sizes)
        result = RunResult(
            request=bench.request,
            problems=(),
            space=bench.space,
            run_id=self.run_id,
            definition=bench.definition,
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
        """Time the best of each race and the default on all tuned problems.

        The time for compiling does not count.
        """
        continuation, old = self.continuation, self.continuation.record.portfolio
        races = [entry.race for entry in continuation.record.problems]
        entrants = [
            entrant
            for entrant in verdict.portfolio_entrants(races, continuation.kernel.default())
            if is_member(continuation.kernel, entrant, continuation.device)
        ]
        self._compile(entrants)
        found = self.timer.portfolio(self.problems, entrants, seconds)
        if found is None:
            raise AutotuneError(
                f"{continuation.kernel.name}: the tuned problems could not be timed"
            )
        if old.is_far_wider(msgspec.structs.replace(found, tables=old.tables)):
            warnings.warn(
                f"{continuation.kernel.name}: there was time for only {len(found.configurations)} configurations on "
                f"{len(found.problems)} problems, so the record keeps its {len(old.configurations)} on "
                f"{len(old.problems)}; give a larger budget",
                stacklevel=2,
            )
            return old
        timed = [*map(Problem, found.problems)]
        verified = old.verified or ranges_of(continuation.kernel, timed, timed)
        return msgspec.structs.replace(found, verified=verified)

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
        """Return other devices' winners and seeds that are correct on all problems and at extreme sizes."""
        continuation, bench = self.continuation, self.bench
        others = [
            *_winners(continuation.others)[:_MAX_OF_OTHERS],
            *map(continuation.kernel.completed, continuation.kernel.seeds),
        ]
        new = [
            other
            for other in dict.fromkeys(others)
            if other not in known and is_member(continuation.kernel, other, continuation.device)
        ]
        if not new:
            return []
        kernel = continuation.kernel
        largest = max(self.problems, key=partial(cost_of, kernel))
        self.listener(Phase(largest, "other inputs"))
        problems = [*kernel.edges_on(continuation.device), *self.problems]
        sizes = OtherSizes(bench, largest, (), partial(verified_on, bench), set(), problems)
        until = bench.clock_s() + _VERIFYING_SHARE * continuation.seconds
        correct, left = list[Configuration](), deque(new)
        while left and bench.clock_s() < until:
            some = [Contender(left.popleft()) for _ in range(min(len(left), _AT_ONCE))]
            right, wrong = sizes.verified(some)
            correct += [contender.configuration for contender in right if contender.verified]
            for row in wrong:
                warnings.warn(
                    f"{kernel.name}: {row.configuration} is left out: {row.status}: {row.message}",
                    stacklevel=2,
                )
        return correct


def candidates_of(
    records: Iterable[TunedRecord], kernel: Kernel, device: Device
) -> list[Configuration]:
    """Return the default, and the portfolios, winners, ties and answers of records of a device model.

    The runs of these records have verified them.
    """
    found = [kernel.default()]
    for record in records:
        found += map(Configuration, record.portfolio.configurations)
        found += [Configuration(dict(plan.configuration)) for plan in record.plans()]
        races = [entry.race for entry in record.problems if entry.race]
        tied = [finalist for race in races for finalist in race.contenders if finalist.tied]
        found += [Configuration(dict(f.configuration)) for f in tied if f.configuration]
    return [c for c in dict.fromkeys(found) if is_member(kernel, c, device)]


def _winners(records: Iterable[TunedRecord]) -> list[Configuration]:
    """Return the winners of records; a winner of more problems comes first."""
    entries = (entry for record in records for entry in record.problems)
    counts = Counter(Configuration(dict(entry.configuration)) for entry in entries)
    return [configuration for configuration, _ in counts.most_common()]


def _is_whole(record: TunedRecord) -> bool:
    """Return whether the matrix of a record has all problems, and all winners or the maximum size."""
    matrix = record.portfolio
    problems = {key_of(problem) for problem in matrix.problems}
    configurations = set(map(Configuration, matrix.configurations))
    winners = {Configuration(dict(entry.configuration)) for entry in record.problems}
    has_winners = winners <= configurations or len(configurations) >= verdict.PORTFOLIO_SIZE
    return has_winners and all(key_of(entry.problem) in problems for entry in record.problems)

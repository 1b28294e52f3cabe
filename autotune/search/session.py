"""The search session: remembered rows, budget, new rows, events.

Every measured configuration has exactly one row. An attempt is opened within 50 ms of the beginning
of a measurement, and closed with its row. To resume, run the same search again: remembered rows answer
at once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import TypeAlias

import numpy as np

from autotune.errors import UsageError
from autotune.kernel.space import Space
from autotune.measure.evaluator import Evaluator, nothing
from autotune.measure.measurement import TIME, Measurement, Objective, Status
from autotune.search.base import (
    AtHand,
    BudgetSpent,
    Outlook,
    RelatedProblem,
    Strategy,
    Tell,
    fastest,
)
from autotune.search.pending import PendingRows, Verifier
from autotune.store import Appender, Remembered, Scope, Store
from autotune.values import Configuration, Problem

#: Number of remembered rows that are read at once.
_READ_ROWS = 512
#: Maximum number of a device's remembered configurations among which finals choose.
_MAX_FINALISTS = 1000
#: Maximum number of configurations, pending since an ended run, that a search measures first.
_MAX_PENDING = 16
#: Units of a budget's time.
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
#: A configuration counts as crashed if this many runs ended during its attempt.
_FATAL_ATTEMPTS = 2


@dataclass(frozen=True)
class Budget:
    """The limits of a search; None is no limit."""

    seconds: float | None = None
    evaluations: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read ``90s``, ``10m``, ``2h`` or ``200evals``; also the text of a budget."""
        plain = text.replace(" evaluations", "evals").replace(" s", "s")
        found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|m|h|evals)", plain)
        number, unit = found.groups() if found else ("0", "")
        if unit == "evals" and number.isdecimal() and int(number) > 0:
            return cls(evaluations=int(number))
        if unit in _SECONDS and float(number) > 0:
            return cls(seconds=float(number) * _SECONDS[unit])
        raise UsageError(f"budget {text!r}: expected for example 90s, 10m, 2h or 200evals")

    def covers(self, other: Budget) -> bool:
        """Return whether this budget allows at least as much as another of the same kind."""
        if self.evaluations is None or other.evaluations is None:
            return self.evaluations is other.evaluations and (self.seconds or 0) >= (
                other.seconds or 0
            )
        return self.evaluations >= other.evaluations

    def __str__(self) -> str:
        seconds = [] if self.seconds is None else [f"{self.seconds:g} s"]
        count = [] if self.evaluations is None else [f"{self.evaluations} evaluations"]
        return " or ".join(seconds + count)


@dataclass(frozen=True)
class SearchStarted:
    """The event that a problem's search begins."""

    problem: Problem
    budget: Budget


@dataclass(frozen=True)
class Measured:
    """The event that a configuration has a result."""

    problem: Problem
    measurement: Measurement
    #: Whether the result comes from an earlier run.
    is_remembered: bool
    seconds_left: float | None


@dataclass(frozen=True)
class Phase:
    """The event that a phase begins: ``inputs``, ``finals`` …"""

    problem: Problem
    name: str


Event: TypeAlias = SearchStarted | Measured | Phase
Listener: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event."""


@dataclass
class SearchSession:
    """One search of one problem; see `autotune.search.base.Session`."""

    space: Space
    #: The evaluator of configurations that are not remembered.
    evaluator: Evaluator
    #: The store of remembered and new rows; None if nothing is stored.
    store: Store | None
    run_id: int
    scope: Scope
    #: The budget of this search, not of the run.
    budget: Budget
    listener: Listener = ignore
    #: Whether to measure remembered configurations again.
    fresh: bool = False
    #: Uuids of further devices of the same model that the evaluator measures on.
    others: tuple[str, ...] = ()
    #: The objective whose cost is minimised.
    objective: Objective = TIME
    #: See `autotune.search.base.Session`.
    problem_features: tuple[float, ...] = ()
    related: Sequence[RelatedProblem] = ()
    compiled: Collection[int] = ()
    outlook: Outlook | None = None
    #: Measurements of this search, new or remembered, by number, in order.
    measurements: dict[int, Measurement] = field(default_factory=dict)
    #: The verifier of pending rows; None if the evaluator has no pending rows.
    verifier: Verifier | None = None
    #: Numbers of configurations that the evaluator measures now.
    awaited: dict[Configuration, int] = field(default_factory=dict)
    _spent: int = 0
    _appender: Appender | None = None

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._pending = PendingRows(self, self.verifier)
        #: Numbers of configurations to measure again, in order.
        self._again: dict[int, None] = {}
        self._tell: Tell = lambda *_: None
        #: Remembered rows of each device; the first device's rows take precedence.
        self._memories: list[_Memory] = []
        self._interrupted: dict[Configuration, int] = {}
        if self.store is not None:
            if not self.fresh:
                scopes = [replace(self.scope, device_uuid=uuid) for uuid in self.others]
                self._memories = [
                    _Memory(self.store.remembered(scope), self.space, self.objective)
                    for scope in (self.scope, *scopes)
                ]
            self._interrupted = self.store.interrupted_attempts(self.scope)
        self.listener(SearchStarted(self.scope.problem, self.budget))

    def known(self) -> list[Measurement]:
        """Return the measurements among which finals choose: of this search, and the best remembered."""
        memories = reversed(self._memories)  # the first device's rows last: they replace others
        found = {row.configuration: row for memory in memories for row in memory.best()}
        found |= {
            measurement.configuration: measurement for measurement in self.measurements.values()
        }
        return list(found.values())

    def remembered(self) -> list[Measurement]:
        """Return the remembered measurements of the space that this search did not need."""
        met = {measurement.configuration for measurement in self.measurements.values()}
        found = dict[Configuration, Measurement]()
        for memory in reversed(self._memories):
            found |= {
                row.configuration: row for row in memory.all() if row.configuration not in met
            }
        return list(found.values())

    @property
    def evaluations_left(self) -> int | None:
        """The number of measurements that the budget still allows; None under a time budget."""
        if self.budget.evaluations is None:
            return None
        return max(0, self.budget.evaluations - self._spent)

    @property
    def seconds_left(self) -> float | None:
        """The time that the budget still allows; None under a budget of evaluations."""
        if self.budget.seconds is None:
            return None
        return self.budget.seconds - (time.monotonic() - self._start)

    @property
    def ended_by(self) -> str:
        """The reason why the search ended: the space, the budget or the strategy."""
        if len(self.measurements) == len(self.space):
            return "all"
        if self.evaluations_left == 0:
            return f"budget of {len(self.measurements)} evaluations"
        if self.outlook is not None and self.outlook.is_enough:
            return "little left to gain"
        if self.seconds_left is not None and self.seconds_left <= 0:
            return "time"
        return "nothing more proposed"

    def best(self, count: int) -> list[int]:
        """Return the numbers of the fastest configurations of this search so far, best first."""
        return fastest(self.measurements, count)

    def hint(self, indices: Sequence[int]) -> None:
        """Let compilers begin with likely next configurations that have no result."""
        configurations = [
            self.space.configuration(i) for i in indices if i not in self.measurements
        ]
        self._read(configurations)
        self.evaluator.hint([c for c in configurations if self._answer(c) is None])

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        """Measure configurations by number, in order; see `autotune.search.base.Session`."""
        unknown, taken = self._unknown(indices), list[int]()
        allowed = islice(unknown, self.evaluations_left)
        try:
            self._measure_each(self._read_in_blocks(allowed, taken), lambda *_: None)
        finally:
            for index in taken:
                if index in self.measurements:  # in the order of the request
                    self.measurements[index] = self.measurements.pop(index)
        if next(unknown, None) is not None:
            raise BudgetSpent
        return [self.measurements[index] for index in indices]

    def _unknown(self, indices: Sequence[int]) -> Iterator[int]:
        """Yield each number without a measurement once, lazily: a space may have millions."""
        seen = set[int]()
        for index in indices:
            if index not in self.measurements and index not in seen:
                seen.add(index)
                yield index

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        """Measure proposals as they come; see `autotune.search.base.Session`."""
        self._measure_each(proposals, tell, ahead, at_hand)
        if self.evaluations_left == 0:
            raise BudgetSpent

    def _measure_each(
        self,
        proposals: Iterable[int],
        tell: Tell,
        ahead: int | None = None,
        at_hand: AtHand = nothing,
    ) -> None:
        self._tell = tell

        def compiled() -> Configuration | None:
            numbers = iter(at_hand, None)
            return next(self._proposed(numbers, tell), None)

        for measurement in self.evaluator.measure(
            self._proposed(proposals, tell), self._begin, ahead, compiled
        ):
            self._keep(measurement)
            index = self.awaited.pop(measurement.configuration)
            self._note(index, measurement, is_remembered=False)
            tell(index, self.measurements[index])
            self._pending.glance(index)
            self._check_time()

    def _proposed(self, proposals: Iterable[int], tell: Tell) -> Iterator[Configuration]:
        """Yield the proposals that must be measured, while the budget allows."""
        for index in self._and_again(proposals):
            self._check_time()
            if index not in self.measurements or index in self._again:
                self._again.pop(index, None)
                left = self.evaluations_left
                if left is not None and left <= len(self.awaited):
                    return
                configuration = self.space.configuration(index)
                known = self._recalled(configuration)
                if known is None:
                    self.awaited[configuration] = index
                    yield configuration
                    continue
                self.evaluator.recall(known)
                self._note(index, known, is_remembered=True)
            tell(index, self.measurements[index])

    def _and_again(self, proposals: Iterable[int]) -> Iterator[int]:
        """Yield proposals, and before each the numbers of configurations to measure again."""
        for index in proposals:
            yield from list(self._again)
            yield index
        yield from list(self._again)

    def _read_in_blocks(self, numbers: Iterator[int], taken: list[int]) -> Iterator[int]:
        """Yield numbers and add them to ``taken``; read remembered rows in blocks."""
        while block := list(islice(numbers, _READ_ROWS)):
            taken += block
            self._read(map(self.space.configuration, block))
            yield from block

    def _check_time(self) -> None:
        if self.seconds_left is not None and self.seconds_left <= 0:
            raise BudgetSpent

    def _begin(self, configuration: Configuration) -> None:
        """Open an attempt. A run that is killed during the measurement leaves it open."""
        if self._appender is not None:
            self._appender.begin(configuration)
        elif self.store is not None:
            self.store.open_attempts(self.run_id, self.scope, [configuration])

    def _recalled(self, configuration: Configuration) -> Measurement | None:
        known = self._answer(configuration)
        if known is not None:
            return known
        if self._interrupted.get(configuration, 0) < _FATAL_ATTEMPTS:
            return None
        verdict = Measurement(
            configuration,
            Status.CRASHED,
            f"{self._interrupted[configuration]} runs ended while it was being measured",
        )
        self._keep(verdict)
        return verdict

    def _read(self, configurations: Iterable[Configuration]) -> None:
        for memory in self._memories:
            memory.rows.read(configurations)

    def _answer(self, configuration: Configuration) -> Measurement | None:
        """Return the row of a configuration if it is remembered and still valid."""
        answers = (memory.answer(configuration) for memory in self._memories)
        return next((answer for answer in answers if answer is not None), None)

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Append rows in the background; on leaving the context all rows are in the store."""
        if self.store is None:
            yield
            return
        try:
            with Appender(self.store, self.run_id, self.scope) as self._appender:
                yield
        finally:
            self._appender = None

    def _keep(self, measurement: Measurement) -> None:
        if self._appender is not None:
            self._appender.add(measurement)
        elif self.store is not None:
            self.store.add(self.run_id, self.scope, measurement)

    def _note(self, index: int, measurement: Measurement, is_remembered: bool) -> None:
        measurement = self.objective.scored(measurement)
        self._spent += index not in self.measurements
        self.measurements[index] = measurement
        self.listener(Measured(self.scope.problem, measurement, is_remembered, self.seconds_left))

    # ------------------------------------------------------------------ pending rows

    def left_pending(self) -> list[Configuration]:
        """Return the best configurations that ended runs left pending."""
        return [found for memory in self._memories for found in memory.pending(_MAX_PENDING)]

    def revise(self, index: int, measurement: Measurement) -> None:
        """Replace the row of a configuration, which was pending, and tell the strategy."""
        self._keep(measurement)
        self._note(index, measurement, is_remembered=False)
        self._tell(index, self.measurements[index])

    def measure_again(self, indices: Iterable[int]) -> None:
        """Measure configurations again before the next proposals."""
        self._again.update(dict.fromkeys(indices))

    def measure_rest(self) -> bool:
        """Measure what is left to measure again while the budget allows; return whether there was any."""
        some = bool(self._again)
        with self.appending(), suppress(BudgetSpent):
            self._measure_each((), self._tell)
        return some

    def begin_again(self) -> None:
        """Give the whole budget again, since no result counts."""
        self._start, self._spent = time.monotonic(), 0

    def finish(self, count: int) -> bool:
        """Verify pending rows until ``count`` rows are `OK`; wait for the reference if it is not there.

        Return whether the search must go on; see `PendingRows.finish`.
        """
        self._tell = lambda *_: None
        return self._pending.finish(
            count, lambda: self.listener(Phase(self.scope.problem, "reference"))
        )


@dataclass
class _Memory:
    """Rows of earlier runs on one device.

    A measurement is stopped early because another configuration is faster. If a restricted space lacks
    the faster configuration, the row of the stopped measurement is not valid: it is measured again in full.
    """

    rows: Remembered
    space: Space
    objective: Objective

    @cached_property
    def _best_ms(self) -> float:
        # The store also has this search's own rows, which do not count as remembered.
        best = next((found for found in self._in_space(Status.OK) if found in self.rows), None)
        return math.inf if best is None else self.rows[best].median_ms or math.inf

    def answer(self, configuration: Configuration) -> Measurement | None:
        """Return the row of a configuration if it is still valid."""
        row = self.rows.get(configuration)
        if row is not None and row.status is Status.PENDING:
            return None
        stopped_early = row is not None and row.status is Status.STOPPED_EARLY
        if row is not None and self.objective.needs_energy:
            row = self.objective.scored(row)
            is_scored = row.score is not None or not row.status.is_timed
            return row if is_scored and not stopped_early else None
        return None if row and stopped_early and (row.median_ms or 0.0) <= self._best_ms else row

    def best(self) -> list[Measurement]:
        """Return the `_MAX_FINALISTS` fastest valid rows; rows that were stopped early come last."""
        by_time = chain(self._in_space(Status.OK), self._in_space(Status.STOPPED_EARLY))
        chosen = list(islice(by_time, _MAX_FINALISTS))
        self.rows.read(chosen)
        answers = [self.answer(configuration) for configuration in chosen]
        return [answer for answer in answers if answer is not None]

    def pending(self, count: int) -> list[Configuration]:
        """Return the fastest configurations that a run left pending because it was ended."""
        chosen = [found for found in self.rows.pending() if found in self.space]
        self.rows.read(chosen)
        costs = {configuration: self.rows[configuration].cost for configuration in chosen}
        timed = [(cost, configuration) for configuration, cost in costs.items() if cost is not None]
        return [
            configuration for _, configuration in sorted(timed, key=lambda pair: pair[0])[:count]
        ]

    def all(self) -> list[Measurement]:
        """Return all valid rows."""
        configurations = [found for found in self.rows if found in self.space]
        self.rows.read(configurations)
        answers = [self.answer(configuration) for configuration in configurations]
        return [answer for answer in answers if answer is not None]

    def _in_space(self, status: Status) -> Iterator[Configuration]:
        return (found for found in self.rows.by_time(status) if found in self.space)


def search(
    session: SearchSession, strategy: Strategy, seed: int, first: Sequence[Configuration] = ()
) -> dict[int, Measurement]:
    """Run a strategy until it ends or the budget is spent; the same seed gives the same path.

    The configurations ``first`` are measured before the strategy starts, if they are valid in this space, then the
    best that an ended run left pending. Values of parameters that do not apply are ignored. Return measurements by
    number, in order.
    """
    tried = [*first, *session.left_pending()]
    numbers = [number_in(session.space, configuration) for configuration in tried]
    with session.appending(), suppress(BudgetSpent):
        session.measure([i for i in dict.fromkeys(numbers) if i is not None])
        strategy(session.space, session, np.random.default_rng(seed))
    return session.measurements


def number_in(space: Space, configuration: Configuration) -> int | None:
    """Return the number of a configuration, or None if it is not valid.

    Values of parameters that do not apply are ignored.
    """
    try:
        return space.find(space.canonical(space.row(configuration)))
    except UsageError:
        return None

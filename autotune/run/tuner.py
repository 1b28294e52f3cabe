"""Tunes problems on some devices of a run, in this process or in a separate one.

A search needs several milliseconds of a core for each configuration, about as long as the GPU. In a run
of several problems each device therefore has its own process, `TunerProcess`. The run's process divides
the problems and the time.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from autotune import cache
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.kernel.expression import ceil_div
from autotune.kernel.snapshot import Origin, load_kernel
from autotune.kernel.source import own_fingerprint
from autotune.measure.measurement import Measurement
from autotune.measure.process import ChildActor, send_message
from autotune.measure.race import Race
from autotune.run import verdict
from autotune.run.bench import Bench, Site
from autotune.run.finals import Finals
from autotune.run.request import Request
from autotune.run.searching import ProblemSearch, SearchedProblem
from autotune.search.session import Budget, Event, Listener, Measured
from autotune.store import Store
from autotune.values import Problem

#: Time limit in seconds of a tuner's task. It is long because the tasks inside have their own limits.
_SILENCE_S = 10 * 86_400.0
#: Time in seconds during which events of measurements are collected before they are sent.
_GATHER_S = 0.05

#: The race of a problem (None if no configuration is correct), and the failures of the finals.
Outcome: TypeAlias = "tuple[Race | None, tuple[Measurement, ...]]"


class ProblemTuner:
    """A tuner in this process; ``number`` is its number in the run."""

    def __init__(
        self,
        bench: Bench,
        store: Store,
        run_id: int,
        listener: Listener,
        sanitizer: str,
        number: int = 0,
    ) -> None:
        self.bench, self.device = bench, bench.device
        self._search = ProblemSearch(bench, store, run_id, listener, number)
        self._finals = Finals(bench, store, run_id, listener, sanitizer)

    def search(
        self, problem: Problem, budget: Budget, before: Sequence[SearchedProblem]
    ) -> SearchedProblem:
        """Search a problem; see `ProblemSearch.search`."""
        return self._search.search(problem, self.bench.space, budget, before)

    def hold_finals(
        self, found: SearchedProblem, seconds: float, following: SearchedProblem | None
    ) -> Outcome:
        """Hold the finals of a problem; compilers begin with the finals of the following problem."""
        return self._finals.hold(
            found.job_on(self.device),
            self._entrants(found),
            seconds,
            meanwhile=partial(self._expect, following),
        )

    def clock_s(self) -> float:
        """Return the time in seconds that counts for budgets; see `Bench.clock_s`."""
        return self.bench.clock_s()

    def _expect(self, following: SearchedProblem | None) -> None:
        if following is not None:
            self._finals.expect(following.problem, self._entrants(following))

    def _entrants(self, found: SearchedProblem) -> list[Measurement]:
        """Return the best of each device for the finals: times of two devices do not compare."""
        by_device = defaultdict[str, list[Measurement]](list)
        for row in found.choice:
            if row.device_uuid:
                by_device[row.device_uuid].append(row)
        if len(by_device) <= 1:
            return list(found.choice)
        request = self.bench.request
        repeats = partial(self.bench.kernel.is_deterministic, p=found.problem)
        share = ceil_div(request.effort.finalists, len(by_device))
        return [
            entrant
            for rows in by_device.values()
            for entrant in verdict.candidates(rows, share, repeats)
        ]


@dataclass(frozen=True)
class TunerPlan:
    """The plan from which another process makes its tuner."""

    origin: Origin
    fingerprint: str
    #: Fingerprint of all sources.
    source: str
    #: The request; see `Request.without_kernel`.
    request: Mapping[str, Any]
    site: Site
    #: Path or URL of the store.
    store: str
    run_id: int
    sanitizer: str
    number: int

    @classmethod
    def of(
        cls, bench: Bench, request: Request, store: Store, run_id: int, sanitizer: str, number: int
    ) -> TunerPlan:
        """Return the plan for a request with some of the devices of a bench."""
        fingerprint = own_fingerprint(bench.kernel)
        peers = tuple(d for d in bench.request.devices if d not in request.devices)
        url = store.address.url.render_as_string(hide_password=False)
        return cls(
            bench.site.origin_of(bench.kernel, fingerprint),
            fingerprint,
            bench.definition.source,
            request.without_kernel(),
            bench.site.shared_with(peers),
            os.fspath(store.address.path or url),
            run_id,
            sanitizer,
            number,
        )


class TunerProcess:
    """A `ProblemTuner` in a separate process, with the same methods."""

    def __init__(self, plan: TunerPlan, listener: Callable[[Event], object]) -> None:
        self.device: Device = plan.request["device"]
        self._plan, self._listener = plan, listener
        self._actor = ChildActor(prepare=open_tuner)
        #: Searches that the process knows: its own, and searches that it received.
        self._known: dict[Problem, SearchedProblem] = {}
        self._off_budget_s = 0.0
        self._actor.start()

    def search(
        self, problem: Problem, budget: Budget, before: Sequence[SearchedProblem]
    ) -> SearchedProblem:
        found: SearchedProblem = self._ask(_search, before, problem, budget)
        self._known[problem] = found
        return found

    def hold_finals(
        self, found: SearchedProblem, seconds: float, following: SearchedProblem | None
    ) -> Outcome:
        after = [] if following is None else [following]
        outcome: Outcome = self._ask(
            _hold_finals,
            [found, *after],
            found.problem,
            seconds,
            *(following.problem for following in after),
        )
        return outcome

    def clock_s(self) -> float:
        return time.monotonic() - self._off_budget_s

    def close(self) -> None:
        """End the process and its children."""
        self._actor.close()

    def _ask(self, task: Any, needed: Sequence[SearchedProblem], *args: Any) -> Any:
        news = [found for found in needed if self._known.get(found.problem) is not found]
        self._known.update({found.problem: found for found in news})
        answer, self._off_budget_s, used = self._actor.ask(
            task, news, *args, job=self._plan, timeout_s=_SILENCE_S, on_message=self._receive
        )
        for folder in used:  # the portfolio needs them after the tuner's process has ended
            cache.use(folder)
        return answer

    def _receive(self, message: str | list[Event]) -> None:
        if isinstance(message, str):
            warnings.warn(message, stacklevel=2)
            return
        for event in message:
            self._listener(event)


Tuner: TypeAlias = "ProblemTuner | TunerProcess"


# ---------------------------------------------------------------------- in the process of a tuner

_tuner: ProblemTuner | None = None
_teller: _Teller
_known: dict[Problem, SearchedProblem] = {}


def open_tuner(plan: TunerPlan) -> None:
    """Make the tuner of this process."""
    global _tuner, _teller
    _teller = _Teller()
    kernel = load_kernel(plan.origin, plan.fingerprint)
    bench = Bench(Request.with_kernel(kernel, plan.request), plan.site)
    if bench.definition.source != plan.source:
        raise AutotuneError(
            f"{kernel.name}: a source changed while it was in use; measurements are kept: run the "
            "command again"
        )
    bench.start()
    _ = bench.space  # while they come up
    warnings.showwarning = lambda message, *_, **__: send_message(str(message))
    store = Store.open(plan.store)
    _tuner = ProblemTuner(bench, store, plan.run_id, _teller, plan.sanitizer, plan.number)


class _Teller:
    """A listener that sends events to the run's process; it collects events of measurements."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._sent_s = 0.0
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            waits = isinstance(event, Measured) and time.monotonic() - self._sent_s < _GATHER_S
        if not waits:
            self.flush()

    def flush(self) -> None:
        """Send the collected events."""
        with self._lock:
            send_message(self._events)
            self._events, self._sent_s = [], time.monotonic()


def _search(
    _: TunerPlan, news: Sequence[SearchedProblem], problem: Problem, budget: Budget
) -> tuple[SearchedProblem, float, frozenset[Path]]:
    assert _tuner is not None
    _known.update({found.problem: found for found in news})
    _known[problem] = _tuner.search(problem, budget, list(_known.values()))
    _teller.flush()
    return _known[problem], _off_budget_s(_tuner), cache.used()


def _hold_finals(
    _: TunerPlan,
    news: Sequence[SearchedProblem],
    problem: Problem,
    seconds: float,
    *following: Problem,
) -> tuple[Outcome, float, frozenset[Path]]:
    assert _tuner is not None
    _known.update({found.problem: found for found in news})
    after = next((_known[p] for p in following), None)
    outcome = _tuner.hold_finals(_known[problem], seconds, after)
    return outcome, _off_budget_s(_tuner), cache.used()


def _off_budget_s(tuner: ProblemTuner) -> float:
    return time.monotonic() - tuner.clock_s()

"""Drives a plan on a fleet: gives runs their cards, each in a thread, and yields what came of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

from autotune.errors import KEPT, AutotuneError, FleetError, Interrupted
from autotune.fleet.cards import Card, Model
from autotune.fleet.client import Fleet, FleetSite
from autotune.fleet.plan import Task
from autotune.run.limits import execute
from autotune.run.request import Request
from autotune.run.result import CutShortRun, RunResult
from autotune.search.session import Listener
from autotune.store import open_for_runs


@dataclass(frozen=True)
class Outcome:
    """What came of one run: its result, or why there is none, or none of all its problems.

    What ended the whole plan is raised instead.
    """

    request: Request
    result: RunResult | None
    error: AutotuneError | None = None


def drive(
    fleet: Fleet,
    tasks: Sequence[Task],
    url: str,
    listener_of: Callable[[Request], Listener],
    seconds: float | None = None,
) -> Iterator[Outcome]:
    """Run a plan, as many runs at once as there are cards; yields what came of each as soon as it ended.

    ``url`` is of the store, which each run opens for itself. No run is begun after ``seconds``, and
    none is given longer.

    Raises
    ------
    FleetError
        If the scheduler is lost; rows are in the store, and what was decided was yielded.
    Interrupted
        On Ctrl-C; the same.
    """
    driver = _Driver(fleet, list(tasks), url, listener_of, seconds)
    try:
        yield from driver.outcomes()
    except (KeyboardInterrupt, GeneratorExit, FleetError) as error:
        fleet.stop()
        driver.wait()
        if not isinstance(error, GeneratorExit):
            yield from driver.decided()
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; {KEPT}") from error
        raise


class _Driver:
    """A plan in progress."""

    def __init__(
        self,
        fleet: Fleet,
        tasks: list[Task],
        url: str,
        listener_of: Callable[[Request], Listener],
        seconds: float | None,
    ) -> None:
        self._fleet, self._waiting, self._url = fleet, tasks, url
        self._listener_of = listener_of
        self._end_s = math.inf if seconds is None else time.monotonic() + seconds
        self._leased: dict[threading.Thread, list[Card]] = {}
        self._done: SimpleQueue[tuple[threading.Thread, Outcome | BaseException]] = SimpleQueue()

    def outcomes(self) -> Iterator[Outcome]:
        """Begin what there are cards for, again and again, until all is done."""
        while self._waiting or self._leased:
            yield from self._begin()
            if not self._leased:
                continue
            thread, outcome = self._done.get()
            thread.join()
            del self._leased[thread]
            if isinstance(outcome, BaseException):
                raise outcome
            if isinstance(outcome.error, FleetError | Interrupted):
                if outcome.result is not None:
                    yield replace(outcome, error=None)
                raise outcome.error
            yield outcome

    def wait(self) -> None:
        """Wait for the runs that were stopped."""
        for thread in self._leased:
            thread.join()

    def decided(self) -> Iterator[Outcome]:
        """What the runs that were stopped had decided."""
        while not self._done.empty():
            _, outcome = self._done.get()
            if isinstance(outcome, Outcome) and outcome.result is not None:
                yield replace(outcome, error=None)

    def _begin(self) -> Iterator[Outcome]:
        """Begin runs on the cards that are free; yields those that cannot be begun any more."""
        for task in list(self._waiting):
            model = Model.of(task.request.device)
            left_s = self._end_s - time.monotonic()
            if left_s <= 0:
                self._waiting.remove(task)
                late = AutotuneError(
                    f"{task.request.kernel.name} on {model.name}: not begun, the time is up; what was "
                    "measured is kept: run the same command again"
                )
                yield Outcome(task.request, None, late)
                continue
            taken = {card for cards in self._leased.values() for card in cards}
            usable = self._fleet.usable(model)
            free = [card for card in usable if card not in taken and not card.users]
            if free:
                alike = sum(Model.of(other.request.device) == model for other in self._waiting)
                self._waiting.remove(task)
                self._start(task, free[: max(1, len(free) // alike)], left_s)
            elif not usable and not taken:
                self._waiting.remove(task)
                lost = AutotuneError(
                    f"{task.request.kernel.name}: no {model.name} of the fleet is left"
                )
                yield Outcome(task.request, None, lost)

    def _start(self, task: Task, cards: list[Card], left_s: float) -> None:
        request = task.on([card.device for card in cards], left_s)
        listener = self._listener_of(request)
        thread = threading.Thread(target=self._run, args=(request, listener), daemon=True)
        self._leased[thread] = cards
        thread.start()

    def _run(self, request: Request, listener: Listener) -> None:
        outcome: Outcome | BaseException
        try:
            with open_for_runs(self._url) as store:
                outcome = Outcome(
                    request, execute(request, store, listener, FleetSite(self._fleet))
                )
        except CutShortRun as error:
            outcome = Outcome(request, error.decided, error.cause)
        except AutotuneError as error:
            outcome = Outcome(request, None, error)
        except BaseException as error:
            outcome = error
        self._done.put((threading.current_thread(), outcome))

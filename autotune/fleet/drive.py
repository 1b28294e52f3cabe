"""Tune kernels on the models of a fleet: one run at a time has all cards of its model."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

from autotune.errors import KEPT, AutotuneError, FleetError, Interrupted, UsageError
from autotune.fleet.client import Fleet, Model
from autotune.fleet.site import FleetSite
from autotune.run.recording import RunResult
from autotune.run.request import Request
from autotune.run.run import execute
from autotune.search.session import Budget, Listener
from autotune.store import open_for_runs


@dataclass(frozen=True)
class FleetRun:
    """A run that ended: its result, or the error that ended it, or both where it was cut short."""

    request: Request
    result: RunResult | None
    error: AutotuneError | None = None


def checked(requests: Iterable[Request]) -> list[Request]:
    """Return requests with default problems; raise `UsageError` where one cannot run in a fleet."""
    return [_checked(request) for request in requests]


def _checked(request: Request) -> Request:
    name = request.kernel.name
    if request.sanitize:
        raise UsageError(
            f"{name}: compute-sanitizer runs on this machine, not in a fleet; tune without "
            f"--sanitize, then on one GPU: autotune run {name} --config … --sanitize"
        )
    if request.sanitizes and request.device.has_nvidia_tools:
        warnings.warn(
            f"{name}: in a fleet finalists are not run under compute-sanitizer, which --effort "
            f"{request.effort.name} does on one machine; for a winner run there: "
            f"autotune run {name} --config … --sanitize",
            stacklevel=2,
        )
    return request.with_default_problems()


def drive(
    fleet: Fleet,
    requests: Sequence[Request],
    url: str,
    listener_of: Callable[[Request], Listener],
    seconds: float | None = None,
) -> Iterator[FleetRun]:
    """Run requests, those of different models at once; yield each run as soon as it ended.

    ``url`` is of the store, which each run opens for itself. No run begins after ``seconds``, and
    none gets longer.

    Raises `FleetError` if the scheduler is lost and `Interrupted` on Ctrl-C; the runs that these cut
    short are yielded first.
    """
    end_s = math.inf if seconds is None else time.monotonic() + seconds
    waiting, running = list(requests), dict[Model, threading.Thread]()
    ended: SimpleQueue[tuple[Model, FleetRun | BaseException]] = SimpleQueue()

    def run(model: Model, request: Request) -> None:
        try:
            ended.put((model, _run(fleet, model, request, url, listener_of, end_s)))
        except BaseException as error:
            ended.put((model, error))

    try:
        while waiting or running:
            for request in list(waiting):
                model = Model.of(request.device)
                if model not in running:
                    waiting.remove(request)
                    running[model] = threading.Thread(
                        target=run, args=(model, request), daemon=True
                    )
                    running[model].start()
            model, done = ended.get()
            running.pop(model).join()
            if isinstance(done, BaseException):
                raise done
            if isinstance(done.error, FleetError | Interrupted):
                if done.result is not None:
                    yield replace(done, error=None)
                raise done.error
            yield done  # the caller publishes it; the model's next run begins after that
    except (KeyboardInterrupt, GeneratorExit, FleetError) as error:
        fleet.stop()
        for thread in running.values():
            thread.join()
        if not isinstance(error, GeneratorExit):
            yield from _decided(ended)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; {KEPT}") from error
        raise


def _decided(ended: SimpleQueue[tuple[Model, FleetRun | BaseException]]) -> Iterator[FleetRun]:
    """Yield the runs that were stopped and had decided some problem."""
    while not ended.empty():
        _, done = ended.get()
        if isinstance(done, FleetRun) and done.result is not None:
            yield replace(done, error=None)


def _run(
    fleet: Fleet,
    model: Model,
    request: Request,
    url: str,
    listener_of: Callable[[Request], Listener],
    end_s: float,
) -> FleetRun:
    """Run a request on all cards of its model, in the time that is left."""
    left_s = end_s - time.monotonic()
    try:
        if left_s <= 0:
            raise AutotuneError(
                f"{request.kernel.name} on {model.name}: not begun, the time is up; what was "
                "measured is kept: run the same command again"
            )
        fleet.measuring_place(model, request.device.uuid)  # waits for one where all are lost
        first, *others = [card.device for card in fleet.usable(model)]
        if left_s < math.inf:
            budget = request.total_budget
            own_s = math.inf if budget.seconds is None else budget.seconds
            budget = Budget(min(own_s, max(1.0, left_s)), budget.evaluations)
            request = replace(request, budget=budget)
        request = replace(request, device=first, others=tuple(others))
        with open_for_runs(url) as store:
            result = execute(request, store, listener_of(request), FleetSite(fleet))
        return FleetRun(request, result, result.ended)
    except AutotuneError as error:
        return FleetRun(request, None, error)

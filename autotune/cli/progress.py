"""Progress of runs: a bar on a terminal or in a notebook, a line every half a minute in logs.

Events come from the thread that searches; any other thread may ask a `RunStatus`.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import click
from rich.console import Console
from rich.jupyter import JupyterMixin
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from autotune.cli import shown
from autotune.measure.measurement import Measurement, Status
from autotune.measure.objective import TIME, Objective
from autotune.run.request import Request
from autotune.search.session import Budget, Event, Listener, Measured, SearchStarted, ignore
from autotune.values import Problem

#: Seconds between two lines of a log: a run of a day writes some thousands.
_LINE_S = 30.0
#: Seconds between two updates of a notebook's cell, which takes in a few a second.
_CELL_S = 0.3
#: Descriptions of a run's phases, by the name in a `Phase`.
PHASES = {
    "inputs": "computing the reference",
    "other inputs": "computing the reference for other inputs and sizes",
    "compiling": "compiling",
    "finals": "finals: the best, interleaved",
    "portfolio": "the best of all problems, on each problem",
    "sanitizer": "finalists under compute-sanitizer",
    "limits": "measuring what the device can do, once",
}

# Libraries of search strategies import a progress bar that looks for widgets in a notebook; they use none.
warnings.filterwarnings("ignore", message="IProgress not found")


@dataclass
class _SearchProgress:
    """The progress of one problem's search."""

    problem: Problem
    budget: Budget
    #: Configurations with a row, remembered ones included, and how many of them failed.
    tried: int = 0
    failed: int = 0
    best_cost: float | None = None
    #: When the budget is spent, by the clock; None where it limits no time.
    end_s: float | None = None


class RunStatus:
    """The progress of one run; a listener of its events."""

    def __init__(
        self,
        kernel: str,
        problems: int,
        objective: Objective = TIME,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kernel, self.problems, self.objective = kernel, problems, objective
        self._clock_s = clock_s
        self._searches: dict[Problem, _SearchProgress] = {}
        self._search: _SearchProgress | None = None
        #: Problem and description of the phase that goes on, where it is no search.
        self._phase: tuple[Problem, str] | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, SearchStarted):
                self._begin(event)
            elif isinstance(event, Measured):
                self._count(event)
            else:
                self._phase = event.problem, PHASES.get(event.name, event.name)

    def _begin(self, event: SearchStarted) -> None:
        new = _SearchProgress(event.problem, event.budget)
        search = self._searches.setdefault(event.problem, new)
        evaluations = event.budget.evaluations
        if evaluations is not None:
            evaluations += search.tried
        search.budget = Budget(event.budget.seconds, evaluations)
        search.end_s = None
        self._search, self._phase = search, None

    def _count(self, event: Measured) -> None:
        search, measurement = self._search, event.measurement
        assert search is not None
        search.tried += 1
        search.failed += not measurement.status.is_timed
        if event.seconds_left is not None:
            search.end_s = self._clock_s() + event.seconds_left
        cost = self._cost(measurement)
        if cost is not None and (search.best_cost is None or cost < search.best_cost):
            search.best_cost = cost

    def _cost(self, measurement: Measurement) -> float | None:
        if measurement.status is not Status.OK:
            return None
        return measurement.median_ms if self.objective.is_time else measurement.cost

    def title(self) -> str:
        """Return kernel and problem of the present phase or search."""
        with self._lock:
            if self._phase is not None:
                return f"{self.kernel} {self._phase[0]}"
            if self._search is None:
                return self.kernel
            number = list(self._searches).index(self._search.problem) + 1
            which = f"[{number}/{self.problems}] " if self.problems > 1 else ""
            return f"{which}{self.kernel} {self._search.problem}"

    def facts(self) -> str:
        """Return the phase, or the counts, the best and the time left of the present search."""
        with self._lock:
            search = self._search
            if self._phase is not None:
                return self._phase[1]
            if search is None:
                return "starting"
            most = search.budget.evaluations
            facts = [f"{search.tried} of {most} tried" if most else f"{search.tried} tried"]
            if search.best_cost is not None:
                facts.append(self._best(search.best_cost))
            if search.failed:
                facts.append(f"{search.failed} failed")
            if search.end_s is not None:
                facts.append(f"{max(0.0, search.end_s - self._clock_s()):.0f} s left")
            return ", ".join(facts)

    def _best(self, cost: float) -> str:
        value = 1 / cost if self.objective.higher_is_better else cost
        name = "" if self.objective.is_time else f"{self.objective.name} "
        return f"best {name}{value:.4g} {self.objective.unit}".rstrip()

    def line(self) -> str:
        """Return title and facts in one line."""
        return f"{self.title()}: {self.facts()}"

    def share(self) -> float | None:
        """Return the share of the present search's budget that is spent; None outside of a search."""
        with self._lock:
            search = self._search
            if self._phase is not None or search is None:
                return None
            if search.budget.evaluations:
                return min(1.0, search.tried / search.budget.evaluations)
            if search.end_s is not None and search.budget.seconds:
                return 1 - max(0.0, search.end_s - self._clock_s()) / search.budget.seconds
            return None


class RunProgress(Progress):
    """A listener that shows the progress of one run; a context manager around that run."""

    def __init__(self, kernel: str, problems: int, objective: Objective = TIME) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.status = RunStatus(kernel, problems, objective)
        self._title, self._task = "", TaskID(0)
        self._lines = StatusLines(self.status) if self.disable else None

    def start(self) -> None:
        super().start()
        if self._lines:
            self._lines.start()

    def stop(self) -> None:
        if self._lines:
            self._lines.end()
        super().stop()

    def __call__(self, event: Event) -> None:
        self.status(event)
        title, facts, share = self.status.title(), self.status.facts(), self.status.share()
        if title != self._title:
            for task in self.task_ids:
                self.remove_task(task)
            self._title, self._task = title, self.add_task(title, total=None, facts=facts)
        total = None if share is None else 1.0
        self.update(self._task, total=total, completed=share, facts=facts)


class NotebookProgress(RunProgress):
    """The same bar in the output of a notebook's cell; removed at the end.

    rich's own display in notebooks needs ipywidgets, and shows nothing without them.
    """

    def __init__(self, kernel: str, problems: int, show: Callable[[JupyterMixin], object]) -> None:
        super().__init__(kernel, problems)
        self._show = show
        self._shown_s = 0.0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if not isinstance(event, Measured) or time.monotonic() - self._shown_s > _CELL_S:
            self._show(self)
            self._shown_s = time.monotonic()

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._show(Text())


def progress_of(kernel: str, problems: int, quiet: bool) -> AbstractContextManager[Listener]:
    """Return the progress display of this process: a cell's, a terminal's or none."""
    if quiet:
        return nullcontext(ignore)
    if Console().is_jupyter:
        from IPython.display import display

        return NotebookProgress(kernel, problems, display(Text(), display_id=True).update)
    return RunProgress(kernel, problems)


class FleetProgress(Progress):
    """The progress of several runs at once, in a line each."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._shown: dict[tuple[str, str], tuple[TaskID, StatusLines]] = {}

    def listener(self, request: Request) -> Callable[[Event], None]:
        """Add a run that begins; return the listener of its events."""
        name, device = request.kernel.name, request.device.name
        cards = f", {len(request.devices)} cards" if request.others else ""
        status = RunStatus(name, len(request.problems), request.objective)
        row, lines = self.add_task(f"{name} on {device}"), StatusLines(status)
        self._shown[name, device] = row, lines
        if self.disable:
            lines.start()

        def listener(event: Event) -> None:
            status(event)
            self.update(row, description=f"{device}{cards}: {status.line()}")

        return listener

    def end(self, request: Request) -> None:
        """Remove a run."""
        found = self._shown.pop((request.kernel.name, request.device.name), None)
        if found is not None:
            row, lines = found
            self.remove_task(row)
            lines.end()


class StatusLines(threading.Thread):
    """A thread that writes a run's status to standard error every half a minute, for logs."""

    def __init__(self, status: RunStatus, every_s: float = _LINE_S) -> None:
        super().__init__(name="progress lines", daemon=True)
        self._status, self._every_s = status, every_s
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._every_s):
            with suppress(OSError, ValueError):  # standard error is closed
                click.echo(shown(self._status.line()), err=True)

    def end(self) -> None:
        """Write no further line."""
        self._ended.set()
        if self.is_alive():
            self.join(1.0)  # the line in progress comes before what follows

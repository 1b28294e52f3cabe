"""Progress of runs: a bar on a terminal or in a notebook, a line every half minute in logs.

Events come from the thread that searches; any thread may read a `RunStatus`.
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
from autotune.measure.measurement import Status
from autotune.measure.objective import TIME, Objective
from autotune.run.request import Request
from autotune.search.session import Budget, Event, Listener, Measured, SearchStarted, ignore
from autotune.values import Problem

#: Seconds between two lines of a log: a run of a day writes a few thousand.
_LINE_S = 30.0
#: Seconds between two updates of a notebook's cell.
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

# Libraries of search strategies import a progress bar that looks for widgets; they do not use it.
warnings.filterwarnings("ignore", message="IProgress not found")


@dataclass
class _SearchProgress:
    """The progress of one problem's search."""

    budget: Budget
    #: Configurations with a row, those from the store included, and how many of them failed.
    tried: int = 0
    failed: int = 0
    best_cost: float | None = None
    #: When the budget is spent, by the clock; None if it limits no time.
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
        self._problem: Problem | None = None
        #: Description of the present phase; empty during a search.
        self._phase = "starting"
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._problem = event.problem
            if isinstance(event, SearchStarted):
                self._begin(event)
            elif isinstance(event, Measured):
                self._count(event)
            else:
                self._phase = PHASES.get(event.name, event.name)

    def _begin(self, event: SearchStarted) -> None:
        search = self._searches.setdefault(event.problem, _SearchProgress(event.budget))
        count = event.budget.evaluations
        search.budget = Budget(
            event.budget.seconds, None if count is None else count + search.tried
        )
        search.end_s, self._phase = None, ""

    def _count(self, event: Measured) -> None:
        search, measurement = self._searches[event.problem], event.measurement
        search.tried += 1
        search.failed += not measurement.status.is_timed
        if event.seconds_left is not None:
            search.end_s = self._clock_s() + event.seconds_left
        if measurement.status is Status.OK:
            costs = (search.best_cost, measurement.cost)
            search.best_cost = min((known for known in costs if known is not None), default=None)

    def title(self) -> str:
        """Return the kernel, and the problem of the present phase or search."""
        with self._lock:
            if self._problem is None:
                return self.kernel
            number = list(self._searches).index(self._problem) + 1 if not self._phase else 0
            which = f"[{number}/{self.problems}] " if number and self.problems > 1 else ""
            return f"{which}{self.kernel} {self._problem}"

    def facts(self) -> str:
        """Return the phase, or the counts, the best and the time left of the present search."""
        with self._lock:
            if self._phase or self._problem is None:
                return self._phase
            search = self._searches[self._problem]
            most = search.budget.evaluations
            facts = [f"{search.tried} of {most} tried" if most else f"{search.tried} tried"]
            if (cost := search.best_cost) is not None:
                value = 1 / cost if self.objective.higher_is_better else cost
                words = ("best", self.objective.label, f"{value:.4g}", self.objective.unit)
                facts.append(" ".join(filter(None, words)))
            if search.failed:
                facts.append(f"{search.failed} failed")
            if search.end_s is not None:
                facts.append(f"{max(0.0, search.end_s - self._clock_s()):.0f} s left")
            return ", ".join(facts)

    def line(self) -> str:
        """Return title and facts in one line."""
        return f"{self.title()}: {self.facts()}"

    def share(self) -> float:
        """Return the share of the present search's budget that is spent; 0 if it is not known."""
        with self._lock:
            search = self._searches.get(self._problem) if self._problem else None
            if self._phase or search is None:
                return 0.0
            if search.budget.evaluations:
                return min(1.0, search.tried / search.budget.evaluations)
            if search.end_s is not None and search.budget.seconds:
                return 1 - max(0.0, search.end_s - self._clock_s()) / search.budget.seconds
            return 0.0


class _Bars(Progress):
    """A progress line for each run on a terminal; plain lines on standard error otherwise."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )

    def show(self, task: TaskID, label: str, status: RunStatus) -> None:
        """Show the status of a run in its line."""
        title = f"{label}{status.title()}"
        self.update(task, description=title, completed=status.share(), facts=status.facts())


class RunProgress(_Bars):
    """A listener that shows the progress of one run; a context manager around that run."""

    def __init__(self, kernel: str, problems: int, objective: Objective = TIME) -> None:
        super().__init__()
        self.status = RunStatus(kernel, problems, objective)
        self._task = self.add_task(kernel, total=1.0, facts="")
        self._lines = StatusLines(self.status)

    def start(self) -> None:
        super().start()
        if self.disable:
            self._lines.start()

    def stop(self) -> None:
        self._lines.end()
        super().stop()

    def __call__(self, event: Event) -> None:
        self.status(event)
        self.show(self._task, "", self.status)


class NotebookProgress(RunProgress):
    """The same bar in the output of a notebook's cell; removed at the end.

    The display of rich in notebooks needs ipywidgets, and shows nothing without them.
    """

    def __init__(self, kernel: str, problems: int, show: Callable[[JupyterMixin], object]) -> None:
        super().__init__(kernel, problems)
        self._show_in_cell = show
        self._shown_s = 0.0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if not isinstance(event, Measured) or time.monotonic() - self._shown_s > _CELL_S:
            self._show_in_cell(self)
            self._shown_s = time.monotonic()

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._show_in_cell(Text())


def progress_of(kernel: str, problems: int, quiet: bool) -> AbstractContextManager[Listener]:
    """Return the progress display of this process: a cell's, a terminal's or none."""
    if quiet:
        return nullcontext(ignore)
    if Console().is_jupyter:
        from IPython.display import display

        return NotebookProgress(kernel, problems, display(Text(), display_id=True).update)
    return RunProgress(kernel, problems)


class FleetProgress(_Bars):
    """The progress of several runs at once."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[tuple[str, str], tuple[TaskID, StatusLines]] = {}

    def listener(self, request: Request) -> Callable[[Event], None]:
        """Add a run that begins; return the listener of its events."""
        name, device = request.kernel.name, request.device.name
        cards = f", {len(request.devices)} cards" if request.others else ""
        status = RunStatus(name, len(request.problems), request.objective)
        task, lines = self.add_task(f"{device}: {name}", total=1.0, facts=""), StatusLines(status)
        self._runs[name, device] = task, lines
        if self.disable:
            lines.start()

        def listener(event: Event) -> None:
            status(event)
            self.show(task, f"{device}{cards}: ", status)

        return listener

    def end(self, request: Request) -> None:
        """Remove a run."""
        found = self._runs.pop((request.kernel.name, request.device.name), None)
        if found is not None:
            task, lines = found
            self.remove_task(task)
            lines.end()


class StatusLines(threading.Thread):
    """A thread that writes a run's status to standard error every half minute, for logs."""

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
            self.join(1.0)  # the line in progress comes before the next output

"""Show the progress of runs: one line on a terminal or in a notebook, a line per 30 s in a log."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

import click
from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from autotune.measure.measurement import TIME, Objective, Status
from autotune.report.wording import printable
from autotune.run.request import Request
from autotune.search.session import Event, Listener, Measured, SearchStarted, ignore
from autotune.values import Configuration, Problem

#: Seconds between two lines in a log: 2,880 lines a day.
_LINE_S = 30.0
#: Seconds between two updates of a notebook's cell.
_CELL_S = 0.3
#: Descriptions of a run's phases by name; see `Phase`.
PHASES = {
    "inputs": "inputs and reference",
    "reference": "waiting for the reference",
    "other inputs": "computing the reference for other inputs and sizes",
    "finals": "finals: the best, interleaved",
    "portfolio": "the best of all problems, on each problem",
    "random sizes": "the best of all problems, on random sizes",
    "sanitizer": "finalists under compute-sanitizer",
    "checks": "inputs that verification may not notice, and extreme values",
}
#: The shares of a run's time by phase. A phase without a name here counts as its predecessor.
_SHARES = {
    "inputs": "inputs",
    "reference": "reference",
    "search": "search",
    "other inputs": "reference",
    "finals": "finals",
    "sanitizer": "compute-sanitizer",
    "portfolio": "portfolio",
    "random sizes": "portfolio",
    "checks": "checks",
    "report": "report",
}
#: Shares below this are not shown.
_MIN_SHARE = 0.01

# Search libraries import a progress bar that warns of missing widgets, but they do not use it.
warnings.filterwarnings("ignore", message="IProgress not found")


@dataclass
class _SearchProgress:
    """The progress of one problem's search."""

    #: Configurations tried, including results from the store: whether each failed. A pending result may fail later.
    has_failed: dict[Configuration, bool] = field(default_factory=dict)
    #: Costs of the others that were measured in full.
    costs: dict[Configuration, float] = field(default_factory=dict)
    failed: int = 0
    #: Maximum number of configurations to try; None without such a budget.
    most: int | None = None
    best_cost: float | None = None
    seconds_left: float | None = None

    @property
    def tried(self) -> int:
        return len(self.has_failed)


@dataclass
class RunStatus:
    """The progress of one run as a line; a listener of its events."""

    kernel: str
    problems: int
    objective: Objective = TIME
    line: str = "starting"
    #: Time at which the phase of the line began (`time.monotonic`); None during a search.
    since_s: float | None = None
    _searches: dict[Problem, _SearchProgress] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        title = f"{self.kernel} {event.problem}"
        if not isinstance(event, SearchStarted | Measured):
            self.line = f"{title}: {PHASES.get(event.name, event.name)}"
            self.since_s = time.monotonic()
            return
        self.since_s = None
        search = self._searches.setdefault(event.problem, _SearchProgress())
        if isinstance(event, SearchStarted):
            count = event.budget.evaluations
            search.most, search.seconds_left = count and count + search.tried, None
        else:
            _count(search, event)
        number = list(self._searches).index(event.problem) + 1
        which = f"[{number}/{self.problems}] " if self.problems > 1 else ""
        self.line = f"{which}{title}: {self._facts(search)}"

    def _facts(self, search: _SearchProgress) -> str:
        facts = [
            f"{search.tried} of {search.most} tried" if search.most else f"{search.tried} tried"
        ]
        if search.best_cost is not None:
            words = ("best", self.objective.label, f"{search.best_cost:.4g}", self.objective.unit)
            facts.append(" ".join(filter(None, words)))
        if search.failed:
            facts.append(f"{search.failed} failed")
        if search.seconds_left is not None:
            facts.append(f"{max(0.0, search.seconds_left):.0f} s left")
        return ", ".join(facts)


def _count(search: _SearchProgress, event: Measured) -> None:
    configuration, status = event.measurement.configuration, event.measurement.status
    # A configuration that exceeds the device's resources is not a failure of the kernel.
    is_failure = not (status.is_timed or status in (Status.PRUNED, Status.PENDING))
    search.failed += is_failure - search.has_failed.get(configuration, False)
    search.has_failed[configuration] = is_failure
    search.seconds_left = event.seconds_left
    cost = event.measurement.cost if status in (Status.OK, Status.PENDING) else None
    before = search.costs.pop(configuration, None)
    if cost is not None:
        search.costs[configuration] = cost
    if before is not None:
        search.best_cost = min(search.costs.values(), default=None)
    elif cost is not None and (search.best_cost is None or cost < search.best_cost):
        search.best_cost = cost


class TimeShares:
    """The time of each phase of a run on one device; a listener of its events."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(_SHARES.values(), 0.0)
        #: Seconds of compilers, which work during other phases.
        self._compile_s = 0.0
        self._phase, self._since_s = "inputs", time.monotonic()

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Measured) and not event.is_remembered:
            self._compile_s += event.measurement.compile_s
        self.begin("search" if isinstance(event, SearchStarted | Measured) else event.name)

    def begin(self, phase: str) -> None:
        """End the current phase and begin another one."""
        now_s = time.monotonic()
        self._seconds[_SHARES[self._phase]] += now_s - self._since_s
        self._phase, self._since_s = phase if phase in _SHARES else self._phase, now_s

    def __str__(self) -> str:
        total_s = sum(self._seconds.values())
        shown = [
            f"{name} {seconds / total_s:.0%}"
            for name, seconds in self._seconds.items()
            if seconds >= _MIN_SHARE * total_s
        ]
        compiled = f"; compilers worked {self._compile_s:.1f} s" if self._compile_s else ""
        return f"{total_s:.1f} s: {', '.join(shown)}{compiled}"


class _PhaseTime(ProgressColumn):
    """The time since the phase of a line began."""

    def render(self, task: Task) -> Text:
        """Return the time in seconds; nothing during a search."""
        since_s = task.fields.get("since_s")
        return Text("" if since_s is None else f"({time.monotonic() - since_s:.0f} s)")


class RunsProgress(Progress):
    """A line for each device on a terminal; plain lines on standard error otherwise."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _PhaseTime(),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task_of: dict[str, TaskID] = {}

    def listener(self, status: RunStatus, device: str = "") -> Listener:
        """Return the listener of a new run, whose line replaces the device's previous line."""
        label = f"{device}: " if device else ""
        if device not in self._task_of:
            self._task_of[device] = self.add_task("", total=None)

        def log(line: str) -> None:
            with suppress(OSError, ValueError):  # standard error is closed
                click.echo(printable(f"{label}{line}"), err=True)

        def show(line: str) -> None:
            description = printable(f"{label}{line}")
            self.update(self._task_of[device], description=description, since_s=status.since_s)

        if self.disable:
            return _every(_LINE_S, status, log, phases=False)
        return _every(0.0, status, show)

    def listener_of(self, request: Request) -> Listener:
        """Return the listener of a run on a fleet."""
        cards = f", {len(request.devices)} cards" if request.others else ""
        status = RunStatus(request.kernel.name, len(request.problems), request.objective)
        return self.listener(status, f"{request.device.name}{cards}")


def _every(
    seconds: float, status: RunStatus, show: Callable[[str], object], phases: bool = True
) -> Listener:
    """Return a listener that shows a run's line at most once in this time, and at each new phase."""
    shown_s = time.monotonic()

    def listener(event: Event) -> None:
        nonlocal shown_s
        status(event)
        now_s = time.monotonic()
        if now_s - shown_s >= seconds or (phases and not isinstance(event, Measured)):
            shown_s = now_s
            show(status.line)

    return listener


@contextmanager
def run_progress(kernel: str, problems: int, objective: Objective = TIME) -> Iterator[Listener]:
    """Show the progress of one run on a terminal or in a log."""
    with RunsProgress() as progress:
        yield progress.listener(RunStatus(kernel, problems, objective))


@contextmanager
def cell_progress(kernel: str, problems: int, show: Callable[[Text], object]) -> Iterator[Listener]:
    """Show the progress of one run in a notebook's cell; clear the line at the end.

    The progress display of rich is not used, because it needs ipywidgets in a notebook.
    """
    yield _every(_CELL_S, RunStatus(kernel, problems), lambda line: show(Text(line)))
    show(Text())


def progress_of(kernel: str, problems: int, quiet: bool) -> AbstractContextManager[Listener]:
    """Return the progress display of this process: a cell's, a terminal's or none."""
    if quiet:
        return nullcontext(ignore)
    if Console().is_jupyter:
        from IPython.display import display

        return cell_progress(kernel, problems, display(Text(), display_id=True).update)
    return run_progress(kernel, problems)

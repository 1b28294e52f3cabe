"""Progress of a run on a terminal: time left, best so far, failures by kind. Quiet in pipes."""

from __future__ import annotations

import sys
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from autotune.measure.measurement import Status
from autotune.search.session import Event, Measured, SearchStarted

_PHASES = {
    "inputs": "making inputs and references",
    "compiling": "compiling",
    "finals": "finals: the best, interleaved",
    "portfolio": "the best of all problems, on each problem",
    "sanitizer": "finalists under compute-sanitizer",
    "limits": "measuring what the device can do, once",
}


class RunProgress:
    """A listener for the engine's events, and a context manager around the run."""

    def __init__(self, kernel: str, problems: int) -> None:
        self.kernel, self.problems = kernel, problems
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self.console,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.statuses: Counter[Status] = Counter()
        self._task: TaskID | None = None
        self._seen = 0
        self._started = 0

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, SearchStarted):
            self._begin(event)
        elif isinstance(event, Measured):
            self._measured(event)
        else:
            self._say(f"{self.kernel} {event.problem}", _PHASES.get(event.name, event.name))

    def _begin(self, event: SearchStarted) -> None:
        self._seen, self._started = 0, self._started + 1
        self.statuses.clear()
        limit = event.budget.evaluations or event.budget.seconds
        self._say(
            f"[{self._started}/{self.problems}] {self.kernel} {event.problem}",
            f"{event.configurations} configurations, {event.remembered} remembered",
            total=limit,
        )

    def _measured(self, event: Measured) -> None:
        self._seen += 1
        self.statuses[event.measurement.status] += 1
        failed = sum(n for status, n in self.statuses.items() if not status.is_timed)
        facts = [f"{self._seen} tried"]
        if event.best_ms is not None:
            facts.append(f"best {event.best_ms:.4g} ms")
        if failed:
            facts.append(f"{failed} failed")
        if event.seconds_left is not None:
            facts.append(f"{max(0, event.seconds_left):.0f} s left")
        if self._task is not None:
            total = self.bar.tasks[-1].total or 0
            done = self._seen if event.seconds_left is None else total - event.seconds_left
            self.bar.update(self._task, completed=done, facts=", ".join(facts))

    def _say(self, description: str, facts: str, total: float | None = None) -> None:
        if self._task is not None:
            self.bar.remove_task(self._task)
        self._task = self.bar.add_task(description, total=total, facts=facts)

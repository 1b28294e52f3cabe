"""Progress of a run on a terminal: time left, best so far, failures by kind. Quiet in pipes."""

from __future__ import annotations

import sys
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from autotune.measure.measurement import Status
from autotune.search.session import Event, Measured, SearchStarted

_PHASES = {
    "inputs": "computing the reference",
    "other inputs": "computing the reference for other inputs and sizes",
    "compiling": "compiling",
    "finals": "finals: the best, interleaved",
    "portfolio": "the best of all problems, on each problem",
    "sanitizer": "finalists under compute-sanitizer",
    "limits": "measuring what the device can do, once",
}


class RunProgress(Progress):
    """A listener for the engine's events, and a context manager around the run."""

    def __init__(self, kernel: str, problems: int) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.kernel, self.problems = kernel, problems
        self.statuses: Counter[Status] = Counter()
        self._searches = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, SearchStarted):
            self._begin(event)
        elif isinstance(event, Measured):
            self._measured(event)
        else:
            self._say(f"{self.kernel} {event.problem}", _PHASES.get(event.name, event.name))

    def _begin(self, event: SearchStarted) -> None:
        self._searches += 1
        self.statuses.clear()
        self._say(
            f"[{self._searches}/{self.problems}] {self.kernel} {event.problem}",
            f"{event.configurations} configurations, {event.remembered} remembered",
            total=event.budget.evaluations or event.budget.seconds,
        )

    def _measured(self, event: Measured) -> None:
        self.statuses[event.measurement.status] += 1
        tried = self.statuses.total()
        failed = sum(n for status, n in self.statuses.items() if not status.is_timed)
        facts = [f"{tried} tried"]
        if event.best_ms is not None:
            facts.append(f"best {event.best_ms:.4g} ms")
        if failed:
            facts.append(f"{failed} failed")
        if event.seconds_left is not None:
            facts.append(f"{max(0, event.seconds_left):.0f} s left")
        for task in self.tasks:
            left = event.seconds_left
            done = tried if left is None else (task.total or 0) - left
            self.update(task.id, completed=done, facts=", ".join(facts))

    def _say(self, description: str, facts: str, total: float | None = None) -> None:
        for task in self.tasks:
            self.remove_task(task.id)
        self.add_task(description, total=total, facts=facts)

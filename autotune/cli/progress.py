"""Progress of a run on a terminal or in a notebook: time left, best so far, failures. Quiet in pipes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

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
#: Between two pictures in a notebook, which takes in a few a second.
_NOTEBOOK_S = 0.3


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


class NotebookProgress(RunProgress):
    """The same in a notebook, in the output of its cell; gone when the run is over.

    What `rich` brings for notebooks needs ipywidgets, and shows nothing where they are missing.
    """

    def __init__(self, kernel: str, problems: int) -> None:
        super().__init__(kernel, problems)
        self._output: Any = None
        self._shown_s = 0.0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if time.monotonic() - self._shown_s > _NOTEBOOK_S or not isinstance(event, Measured):
            self._output.update(self)
            self._shown_s = time.monotonic()

    def __enter__(self) -> NotebookProgress:
        from IPython.display import display

        self._output = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._output.update({"text/plain": ""}, raw=True)


class _NoProgress:
    """Nothing is shown."""

    def __call__(self, event: Event) -> None:
        pass

    def __enter__(self) -> _NoProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def progress_of(kernel: str, problems: int, quiet: bool) -> RunProgress | _NoProgress:
    """What shows progress where this process shows anything: a notebook, a terminal, or not."""
    if quiet:
        return _NoProgress()
    return (NotebookProgress if Console().is_jupyter else RunProgress)(kernel, problems)

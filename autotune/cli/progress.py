"""Progress of a run on a terminal: time left, best so far, failures by kind. Elsewhere a line now and then."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from autotune.cli import shown
from autotune.cli.standing import PHASES, Standing
from autotune.measure.measurement import Status
from autotune.measure.objective import TIME, Objective
from autotune.run.request import Request
from autotune.search.session import Event, Measured, SearchStarted
from autotune.values import Problem

#: Between two lines where there is no terminal: of a day's run a log holds some thousands.
_LINE_S = 30.0


class RunProgress(Progress):
    """A listener for the engine's events, and a context manager around the run."""

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
        self.kernel, self.problems = kernel, problems
        self.statuses: Counter[Status] = Counter()
        self._begun: list[Problem] = []
        self.standing = Standing(kernel, problems, objective)
        self._lines = _Lines(self.standing) if self.disable else None

    def start(self) -> None:
        """Show it from now on."""
        super().start()
        if self._lines:
            self._lines.start()

    def stop(self) -> None:
        """Show it no more."""
        if self._lines:
            self._lines.end()
        super().stop()

    def __call__(self, event: Event) -> None:
        self.standing(event)
        if isinstance(event, SearchStarted):
            self._begin(event)
        elif isinstance(event, Measured):
            self._measured(event)
        else:
            self._say(f"{self.kernel} {event.problem}", PHASES.get(event.name, event.name))

    def _begin(self, event: SearchStarted) -> None:
        self.statuses.clear()
        if event.problem not in self._begun:
            self._begun.append(event.problem)
        number = self._begun.index(event.problem) + 1  # searches are gone on with in any order
        self._say(
            f"[{number}/{self.problems}] {self.kernel} {event.problem}",
            f"{event.configurations} configurations, {event.remembered} remembered",
            total=event.budget.evaluations or event.budget.seconds,
        )

    def _measured(self, event: Measured) -> None:
        self.statuses[event.measurement.status] += 1
        tried = self.statuses.total()
        failed = sum(n for status, n in self.statuses.items() if not status.is_timed)
        facts = [f"{tried} tried"]
        if best := self.standing.best_words():
            facts.append(best)
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


class FleetProgress(Progress):
    """Where several runs stand at once: a line for each on a terminal, else one of each now and then."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._shown: dict[tuple[str, str], tuple[TaskID, _Lines]] = {}

    def listener(self, request: Request) -> Callable[[Event], None]:
        """What is told of a run that begins."""
        name, device = request.kernel.name, request.device.name
        cards = f", {len(request.devices)} cards" if request.others else ""
        standing = Standing(name, len(request.problems), request.objective)
        row, lines = self.add_task(f"{name} on {device}"), _Lines(standing)
        self._shown[name, device] = row, lines
        if self.disable:
            lines.start()

        def told(event: Event) -> None:
            standing(event)
            self.update(row, description=f"{device}{cards}: {standing.line()}")

        return told

    def end(self, request: Request) -> None:
        """Show a run no more."""
        shown = self._shown.pop((request.kernel.name, request.device.name), None)
        if shown is not None:
            row, lines = shown
            self.remove_task(row)
            lines.end()


class _Lines(threading.Thread):
    """Says where a run stands, in one line every half a minute: for logs, which show no bars."""

    def __init__(self, standing: Standing, every_s: float = _LINE_S) -> None:
        super().__init__(name="progress lines", daemon=True)
        self._standing, self._every_s = standing, every_s
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._every_s):
            with suppress(OSError, ValueError):  # nobody reads any more
                click.echo(shown(self._standing.line()), err=True)

    def end(self) -> None:
        """Say no more."""
        self._ended.set()
        if self.is_alive():
            self.join(1.0)  # what it is saying comes before what follows

"""What a fleet is asked to do: kernels on models of cards, the longest first. Starts nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.run.request import Request
from autotune.search.session import Budget


@dataclass(frozen=True)
class Task:
    """One kernel's problems on one model: a run, which several cards share."""

    request: Request

    @property
    def length(self) -> tuple[float, int]:
        """What to order by: its time, and where that is not limited how much it measures."""
        budget = self.request.total_budget
        seconds = math.inf if budget.seconds is None else budget.seconds
        return seconds, budget.evaluations or len(self.request.problems)

    def on(self, devices: Sequence[Device], seconds_left: float) -> Request:
        """What to run on these cards in the time that is left."""
        first, *others = devices
        budget = self.request.total_budget
        if seconds_left < math.inf:
            own_s = math.inf if budget.seconds is None else budget.seconds
            budget = Budget(min(own_s, max(1.0, seconds_left)), budget.evaluations)
        return replace(self.request, device=first, others=tuple(others), budget=budget)


def planned(requests: Iterable[Request]) -> list[Task]:
    """Runs in the order in which they are begun: the longest first, so that none is left alone at the end.

    Raises
    ------
    UsageError
        If one names what cannot be sent to other machines, or no problem of its kernel.
    """
    tasks = []
    for request in requests:
        name = request.kernel.name
        if request.inputs:
            raise UsageError(
                f"{name}: inputs of a file stay on this machine, and a fleet draws its own: leave "
                "--inputs out, or tune with --device"
            )
        if request.sanitize:
            raise UsageError(
                f"{name}: compute-sanitizer runs on this machine, not in a fleet; tune without "
                f"--sanitize, then on one GPU: autotune run {name} --config … --sanitize"
            )
        if request.effort.sanitizes and request.device.has_nvidia_tools and request.only is None:
            warnings.warn(
                f"{name}: in a fleet finalists are not run under compute-sanitizer, which --effort "
                f"{request.effort.name} does on one machine; for a winner run there: "
                f"autotune run {name} --config … --sanitize",
                stacklevel=2,
            )
        tasks.append(Task(request.with_default_problems()))
    return sorted(tasks, key=lambda task: task.length, reverse=True)

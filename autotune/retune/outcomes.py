"""The options of re-tuning, and the outcome of each problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.retune.stale import Target
from autotune.run.request import EFFORTS, Effort
from autotune.search.session import Budget, Listener, ignore
from autotune.values import Value

if TYPE_CHECKING:
    from autotune.fleet.client import Fleet

#: Function that shows the progress of one run, given the kernel's name and the number of problems.
Progress = Callable[[str, int], AbstractContextManager[Listener]]


class RetuneStatus(StrEnum):
    """The status of a stale problem after re-tuning."""

    SEARCHED = "searched"
    #: Measured again: correct, not surely slower than recorded, and still among the fastest.
    CONFIRMED = "confirmed"
    #: Not begun: no time was left, or it was a dry run.
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class RetuneOutcome:
    """The result for one stale problem, or for a whole kernel that could not be compared."""

    kernel: str
    device: str = ""
    problem: Mapping[str, int | str] = field(default_factory=dict)
    why: str = ""
    action: str = ""
    result: RetuneStatus = RetuneStatus.FAILED
    message: str = ""
    before_ms: float | None = None
    after_ms: float | None = None

    @classmethod
    def of(
        cls,
        target: Target,
        result: RetuneStatus,
        message: str = "",
        after_ms: float | None = None,
    ) -> RetuneOutcome:
        """Return the outcome of a target."""
        return cls(
            kernel=target.kernel.name,
            device=target.device.name,
            problem=target.problem,
            why=target.why,
            action=str(target.action),
            result=result,
            message=message,
            before_ms=target.known.entry.median_ms if target.known else None,
            after_ms=after_ms,
        )


@dataclass(frozen=True)
class RetuneOptions:
    """The options of re-tuning and of the regression gate."""

    #: Minimum effort of a search; an entry that was tuned with more effort is searched with that effort.
    effort: Effort = EFFORTS["quick"]
    strategy: str = "auto"
    strategy_options: Mapping[str, Value] = field(default_factory=dict)
    #: Budget of each problem's search; None: the budget of the effort.
    budget: Budget | None = None
    #: Time in seconds after which no search begins.
    seconds: float = math.inf
    #: Whether problems share ``seconds`` equally; effort and budget follow from the share.
    share_seconds: bool = False
    #: Whether to list the targets as skipped and tune nothing.
    dry_run: bool = False
    #: Folder for records, headers and reports, which go to ``out/<device>/``.
    out: Path = Path("reports")
    command: str = ""
    progress: Progress = lambda kernel, problems: nullcontext(ignore)
    #: The fleet whose cards of the device's model measure; None: this machine measures.
    fleet: Fleet | None = None
    #: Function that prints a message for people.
    say: Callable[[str], None] = lambda _: None

"""Chooses between two entries of a problem, and compares two records problem by problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autotune.answers.table import Sizes, Value
from autotune.errors import UsageError
from autotune.tuned.dates import moment
from autotune.tuned.record import EFFORTS, TunedProblem, TunedRecord, key_of
from autotune.tuned.writing import by_rule


def by_effort_and_date(
    old: TunedProblem, new: TunedProblem
) -> tuple[Literal["kept", "replaced"], str]:
    """Choose the entry of more effort, else the later entry unless it is clearly slower; return the reason, too."""
    mine, theirs = old.origin, new.origin
    has_less_effort = EFFORTS.index(mine.effort) < EFFORTS.index(theirs.effort)
    if not has_less_effort and moment(theirs.tuned_on) < moment(mine.tuned_on):
        return "kept", f"tuned later here ({mine.tuned_on[:10]}, theirs {theirs.tuned_on[:10]})"
    return by_rule(old, new)


# ---------------------------------------------------------------------- two records of one kernel


#: The change of a problem from the first record to the second. ``held``: within the threshold, or the
#: intervals allow no change. ``other_device``: two device models. ``other_timing``: two ways of timing, so
#: there is no ratio.
Change: TypeAlias = Literal[
    "held", "faster", "slower", "other_device", "other_timing", "only_first", "only_second"
]


@dataclass(frozen=True)
class ComparedProblem:
    """A problem in two records."""

    problem: Sizes
    change: Change
    first: TunedProblem | None
    second: TunedProblem | None
    #: Parameters in which the winners differ, with both values; None for a missing parameter.
    differing: dict[str, tuple[Value | None, Value | None]]
    #: Time of the second over the time of the first.
    ratio: float | None = None
    #: Smallest and largest ratio that both 95 % intervals allow.
    ratio_interval: tuple[float, float] | None = None


def compared(first: TunedRecord, second: TunedRecord, threshold: float) -> list[ComparedProblem]:
    """Compare two records of one kernel; the problems of the first record come first.

    A problem is slower only on one device model, and only if the smallest ratio that both intervals allow
    exceeds 1 by more than ``threshold``.
    """
    for noun in ("kernel", "objective"):
        here, there = getattr(first, noun), getattr(second, noun)
        if here != there:
            raise UsageError(
                f"the records have two {noun}s, {here} and {there}; compare records of the same {noun}"
            )
    problems = {key_of(entry.problem): entry.problem for entry in first.problems}
    for entry in second.problems:
        problems.setdefault(key_of(entry.problem), entry.problem)
    return [_compared(first, second, problem, threshold) for problem in problems.values()]


def _compared(
    first_record: TunedRecord, second_record: TunedRecord, problem: Sizes, threshold: float
) -> ComparedProblem:
    first, second = first_record.tuned(problem), second_record.tuned(problem)
    if first is None or second is None:
        change: Change = "only_first" if second is None else "only_second"
        return ComparedProblem(problem, change, first, second, {})
    differing = _differing(first, second)
    if first.race.timing != second.race.timing:
        return ComparedProblem(problem, "other_timing", first, second, differing)
    least = second.winner.time_ms.interval[0] / first.winner.time_ms.interval[1]
    most = second.winner.time_ms.interval[1] / first.winner.time_ms.interval[0]
    change = "held"
    if not first_record.device.is_of(second_record.device):
        change = "other_device"
    elif least > 1 + threshold:
        change = "slower"
    elif most < 1 - threshold:
        change = "faster"
    ratio = second.median_ms / first.median_ms
    return ComparedProblem(problem, change, first, second, differing, ratio, (least, most))


def _differing(
    first: TunedProblem, second: TunedProblem
) -> dict[str, tuple[Value | None, Value | None]]:
    names = dict.fromkeys([*first.configuration, *second.configuration])
    pairs = {
        name: (first.configuration.get(name), second.configuration.get(name)) for name in names
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if type(a) is not type(b) or a != b}

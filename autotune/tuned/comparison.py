"""Compares two tuned records of one kernel, problem by problem."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.errors import UsageError
from autotune.tuned.record import Sizes, TunedProblem, TunedRecord, Value, key_of


class Change(StrEnum):
    """The change of a problem from the first record to the second."""

    #: Within the threshold, or equal by the intervals.
    HELD = "held"
    FASTER = "faster"
    SLOWER = "slower"
    #: Times of two devices, which are no change of one.
    OTHER_DEVICE = "other_device"
    #: Timed in two ways, so that no ratio means anything.
    OTHER_TIMING = "other_timing"
    ONLY_FIRST = "only_first"
    ONLY_SECOND = "only_second"


@dataclass(frozen=True)
class ComparedProblem:
    """A problem in two records."""

    problem: Sizes
    change: Change
    first: TunedProblem | None
    second: TunedProblem | None
    #: Parameters in which the winners differ, with both values; None where one has no such parameter.
    differing: dict[str, tuple[Value | None, Value | None]]
    #: Time of the second over the first, and the least and most that both 95 % intervals allow.
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None


def compared(first: TunedRecord, second: TunedRecord, threshold: float) -> list[ComparedProblem]:
    """Compare two records of one kernel, the problems of the first in its order.

    A problem is slower only on one model of device, and only where even the least ratio that both
    intervals allow is above 1 by more than ``threshold``, a share.
    """
    if first.kernel != second.kernel:
        raise UsageError(
            f"these are records of two kernels, {first.kernel} and {second.kernel}: their times say "
            "nothing of each other"
        )
    if first.objective != second.objective:
        raise UsageError(
            f"{first.kernel}: the first record is tuned for {first.objective}, the second for "
            f"{second.objective}: winners of two objectives; compare records of one (--objective)"
        )
    problems = {key_of(entry.problem): entry for entry in (*second.problems, *first.problems)}
    order = dict.fromkeys(key_of(entry.problem) for entry in (*first.problems, *second.problems))
    same_device = first.device.folder == second.device.folder
    return [
        _compared(
            problems[key].problem,
            first.tuned(problems[key].problem),
            second.tuned(problems[key].problem),
            threshold if same_device else None,
        )
        for key in order
    ]


def _compared(
    problem: Sizes, first: TunedProblem | None, second: TunedProblem | None, threshold: float | None
) -> ComparedProblem:
    """Compare one problem; a ``threshold`` of None means two devices."""
    if first is None or second is None:
        change = Change.ONLY_FIRST if second is None else Change.ONLY_SECOND
        return ComparedProblem(problem, change, first, second, {})
    differing = _differing(first, second)
    if first.race.timing != second.race.timing:
        return ComparedProblem(problem, Change.OTHER_TIMING, first, second, differing)
    least = second.winner.time_ms.interval[0] / first.winner.time_ms.interval[1]
    most = second.winner.time_ms.interval[1] / first.winner.time_ms.interval[0]
    change = Change.HELD
    if threshold is None:
        change = Change.OTHER_DEVICE
    elif least > 1 + threshold:
        change = Change.SLOWER
    elif most < 1 - threshold:
        change = Change.FASTER
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

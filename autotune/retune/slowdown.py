"""The rule of the regression gate: whether a winner is slower than recorded, from recorded and new times.

Between two sessions a device changes its state: clocks, other programs, another card. All contenders of a race
share the state, so the winner's change is compared with the changes of the others. Their spread is the noise
between sessions, which no single session shows. All functions are pure functions of medians and intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from autotune.tuned.record import Estimate, RaceResult

#: Minimum number of other contenders that tell the device's state.
_MIN_OTHERS = 3
#: Student's t with a probability of 2.5 % above it, for two and more degrees of freedom.
_STUDENT_T = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365)
#: Half the width of a 95 % interval, in standard deviations of a normal distribution.
_NORMAL = 1.96
#: If the logarithm of the others' change exceeds this multiple of the threshold's, the interval is wider by
#: their change: contenders follow a large change of the device in different ways.
_MAX_CHANGE = 5.0
#: At this share of the recorded SM clock a device is in the recorded state.
_SAME_CLOCK = 0.98


@dataclass(frozen=True)
class Slowdown:
    """The new times of a recorded winner over its recorded times."""

    ratio: Estimate
    #: The ratio over that of the other contenders; None if they are too few.
    relative: Estimate | None = None
    #: Whether the device reports the SM clock of the record.
    has_recorded_clock: bool = False

    @classmethod
    def between(cls, now: RaceResult, then: RaceResult) -> Slowdown:
        """Compare the winner of a recorded race in a new race, which it need not have won."""
        known = ((found, now.of(found.configuration or {})) for found in then.finalists)
        ratios = [over_recorded(again.time_ms, found.time_ms) for found, again in known if again]
        return cls(
            ratios[0],
            over_others(ratios[0], ratios[1:]),
            bool(then.sm_mhz and now.sm_mhz and now.sm_mhz >= _SAME_CLOCK * then.sm_mhz),
        )

    def change(self, threshold: float) -> Literal["held", "faster", "slower", "undecided"]:
        """Return whether the winner lost at least ``threshold``, as a share of its recorded time.

        The interval without the device's state decides: below the threshold the winner held; above half of
        it the winner is slower, so that a loss of the threshold itself is found. It is wider if the
        other contenders changed much more, see `_MAX_CHANGE`. If the device has its recorded clock, a time that
        is surely above the threshold is a loss, too.
        """
        if self.has_recorded_clock and self.ratio.interval[0] > 1 + threshold:
            return "slower"
        others = abs(math.log(self.ratio.value / self.relative.value)) if self.relative else 0.0
        low, high = (self.relative or self.ratio).interval
        if others > _MAX_CHANGE * math.log1p(threshold):
            low, high = low / math.exp(others), high * math.exp(others)
        if high < 1 + threshold:
            return "faster" if high < 1 - threshold else "held"
        return "slower" if self.relative and low > 1 + threshold / 2 else "undecided"

    @property
    def text(self) -> str:
        """The ratio, and the interval that decides."""
        said = f"{self.ratio.value:.3f} times its recorded time"
        if self.relative is None:
            return "{} ({:.3f} … {:.3f})".format(said, *self.ratio.interval)
        return "{}, {:.3f} ({:.3f} … {:.3f}) over its runners-up's change".format(
            said, self.relative.value, *self.relative.interval
        )


def over_recorded(now: Estimate, then: Estimate) -> Estimate:
    """Return the new time over the recorded time, with its 95 % interval.

    Compute the interval of a ratio from the intervals of two independent medians (MOVER on logarithms:
    Zou & Donner, Statistics in Medicine 27, 2008). A recorded interval that does not contain its own
    median counts as an interval of width 0.
    """
    low, high = now.interval
    then_low, then_high = then.interval
    if not 0 < then_low <= then.value <= then_high:
        then_low = then_high = then.value
    down = math.hypot(math.log(now.value / low), math.log(then_high / then.value))
    up = math.hypot(math.log(high / now.value), math.log(then.value / then_low))
    value = now.value / then.value
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def over_others(winner: Estimate, others: Sequence[Estimate]) -> Estimate | None:
    """Return a winner's ratio over the mean ratio of the others; None if these are fewer than `_MIN_OTHERS`.

    The interval is where the ratio of one more such contender lies with 95 % probability (Student's t on
    logarithms), or wider: no contender counts as less noisy than its own interval says.
    """
    if len(others) < _MIN_OTHERS:
        return None
    logs = [math.log(other.value) for other in others]
    middle = fmean(logs)
    spread = sum((log - middle) ** 2 for log in logs) / (len(logs) - 1)
    noise = max(spread, fmean(map(_variance, others)))
    own = max(noise, _variance(winner))
    t = _STUDENT_T[min(len(others) - _MIN_OTHERS, len(_STUDENT_T) - 1)]
    reach = math.exp(t * math.sqrt(own + noise / len(others)))
    value = winner.value / math.exp(middle)
    return Estimate(value, value / reach, value * reach)


def _variance(ratio: Estimate) -> float:
    """Return the variance of the logarithm of a ratio, from its interval."""
    low, high = ratio.interval
    return (math.log(high / low) / (2 * _NORMAL)) ** 2

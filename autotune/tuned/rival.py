"""Which call of another library answers a tuned problem in place of the winner."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.tuned.record import RaceResult

#: A call answers if it is better than the winner by more than this share.
_LEAD = 0.01
#: Minimum number of rounds of the race: fewer prove no difference.
_ROUNDS = 6


@dataclass(frozen=True)
class TunedCall:
    """A call of another library that is faster than the configuration: a baseline that may answer.

    Attributes
    ----------
    name : str
        Name of the baseline.
    expected_ms : float
        Measured time of a call, in ms.
    ratio : float
        Its cost, by default its time, over the configuration's in the same race; below 1.
    pins : str
        What decided its results when it was verified, for example the library's version; empty if unknown.
    deterministic : bool
        Whether the kernel declares that it gives the same bits in every run.
    """

    name: str
    expected_ms: float
    ratio: float
    pins: str
    deterministic: bool

    def __str__(self) -> str:
        pins = f" ({self.pins})" if self.pins else ""
        return f"{self.name}{pins} at {self.ratio:.2f} of the configuration's cost"


def rival_of(race: RaceResult, deterministic: bool = False) -> TunedCall | None:
    """Return the fastest call that may answer, if it is better than the winner by more than the uncertainty.

    With ``deterministic`` only calls that are declared to give the same bits in every run may answer.
    """
    for found in race.contenders if race.rounds >= _ROUNDS else ():
        if found.answers and found.ratio and (found.deterministic or not deterministic):
            if found.ratio.interval[1] * (1 + _LEAD) >= 1:
                return None
            return TunedCall(
                found.vendor,
                found.time_ms.value,
                found.ratio.value,
                found.pins,
                found.deterministic,
            )
    return None

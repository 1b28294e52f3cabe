"""Launches -> samples in milliseconds: taken how, how many, when to stop, how sure one may be.

Knows nothing of configurations; what it times is a function that takes samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import median

#: Samples after which a candidate is compared with the best, before `StoppingRule.min_samples`.
_LOOKS = (1, 2, 3, 5)


class Caches(StrEnum):
    """What the caches hold before the calls whose times decide; see docs/timing.md."""

    #: What was written to flush them.
    COLD = "cold"
    #: What the call before left.
    HOT = "hot"
    #: By turns what was read to flush them and what the call before left: the geometric mean decides.
    MIXED = "mixed"


class Timing(StrEnum):
    """How samples are taken: from which caches, and launched in which way.

    The values are the words of records, store and reports, which `Timing(word)` reads.
    """

    COLD_GRAPH = "cold:graph"
    COLD_STREAM = "cold:flush"
    HOT_GRAPH = "hot:graph"
    HOT_STREAM = "hot"
    MIXED_GRAPH = "mixed:graph"
    MIXED_STREAM = "mixed"
    #: Any other word, of an older version or another tool: not to be compared with ours.
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Timing:
        return cls.OTHER

    @classmethod
    def of(cls, caches: Caches, launched_by: str) -> Timing:
        """The timing with ``graph`` or ``stream`` launches; see `autotune.devices.base.Timer`."""
        by_graph = launched_by == "graph"
        return next(way for way in cls if way.caches is caches and way.by_graph == by_graph)

    @property
    def caches(self) -> Caches:
        """What the caches hold; of other words that of most."""
        word = self.partition(":")[0]
        return Caches.COLD if self is Timing.OTHER else Caches(word)

    @property
    def is_cold(self) -> bool:
        """Whether caches are flushed before each call."""
        return self.caches is Caches.COLD

    @property
    def remark(self) -> str:
        """What a person is told beside a time; empty where it is cold."""
        return "" if self.is_cold else self.caches

    @property
    def by_graph(self) -> bool:
        """Whether a sequence is launched as one captured unit."""
        return self.endswith(":graph")


@dataclass(frozen=True)
class StoppingRule:
    """When enough samples have been taken.

    Parameters
    ----------
    min_samples, max_samples : int
        Fewest and most samples kept of what is not stopped early; one more is taken first and
        discarded, because the first launch of a binary pays for loading it.
    precision : float
        Enough when the 95 % interval of the median is narrower than this share of it.
    max_seconds : float
        Host time after which no further sample is begun, once there are ``min_samples``.
    false_stop : float
        Most often that one look may stop a configuration that is as fast as the best, were there
        no margin on top; see `bar_ms`. 0 where nothing is to be stopped early.
    longest_discarded_ms : float
        A first sample that is longer is kept: beside so much, what loading costs is nothing.
    """

    min_samples: int = 7
    max_samples: int = 21
    precision: float = 0.01
    max_seconds: float = 1.0
    false_stop: float = 0.05
    longest_discarded_ms: float = math.inf


@dataclass(frozen=True)
class Samples:
    """Kept samples in milliseconds, and why there are no more."""

    samples_ms: tuple[float, ...]
    #: ``precise``, ``apart`` (from the best, by the intervals of both), ``max_samples``,
    #: ``max_seconds`` or ``slow``.
    reason: str
    #: What all samples of a slow one exceed.
    bar_ms: float = math.inf

    @property
    def stopped_early(self) -> bool:
        return self.reason == "slow"


def sample(
    take: Callable[[int], list[float]],
    rule: StoppingRule,
    best_samples_ms: Sequence[float] | None = None,
) -> Samples:
    """Take samples until the rule says enough.

    What may be a new best is sampled to the maximum: everything after it is held against these
    samples, and the more there are, the fewer launches prove another one slower. What is not the
    best for certain need not be known more precisely than that.

    ``take(count)`` returns that many times in milliseconds. ``best_samples_ms`` is empty where this
    is the first, None where no best is looked for.
    """
    start = time.perf_counter()
    compares = best_samples_ms is not None and rule.false_stop > 0
    best = best_samples_ms if best_samples_ms is not None and compares else ()
    looks = [k for k in _LOOKS if k < rule.min_samples] if best else []
    first = take(1)
    kept = first if first[0] > rule.longest_discarded_ms else []
    for count in (*looks, rule.min_samples):
        kept += take(count - len(kept)) if count > len(kept) else []
        if min(kept) > (bar := bar_ms(len(kept), best, rule.false_stop)):
            return Samples(tuple(kept), "slow", bar)
    while len(kept) < rule.max_samples:
        leads = compares and (not best or median(kept) < median(best))
        if not leads and _is_precise(kept, rule.precision):
            return Samples(tuple(kept), "precise")
        if best and median_interval(kept)[0] > median_interval(best)[1]:
            return Samples(tuple(kept), "apart")
        if time.perf_counter() - start > rule.max_seconds:
            return Samples(tuple(kept), "max_seconds")
        kept += take(min(rule.min_samples, rule.max_samples - len(kept)))
        if min(kept) > (bar := bar_ms(len(kept), best, rule.false_stop)):
            return Samples(tuple(kept), "slow", bar)
    return Samples(tuple(kept), "max_samples")


def proven_slow(
    launches_ms: Sequence[float], rule: StoppingRule, best_samples_ms: Sequence[float]
) -> Samples | None:
    """What launches that served another purpose prove already; None where that is not enough.

    Of each launch it is known how long it took at least, in order; the first pays for loading.
    """
    first = [launch_ms for launch_ms in launches_ms[:1] if launch_ms > rule.longest_discarded_ms]
    kept = [*first, *launches_ms[1:]]
    if rule.false_stop <= 0 or not kept:
        return None
    bar = bar_ms(len(kept), best_samples_ms, rule.false_stop)
    return Samples(tuple(kept), "slow", bar) if min(kept) > bar else None


def bar_ms(count: int, best_samples_ms: Sequence[float], false_stop: float) -> float:
    """What all of the first samples of a configuration must exceed to prove it slower than the best.

    A precedence test (Balakrishnan & Ng, Precedence-Type Tests and Applications, ch. 2): were both
    equally fast, all k samples of one would exceed the j-th smallest of the n of the other with
    probability ``C(n + k - j, k) / C(n + k, k)``, whatever the distribution of the noise. The
    smallest j for which that is rare enough gives the bar, raised by ``1 / k`` of itself: launches in
    a row share clock and temperature, so k of them are worth less than k independent ones, and
    the fewer there are the less. The noise of the device sets the bar, a hiccup in one sample of
    the best does not, and one fast sample is enough to go on: noise makes a launch slower.

    Infinite where there are too few samples to prove anything.
    """
    rank = _rank(count, len(best_samples_ms), false_stop)
    return math.inf if rank is None else (1 + 1 / count) * sorted(best_samples_ms)[rank - 1]


@cache
def _rank(k: int, n: int, false_stop: float) -> int | None:
    """Smallest j of `bar_ms`; None where n samples of the best are too few for k."""
    arrangements = math.comb(n + k, k)
    ranks = range(1, n + 1)
    return next((j for j in ranks if math.comb(n + k - j, k) <= false_stop * arrangements), None)


def _is_precise(samples: Sequence[float], precision: float) -> bool:
    low, high = median_interval(samples)
    return high - low <= precision * median(samples)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, from order statistics.

    The k-th smallest and k-th largest of n samples enclose the median with probability
    ``1 - 2·P(Binomial(n, 1/2) < k)`` (David & Nagaraja, Order Statistics, 3rd ed., §7.1). With
    fewer than six samples no pair reaches 95 %: the whole range is returned.
    """
    ordered = sorted(samples)
    tail, k = 0.0, 0
    while k < len(ordered) // 2:
        tail += math.comb(len(ordered), k) / 2 ** len(ordered)
        if 2 * tail > 1 - confidence:
            break
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[-k]

"""Launches -> samples in milliseconds: how many, when to stop, and how sure one may be.

Knows nothing of configurations; what it times is a function that takes samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class StoppingRule:
    """When enough samples have been taken.

    Parameters
    ----------
    min_samples, max_samples : int
        Fewest and most samples kept; one more is taken first and discarded, because the first
        launch of a binary pays for loading it.
    precision : float
        Enough when the 95 % interval of the median is narrower than this share of it.
    max_seconds : float
        Host time after which no further sample is begun, once there are ``min_samples``.
    stop_ratio : float
        Stop after ``look_after`` samples when all are slower than this times the best median.
        On recorded spaces a ratio of 1.15 after 3 samples lost no optimum (peers.md, 0.4).
    """

    min_samples: int = 7
    max_samples: int = 21
    precision: float = 0.01
    max_seconds: float = 1.0
    stop_ratio: float = 1.2
    look_after: int = 3


@dataclass(frozen=True)
class Samples:
    """Kept samples in milliseconds, and why there are no more."""

    samples_ms: tuple[float, ...]
    #: ``precise``, ``max_samples``, ``max_seconds`` or ``slow``.
    reason: str

    @property
    def stopped_early(self) -> bool:
        return self.reason == "slow"


def sample(
    take: Callable[[int], list[float]], rule: StoppingRule, best_ms: float | None = None
) -> Samples:
    """Take samples until the rule says enough.

    Parameters
    ----------
    take : callable
        ``take(count)`` returns that many times in milliseconds.
    rule : StoppingRule
        When to stop.
    best_ms : float, optional
        Median of the best configuration so far; a clearly slower one is stopped early.
    """
    start = time.perf_counter()
    kept = take(1 + rule.look_after)[1:]
    if best_ms is not None and min(kept) > rule.stop_ratio * best_ms:
        return Samples(tuple(kept), "slow")
    kept += take(rule.min_samples - len(kept))
    while True:
        low, high = median_interval(kept)
        if high - low <= rule.precision * median(kept):
            return Samples(tuple(kept), "precise")
        if len(kept) >= rule.max_samples:
            return Samples(tuple(kept), "max_samples")
        if time.perf_counter() - start > rule.max_seconds:
            return Samples(tuple(kept), "max_seconds")
        kept += take(min(rule.min_samples, rule.max_samples - len(kept)))


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

"""Samples the time of a call until a rule ends sampling, and measures the energy of a call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple, TypeAlias

from autotune.devices.base import Executor, LaunchError, Timer
from autotune.measure.measurement import Energy

#: A function that takes the given number of samples, in milliseconds.
Take: TypeAlias = Callable[[int], list[float]]

#: Numbers of samples, below `StoppingRule.min_samples`, at which a candidate is compared with the best.
_EARLY_CHECKS = (1, 2, 3, 5)
#: Least length of an energy window in a search, from one update of the counter to another.
SEARCH_S = 0.3
#: The same in finals.
FINALS_S = 0.4
#: Seconds of load before a window, until clocks settle and the counter is at most one step behind.
WARM_UP_S = 0.15
#: Fewest updates of the counter in a window, including those at its ends.
_MIN_UPDATES = 4
#: Fewest batches of calls that end in a window.
_MIN_BATCHES = 3
#: A longer window is given up: the counter stands still, or one call takes seconds.
_MAX_WINDOW_S = 10.0


class Caches(StrEnum):
    """The contents of the caches before the calls that decide the winner; see docs/timing.md."""

    #: Other data: a write has flushed the caches.
    COLD = "cold"
    #: The data of the call before.
    HOT = "hot"
    #: Alternately other data, only read (clean), and hot; the geometric mean of the two decides.
    MIXED = "mixed"


class Timing(StrEnum):
    """The way samples are taken: caches and launches. Records, store and reports contain these values."""

    COLD_GRAPH = "cold:graph"
    COLD_STREAM = "cold:flush"
    HOT_GRAPH = "hot:graph"
    HOT_STREAM = "hot"
    MIXED_GRAPH = "mixed:graph"
    MIXED_STREAM = "mixed"
    #: Any other value, of an older version or another tool; its times are not comparable.
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Timing:
        return cls.OTHER

    @classmethod
    def of(cls, caches: Caches, launched_by: str) -> Timing:
        """Return the timing with ``graph`` or ``stream`` launches; see `autotune.devices.base.Timer`."""
        by_graph = launched_by == "graph"
        return next(way for way in cls if way.caches is caches and way.by_graph == by_graph)

    @property
    def caches(self) -> Caches:
        """Contents of the caches; cold for other values."""
        return Caches.COLD if self is Timing.OTHER else Caches(self.partition(":")[0])

    @property
    def is_cold(self) -> bool:
        """True if caches are flushed before each call."""
        return self.caches is Caches.COLD

    @property
    def remark(self) -> str:
        """Word to print after a time; empty if it is cold."""
        return "" if self.is_cold else self.caches

    @property
    def by_graph(self) -> bool:
        """True if a launch sequence is launched as one captured graph."""
        return self.endswith(":graph")


@dataclass(frozen=True)
class StoppingRule:
    """The rule that ends sampling."""

    #: Fewest samples of a configuration that is not stopped early. One more sample is taken first and
    #: discarded, because the first launch of a binary pays for loading it.
    min_samples: int = 7
    #: Maximum number of samples.
    max_samples: int = 21
    #: Sampling ends if the 95 % interval of the median is narrower than this share of the median.
    precision: float = 0.01
    #: Seconds of the host after which no further sample begins, once there are ``min_samples``.
    max_seconds: float = 1.0
    #: Probability, before the margin of `bar_ms` is added, that one comparison stops a configuration as
    #: fast as the best. With 0 no configuration is stopped early.
    false_stop: float = 0.05
    #: A longer first sample is kept, because loading is a small part of it.
    longest_discarded_ms: float = math.inf


@dataclass(frozen=True)
class Samples:
    """Kept samples in milliseconds."""

    samples_ms: tuple[float, ...]
    #: If the configuration is stopped early, all samples exceed this time; otherwise infinite.
    bar_ms: float = math.inf

    @property
    def stopped_early(self) -> bool:
        return self.bar_ms < math.inf


def sample(
    take: Take,
    rule: StoppingRule,
    best_samples_ms: Sequence[float] | None = None,
) -> Samples:
    """Take samples until the rule ends sampling.

    A configuration that may be the new best gets the most samples. Later configurations are compared with
    these samples, and more samples of the best prove others slower in fewer launches.

    ``take(count)`` returns ``count`` times in milliseconds. ``best_samples_ms`` is empty for the
    first configuration, and None outside a search.
    """
    start = time.perf_counter()
    compares = best_samples_ms is not None and rule.false_stop > 0
    best = best_samples_ms if best_samples_ms is not None and compares else ()
    first = take(1)
    kept = first if first[0] > rule.longest_discarded_ms else []

    def is_enough() -> bool:
        low, high = median_interval(kept)
        leads = compares and (not best or median(kept) < median(best))
        is_precise = not leads and high - low <= rule.precision * median(kept)
        is_apart = bool(best) and low > median_interval(best)[1]
        return is_precise or is_apart or time.perf_counter() - start > rule.max_seconds

    early = [k for k in _EARLY_CHECKS if k < rule.min_samples] if best else []
    steps = range(rule.min_samples, rule.max_samples, rule.min_samples)
    for count in (*early, *steps, rule.max_samples):
        kept += take(count - len(kept)) if count > len(kept) else []
        if min(kept) > (bar := bar_ms(len(kept), best, rule.false_stop)):
            return Samples(tuple(kept), bar)
        if count >= rule.min_samples and is_enough():
            break
    return Samples(tuple(kept))


def proven_slow(
    launches_ms: Sequence[float], rule: StoppingRule, best_samples_ms: Sequence[float]
) -> Samples | None:
    """Return the samples if the launches of verification prove a configuration slow; otherwise None.

    ``launches_ms`` are lower bounds of the times of launches, in order; the first pays for loading.
    """
    first = [launch_ms for launch_ms in launches_ms[:1] if launch_ms > rule.longest_discarded_ms]
    kept = [*first, *launches_ms[1:]]
    if rule.false_stop <= 0 or not kept:
        return None
    bar = bar_ms(len(kept), best_samples_ms, rule.false_stop)
    return Samples(tuple(kept), bar) if min(kept) > bar else None


def bar_ms(count: int, best_samples_ms: Sequence[float], false_stop: float) -> float:
    """Return the time that all first ``count`` samples must exceed to prove a configuration slower.

    This is a precedence test (Balakrishnan & Ng, Precedence-Type Tests and Applications, ch. 2). If two
    configurations are equally fast, all k samples of the first exceed the j-th smallest of the n samples of
    the second with probability ``C(n + k - j, k) / C(n + k, k)``, for any distribution of the noise. The bar
    is the j-th smallest sample for the smallest j with a probability of at most ``false_stop``. It is raised
    by ``1 / k`` of itself, because consecutive launches share clock and temperature and are therefore worth
    less than k independent launches. One slow sample of the best does not move the bar. One fast sample of
    the candidate is enough to go on, because noise only makes a launch slower.

    The time is infinite if there are too few samples to prove anything.
    """
    rank = _rank(count, len(best_samples_ms), false_stop)
    return math.inf if rank is None else (1 + 1 / count) * sorted(best_samples_ms)[rank - 1]


@cache
def _rank(k: int, n: int, false_stop: float) -> int | None:
    """Return the smallest j of `bar_ms`; None if n samples of the best are too few for k."""
    arrangements = math.comb(n + k, k)
    ranks = range(1, n + 1)
    return next((j for j in ranks if math.comb(n + k - j, k) <= false_stop * arrangements), None)


def taking_of(timer: Timer, caches: Caches) -> Take:
    """Return the function that takes samples with the given contents of the caches.

    A mixed sample is the geometric mean of a clean call and a batch of hot calls; the clean calls come first.
    """

    def mixed(count: int) -> list[float]:
        pairs = zip(timer.clean(count), timer.hot(count), strict=True)
        return [round(math.sqrt(clean_ms * hot_ms), 6) for clean_ms, hot_ms in pairs]

    return mixed if caches is Caches.MIXED else timer


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the distribution-free confidence interval of the median, from order statistics.

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


# ---------------------------------------------------------------------- energy


class Reading(NamedTuple):
    """A reading of a device under load."""

    #: Time of the reading (`time.monotonic`).
    at_s: float
    #: Number of finished calls.
    calls: int
    #: Value of the energy counter.
    taken_mj: int


def measure_energy(executor: Executor, timer: Timer, seconds: float) -> Energy:
    """Measure the energy of a call in a window of at least ``seconds``.

    Raises LaunchError if the counter stands still or calls take too long, DeviceError without a counter.
    """
    readings: list[Reading] = []
    begun_s = time.monotonic()

    def is_enough(calls: int) -> bool:
        now_s = time.monotonic()
        if now_s - begun_s > WARM_UP_S:
            readings.append(Reading(now_s, calls, executor.energy_mj()))
        return now_s - begun_s > _MAX_WINDOW_S or _is_window(readings, seconds)

    timer.sustained(is_enough)
    if not _is_window(readings, seconds):
        raise LaunchError(
            f"no energy: in {_MAX_WINDOW_S:g} s the counter moved {len(_steps(readings, 'taken_mj'))} "
            f"times, and calls ended {len(_steps(readings, 'calls'))} times"
        )
    taken = energy_of(readings)
    return replace(taken, limit_w=executor.power().limit_w, clocks=executor.clocks())


def energy_of(readings: Sequence[Reading]) -> Energy:
    """Return the energy of one call from the readings of a window.

    The counter moves in steps of some tens of milliseconds, and calls also end in steps. From the first
    to the last step, an amount is known exactly, so a rate is as exact as the two times.
    """
    power_w = _per_second(readings, "taken_mj") / 1e3
    steps = _steps(readings, "calls")
    return Energy(
        call_mj=power_w * 1e3 / _per_second(readings, "calls"),
        power_w=power_w,
        calls=steps[-1].calls - steps[0].calls,
        window_s=readings[-1].at_s - readings[0].at_s,
    )


def _is_window(readings: Sequence[Reading], seconds: float) -> bool:
    """Return whether the last reading is an update that ends a long enough window."""
    if len(readings) < 2 or readings[-1].taken_mj == readings[-2].taken_mj:
        return False
    updates = _steps(readings, "taken_mj")
    return (
        updates[-1].at_s - updates[0].at_s >= seconds
        and len(updates) >= _MIN_UPDATES
        and len(_steps(readings, "calls")) >= _MIN_BATCHES
    )


def _per_second(readings: Sequence[Reading], name: str) -> float:
    first, *_, last = _steps(readings, name)
    grown = getattr(last, name) - getattr(first, name)
    return float(grown / (last.at_s - first.at_s))


def _steps(readings: Sequence[Reading], name: str) -> list[Reading]:
    return [
        after
        for before, after in pairwise(readings)
        if getattr(after, name) > getattr(before, name)
    ]

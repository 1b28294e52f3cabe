"""Which configuration to measure next: expected improvement over the valid ones, by a Gaussian process.

Knows what was measured and what is awaited; neither measures nor waits. Everything is a number of an
enumerated valid configuration, so that no invalid proposal exists.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.kernel.space import Space
from autotune.search.encoding import Encoding, Features, Numbers
from autotune.search.surrogate import Covariance, Points, Posterior, fitted, one_thread

if TYPE_CHECKING:
    from numpy.random import Generator

#: Space-filling configurations before the first model, and the random ones they are chosen from.
START, POOL = 8, 500
#: Fewer of them for every other place that something is known of.
START_LESS = 2
#: All unmeasured configurations are candidates up to this many; beyond, as many random ones and
#: those within two parameters of the best `TOP`.
CANDIDATES = 4000
TOP = 5
#: Where other places are known, which makes a model large, so many.
FEWER = 1000
#: Values above this quantile count as it, so that bad regions do not bend the model; but nothing
#: that is less than `LEAST` (of a logarithm) above the best.
QUANTILE, LEAST = 0.5, 0.2
#: Points of a fit, and points conditioned on: the best half of what is measured, others at random.
FIT, GIVEN = 150, 300
#: One of so many proposals is the neighbour of the best of which least is expected; where other places
#: say what is good in general, twice as many.
LOCAL_EVERY = 8
#: A new fit when so many results, and this part of all, have come since the last.
REFIT_LEAST, REFIT_EVERY = 4, 8
#: Proposals that one fit is used for at most.
SPARE = 128
#: Where other places are known, which makes a model large: candidates of a view that are kept besides
#: what is compiled, those of most expected improvement.
KEPT = 500
#: Density of the normal distribution at 0.
_NORMAL = 0.39894
#: Fewest values before there is a model.
FEWEST = 3
#: Of so many other places, the nearest, the best and as many others are conditioned on.
PLACES, OF_A_PLACE = 8, 24
#: A configuration that must be compiled is worth asking for if it promises so many times the gain.
PRICE = 3.0


@dataclass
class EndRule:
    """When a search may end: a gain has been unlikely for as long as it took to become so.

    The model is surest of itself where it has not looked: the first time that it sees no chance is too
    early in every fifth search (docs/search.md).
    """

    #: A gain is this share of the best time, and unlikely where its probability is less than `risk`.
    share: float = 0.01
    risk: float = 0.05
    #: The search may end at so many times the evaluations after which a gain became unlikely.
    patience: float = 2.0
    #: Nor before so many: a model of a few results, or of other sizes' alone, is too sure of itself.
    least: int = 32
    _unlikely_since: int | None = None
    _looked_at: int = 0

    def ends(self, proposer: Proposer) -> bool:
        """Whether the search may end; to be asked after each result, it looks at each fourth."""
        told = len(proposer.outcomes)
        if told % 4 or told == self._looked_at:
            return False
        self._looked_at = told
        if proposer.chance_left(self.share) >= self.risk:
            self._unlikely_since = None
            return False
        self._unlikely_since = self._unlikely_since or told
        return told >= max(self.least, self.patience * self._unlikely_since)


@dataclass(frozen=True)
class Outcome:
    """What measuring one configuration said."""

    #: Logarithm of the time; nan where it failed.
    log_ms: float
    #: Whether the time is only known to be at least that.
    is_bound: bool = False
    #: Whether it was not proposed but measured because it is known to be good somewhere.
    is_given: bool = False


@dataclass(frozen=True)
class Known:
    """What was measured of the space at another place, such as another size."""

    #: See `autotune.search.base.Elsewhere`.
    place: tuple[float, ...]
    outcomes: Mapping[int, Outcome]

    @property
    def has_times(self) -> bool:
        """Whether there is one that is neither a bound nor a failure."""
        return any(not (o.is_bound or math.isnan(o.log_ms)) for o in self.outcomes.values())

    def relative(self, numbers: Numbers) -> NDArray[np.float64]:
        """Logarithms of times over the best of all; nan where it failed."""
        best = min(
            o.log_ms for o in self.outcomes.values() if not (o.is_bound or math.isnan(o.log_ms))
        )
        return np.array([self.outcomes[int(number)].log_ms for number in numbers]) - best


class Proposer:
    """Proposes configurations of a space, each once.

    Parameters
    ----------
    space : Space
        The valid configurations.
    rng : Generator
        The only source of chance.
    place : tuple of float, optional
        Where this is, where something is known of other places.
    held : int
        Results of own proposals until what was given enters the model: what is rather good elsewhere
        makes it look around there for too long.
    compiled : collection of int
        Numbers of what takes no compiler.
    elsewhere : sequence of Known, optional
        What is known of them. How much that says of this place is learnt: the places' coordinates
        are features, each with a length of its own.
    """

    def __init__(
        self,
        space: Space,
        rng: Generator,
        place: tuple[float, ...] = (),
        elsewhere: Sequence[Known] = (),
        held: int = 0,
        compiled: Collection[int] = (),
    ) -> None:
        self._held = held
        self._encoding = Encoding(space)
        self._rng = rng
        self._place = np.array(place, np.float32)
        nearest = sorted(elsewhere, key=lambda known: math.dist(known.place, place))
        self._elsewhere = [known for known in nearest if known.has_times][:PLACES]
        #: What takes no compiler.
        self._compiled = np.zeros(len(space), bool)
        self._compiled[list(compiled)] = True
        #: Neither measured nor proposed.
        self._open = np.ones(len(space), bool)
        self._open_count = len(space)
        self._start: list[int] | None = None
        self._proposed = 0
        #: Times of own proposals, and of all.
        self._own_timed = self._timed = 0
        #: What was told, by number, in order.
        self.outcomes: dict[int, Outcome] = {}
        #: Proposed and not told, in order.
        self.awaited: dict[int, None] = {}
        self._covariance = Covariance.prior(self._encoding.width + len(place))
        self._view: _View | None = None

    @property
    def is_open(self) -> bool:
        """Whether a configuration is left to propose."""
        return self._open_count > 0

    def tell(self, number: int, time_ms: float | None, is_bound: bool = False) -> None:
        """Say what came of a configuration, proposed or not.

        Parameters
        ----------
        number : int
            Of the configuration in the space.
        time_ms : float or None
            None where it failed.
        is_bound : bool
            Whether the time is at least that: it was stopped early.
        """
        is_given = bool(self._open[number])
        self.claim(number)
        self.awaited.pop(number)
        log_ms = math.nan if time_ms is None else math.log(max(time_ms, 1e-300))
        self.outcomes[number] = Outcome(log_ms, is_bound, is_given)
        self._timed += time_ms is not None
        self._own_timed += time_ms is not None and not is_given

    def claim(self, number: int) -> None:
        """Take a configuration as proposed: its result is awaited."""
        if number not in self.outcomes:
            self._open_count -= int(self._open[number])
            self._open[number] = False
        self.awaited[number] = None
        if self._view is not None:
            self._view.condition(number)

    @property
    def has_compiled(self) -> bool:
        """Whether the model can choose among what takes no compiler."""
        return self._has_model and bool((self._compiled & self._open).any())

    def ask(self, compiled: bool | None = None) -> int | None:
        """The number of the next configuration to measure; None where all are proposed.

        Parameters
        ----------
        compiled : bool, optional
            Whether it is to be one that takes no compiler, or one that takes one; there may be none.
            Default: what promises most for its price.
        """
        if not self._open_count:
            return None
        number = None if compiled else self._next_of_start()
        if number is None:
            number = self._likeliest(compiled) if self._has_model else self._any()
        self.claim(number)
        self._proposed += 1
        return number

    def chance_left(self, share: float = 0.01) -> float:
        """Probability that a configuration not yet proposed is faster than the best by a share of it.

        Candidates are taken as independent, so that it is rather too large. 1 while there is no
        model, 0 where nothing is left.
        """
        if not self.is_open:
            return 0.0
        if not self._timed or not self._has_model or self._holds_back:
            return 1.0
        with one_thread():
            return self._current_view().chance_left(self.outcomes, share)

    def gain_left(self) -> float:
        """Improvement that is expected of the next proposal, as a share of the best time.

        Infinite while there is no model of all that is timed, 0 where nothing is left.
        """
        if not self.is_open:
            return 0.0
        if not self._timed or not self._has_model or self._holds_back:
            return math.inf
        with one_thread():
            return self._current_view().gain_left(self.outcomes)

    @property
    def _has_model(self) -> bool:
        timed = self._own_timed if self._holds_back else self._timed
        return bool(self._elsewhere) or timed >= FEWEST

    @property
    def _believed(self) -> dict[int, Outcome]:
        """What the model may know."""
        if not self._holds_back and self._is_given_good:
            return self.outcomes
        return {n: outcome for n, outcome in self.outcomes.items() if not outcome.is_given}

    @property
    def _is_given_good(self) -> bool:
        """Whether the best of what was given beats half of what was proposed; else it misleads."""
        timed = [o for o in self.outcomes.values() if not math.isnan(o.log_ms)]
        given = [outcome.log_ms for outcome in timed if outcome.is_given]
        own = [outcome.log_ms for outcome in timed if not outcome.is_given]
        return not (self._held and given and own) or min(given) < float(np.median(own))

    @property
    def _holds_back(self) -> bool:
        """Whether the model knows nothing yet of what was given."""
        return self._own_timed < self._held

    def _next_of_start(self) -> int | None:
        if self._start is None:
            self._start = self._spread(max(0, START - START_LESS * len(self._elsewhere)))
        while self._start:
            number = self._start.pop(0)
            if self._open[number]:
                return number
        return None

    def _spread(self, count: int) -> list[int]:
        """Configurations far from each other and from what is known, of some random ones."""
        pool = self._rng.permutation(self._some(POOL))
        features = self._encoding.features(pool)
        known = [*self._believed, *self.awaited]
        gaps = np.full(len(pool), np.inf)
        for centre in self._encoding.features(np.array(known, np.int64)):
            gaps = np.minimum(gaps, np.abs(features - centre).sum(1))
        chosen = []
        for _ in range(min(count, len(pool))):
            place = int(np.argmax(gaps))
            chosen.append(int(pool[place]))
            gaps = np.minimum(gaps, np.abs(features - features[place]).sum(1))
        return chosen

    def _some(self, count: int) -> Numbers:
        """Open configurations at random, or all in order where there are no more."""
        return self._few(np.flatnonzero(self._open), count)

    def _any(self) -> int:
        return int(self._rng.choice(self._some(1)))

    def _likeliest(self, compiled: bool | None) -> int:
        every = LOCAL_EVERY // 2 if self._elsewhere else LOCAL_EVERY
        local = self._timed > 0 and self._proposed % every == every - 1
        with one_thread():
            return self._current_view().choose(self.outcomes, local, compiled)

    def _current_view(self) -> _View:
        if self._view is None or self._view.is_stale(len(self.outcomes)):
            self._view = self._new_view()
        return self._view

    def _new_view(self) -> _View:
        """Fit anew, and choose anew what is conditioned on and what is considered."""
        past = self._past
        own = self._best_and_others(_ranked(self._believed), GIVEN)
        given = Points.joined(past.points, self._points(own))
        values = _told(own, self.outcomes, past).values
        known = np.flatnonzero(~np.isnan(values))
        mine, others = known[known >= len(past)], known[known < len(past)]
        share = FIT // 2 if len(past) else FIT
        if len(others) > FIT - min(len(mine), share):
            others = np.sort(self._rng.choice(others, FIT - share, replace=False))
        for_fit = np.concatenate([others, self._best_and_others(mine, share)])
        self._covariance = fitted(self._covariance, given[for_fit], values[for_fit])
        candidates = np.unique(
            np.concatenate([self._considered(own[:TOP]), np.array(list(self.awaited), np.int64)])
        )
        view = _View(
            self._covariance,
            self._encoding,
            past,
            own,
            given,
            candidates,
            self._points(candidates),
            self._compiled[candidates],
            len(self.outcomes),
        )
        for number in self.awaited:
            view.condition(number)
        if len(past):
            view.keep_best(self.outcomes, KEPT)
        return view

    @cached_property
    def _past(self) -> _Past:
        """What is conditioned on of other places."""
        points, log_times = [self._points(np.zeros(0, np.int64))], [np.zeros(0)]
        for known in self._elsewhere:
            chosen = self._best_and_others(_ranked(known.outcomes), 2 * OF_A_PLACE)
            points.append(self._points(chosen, known.place))
            log_times.append(known.relative(chosen))
        return _Past(Points.joined(*points), np.concatenate(log_times))

    def _points(self, numbers: Numbers, place: Sequence[float] | None = None) -> Points:
        """Configurations at a place, here where none is given."""
        where = self._place if place is None else np.array(place, np.float32)
        features = self._encoding.features(numbers)
        places = np.tile(where, (len(numbers), 1)).astype(np.float32)
        return Points(np.hstack([features, places]), self._encoding.indicators(numbers))

    def _considered(self, best: Numbers) -> Numbers:
        """Open configurations that the next proposals are chosen from."""
        most = FEWER if self._elsewhere else CANDIDATES
        some = self._some(most)
        if len(some) == self._open_count:
            return some
        beside, near = (self._near(best, steps) for steps in (1, 2))
        compiled = np.flatnonzero(self._compiled & self._open)
        return np.concatenate([some, beside, self._few(near, most), self._few(compiled, most)])

    def _near(self, best: Numbers, steps: int) -> Numbers:
        """Open configurations that differ from one of the best in so many parameters at most."""
        found = [self._encoding.near(int(number), steps) for number in best]
        near: Numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        return near[self._open[near]]

    def _few(self, numbers: Numbers, most: int) -> Numbers:
        """So many of them at random, where there are more."""
        if len(numbers) <= most:
            return numbers
        return self._rng.choice(numbers, most, replace=False)

    def _best_and_others(self, ranked: Numbers, limit: int) -> Numbers:
        if len(ranked) <= limit:
            return ranked
        best = limit // 2
        others = self._rng.choice(ranked[best:], limit - best, replace=False)
        return np.concatenate([ranked[:best], np.sort(others)])


def _ranked(outcomes: Mapping[int, Outcome]) -> Numbers:
    """Numbers, best first, bounds behind times and failures last."""
    numbers = np.array(list(outcomes), np.int64)
    log_ms = np.array([outcome.log_ms for outcome in outcomes.values()])
    is_bound = np.array([outcome.is_bound for outcome in outcomes.values()])
    return numbers[np.lexsort((log_ms, is_bound, np.isnan(log_ms)))]


@dataclass(frozen=True)
class _Past:
    """What is known of other places: points, and logarithms of times over the best of each place."""

    points: Points
    #: nan where it failed.
    log_times: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.log_times)


@dataclass(frozen=True)
class _Told:
    """What the model is told of some configurations: logarithms, moved and scaled."""

    #: Mean 0, deviation 1; nan where awaited or only a bound is known.
    values: NDArray[np.float64]
    #: What values that are nan are at least.
    bounds: NDArray[np.float64]
    #: Logarithm that is 0, and that of a unit.
    centre: float
    spread: float


def _told(
    own: Numbers,
    outcomes: Mapping[int, Outcome],
    past: _Past,
    expected: NDArray[np.float64] | None = None,
) -> _Told:
    """What the model is told: of other places first, then of configurations here.

    Times elsewhere are relative to the best there. What that would be here is the median of what times
    here are over what is ``expected`` of them by the other places; while nothing is, the best time.
    """
    known = [outcomes.get(int(number)) for number in own]
    log_ms = np.array([math.nan if outcome is None else outcome.log_ms for outcome in known])
    is_bound = np.array([outcome is not None and outcome.is_bound for outcome in known], bool)
    failed = np.array([outcome is not None and math.isnan(outcome.log_ms) for outcome in known])
    is_given = np.array([outcome is not None and outcome.is_given for outcome in known], bool)
    if len(past):
        over = log_ms if expected is None else log_ms - expected
        here = over[~np.isnan(over) & ~is_bound]
        if len(here):
            log_ms = log_ms - (here.min() if expected is None else np.median(here))
        log_ms = np.concatenate([past.log_times, log_ms])
        is_bound = np.concatenate([np.zeros(len(past), bool), is_bound])
        failed = np.concatenate([np.isnan(past.log_times), failed.astype(bool)])
        is_given = np.concatenate([np.zeros(len(past), bool), is_given])
    timed = ~np.isnan(log_ms)
    # What was chosen as good says nothing of what is bad: with it others would all be at the cut.
    drawn = timed & ~is_given
    typical = np.quantile(log_ms[drawn if drawn.any() else timed], QUANTILE)
    cut = max(float(typical), float(log_ms[timed].min()) + LEAST)
    values = np.minimum(log_ms, cut)
    values[failed.astype(bool)] = cut
    told = ~np.isnan(values)
    centre, spread = float(values[told].mean()), float(values[told].std()) + 1e-9
    values = (values - centre) / spread
    bounds = np.full(len(values), -np.inf)
    # At the cut a bound is as good as a value, and where there is nothing else it has to be.
    only = is_bound & (log_ms < cut) & bool((~is_bound & ~np.isnan(log_ms)).any())
    bounds[only] = values[only]
    values[only] = np.nan
    return _Told(values, bounds, centre, spread)


class _View:
    """One fit's candidates, and what is believed of them until the next."""

    def __init__(
        self,
        covariance: Covariance,
        encoding: Encoding,
        past: _Past,
        own: Numbers,
        given: Points,
        candidates: Numbers,
        points: Points,
        compiled: NDArray[np.bool_],
        told: int,
    ) -> None:
        # What other places say changes slowly, and makes a view take longer.
        few = 2 if len(past) else 1
        self._until = told + few * max(REFIT_LEAST, told // REFIT_EVERY)
        self._past = past
        self._numbers = [int(number) for number in own]
        self._candidates = candidates
        self._compiled = compiled
        self._taken = np.zeros(len(candidates), bool)
        self._encoding = encoding
        self._rows = encoding.rows[candidates][:, encoding.varying]
        self._posterior = Posterior(covariance, given, points, SPARE)
        #: What other places let expect of those here that are conditioned on.
        self._expected: list[float] = []
        if len(past):
            told_past = _told(np.zeros(0, np.int64), {}, past)
            at_points, at_candidates = self._posterior.partial_means(told_past.values, len(own))
            self._expected = list(at_points * told_past.spread + told_past.centre)
            self._expected_of: Features = at_candidates * told_past.spread + told_past.centre

    def is_stale(self, told: int) -> bool:
        return told >= self._until or not self._posterior.has_room or bool(self._taken.all())

    def keep_best(self, outcomes: Mapping[int, Outcome], count: int) -> None:
        """Keep so many, those of most expected improvement, besides what is compiled and the best's neighbours."""
        told, means = self._believed(outcomes)
        own = told.values[len(self._past) :]
        needed = self._compiled | self._beside_best(own)
        gains = np.where(needed, np.inf, self._gains(own, means))
        count += int(needed.sum())
        if count >= len(gains):
            return
        kept = np.sort(np.argpartition(-gains, count)[:count])
        self._candidates, self._compiled = self._candidates[kept], self._compiled[kept]
        self._taken, self._rows = self._taken[kept], self._rows[kept]
        self._expected_of = self._expected_of[kept]
        self._posterior.keep(kept)

    def condition(self, number: int) -> None:
        """Take a candidate as awaited; what is none is left to the next view."""
        place = int(np.searchsorted(self._candidates, number))
        if place == len(self._candidates) or self._candidates[place] != number:
            return
        if not self._taken[place] and self._posterior.has_room:
            self._numbers.append(number)
            if len(self._past):
                self._expected.append(float(self._expected_of[place]))
            self._posterior.condition(place)
        self._taken[place] = True

    def choose(self, outcomes: Mapping[int, Outcome], local: bool, compiled: bool | None) -> int:
        """The candidate of most expected improvement for its price, or the best's neighbour of least time.

        Of those that are ``compiled``, or of those that are not, where that is said and there is one.
        """
        passed = self._taken
        if compiled is not None and not (passed | (self._compiled != compiled)).all():
            passed = passed | (self._compiled != compiled)
        told, means = self._believed(outcomes)
        own = told.values[len(self._past) :]
        if local:
            beside = self._beside_best(own) & ~passed
            if beside.any():
                return int(self._candidates[np.argmin(np.where(beside, means, np.inf))])
        gains = self._gains(own, means)
        gains[~self._compiled] /= PRICE
        gains[passed] = -1
        return int(self._candidates[np.argmax(gains)])

    def _beside_best(self, own: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which candidates differ from the best of these values in one parameter."""
        if np.isnan(own).all():
            return np.zeros(len(self._candidates), bool)
        best = self._numbers[int(np.nanargmin(own))]
        row = self._encoding.rows[best, self._encoding.varying]
        beside: NDArray[np.bool_] = (self._rows != row).sum(1) == 1
        return beside

    def gain_left(self, outcomes: Mapping[int, Outcome]) -> float:
        """See `Proposer.gain_left`."""
        told, means = self._believed(outcomes)
        gains = self._gains(told.values[len(self._past) :], means)
        return float(-np.expm1(-gains[~self._taken].max(initial=0.0) * told.spread))

    def chance_left(self, outcomes: Mapping[int, Outcome], share: float) -> float:
        """See `Proposer.chance_left`."""
        told, means = self._believed(outcomes)
        means, own = means[~self._taken], told.values[len(self._past) :]
        if np.isnan(own).all():  # only bounds are known
            return 1.0
        bar = np.nanmin(own) + math.log1p(-share) / told.spread
        chances = ndtr((bar - means) / np.sqrt(self._posterior.variances[~self._taken]))
        return float(-np.expm1(np.log1p(-np.minimum(chances, 1 - 1e-9)).sum()))

    def _believed(self, outcomes: Mapping[int, Outcome]) -> tuple[_Told, Features]:
        """What the model is told, and what it expects of the candidates."""
        expected = np.array(self._expected) if len(self._past) else None
        told = _told(np.array(self._numbers, np.int64), outcomes, self._past, expected)
        return told, self._posterior.means(told.values, told.bounds)

    def _gains(self, own: NDArray[np.float64], means: Features) -> Features:
        """Expected improvement of each candidate over the best here, or over the least expected."""
        best = means[~self._taken].min() if np.isnan(own).all() else np.nanmin(own)
        deviations = np.sqrt(self._posterior.variances)
        steps = (best - means) / deviations
        gains: Features = deviations * (steps * ndtr(steps) + np.exp(-steps * steps / 2) * _NORMAL)
        return gains

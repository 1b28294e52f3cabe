"""The portfolio matrix -> how long each configuration would take for problems never measured.

A configuration's time is fitted as ``fixed + waves * per_wave``: ``waves`` is the number of rounds
in which a grid runs where only so many blocks are resident, so that the 144 blocks of one tile size
are seen to take twice as long as the 120 of another on 132 multiprocessors; ``fixed`` is a sum over
products of up to two problem fields, ``per_wave`` over single ones. Coefficients are not negative,
and relative errors count: non-negative least squares. How many blocks are resident is not asked of
the device but fitted too. What the fit misses, alignment above all, comes from the problems nearest
to the one asked: ratios of measured to fitted time, by their distance. Knows no kernels or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune import _table
from autotune._prediction import waves_of
from autotune.expression import value_of
from autotune.tuned import Cost, Plan, Portfolio, Prediction

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

#: Blocks that may be resident per multiprocessor.
RESIDENT = (1, 2, 3, 4, 6, 8, 16)
#: Share of the shortest time of a portfolio that every configuration takes at least: a launch is
#: not free, whatever a few large problems let a fit believe.
LEAST_SHARE = 0.5
#: How far measured problems correct a prediction, and how much further a misaligned one is from an
#: aligned one, in sixteenths of octaves. Within the largest reach all count nearly alike.
REACHES = (16, 64, 4096)
APARTS = (0, 32)
#: Vector loads need fields of which this is a factor.
MULTIPLE = 4


def fitted(
    portfolio: Portfolio, columns: Sequence[int], plans: Sequence[Plan | None], sm_count: int
) -> tuple[Prediction, float] | None:
    """Fit a prediction to some problems of a portfolio.

    Parameters
    ----------
    portfolio : Portfolio
        Configurations × problems in milliseconds.
    columns : sequence of int
        The problems: those that share their categorical fields.
    plans : sequence of Plan or None
        Of the portfolio's configurations, as they launch for these problems.
    sm_count : int
        Multiprocessors of the device.

    Returns
    -------
    tuple of Prediction and float, or None
        With the geometric mean of the shares of the best speed that it answers with for problems
        that were left out of it. None where no grid is known.
    """
    matrix = _Matrix(portfolio, columns, plans, sm_count)
    everything = range(len(columns))
    left_out = [matrix.times_by([p for p in everything if p != out]) for out in everything]
    scores = {
        (reach, apart): matrix.score(left_out, matrix.weights(reach, apart))
        for reach, apart in product(REACHES, APARTS)
    }
    reach, apart = max(scores, key=lambda one: scores[one])
    costs = [matrix.cost(c, plan) for c, plan in enumerate(plans) if plan]
    known = tuple(one for one in costs if one)
    about = {"reach": reach, "multiple": MULTIPLE, "apart": apart}
    if not known:
        return None
    return Prediction(columns=tuple(columns), costs=known, **about), scores[reach, apart]


@dataclass(frozen=True)
class _Curve:
    """A configuration's fitted time."""

    slots: int
    #: One for each column of the design for so many slots.
    coefficients: Array


class _Matrix:
    """Times of configurations on problems, and what they could depend on."""

    def __init__(
        self,
        portfolio: Portfolio,
        columns: Sequence[int],
        plans: Sequence[Plan | None],
        sm_count: int,
    ) -> None:
        import numpy as np

        self.problems = [dict(portfolio.problems[column]) for column in columns]
        rows = [[row[column] or np.nan for column in columns] for row in portfolio.median_ms]
        self.times = np.array(rows)
        self.least_ms = LEAST_SHARE * float(np.nanmin(self.times))
        names = [name for name, value in self.problems[0].items() if isinstance(value, int)]
        self.per_wave: list[tuple[str, ...]] = [(), *((name,) for name in names)]
        self.fixed = [*self.per_wave, *combinations(names, 2)]
        self.slots = [sm_count * resident for resident in RESIDENT]
        self.designs = [self._designs(plan) for plan in plans]

    def _designs(self, plan: Plan | None) -> dict[int, Array]:
        """What the time may depend on, a row per problem, by the number of resident blocks."""
        import numpy as np

        if plan is None or plan.grid is None:
            return {}
        fixed, per_wave = self._products(self.fixed), self._products(self.per_wave)
        designs = {}
        for slots in self.slots:
            try:
                waves = [value_of(waves_of(plan.grid, slots), one) for one in self.problems]
            except ValueError:
                return {}
            designs[slots] = np.hstack([fixed, np.array(waves, float)[:, None] * per_wave])
        return designs

    def _products(self, terms: Sequence[tuple[str, ...]]) -> Array:
        import numpy as np

        factors = [[[float(one[name]) for name in term] for term in terms] for one in self.problems]
        return np.array([[np.prod(values) for values in row] for row in factors])

    def curve(self, configuration: int, known: Sequence[int]) -> _Curve | None:
        """Fit the time of one configuration on the known problems; None where that fails."""
        import numpy as np
        from scipy.optimize import nnls

        rows = [p for p in known if np.isfinite(self.times[configuration, p])]
        times = self.times[configuration, rows]
        best, least_error = None, np.inf
        for slots, design in self.designs[configuration].items():
            relative = design[rows] / times[:, None]
            scale = np.maximum(relative.max(axis=0, initial=0), np.finfo(float).tiny)
            try:
                found, error = nnls(relative / scale, 1 - self.least_ms / times)
            except RuntimeError:  # it did not converge
                continue
            if error < least_error:
                best, least_error = _Curve(slots, found / scale), error
        return best

    def times_by(self, known: Sequence[int]) -> Array:
        """Times of all problems by what is known of some; not a number without a curve."""
        import numpy as np

        times = np.full(self.times.shape, np.nan)
        for c in range(len(times)):
            if curve := self.curve(c, known):
                times[c] = self.least_ms + self.designs[c][curve.slots] @ curve.coefficients
        return times

    def weights(self, reach: int, apart: int) -> Array:
        """What each problem counts for each other."""
        import numpy as np

        problems = tuple(tuple(one.values()) for one in self.problems)
        places = tuple(map(_table.place_of, problems))
        asked = _table.Prediction(problems, places, reach, MULTIPLE, apart, (), ())
        return np.array(list(map(asked.weights, problems, places)))

    def score(self, left_out: Sequence[Array], weights: Array) -> float:
        """Geometric mean of the shares of the best speed for problems that were left out."""
        import numpy as np

        logs = []
        for problem, fitted_ms in enumerate(left_out):
            ratios = np.delete(self.times / fitted_ms, problem, axis=1)
            counts = np.delete(weights[problem], problem) * np.isfinite(ratios)
            with np.errstate(invalid="ignore"):
                corrections = np.nansum(ratios * counts, axis=1) / counts.sum(axis=1)
            predicted = fitted_ms[:, problem] * corrections
            times = self.times[:, problem]
            # What does not run there, `requires` would tell a lookup.
            predicted[~np.isfinite(predicted) | ~np.isfinite(times)] = np.inf
            logs.append(np.log(np.nanmin(times) / times[predicted.argmin()]))
        return float(np.exp(np.mean(logs)))

    def cost(self, configuration: int, plan: Plan) -> Cost | None:
        """What a record says of a configuration; None where nothing could be fitted."""
        curve = self.curve(configuration, range(len(self.problems)))
        if curve is None:
            return None
        coefficients = list(curve.coefficients)
        coefficients[self.fixed.index(())] += self.least_ms
        count = len(self.fixed)
        design = self.designs[configuration][curve.slots]
        ratios = self.times[configuration] / (self.least_ms + design @ curve.coefficients)
        return Cost(
            plan=plan,
            slots=curve.slots,
            fixed=_terms(coefficients[:count], self.fixed),
            per_wave=_terms(coefficients[count:], self.per_wave),
            corrections=tuple(_rounded(one, 4) if one == one else None for one in ratios),
        )


def _terms(
    coefficients: Sequence[float], factors: Sequence[tuple[str, ...]]
) -> tuple[tuple[float, tuple[str, ...]], ...]:
    pairs = zip(coefficients, factors, strict=True)
    return tuple((_rounded(value, 6), names) for value, names in pairs if value > 0)


def _rounded(value: float, digits: int) -> float:
    """So many significant digits: more would be noise, in every header."""
    return float(f"{value:.{digits}g}")

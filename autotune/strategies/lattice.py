"""A space as a grid of ordered integers, and what a search has measured of it.

What the adapters of foreign search libraries share. Knows no library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measurement import Measurement
from autotune.space import Space
from autotune.strategies.base import Session

Point = tuple[int, ...]


class Lattice:
    """Configurations as points whose coordinates are ranks: position among the sorted values.

    Libraries then see numbers with a meaningful order and no strings, booleans or magic names.
    Values of text have no order; they keep the declared one, and any two of them are one step apart.

    Parameters
    ----------
    space : Space
        The valid configurations.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.sizes = space.sizes
        self.is_text = tuple(isinstance(v[0], str) for v in space.parameters.values())
        self._values = [_order(values) for values in space.parameters.values()]
        #: Ranks, shape (configurations, parameters).
        self.points: NDArray[np.int16] = np.empty_like(space.rows)
        for position, order in enumerate(self._values):
            ranks = np.argsort(order).astype(np.int16)
            self.points[:, position] = ranks[space.rows[:, position]]

    def point(self, index: int) -> Point:
        """The coordinates of a configuration by its number."""
        return tuple(self.points[index].tolist())

    def find(self, point: Sequence[int]) -> int | None:
        """The number of the configuration at a point, or None where it is not valid."""
        return self.space.find(
            [order[rank] for order, rank in zip(self._values, point, strict=True)]
        )

    def distances(self, point: Sequence[int]) -> NDArray[np.int64]:
        """Steps from a point to every configuration, summed over the parameters."""
        steps = np.abs(self.points.astype(np.int64) - np.asarray(point, np.int64))
        text = list(self.is_text)
        steps[:, text] = np.minimum(steps[:, text], 1)
        return np.asarray(steps.sum(axis=1))


class Ledger:
    """What one search has measured, so that nothing is asked for twice.

    Parameters
    ----------
    space : Space
        The valid configurations.
    session : Session
        Where they are measured.
    """

    def __init__(self, space: Space, session: Session) -> None:
        self.lattice = Lattice(space)
        self.session = session
        self.known: dict[int, Measurement] = {}
        self.best: int | None = None
        self._open = np.ones(len(space), bool)

    @property
    def is_complete(self) -> bool:
        """Whether every valid configuration has been measured."""
        return len(self.known) == len(self._open)

    def measure(self, indices: Iterable[int]) -> None:
        """Measure what is not known yet, in this order, as one batch."""
        fresh = [index for index in dict.fromkeys(indices) if index not in self.known]
        if not fresh:
            return
        for index, measurement in zip(fresh, self.session.measure(fresh), strict=True):
            self.known[index] = measurement
            self._open[index] = False
            self._note_best(index)

    def nearest_open(self, point: Sequence[int], reserved: Iterable[int] = ()) -> int | None:
        """The valid configuration fewest steps from a point that is neither measured nor reserved.

        The lowest number wins a tie. None where nothing is left.
        """
        free = self._open.copy()
        free[list(reserved)] = False
        if not free.any():
            return None
        candidates = np.flatnonzero(free)
        return int(candidates[np.argmin(self.lattice.distances(point)[candidates])])

    def _note_best(self, index: int) -> None:
        time_ms = self.known[index].median_ms
        best_ms = None if self.best is None else self.known[self.best].median_ms
        if time_ms is not None and (best_ms is None or time_ms < best_ms):
            self.best = index


def _order(values: tuple[Any, ...]) -> list[int]:
    """Value indices in ascending order of value; text in declared order."""
    if isinstance(values[0], str):
        return list(range(len(values)))
    return sorted(range(len(values)), key=values.__getitem__)

"""A space as a grid of ordered integers, and the measurements of a search in it.

The adapters of other search libraries share this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.joining import Rows
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement
from autotune.search.base import Session

Point = tuple[int, ...]
#: Maximum number of configurations in a batch. An evaluator compiles a batch at once, and some
#: strategies propose the whole space.
BATCH = 64


class Stuck(Exception):
    """A strategy checks point after point and proposes nothing."""


class Lattice:
    """Configurations as points. A coordinate is a rank: the position among a parameter's sorted values.

    Libraries then see numbers in a meaningful order and no strings, booleans or special names.
    Texts keep their declared order, and any two of them are one step apart. Values that no
    valid configuration has are left out.

    Spaces of kernels are large and thin (sgemm: 830,000 of 10^14 points). The lattice therefore works on
    columns: a pass takes a few milliseconds.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.is_text = tuple(isinstance(v[0], str) for v in space.parameters.values())
        #: For each parameter, value indices by rank.
        self._values: list[list[int]] = []
        #: For each parameter, the rank in every configuration.
        self._columns: list[Rows] = []
        for position, values in enumerate(space.parameters.values()):
            column = space.rows[:, position]
            occurring = set(np.unique(column).tolist())
            order = [index for index in _order(values) if index in occurring]
            ranks = np.zeros(len(values), column.dtype)
            ranks[order] = np.arange(len(order))
            self._values.append(order)
            self._columns.append(np.ascontiguousarray(ranks[column]))
        self.sizes = tuple(len(order) for order in self._values)
        #: For each parameter, the summand of each rank in the code of a configuration.
        self._codes = [
            np.array(order, np.int64) * stride
            for order, stride in zip(self._values, space.strides, strict=True)
        ]

    @property
    def points(self) -> Rows:
        """The ranks of all configurations, shape (configurations, parameters)."""
        return np.stack(self._columns, axis=1)

    def point(self, index: int) -> Point:
        """Return the coordinates of a configuration by its number."""
        return tuple(int(column[index]) for column in self._columns)

    def find(self, point: Sequence[int]) -> int | None:
        """Return the number of the configuration at a point, or None if it is not valid.

        Coordinates of parameters that do not apply there are ignored.
        """
        row = [order[rank] for order, rank in zip(self._values, point, strict=True)]
        return self.space.find(self.space.canonical(row))

    def distances(self, point: Sequence[int]) -> NDArray[np.int32]:
        """Return the steps from a point to every configuration, summed over the parameters."""
        total = np.zeros(len(self.space), np.int32)
        for position, column in enumerate(self._columns):
            if self.sizes[position] > 1:
                total += self._steps(position, point[position])[column]
        return total

    def nearest(self, point: Sequence[int]) -> list[int]:
        """Return all configurations with the smallest distance from a point."""
        distances = self.distances(point)
        return [int(index) for index in np.flatnonzero(distances == distances.min())]

    def adjacent(self, point: Sequence[int]) -> list[int]:
        """Return all other configurations at most one step from a point in every parameter."""
        near = np.ones(len(self.space), bool)
        for position, column in enumerate(self._columns):
            if self.sizes[position] > 1:
                near &= (self._steps(position, point[position]) <= 1)[column]
        here = self.find(point)
        return [int(index) for index in np.flatnonzero(near) if index != here]

    def changed_in_one(self, point: Sequence[int]) -> list[int]:
        """Return all other configurations that differ from a point in one parameter."""
        own = np.array([codes[rank] for codes, rank in zip(self._codes, point, strict=True)])
        changed = np.repeat(own.sum() - own, self.sizes) + np.concatenate(self._codes)
        here = self.find(point)
        return [index for index in self.space.find_all(changed).tolist() if index != here]

    def _steps(self, position: int, rank: int) -> NDArray[np.int32]:
        steps = np.abs(np.arange(self.sizes[position], dtype=np.int32) - rank)
        return np.minimum(steps, 1) if self.is_text[position] else steps


class Ledger:
    """The measurements of one search; no configuration is measured twice."""

    def __init__(self, lattice: Lattice, session: Session) -> None:
        self.lattice = lattice
        self.session = session
        self.known: dict[int, Measurement] = {}
        self._open = np.ones(len(lattice.space), bool)

    @property
    def is_complete(self) -> bool:
        """True if every valid configuration has been measured."""
        return len(self.known) == len(self._open)

    def measure(self, indices: Iterable[int]) -> None:
        """Measure the configurations that have no measurement yet, in order, in batches of `BATCH`."""
        fresh = [index for index in dict.fromkeys(indices) if index not in self.known]
        for start in range(0, len(fresh), BATCH):
            batch = fresh[start : start + BATCH]
            self.known.update(zip(batch, self.session.measure(batch), strict=True))
            self._open[batch] = False

    def nearest_open(self, point: Sequence[int], reserved: Iterable[int] = ()) -> int | None:
        """Return the nearest configuration that is neither measured nor reserved.

        The lowest number wins a tie. Return None if there is no such configuration.
        """
        free = self._open.copy()
        free[list(reserved)] = False
        if not free.any():
            return None
        distances = self.lattice.distances(point)
        distances[~free] = np.iinfo(np.int32).max
        return int(np.argmin(distances))


def _order(values: tuple[Any, ...]) -> list[int]:
    if isinstance(values[0], str):
        return list(range(len(values)))
    return sorted(range(len(values)), key=values.__getitem__)

"""Configurations as numbers that a model can compare: features between 0 and 1, parameter by parameter.

Knows the space; knows no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.space import Space
from autotune.values import Value

Numbers: TypeAlias = NDArray[np.int64]
Features: TypeAlias = NDArray[np.float32]

#: Positive values that span this factor are compared by their logarithm.
_LOG_SPAN = 4
#: Correlation above which divisibility by powers of two says nothing that the value does not.
_SAME = 0.99


class Encoding:
    """Features of a space's configurations, made for those asked about only.

    An ordered parameter has one column: half its value (the logarithm where values are positive and
    span a factor of 4), half its rank. Where they differ it has a second one, how often two divides
    the value: what hardware likes of tiles and blocks. Text has a column per value. Parameters that
    have one value in all valid configurations are left out.

    Parameters
    ----------
    space : Space
        The valid configurations.
    """

    def __init__(self, space: Space) -> None:
        self.rows = space.rows
        self._space = space
        self._occurring = [np.unique(column) for column in space.rows.T]
        #: Positions of the parameters that vary.
        self.varying = [p for p, used in enumerate(self._occurring) if len(used) > 1]
        declared = list(space.parameters.values())
        self._tables = [_table(declared[p], self._occurring[p]) for p in self.varying]
        self.width = sum(table.shape[1] for table in self._tables)
        sizes = [len(values) for values in declared]
        self._strides = np.array(
            [np.prod(sizes[p + 1 :], dtype=np.int64) for p in range(len(sizes))]
        )
        #: In ascending order, as the space's rows are; column by column, which takes less memory.
        self._codes = np.zeros(len(space), np.int64)
        for column, stride in zip(space.rows.T, self._strides, strict=True):
            self._codes += column * stride

    def features(self, numbers: Numbers) -> Features:
        """Columns of some configurations, shape (configurations, `width`)."""
        rows = self.rows[numbers]
        columns = [table[rows[:, p]] for p, table in zip(self.varying, self._tables, strict=True)]
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(rows), 0), np.float32)

    def near(self, number: int, apart: int) -> Numbers:
        """Valid configurations that differ from one in 1 to ``apart`` (1 or 2) parameters.

        What does not apply after the change takes its first value, as everywhere in the space.
        """
        origin = self.rows[number]
        changed = [self._changed(origin[None], p) for p in self.varying]
        found = list(changed)
        if apart > 1:
            found += [
                self._changed(rows, q)
                for place, rows in enumerate(changed)
                for q in self.varying[place + 1 :]
            ]
        if not found:
            return np.zeros(0, np.int64)
        rows = np.concatenate(found)
        for table in self._space.applicability:
            idle = ~table.values[tuple(rows[:, list(table.positions)].T)]
            rows[np.ix_(idle, list(table.governs))] = 0
        codes = np.unique(rows.astype(np.int64) @ self._strides)
        at = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        valid: Numbers = at[(self._codes[at] == codes) & (at != number)]
        return valid

    def _changed(self, rows: NDArray[np.int16], position: int) -> NDArray[np.int16]:
        """Every row with every other value of one parameter."""
        values = self._occurring[position]
        result = np.repeat(rows, len(values), axis=0)
        result[:, position] = np.tile(values, len(rows))
        other: NDArray[np.bool_] = result[:, position] != np.repeat(rows[:, position], len(values))
        return np.ascontiguousarray(result[other])


def _table(values: Sequence[Value], used: NDArray[np.int16]) -> Features:
    """Columns by value index; values that do not occur have zeros."""
    if any(isinstance(value, str) for value in values):
        # Two different texts are as far apart as the ends of an ordered parameter.
        table = np.eye(len(values))[:, used] / np.sqrt(2)
        table = table[:, 1:] * np.sqrt(2) if len(used) == 2 else table
        return np.asarray(table, np.float32)
    occurring = np.array([float(values[index]) for index in used])
    is_positive = bool((occurring > 0).all())
    spans = is_positive and occurring.max() / occurring.min() >= _LOG_SPAN
    scale = np.log2(occurring) if spans else occurring
    scale = (scale - scale.min()) / np.ptp(scale)
    ranks = np.argsort(np.argsort(occurring)) / (len(occurring) - 1)
    columns = [(scale + ranks) / 2]
    if is_positive and len(occurring) > 2 and (occurring == np.floor(occurring)).all():
        whole = occurring.astype(np.int64)
        twos = np.log2(whole & -whole)
        if np.ptp(twos) > 0 and np.corrcoef(twos, scale)[0, 1] < _SAME:
            columns.append(twos / twos.max())
    table = np.zeros((len(values), len(columns)), np.float32)
    table[used] = np.stack(columns, axis=1)
    return table

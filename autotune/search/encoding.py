"""Configurations as features between 0 and 1, which a model can compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.space import Rows, Space
from autotune.values import Value

Numbers: TypeAlias = NDArray[np.int64]
Features: TypeAlias = NDArray[np.float32]

#: Positive values that span this factor are compared by their logarithm.
_LOG_SPAN = 4
#: Divisibility by powers of two adds nothing to the value above this correlation.
_SAME = 0.99
#: Parameters with more values have no indicators: two configurations seldom share a value, and each
#: would be a column.
_MOST_INDICATORS = 1024
#: Changes of one parameter that are combined in pairs.
_MOST_CHANGES = 2048


class Encoding:
    """Features of a space's configurations, computed on request.

    An ordered parameter has one column: half its value (the logarithm where values are positive and
    span a factor of 4), half its rank. A second column is how often two divides the value, which
    matters to hardware in tiles and blocks. Text has a column per value. Parameters that have one
    value in all valid configurations are left out.

    Parameters
    ----------
    space : Space
        The valid configurations.
    """

    def __init__(self, space: Space) -> None:
        self.rows = space.rows
        self._space = space
        self._occurring = space.occurring
        #: Positions of the parameters that vary.
        self.varying = [p for p, used in enumerate(self._occurring) if len(used) > 1]
        declared = list(space.parameters.values())
        self._tables = [_table(declared[p], self._occurring[p]) for p in self.varying]
        self.width = sum(table.shape[1] for table in self._tables)
        self._sizes = np.array(space.sizes, np.int64)
        # One indicator for each value of each parameter that varies and has no thousands of values.
        self._counted = [p for p in self.varying if self._sizes[p] <= _MOST_INDICATORS]
        counts = self._sizes[self._counted]
        self._places = np.cumsum(counts) - counts
        self._values = int(counts.sum())

    def features(self, numbers: Numbers) -> Features:
        """Return the columns of some configurations, shape (configurations, `width`)."""
        rows = self.rows[numbers]
        columns = [table[rows[:, p]] for p, table in zip(self.varying, self._tables, strict=True)]
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(rows), 0), np.float32)

    def indicators(self, numbers: Numbers) -> Features:
        """Return rows whose products are the share of equal parameters of two configurations."""
        result = np.zeros((len(numbers), self._values), np.float32)
        places = self.rows[numbers][:, self._counted] + self._places
        result[np.arange(len(numbers))[:, None], places] = 1 / math.sqrt(len(self._counted) or 1)
        return result

    def near(self, number: int, apart: int) -> Numbers:
        """Return valid configurations that differ from one in 1 to ``apart`` (1 or 2) parameters.

        Pairs of changes are left out where parameters have thousands of values. A parameter that does
        not apply after the change takes its first value, as everywhere in the space.
        """
        row = self.rows[number]
        steps = [self._occurring[p][self._occurring[p] != row[p]] - row[p] for p in self.varying]
        changed = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
        changes = np.concatenate([np.zeros(0, np.int64), *steps]).astype(np.int64)
        changes *= self._space.strides[self.varying][changed]
        codes = changes
        if apart > 1 and len(changes) <= _MOST_CHANGES:
            some, others = np.triu_indices(len(changes), 1)
            differ = changed[some] != changed[others]
            codes = np.r_[changes, changes[some[differ]] + changes[others[differ]]]
        codes = np.unique(self._canonical(self._space.codes[number] + codes))
        places = np.minimum(np.searchsorted(self._space.codes, codes), len(self._space.codes) - 1)
        valid: Numbers = places[(self._space.codes[places] == codes) & (places != number)]
        return valid

    def _canonical(self, codes: Numbers) -> Numbers:
        """Return codes in which parameters that do not apply have their first value."""
        if not self._space.applicability:
            return codes
        rows = codes[:, None] // self._space.strides % self._sizes
        for table in self._space.applicability:
            idle = ~table.values[tuple(rows[:, list(table.positions)].T)]
            rows[np.ix_(idle, list(table.governs))] = 0
        canonical: Numbers = rows @ self._space.strides
        return canonical


def _table(values: Sequence[Value], used: Rows) -> Features:
    """Return columns by value index; values that do not occur have zeros."""
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

"""Fits small trees that correct a fitted time.

They split by sizes, their powers of two, blocks, and the occupied share of waves.

All splits of a level are the same (Langley and Sage, *Oblivious decision trees*, 1994), so a tree is a few
comparisons and a table. Each tree is fitted to the remaining error of earlier trees (Friedman, *Greedy function
approximation*, 2001). `autotune.answers.table` has the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from autotune.answers.table import Tree

Array: TypeAlias = np.ndarray[Any, Any]
Splits: TypeAlias = tuple[tuple[int, int], ...]

#: Maximum number of trees of a configuration.
TREES = 8
#: Maximum number of levels of a tree.
LEVELS = 4
#: Share of an error that a tree corrects (learning rate).
RATE = 0.4
#: Shrinks a factor towards 1, as if by this many measurements without an error.
INDIFFERENCE = 4.0
#: Fewest times for trees. With fewer times trees do not improve answers, but lengthen records and headers.
MIN_TIMES = 12
#: Maximum number of thresholds of a feature that a fit tries.
THRESHOLDS = 40
#: Smallest and largest factor of a tree.
_FACTORS = (0.25, 4.0)


def fitted_trees(features: Array, errors: Array, weights: Array) -> tuple[Tree, ...]:
    """Return trees that correct errors (logarithms of times over fitted times); none for few times.

    ``features`` has a row of integers for each time.
    """
    found, rest = list[Tree](), errors.copy()
    for _ in range(TREES if len(errors) >= MIN_TIMES else 0):
        splits = best_splits(features, rest, weights, LEVELS, INDIFFERENCE)
        if not splits:
            break
        leaves = outcomes(splits, features)
        sums = np.bincount(leaves, weights * rest, 1 << len(splits))
        counts = np.bincount(leaves, weights, 1 << len(splits))
        factors = np.exp(RATE * sums / (counts + INDIFFERENCE)).clip(*_FACTORS)
        found.append(Tree(splits, tuple(round(float(factor), 3) for factor in factors)))
        rest = rest - np.log(np.array(found[-1].factors))[leaves]
    return tuple(found)


def corrections(trees: Sequence[Tree], features: Array) -> Array:
    """Return the product of the trees' factors for each row of features."""
    product: Array = np.ones(len(features))
    for tree in trees:
        product = product * np.array(tree.factors)[outcomes(tree.splits, features)]
    return product


def outcomes(splits: Splits, features: Array) -> Array:
    """Return the outcome of splits for each row of features; see `autotune.answers.table.outcome`."""
    numbers: Array = np.zeros(len(features), np.int64)
    for level, (feature, threshold) in enumerate(splits):
        numbers = numbers + ((features[:, feature] > threshold).astype(np.int64) << level)
    return numbers


def best_splits(
    features: Array, values: Array, weights: Array, levels: int, prior: float
) -> Splits:
    """Return splits with outcomes that separate the values, chosen level by level.

    ``prior`` shrinks each outcome's mean to 0, as if by this weight of values of 0.
    """
    edges = [_edges(column) for column in features.T]
    places = [np.searchsorted(edge, column) for edge, column in zip(edges, features.T, strict=True)]
    splits = list[tuple[int, int]]()
    numbers = np.zeros(len(values), np.int64)
    for level in range(levels):
        gains = [
            _best_edge(
                numbers * (len(edge) + 1) + place,
                (1 << level, len(edge) + 1),
                values,
                weights,
                prior,
            )
            for edge, place in zip(edges, places, strict=True)
        ]
        feature = max(range(len(gains)), key=lambda number: gains[number][0])
        gain, edge = gains[feature]
        if gain <= 0:
            break
        splits.append((feature, int(edges[feature][edge])))
        numbers = numbers + ((places[feature] > edge).astype(np.int64) << level)
    return tuple(splits)


def _edges(column: Array) -> Array:
    """Return at most `THRESHOLDS` thresholds between the values of a feature."""
    values = np.unique(column)
    if len(values) > THRESHOLDS:
        shares = np.arange(1, THRESHOLDS) / THRESHOLDS
        return np.unique(np.quantile(column, shares, method="lower"))
    return values[:-1]


def _best_edge(
    cells: Array, shape: tuple[int, int], values: Array, weights: Array, prior: float
) -> tuple[float, int]:
    """Return the largest gain of one threshold, summed over the outcomes so far, and the threshold's index."""
    if shape[1] == 1:
        return 0.0, 0
    count = shape[0] * shape[1]
    sums = np.bincount(cells, weights * values, count).reshape(shape).cumsum(axis=1)
    counts = np.bincount(cells, weights, count).reshape(shape).cumsum(axis=1)
    above, others = sums[:, -1:] - sums, counts[:, -1:] - counts
    gains = (sums**2 / (counts + prior) + above**2 / (others + prior)).sum(axis=0)
    without = (sums[:, -1] ** 2 / (counts[:, -1] + prior)).sum()
    best = int(np.argmax(gains[:-1]))
    return float(gains[best] - without), best

"""Walks an answer table: picks the plan for a problem that was not measured.

`answer` is the rule. The exported C++ header holds the same rows and the same rule, bit for bit: sums and
products of doubles in one order, and integers of 64 bits. Lookup imports this module, so it imports nothing
heavy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from math import inf, isqrt
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from autotune.answers.schema import AnswerTable, Cost, Grid, Plan, Prediction, Split, Term, Tree
from autotune.kernel.expression import MAX_INTEGER, Json, value_of

#: The values of a problem in the order of the kernel's fields.
ProblemKey: TypeAlias = tuple[int | str, ...]

#: ``ceil(2**(63 + j/16))`` for j from 1 to 15: the floor of a 16th root is four floors of square
#: roots, and none of these is an integer. Exact, so that C++ has the same numbers.
SIXTEENTHS: tuple[int, ...] = tuple(
    isqrt(isqrt(isqrt(isqrt(1 << 16 * 63 + j)))) + 1 for j in range(1, 16)
)


class AnsweringRow(Protocol):
    """A row of a table in the form that `answer` walks."""

    @property
    def place(self) -> ProblemKey:
        """See `place_of`."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """See `autotune.answers.schema.TableRow`."""

    @property
    def table(self) -> AnswerTable | None:
        """The table that the row is part of; None for a row of its own."""


Row = TypeVar("Row", bound=AnsweringRow)


class Question(NamedTuple):
    """A problem to answer, and the plans that may answer it."""

    problem: ProblemKey
    place: ProblemKey
    #: The problem and its layout by name.
    fields: Mapping[str, Any]
    #: Whether only a row's first plan and its prediction may answer, as for the tuned layout.
    is_plain: bool
    is_able: Callable[[Plan], bool]


class PickedPlan(NamedTuple, Generic[Row]):
    """The plan that answers, and the speed and time to expect of it; None: not known."""

    plan: Plan
    row: Row
    #: Share of the best speed that nine of ten such answers reach, and that every other one reaches.
    expected_fraction: float | None
    median_fraction: float | None
    expected_ms: float | None


def answer(rows: Iterable[Row], question: Question) -> PickedPlan[Row] | None:
    """Return the answer for a problem that was not measured; None if no plan may answer.

    The nearest row with an allowed plan decides; see `distance`. If its table has a prediction, the allowed
    configuration with the smallest predicted time answers, else the row's plan.
    """
    places = ((distance(question.place, row.place), row) for row in rows)
    known = [(apart, row) for apart, row in places if apart is not None]
    known.sort(key=itemgetter(0))
    for _, row in known:
        plans = row.plans[:1] if question.is_plain else row.plans
        plan = next(filter(question.is_able, plans), None)
        if plan is not None:
            chosen, time_ms = fastest(row.table, question) or (plan, None)
            return PickedPlan(chosen, row, *expected_of(row.table, question.problem), time_ms)
    # No row's own plan is allowed, but a configuration of the nearest row's prediction may be.
    for _, row in known[:1]:
        if found := fastest(row.table, question):
            return PickedPlan(found[0], row, *expected_of(row.table, question.problem), found[1])
    return None


def sixteenths(n: int) -> int:
    """Return ``floor(16·log2(n))``, exact below 2**64; 0 for numbers below 1."""
    if n < 1:
        return 0
    octave = n.bit_length() - 1
    mantissa = n << (63 - octave) if octave <= 63 else n >> (octave - 63)
    return 16 * octave + bisect_right(SIXTEENTHS, mantissa)


def place_of(problem: ProblemKey) -> ProblemKey:
    """Return the place of a problem: categories, and integers in sixteenths of octaves."""
    return tuple(value if isinstance(value, str) else sixteenths(value) for value in problem)


def distance(a: ProblemKey, b: ProblemKey) -> int | None:
    """Return the distance of two places, the sum over integers; None where a category differs."""
    total = 0
    for first, second in zip(a, b, strict=True):
        if first.__class__ is int:
            total += abs(first - second)  # type: ignore[operator]
        elif first != second:
            return None
    return total


def fastest(table: AnswerTable | None, question: Question) -> tuple[Plan, float] | None:
    """Return the allowed plan with the smallest predicted time, in ms; None without a prediction."""
    prediction, fields = table.prediction if table else None, question.fields
    sizes = [value for value in fields.values() if isinstance(value, int)]
    if prediction is None or any(abs(size) > MAX_INTEGER for size in sizes):
        return None
    features = features_of(question.problem)
    corrections = prediction.corrections or repeat(())
    chosen, least_ms = None, inf
    for cost, trees in zip(prediction.costs, corrections, strict=False):
        try:
            time_ms = predicted_ms(cost, prediction.multiple, fields, trees, features)
        except ValueError:
            continue
        # Conditions last: they take longer than times.
        if (chosen is None or time_ms < least_ms) and question.is_able(cost.plan):
            chosen, least_ms = cost.plan, time_ms
    return (chosen, least_ms) if chosen else None


def expected_of(
    table: AnswerTable | None, problem: ProblemKey
) -> tuple[float | None, float | None]:
    """Return the lower tenth and the median of the speed to expect for a problem; None: not known."""
    prediction: Prediction | None = table.prediction if table else None
    expected = prediction.expected if prediction else None
    if expected is None:
        return None, None
    features = features_of(problem)
    pairs = zip(features, expected.ranges, strict=False)  # the sizes come first
    if all(least <= size <= most for size, (least, most) in pairs):
        return expected.shares[outcome(expected.splits, features)]
    return None, None


def predicted_ms(
    cost: Cost,
    multiple: int,
    fields: Mapping[str, Any],
    trees: Sequence[Tree] = (),
    sizes: Sequence[int] = (),
) -> float:
    """Return the time that a cost and its trees predict for a problem.

    ``sizes`` are the features of the problem. ValueError if an integer needs more than 64 bits.
    """
    total = _sum_of(cost.fixed, fields)
    blocks = value_of(blocks_of(cost.plan.grid), fields) if cost.waves else 0
    for slots, terms in cost.waves:
        total += -(-blocks // slots) * _sum_of(terms, fields)
    for name, factor in cost.misaligned.items():
        if fields[name] % multiple:
            total *= factor
    if trees:
        features = [*sizes, *fillings(blocks, cost.waves[0][0])]
        for tree in trees:
            total *= tree.factors[outcome(tree.splits, features)]
    return total


def outcome(splits: Sequence[Split], features: Sequence[int]) -> int:
    """Return the outcome of a tree: bit i is set if the feature of split i is above its threshold."""
    bits, bit = 0, 1
    for feature, threshold in splits:
        if features[feature] > threshold:
            bits += bit
        bit += bit
    return bits


def features_of(problem: ProblemKey) -> list[int]:
    """Return the features of a problem: its integers, and the largest power of two that divides each."""
    sizes = [value for value in problem if isinstance(value, int)]
    return [*sizes, *(size & -size for size in sizes)]


def fillings(blocks: int, multiprocessors: int) -> list[int]:
    """Return the features of a cost: its blocks, and how full their rounds are, in thirty-seconds.

    A round has one, two or four blocks on each multiprocessor.
    """
    if blocks * 32 > MAX_INTEGER or blocks < 1:
        raise ValueError("more than 64 bits, or no blocks")
    found = [blocks]
    for slots in (multiprocessors, 2 * multiprocessors, 4 * multiprocessors):
        found.append(32 * blocks // (-(-blocks // slots) * slots))
    return found


def _sum_of(terms: Sequence[Term], fields: Mapping[str, Any]) -> float:
    total = 0.0
    for product, names in terms:
        for name in names:
            product *= fields[name]
        total += product
    return total


def blocks_of(grid: Grid | None) -> Json:
    """Return the stored expression of the number of blocks of a grid."""
    if grid is None:
        raise ValueError("a cost without grid")
    blocks: Json = 1
    for axis in grid:
        blocks = axis if blocks == 1 else blocks if axis == 1 else ["*", blocks, axis]
    return blocks

"""Answer tables: their schema in records, and the rule that picks the plan for an unmeasured problem.

`answer` is the rule. The exported C++ header has the same rows and rule, without layouts and expected times. Its
doubles have the same order of operations, its integers 64 bits, so its constant expressions agree bit for bit. A
compiler that contracts to FMA may change the last bit of a time at run time, and so the answer of a near-tie;
with ``-ffp-contract=off`` it does not.

Lookup imports this module, so it has no heavy imports.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import inf, isqrt
from operator import itemgetter
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from autotune.devices.device import MAX_GRID
from autotune.kernel.expression import MAX_INTEGER, Json, value_of

#: Dynamic shared memory of a block that needs no opt-in, on every CUDA architecture.
COMMON_SHARED_BYTES = 48 * 1024
#: Features of a cost in addition to those of the problem; see `fillings`.
OWN_FEATURES = 4
#: Maximum number of levels of a tree.
MAX_LEVELS = 6
#: A portfolio is far wider than another if it is wider by more than this factor.
FAR_MORE = 1.5

#: An integer of 64 bits.
Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
#: A number of things, or of bytes.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
#: An extent of a block or grid.
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
#: A time in milliseconds, or a ratio of two times; above 0.
Measured: TypeAlias = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
#: A rate or an error; may be 0.
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
#: A share of the best speed.
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: A factor that corrects a fitted time.
Factor: TypeAlias = Annotated[float, msgspec.Meta(ge=0.01, le=100)]

#: A value of a parameter; a text may be part of a C identifier.
Value: TypeAlias = (
    Integer | bool | float | Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_]+\Z")]
)
#: Values of a problem's fields.
Sizes: TypeAlias = Mapping[str, Integer | str]
#: The least and the greatest value of each integer field, and the value of each text field.
SizeRange: TypeAlias = Mapping[str, tuple[Integer, Integer] | str]
#: Threads or blocks in x, y, z.
Triple: TypeAlias = tuple[Positive, Positive, Positive]
#: An expression over integer problem fields as JSON; see `autotune.kernel.expression`.
StoredExpression: TypeAlias = int | str | list[Any]
#: Blocks in x, y, z as expressions.
Grid: TypeAlias = tuple[StoredExpression, StoredExpression, StoredExpression]
#: A coefficient in milliseconds, and the integer problem fields of its product.
Term: TypeAlias = tuple[Annotated[float, msgspec.Meta(ge=0, lt=1e15)], tuple[str, ...]]
#: The number of a feature, and a threshold.
Split: TypeAlias = tuple[Count, Integer]


class PlannedLaunch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One launch of a configuration, for all problems."""

    #: Name of the function; empty: the kernel's name.
    entry: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    block: Triple
    shared_bytes: Count = 0
    #: None if the launch cannot be traced.
    grid: Grid | None = None
    #: Attributes of the launch; see `autotune.Launch`. None: no clusters.
    cluster: Triple | None = None
    cooperative: bool = False
    programmatic: bool = False

    @property
    def has_attributes(self) -> bool:
        """Return whether the driver gets more than the geometry."""
        return bool(self.cluster or self.cooperative or self.programmatic)

    def grid_for(self, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the blocks for a problem; raise `ValueError` if they need more than 64 bits."""
        return tuple(value_of(form, fields) for form in self.grid or ())


class Plan(PlannedLaunch, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration and its launches; the plan itself is its main launch.

    The main launch is that of the function with the kernel's name, else the first launch.
    """

    configuration: Mapping[str, Value]
    #: Launches that prepare the main launch, for example copy an argument to aligned rows.
    before: tuple[PlannedLaunch, ...] = ()
    #: Launches that complete the result.
    after: tuple[PlannedLaunch, ...] = ()
    #: Condition on a problem and its layout; None: every problem is allowed.
    requires: StoredExpression | None = None
    #: Architectures whose search space has the configuration; None if not checked.
    archs: tuple[str, ...] | None = None
    #: Whether two launches of one loaded module must not overlap.
    exclusive: bool = False
    #: Whether the kernel declares equal bits in every run for equal data; see `Kernel.deterministic`.
    deterministic: bool = False

    @property
    def launches(self) -> tuple[PlannedLaunch, ...]:
        """Return all launches in order."""
        return (*self.before, self, *self.after)

    def meets(self, fields: Mapping[str, object]) -> bool:
        """Return whether a problem with its layout satisfies the condition."""
        try:
            return self.requires is None or value_of(self.requires, fields) != 0
        except ValueError:
            return False

    def allows(self, fields: Mapping[str, object]) -> bool:
        """Return whether a problem with its layout satisfies the condition, and all grids are grids of CUDA.

        An empty problem may have an empty grid.
        """
        if not self.meets(fields):
            return False
        try:
            for launch in self.launches if self.before or self.after else (self,):
                for form, most in zip(launch.grid or (), MAX_GRID, strict=False):
                    if not 0 <= value_of(form, fields) <= most:
                        return False
        except ValueError:
            return False
        return True

    def fits(self, arch: str) -> bool:
        """Return whether the plan is valid on an architecture; if that was not checked, whether it is likely."""
        if self.archs is not None:
            return arch in self.archs
        return self.shared_bytes <= COMMON_SHARED_BYTES


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted time of a configuration as a function of the problem.

    The time is the sum of ``fixed`` and, for each entry of ``waves``, of its terms times
    ``ceil(blocks / slots)``.
    """

    plan: Plan
    fixed: tuple[Term, ...]
    #: Slots (blocks that run at the same time), and the terms.
    waves: tuple[tuple[Positive, tuple[Term, ...]], ...]
    #: Factor of the time for each field that is not a multiple of the prediction's ``multiple``.
    misaligned: Mapping[str, Measured] = {}


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """Splits of features, and a factor for each outcome of the splits."""

    #: Bit i of an outcome is set if the feature of split i is above its threshold.
    splits: tuple[Split, ...]
    factors: tuple[Factor, ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of the best speed that answers reach, measured on held-out sizes, by outcome of a tree."""

    #: Smallest and largest measured value of each integer field. The expectation holds in these ranges.
    ranges: tuple[tuple[Integer, Integer], ...]
    #: Splits like those of a `Tree`, over features of the problem only.
    splits: tuple[Split, ...]
    #: The lower tenth and the median of the shares, for each outcome.
    shares: tuple[tuple[Share, Share], ...]


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fitted times of several configurations; the allowed one with the smallest predicted time answers."""

    #: A field is aligned if it is a multiple of this.
    multiple: Positive
    costs: tuple[Cost, ...]
    #: Trees that correct each cost; empty: no cost has trees.
    corrections: tuple[tuple[Tree, ...], ...] = ()
    #: Number of problems in the fit.
    sizes: Count = 0
    #: None if too few answers on held-out sizes were measured.
    expected: Expected | None = None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A measured problem, and the plans for the problems that are nearest to it."""

    problem: Sizes
    #: In order of preference. The first plan is for the tuned layout. The others are for other layouts, and
    #: for answers that must be deterministic.
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]


class AnswerTable(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for unmeasured problems of one combination of categories."""

    rows: tuple[TableRow, ...]
    #: Answers before a row's plan; None: the category has no fit.
    prediction: Prediction | None = None

    def plans(self) -> Iterator[Plan]:
        """Yield the plans of all answers."""
        yield from (plan for row in self.rows for plan in row.plans)
        if self.prediction is not None:
            yield from (cost.plan for cost in self.prediction.costs)


class Portfolio(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix of times (configurations by problems), and the answer tables from it."""

    configurations: tuple[Mapping[str, Value], ...] = ()
    problems: tuple[Sizes, ...] = ()
    #: A row per configuration, a column per problem; None: failed, not measured or not allowed.
    median_ms: tuple[tuple[Measured | None, ...], ...] = ()
    #: Sizes at which all configurations that take them were verified.
    verified: tuple[SizeRange, ...] = ()
    tables: tuple[AnswerTable, ...] = ()

    @property
    def sizes(self) -> int:
        """Return the number of problems in the fits of the predictions."""
        return sum(table.prediction.sizes for table in self.tables if table.prediction)

    def is_far_wider(self, other: Portfolio) -> bool:
        """Return whether this portfolio has far more problems, or times, than another."""
        mine, theirs = self.sizes, other.sizes
        if max(mine, theirs) > FAR_MORE * min(mine, theirs):
            return mine > theirs
        count, others = (len(p.configurations) * len(p.problems) for p in (self, other))
        is_wider = len(self.problems) > FAR_MORE * len(other.problems)
        return is_wider or count > FAR_MORE * others


def covers(ranges: Iterable[SizeRange], problem: Sizes) -> bool:
    """Return whether one of the ranges contains a problem."""
    return any(
        all(
            known == problem[name]
            if isinstance(known, str)
            else known[0] <= problem[name] <= known[1]  # type: ignore[operator]
            for name, known in sizes.items()
        )
        for sizes in ranges
    )


# ---------------------------------------------------------------------- the answer of a table

#: The values of a problem in the order of the kernel's fields.
ProblemKey: TypeAlias = tuple[int | str, ...]

#: Bounds of the sixteenths of an octave: `sixteenths` compares a 64-bit mantissa with them. They are
#: ``ceil(2**(63 + j/16))`` for j from 1 to 15, exact so that C++ has the same numbers.
#:
#: The floor of a 16th root equals four nested floors of square roots. No value is an integer, so the ceiling is
#: the floor plus 1.
SIXTEENTHS: tuple[int, ...] = tuple(
    isqrt(isqrt(isqrt(isqrt(1 << 16 * 63 + j)))) + 1 for j in range(1, 16)
)


class AnsweringRow(Protocol):
    """A row of a table for `answer`."""

    @property
    def place(self) -> ProblemKey:
        """See `place_of`."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """See `TableRow`."""

    @property
    def table(self) -> AnswerTable | None:
        """The table of the row; None for a row outside any table."""


Row = TypeVar("Row", bound=AnsweringRow)


class Question(NamedTuple):
    """A problem to answer, and the condition on plans that may answer."""

    problem: ProblemKey
    place: ProblemKey
    #: The problem and its layout by name.
    fields: Mapping[str, Any]
    #: If true, only the row's first plan (or prediction) may answer: tuned layout, no demand for determinism.
    is_plain: bool
    #: Returns whether a plan may answer.
    is_able: Callable[[Plan], bool]
    #: Number of multiprocessors for which predictions count waves; 0: that of the measured device.
    multiprocessors: int = 0


class PickedPlan(NamedTuple, Generic[Row]):
    """The plan that answers, with its expected speed and time."""

    plan: Plan
    row: Row
    #: Share of the best speed that nine of ten such answers reach; None: unknown.
    expected_fraction: float | None
    #: Share of the best speed that half of such answers reach; None: unknown.
    median_fraction: float | None
    #: Predicted time; None: unknown.
    expected_ms: float | None


def answer(rows: Iterable[Row], question: Question) -> PickedPlan[Row] | None:
    """Return the answer for an unmeasured problem; None if no plan may answer.

    Take the nearest row with an allowed plan; see `distance`. If its table has a prediction, the allowed
    configuration with the smallest predicted time answers; else, or if it has no allowed configuration, the
    row's plan. Without any allowed row, the nearest row's prediction answers.

    The expected speed is that of predicted answers. It is unknown if a row's plan answers.
    """
    places = ((distance(question.place, row.place), row) for row in rows)
    known = [(apart, row) for apart, row in places if apart is not None]
    known.sort(key=itemgetter(0))
    for _, row in known:
        plans = row.plans[:1] if question.is_plain else row.plans
        plan = next(filter(question.is_able, plans), None)
        if plan is not None:
            return _predicted(row, question) or PickedPlan(plan, row, None, None, None)
    # No row has an allowed plan, but the prediction of the nearest row may have one.
    return _predicted(known[0][1], question) if known else None


def _predicted(row: Row, question: Question) -> PickedPlan[Row] | None:
    found = fastest(row.table, question)
    if found is None:
        return None
    plan, time_ms = found
    return PickedPlan(plan, row, *expected_of(row.table, question.problem), time_ms)


def sixteenths(n: int) -> int:
    """Return ``floor(16·log2(n))``, exact below 2**64; 0 for numbers below 1."""
    if n < 1:
        return 0
    octave = n.bit_length() - 1
    mantissa = n << (63 - octave) if octave <= 63 else n >> (octave - 63)
    return 16 * octave + bisect_right(SIXTEENTHS, mantissa)


def place_of(problem: ProblemKey) -> ProblemKey:
    """Return the place of a problem: categories unchanged, and integers as `sixteenths` of octaves."""
    return tuple(value if isinstance(value, str) else sixteenths(value) for value in problem)


def distance(a: ProblemKey, b: ProblemKey) -> int | None:
    """Return the distance of two places, a sum over integers; None if a category differs."""
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
            time_ms = predicted_ms(
                cost, prediction.multiple, fields, trees, features, question.multiprocessors
            )
        except ValueError:
            continue
        # The condition comes last: it takes longer than the time.
        if (chosen is None or time_ms < least_ms) and question.is_able(cost.plan):
            chosen, least_ms = cost.plan, time_ms
    return (chosen, least_ms) if chosen else None


def expected_of(
    table: AnswerTable | None, problem: ProblemKey
) -> tuple[float | None, float | None]:
    """Return the lower tenth and the median of the expected speed for a problem; None: unknown."""
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
    multiprocessors: int = 0,
) -> float:
    """Return the time in ms that a cost and its trees predict for a problem.

    ``sizes`` are the features of the problem. With ``multiprocessors`` the waves are those of a device with
    this number of them, and each takes as long as on the measured device; 0: the measured device. Raise
    `ValueError` if an integer needs more than 64 bits.
    """
    total = _sum_of(cost.fixed, fields)
    blocks = value_of(blocks_of(cost.plan.grid), fields) if cost.waves else 0
    measured = cost.waves[0][0] if cost.waves else 0  # a round has a block on each multiprocessor
    for slots, terms in cost.waves:
        if multiprocessors:
            slots = max(1, slots // measured) * multiprocessors
        total += -(-blocks // slots) * _sum_of(terms, fields)
    for name, factor in cost.misaligned.items():
        if fields[name] % multiple:
            total *= factor
    if trees:
        features = [*sizes, *fillings(blocks, multiprocessors or measured)]
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
    """Return the features of a problem: its integers, then the largest power of two that divides each."""
    sizes = [value for value in problem if isinstance(value, int)]
    return [*sizes, *(size & -size for size in sizes)]


def fillings(blocks: int, multiprocessors: int) -> list[int]:
    """Return the features of a cost: its blocks, then the occupied share of its waves in units of 1/32.

    There are three shares, for waves of one, two and four blocks on each multiprocessor. A wave of one block
    on each is a round.
    """
    if blocks * 32 > MAX_INTEGER or blocks < 1:
        raise ValueError("the number of blocks is too large or below 1")
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
    """Return the expression of the number of blocks of a grid."""
    if grid is None:
        raise ValueError("a cost has no grid")
    blocks: Json = 1
    for axis in grid:
        blocks = axis if blocks == 1 else blocks if axis == 1 else ["*", blocks, axis]
    return blocks

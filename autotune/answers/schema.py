"""The schema of answer tables, as records hold them.

Lookup imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from autotune.kernel.expression import MAX_INTEGER, value_of

#: Shared memory that every CUDA architecture grants a block without asking.
COMMON_SHARED_BYTES = 48 * 1024
#: Features of a cost in addition to those of the problem, and the most levels of a tree.
OWN_FEATURES, MAX_LEVELS = 4, 6
#: An older portfolio is kept in place of a newer one if it is wider by more than this factor.
FAR_MORE = 1.5

#: Numbers of a file, checked as it is read: an integer has 64 bits; a time in milliseconds or a ratio of
#: two is above 0 and bounded; a rate or an error may be 0.
Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Measured: TypeAlias = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
#: A share of the best speed.
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: A correction of a fitted time.
Factor: TypeAlias = Annotated[float, msgspec.Meta(ge=0.01, le=100)]

#: A value of a parameter; a text is part of a C identifier.
Value: TypeAlias = (
    Integer | bool | float | Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_]+\Z")]
)
#: Values of a problem's fields.
Sizes: TypeAlias = Mapping[str, Integer | str]
#: Threads or blocks in x, y, z.
Triple: TypeAlias = tuple[Positive, Positive, Positive]
#: An expression over integer problem fields as JSON; see `autotune.kernel.expression`.
StoredExpression: TypeAlias = int | str | list[Any]
Grid: TypeAlias = tuple[StoredExpression, StoredExpression, StoredExpression]
#: A coefficient in milliseconds, and the integer problem fields that it is multiplied by.
Term: TypeAlias = tuple[Annotated[float, msgspec.Meta(ge=0, lt=1e15)], tuple[str, ...]]
#: The number of a feature, and a threshold.
Split: TypeAlias = tuple[Count, Integer]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and its main launch, that of the kernel's name: the answer of a lookup."""

    configuration: Mapping[str, Value]
    block: Triple
    shared_bytes: Count = 0
    #: None where the launch cannot be traced.
    grid: Grid | None = None
    #: Condition that a problem and its layout must satisfy; None: all are allowed.
    requires: StoredExpression | None = None
    #: Architectures whose declared space holds this configuration; None where not examined.
    archs: tuple[str, ...] | None = None
    #: Whether two launches of one loaded module must not overlap.
    exclusive: bool = False
    #: Whether it is declared that the same data give the same bits in every run; see `Kernel.deterministic`.
    deterministic: bool = False

    def allows(self, fields: Mapping[str, object]) -> bool:
        """Return whether a problem satisfies this plan's condition."""
        if self.requires is None:
            return True
        try:
            return value_of(self.requires, fields) != 0
        except ValueError:
            return False

    def fits(self, arch: str) -> bool:
        """Return whether the plan is known, or else likely, to be valid on an architecture."""
        if self.archs is not None:
            return arch in self.archs
        return self.shared_bytes <= COMMON_SHARED_BYTES


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted time of a configuration as a function of the problem; see `autotune.answers.table`.

    The sum of ``fixed`` and, for each of ``waves``, its terms times ``ceil(blocks / slots)``. A field of
    ``misaligned`` multiplies it by a factor if it is not a multiple of the prediction's ``multiple``.
    """

    plan: Plan
    fixed: tuple[Term, ...]
    #: Blocks that run at a time, and the terms.
    waves: tuple[tuple[Positive, tuple[Term, ...]], ...]
    misaligned: Mapping[str, Measured] = {}


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """Splits of features, and a factor for each of their outcomes; see `autotune.answers.table`."""

    #: Bit i of an outcome: feature i is above its threshold.
    splits: tuple[Split, ...]
    factors: tuple[Factor, ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the best speed that answers reach, by kind of size, measured on held-out sizes."""

    #: Least and largest measured value of each integer field; nothing is expected beyond.
    ranges: tuple[tuple[Integer, Integer], ...]
    #: As of a `Tree`, over features of the problem alone.
    splits: tuple[Split, ...]
    #: The lower tenth and the median for each outcome.
    shares: tuple[tuple[Share, Share], ...]


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fitted times of several configurations; the allowed one with the smallest predicted time is used."""

    multiple: Positive
    costs: tuple[Cost, ...]
    #: Trees that correct the costs, in their order; empty: no cost is corrected.
    corrections: tuple[tuple[Tree, ...], ...] = ()
    #: Number of problems that it was fitted to.
    sizes: Count = 0
    #: None where too few answers on held-out sizes were measured.
    expected: Expected | None = None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A measured problem, and the plans to use for problems nearest to it."""

    problem: Sizes
    #: In order of preference. All but the first are for arrays that lie otherwise than those tuned,
    #: and for answers that must be deterministic.
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]


class AnswerTable(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for problems of one combination of categories that were not measured."""

    rows: tuple[TableRow, ...]
    #: Chooses in place of a row's first plan; None: too few sizes were measured.
    prediction: Prediction | None = None


class Portfolio(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix of times, configurations by problems, and the answer tables made of it."""

    configurations: tuple[Mapping[str, Value], ...] = ()
    problems: tuple[Sizes, ...] = ()
    #: A row per configuration, a column per problem; None: it failed, was not measured or does not apply.
    median_ms: tuple[tuple[Measured | None, ...], ...] = ()
    tables: tuple[AnswerTable, ...] = ()

    @property
    def sizes(self) -> int:
        """Return the number of problems that the predictions were fitted to."""
        return sum(table.prediction.sizes for table in self.tables if table.prediction)

    def is_far_wider(self, other: Portfolio) -> bool:
        """Return whether this measured far more problems, or times, than another."""
        mine, theirs = self.sizes, other.sizes
        if max(mine, theirs) > FAR_MORE * min(mine, theirs):
            return mine > theirs
        count, others = (len(p.configurations) * len(p.problems) for p in (self, other))
        is_wider = len(self.problems) > FAR_MORE * len(other.problems)
        return is_wider or count > FAR_MORE * others

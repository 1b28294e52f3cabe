"""The table that a lookup walks: the records of one kernel merged, and the rule that picks a row.

Knows the form of a tuned record's JSON; nothing of files, of the environment, or of which device is
present. Standard library only. The exported C++ header holds the same table and walks it by the
same rule, so that both answer alike:

1. the device's own records: the problem itself, else the nearest row
2. records of all devices of the architecture, the same way
3. records of the nearest other CUDA architecture whose plan is valid on this one
4. the kernel's default

The nearest row has the smallest sum over integer fields of ``|Δ floor(16·log2)|``, ties going to
the first. Categorical fields match exactly or the row does not count, and neither does a row whose
``requires`` the problem breaks. Where the row names a prediction, that answers: with the plan of
the smallest predicted time, ties going to the first, of those that the problem allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isqrt
from typing import Any, NamedTuple, TypeAlias

from autotune.kernel.expression import MAX_INTEGER, OPERATORS, Json, value_of
from autotune.tuned.formula import Cost, Term, waves_of

EXACT = "exact"
NEAREST_PROBLEM = "nearest_problem"
SAME_ARCH = "same_arch"
NEAREST_ARCH = "nearest_arch"
DEFAULT = "default"
#: How good a hit is, best first.
QUALITIES = (EXACT, NEAREST_PROBLEM, SAME_ARCH, NEAREST_ARCH, DEFAULT)

#: Shared memory that every CUDA architecture grants a block without asking.
COMMON_SHARED_BYTES = 48 * 1024
#: What ``__CUDA_ARCH__`` may be: ten times the number of an architecture, 900 for sm_90.
CUDA_ARCH_MACRO = range(300, 10000)

Value: TypeAlias = "int | bool | str"
Problem: TypeAlias = "tuple[int | str, ...]"
Triple: TypeAlias = "tuple[int, int, int]"


class Plan(NamedTuple):
    """A configuration and its launch, as lookup and header answer with it."""

    configuration: dict[str, Value]
    block: Triple
    shared_bytes: int
    grid: tuple[Json, Json, Json] | None
    requires: Json | None
    archs: tuple[str, ...] | None

    def allows(self, fields: Mapping[str, object]) -> bool:
        """Whether a problem satisfies what this plan requires."""
        if self.requires is None:
            return True
        try:
            return value_of(self.requires, fields) != 0
        except ValueError:
            return False

    def fits(self, arch: str) -> bool:
        """Whether it is known, or else likely, to be valid on another architecture."""
        if self.archs is not None:
            return arch in self.archs
        return self.shared_bytes <= COMMON_SHARED_BYTES


class Prediction(NamedTuple):
    """What chooses a plan for a problem that was not measured: plans, and the cost of each."""

    plans: tuple[Plan, ...]
    costs: tuple[Cost, ...]


class LookupRow(NamedTuple):
    """One problem and what to use for it."""

    problem: Problem
    #: ``floor(16·log2)`` of integer fields, the value of categorical ones.
    place: Problem
    plan: Plan
    source: str
    expected_fraction: float | None = None
    stale_reasons: tuple[str, ...] = ()
    #: Grid for exactly this problem, where the plan's could not be traced.
    grid: Triple | None = None
    #: What answers for other problems in place of the plan.
    prediction: Prediction | None = None


class Group:
    """The rows of one device, or of all devices of one architecture."""

    def __init__(self, name: str, arch: str) -> None:
        self.name = name
        self.arch = arch
        self.exact: dict[Problem, LookupRow] = {}
        self.nearest: dict[Problem, LookupRow] = {}


class LookupTable:
    """The merged records of one kernel: all that a lookup walks."""

    def __init__(self, kernel: str, fields: Mapping[str, bool], default: LookupRow) -> None:
        self.kernel = kernel
        #: Problem fields in order; True where integer, False where categorical.
        self.fields = dict(fields)
        #: Declared values of each parameter, of all records together.
        self.parameters: dict[str, tuple[Value, ...]] = {}
        self.default = default
        self.devices: dict[str, Group] = {}
        self.archs: dict[str, Group] = {}
        #: Driver names and uuids of devices, to their folders.
        self.names: dict[str, str] = {}


#: ``ceil(2**(63 + j/16))`` for j from 1 to 15: the floor of a 16th root is four floors of square
#: roots, and none of these is a whole number. Exact, so that C++ has the same numbers.
SIXTEENTHS: tuple[int, ...] = tuple(
    isqrt(isqrt(isqrt(isqrt(1 << 16 * 63 + j)))) + 1 for j in range(1, 16)
)


def sixteenths(n: int) -> int:
    """``floor(16·log2(n))`` in integers, exact below 2**64; 0 for what is below 1."""
    if n < 1:
        return 0
    octave = n.bit_length() - 1
    mantissa = n << (63 - octave) if octave <= 63 else n >> (octave - 63)
    return 16 * octave + bisect_right(SIXTEENTHS, mantissa)


def place_of(problem: Problem) -> Problem:
    """Where a problem lies: categories, and integers on a scale of sixteenths of octaves."""
    return tuple(one if isinstance(one, str) else sixteenths(one) for one in problem)


def distance(a: Problem, b: Problem) -> int | None:
    """Distance between the places of two problems; None where they differ in a category."""
    total = 0
    for one, other in zip(a, b, strict=True):
        if one.__class__ is int:
            total += abs(one - other)  # type: ignore[operator]
        elif one != other:
            return None
    return total


def pick(
    table: LookupTable, problem: Problem, device: str | None = None, arch: str | None = None
) -> tuple[LookupRow, str]:
    """The row for a problem on a device (its folder) or architecture, and how good it is."""
    fields = dict(zip(table.fields, problem, strict=True))
    place = place_of(problem)
    for group, exact, near, foreign in _candidates(table, device, arch):
        row = group.exact.get(problem)
        if row and row.plan.allows(fields) and (foreign is None or row.plan.fits(foreign)):
            return row, exact
        best, best_distance = None, -1
        for one in group.nearest.values():
            apart = distance(place, one.place)
            if apart is None or (best and apart >= best_distance):
                continue
            if one.plan.allows(fields) and (foreign is None or one.plan.fits(foreign)):
                best, best_distance = one, apart
        if best:
            return best._replace(plan=fastest(best, fields, foreign)), near
    return table.default, DEFAULT


def fastest(row: LookupRow, fields: Mapping[str, Any], foreign: str | None) -> Plan:
    """The plan that a row's prediction chooses for a problem; the row's own where it has none."""
    chosen, least_ms = row.plan, None
    sizes = [one for one in fields.values() if isinstance(one, int)]
    if row.prediction is None or any(abs(one) > MAX_INTEGER for one in sizes):
        return chosen
    for plan, cost in zip(row.prediction.plans, row.prediction.costs, strict=True):
        if plan.allows(fields) and (foreign is None or plan.fits(foreign)):
            try:
                time_ms = cost.time_ms(fields)
            except ValueError:
                continue
            if least_ms is None or time_ms < least_ms:
                chosen, least_ms = plan, time_ms
    return chosen


def _candidates(
    table: LookupTable, device: str | None, arch: str | None
) -> Iterator[tuple[Group, str, str, str | None]]:
    """Groups to ask in order, the quality of an exact and of a near hit, and the foreign arch."""
    if device is not None and device in table.devices:
        own = table.devices[device]
        arch = own.arch
        yield own, EXACT, NEAREST_PROBLEM, None
    if arch is None:
        return
    if arch in table.archs:
        hits = (EXACT, NEAREST_PROBLEM) if device is None else (SAME_ARCH, SAME_ARCH)
        yield table.archs[arch], *hits, None
    number = arch_number(arch)
    if number is None:
        return
    numbers = ((arch_number(one), one) for one in table.archs if one != arch)
    known = ((generations_apart(n, number), n, one) for n, one in numbers if n is not None)
    for _, _, other in sorted(known):
        yield table.archs[other], NEAREST_ARCH, NEAREST_ARCH, arch


def generations_apart(a: int, b: int) -> int:
    """How far apart two CUDA architectures are: first by generation, then by number."""
    return 1000 * abs(a // 10 - b // 10) + abs(a - b)


def arch_number(arch: str) -> int | None:
    """90 for ``sm_90``; None for what is no CUDA architecture."""
    return int(arch[3:]) or None if arch.startswith("sm_") and arch[3:].isdecimal() else None


class Loaded(NamedTuple):
    """One record as read from JSON, and where it came from."""

    layer: str
    folder: str
    document: dict[str, Any]

    @property
    def source(self) -> str:
        """Layer, device and kernel, for a person."""
        return f"{self.layer}:{self.folder}/{self.document['kernel']}"


def build_table(records: Sequence[Loaded], skipped: Callable[[str], object] = str) -> LookupTable:
    """Merge records of one kernel, those of higher layers first, into a table.

    Parameters
    ----------
    records : sequence of Loaded
        At least one; checked by `check`.
    skipped : callable
        Is told of each record that is left out because it has other fields or parameters than the
        newest.
    """
    newest = max(records, key=lambda one: moment(one.document["provenance"]["created"]))
    shape = _shape(newest.document)
    fitting = [one for one in records if _shape(one.document) == shape]
    for one in records:
        if _shape(one.document) != shape:
            skipped(f"{one.source}: left out: other problem fields or parameters than the newest")
    fields = {name: kind == "integer" for name, kind in newest.document["fields"].items()}
    default = LookupRow((), (), _plan(newest.document["default"], fields), newest.source)
    table = LookupTable(newest.document["kernel"], fields, default)
    for one in fitting:
        _add_device(table, one)
    for name in newest.document["parameters"]:
        values = [value for one in fitting for value in one.document["parameters"][name]]
        table.parameters[name] = tuple(dict.fromkeys(values))
    for arch in {group.arch: None for group in table.devices.values()}:
        groups = [group for group in table.devices.values() if group.arch == arch]
        table.archs[arch] = _of_arch(arch, groups, fitting)
    return table


def moment(text: str) -> datetime:
    """What a time of a record says: ISO 8601, in UTC where it names no zone; a day is its start.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"{text!r} is no time of ISO 8601") from error


def _shape(document: dict[str, Any]) -> tuple[object, ...]:
    return (document["fields"], set(document["parameters"]))


def _add_device(table: LookupTable, one: Loaded) -> None:
    """Add the rows of a record that no higher layer has for the same device and problem."""
    device = one.document["device"]
    group = table.devices.setdefault(one.folder, Group(one.folder, device["arch"]))
    for name in (one.folder, device["name"], device["uuid"]):
        if name:
            table.names.setdefault(name, one.folder)
    exact = {}
    for entry in one.document["entries"]:
        row = _row(table, entry, entry, one.source)
        exact[row.problem] = row._replace(
            expected_fraction=1.0,
            stale_reasons=tuple(entry["stale_reasons"]),
            grid=_concrete_grid(entry),
        )
    predictions = _predictions(table, one.document["portfolio"])
    rows = [_row(table, row, row["plan"], one.source) for row in one.document["fallback"]]
    for position, row in enumerate(one.document["fallback"]):
        if row.get("prediction") is not None:
            chooser = predictions[row["prediction"]]
            rows[position] = rows[position]._replace(prediction=chooser)
    # What was tuned but is not in the fallback table is a row as well, after it.
    for row in [*rows, *(row._replace(expected_fraction=None) for row in exact.values())]:
        evidence = exact.get(row.problem)
        reasons = evidence.stale_reasons if evidence else ()
        group.nearest.setdefault(row.problem, row._replace(stale_reasons=reasons))
    for problem, row in exact.items():
        group.exact.setdefault(problem, row)


def _predictions(table: LookupTable, portfolio: dict[str, Any]) -> list[Prediction]:
    """The predictions of a record; none in records of older versions."""
    found = []
    for one in portfolio.get("predictions", ()):
        plans = tuple(_plan(cost["plan"], table.fields) for cost in one["costs"])
        pairs = zip(one["costs"], plans, strict=True)
        costs = tuple(_cost(cost, plan, int(one["multiple"]), table) for cost, plan in pairs)
        found.append(Prediction(plans, costs))
    return found


def _cost(one: dict[str, Any], plan: Plan, multiple: int, table: LookupTable) -> Cost:
    slots = [int(slots) for slots, _ in one["waves"]]
    if plan.grid is None or min(slots, default=1) < 1 or multiple < 1:
        raise ValueError("a cost without grid, slots or multiple")
    misaligned = _terms([(factor, [name]) for name, factor in one["misaligned"].items()], table)
    return Cost(
        _terms(one["fixed"], table),
        tuple(
            (waves_of(plan.grid, number), _terms(terms, table))
            for number, (_, terms) in zip(slots, one["waves"], strict=True)
        ),
        tuple((name, multiple, factor) for factor, (name,) in misaligned),
    )


def _terms(terms: Sequence[Any], table: LookupTable) -> tuple[Term, ...]:
    for _, names in terms:
        for name in names:
            if not table.fields[name]:
                raise ValueError(f"a cost over {name!r}, which is no integer problem field")
    return tuple((float(coefficient), tuple(names)) for coefficient, names in terms)


def _row(
    table: LookupTable, holder: dict[str, Any], plan: dict[str, Any], source: str
) -> LookupRow:
    problem = tuple(holder["problem"][name] for name in table.fields)
    for value, integer in zip(problem, table.fields.values(), strict=True):
        if not isinstance(value, int if integer else str):
            raise ValueError(f"{holder['problem']!r} is not a problem of this kernel")
    return LookupRow(
        problem,
        place_of(problem),
        _plan(plan, table.fields),
        source,
        holder.get("expected_fraction"),
    )


def _plan(one: dict[str, Any], fields: Mapping[str, bool]) -> Plan:
    names = [name for name, integer in fields.items() if integer]
    grid = one["grid"]
    if grid is not None:
        grid = (*(_checked(axis, names) for axis in grid), 1, 1)[:3]
    requires = one["requires"]
    archs = one["archs"]
    return Plan(
        dict(one["configuration"]),
        _triple(one["block"]),
        int(one["shared_bytes"]),
        grid,
        None if requires is None else _checked(requires, names),
        None if archs is None else tuple(archs),
    )


def _concrete_grid(entry: dict[str, Any]) -> Triple | None:
    """The grid that was measured, for launches that could not be traced."""
    launches = [step for step in entry["steps"] if step["step"] == "launch"]
    return _triple(launches[0]["concrete_grid"]) if launches and entry["grid"] is None else None


def _triple(values: Sequence[int]) -> Triple:
    x, y, z = (*(int(one) for one in values), 1, 1)[:3]
    return x, y, z


def _checked(json_form: Any, names: Sequence[str]) -> Json:
    """A stored expression that can be walked whatever the problem.

    Raises
    ------
    ValueError
        If it cannot.
    """
    if isinstance(json_form, list):
        if len(json_form) != 3 or json_form[0] not in OPERATORS:
            raise ValueError(f"{json_form!r} is not an expression")
        return [json_form[0], _checked(json_form[1], names), _checked(json_form[2], names)]
    if isinstance(json_form, str) and json_form in names:
        return json_form
    if isinstance(json_form, int) and not isinstance(json_form, bool):
        return json_form
    raise ValueError(f"{json_form!r} is not an expression")


def _of_arch(arch: str, groups: Sequence[Group], records: Sequence[Loaded]) -> Group:
    """The rows of all devices of an architecture.

    Where several have the same problem, the plan with the least worst-case loss over them is
    taken; the first one's where that is not known.
    """
    merged = Group(arch, arch)
    for kind in ("exact", "nearest"):
        rows: dict[Problem, LookupRow] = getattr(merged, kind)
        for problem in {one: None for group in groups for one in getattr(group, kind)}:
            owners = [group for group in groups if problem in getattr(group, kind)]
            candidates = [getattr(group, kind)[problem] for group in owners]
            rows[problem] = min(candidates, key=lambda row: _worst_loss(row, owners, records))
    return merged


def _worst_loss(row: LookupRow, owners: Sequence[Group], records: Sequence[Loaded]) -> float:
    """Largest slowdown of a row's plan over devices that know its problem; infinite if unknown."""
    if len(owners) == 1:
        return 0.0
    return max(_loss(row, owner, records) for owner in owners)


def _loss(row: LookupRow, owner: Group, records: Sequence[Loaded]) -> float:
    best = owner.exact.get(row.problem)
    if best and best.plan.configuration == row.plan.configuration:
        return 0.0
    for one in (one for one in records if one.folder == owner.name):
        portfolio, fields = one.document["portfolio"], one.document["fields"]
        problems = [tuple(each[name] for name in fields) for each in portfolio["problems"]]
        if row.problem not in problems:
            continue
        column = problems.index(row.problem)
        times = [times[column] for times in portfolio["median_ms"]]
        known = [time_ms for time_ms in times if time_ms]
        for configuration, time_ms in zip(portfolio["configurations"], times, strict=True):
            if configuration == row.plan.configuration and time_ms:
                return float(time_ms / min(known)) - 1
    return float("inf")

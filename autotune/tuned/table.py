"""The table that a lookup walks: the records of one kernel merged, and the rule that picks a row.

Knows nothing of files, of the environment, or of which device is present. The exported C++ header
holds the same table and walks it by the same rule, so that both answer alike:

1. the device's own records: the problem itself, else the nearest row
2. records of all devices of the architecture, the same way
3. records of the nearest other CUDA architecture whose plan is valid on this one
4. the kernel's default

Of a device that was not tuned but whose properties are known, those devices come first in 2 and 3
that are most like it, and where it runs another number of blocks at a time, predictions count
waves and tails as it has them (`autotune.tuned.formula`); the header knows architectures only.

The nearest row has the smallest sum over integer fields of ``|Δ floor(16·log2)|``, ties going to
the first. Some rows reach only so far. Categorical fields match exactly or the row does not count,
and neither does a row whose ``requires`` the problem breaks; of arrays that lie otherwise than those
that were tuned no hit is exact, and a row has further plans. The header knows no others. Where the
row names a prediction, that answers: with the plan of the smallest predicted time, ties going to the
first, of those that the problem allows. What the row promises for that distance goes with the answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf, isqrt, log2
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from autotune.kernel.expression import MAX_INTEGER
from autotune.tuned.config import MadeFor
from autotune.tuned.formula import Move, move_between, time_ms
from autotune.tuned.promise import lowered
from autotune.tuned.reading import Loaded
from autotune.tuned.record import (
    TIME,
    Entry,
    FallbackRow,
    LaunchStep,
    Plan,
    Portfolio,
    Prediction,
    Promise,
    RecordedDevice,
    Triple,
    TunedRecord,
    Value,
    moment,
    relaid,
)

EXACT = "exact"
NEAREST_PROBLEM = "nearest_problem"
SAME_ARCH = "same_arch"
NEAREST_ARCH = "nearest_arch"
DEFAULT = "default"
#: How good a hit is, best first.
QUALITIES = (EXACT, NEAREST_PROBLEM, SAME_ARCH, NEAREST_ARCH, DEFAULT)

#: By what devices are compared: an octave more of any makes them as unlike as an octave of another.
PROPERTIES = (
    "sm_count",
    "shared_bytes_per_block",
    "l2_bytes",
    "peak_gb_per_s",
    "peak_gflop_per_s",
)

#: What ``__CUDA_ARCH__`` may be: ten times the number of an architecture, 900 for sm_90.
CUDA_ARCH_MACRO = range(300, 10000)
#: How architectures are called where they have no number of NVIDIA's: by AMD, and of OpenCL devices.
_OTHER_ARCHS = ("gfx", "opencl_")

#: The values of a problem in the order of the kernel's fields.
ProblemKey: TypeAlias = tuple[int | str, ...]


#: A reach beyond any distance.
EVERYWHERE = 2**31 - 1
#: How far the best for a problem answers where a table's answer is worse than it promises there: an
#: octave of two fields.
CORRECTED = 32


class LookupRow(NamedTuple):
    """One problem and what to use for it."""

    problem: ProblemKey
    #: ``floor(16·log2)`` of integer fields, the value of categorical ones.
    place: ProblemKey
    plan: Plan
    source: str
    #: Share of the best possible speed for the problem itself, or, once picked, for the asked one.
    expected_fraction: float | None = None
    #: The shares that are promised to other problems; see `autotune.tuned.record.FallbackRow`.
    promised: tuple[Promise, ...] = ()
    #: Largest distance of the problems that it answers for.
    reach: int = EVERYWHERE
    stale_reasons: tuple[str, ...] = ()
    #: Why the entry of this problem is unsure; empty where it is sure.
    unsure: str = ""
    #: Grid for exactly this problem, where the plan's could not be traced.
    grid: Triple | None = None
    #: What answers for other problems in place of the plan.
    prediction: Prediction | None = None
    #: What each cost of it was measured to take for this problem, 0 where it was not; else empty.
    measured_ms: tuple[float, ...] = ()
    #: What the entry of this problem was tuned for; None where it has none.
    made_for: MadeFor | None = None
    #: What answers where the plan does not, best first; see `autotune.tuned.record.FallbackRow`.
    views: tuple[Plan, ...] = ()
    #: Beside the winner of this problem, which is not: what is deterministic, and its share of the speed.
    deterministic: tuple[Plan, float] | None = None


class Group(msgspec.Struct, eq=False):
    """The rows of one device, or of all devices of one architecture."""

    name: str
    arch: str
    #: Where it is one device: its properties.
    device: RecordedDevice | None = None
    exact: dict[ProblemKey, LookupRow] = {}
    #: What answers around problems for which the rows below promise nothing, or too much.
    corrected: dict[ProblemKey, LookupRow] = {}
    nearest: dict[ProblemKey, LookupRow] = {}

    @property
    def rows(self) -> tuple[LookupRow, ...]:
        """What answers for other problems, in the order in which the first of equals does."""
        return (*self.corrected.values(), *self.nearest.values())


class LookupTable(msgspec.Struct, eq=False):
    """The merged records of one kernel: all that a lookup walks."""

    kernel: str
    #: Problem fields in order; True where integer, False where categorical.
    fields: dict[str, bool]
    default: LookupRow
    #: Layout fields, and what they are where a question leaves them out.
    layout: dict[str, int] = {}
    #: What all of them were tuned for.
    objective: str = TIME
    #: Declared values of each parameter, of all records together.
    parameters: dict[str, tuple[Value, ...]] = {}
    devices: dict[str, Group] = {}
    archs: dict[str, Group] = {}
    #: Driver names and uuids of devices, to their folders.
    names: dict[str, str] = {}

    def key(self, problem: Mapping[str, int | str]) -> ProblemKey:
        """The values of a problem in order."""
        return tuple(problem[name] for name in self.fields)

    def named(
        self, problem: ProblemKey, layout: Mapping[str, int] | None = None
    ) -> dict[str, int | str]:
        """A problem and its layout by name, as conditions ask for them."""
        fields = dict(zip(self.fields, problem, strict=True))
        return {**(self.layout if layout is None else layout), **fields}


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


def place_of(problem: ProblemKey) -> ProblemKey:
    """Where a problem lies: categories, and integers on a scale of sixteenths of octaves."""
    return tuple(value if isinstance(value, str) else sixteenths(value) for value in problem)


def distance(a: ProblemKey, b: ProblemKey) -> int | None:
    """Distance between the places of two problems; None where they differ in a category."""
    total = 0
    for first, second in zip(a, b, strict=True):
        if first.__class__ is int:
            total += abs(first - second)  # type: ignore[operator]
        elif first != second:
            return None
    return total


def pick(
    table: LookupTable,
    problem: ProblemKey,
    device: str | None = None,
    arch: str | None = None,
    layout: Mapping[str, int] | None = None,
    like: Any = None,
) -> tuple[LookupRow, str]:
    """The row for a problem on a device (its folder) or architecture, and how good it is.

    Of a ``layout`` all fields are given; default: that which was tuned. For a device that has no
    records ``like`` may be one with its `PROPERTIES` and ``arch``.
    """
    fields, is_plain = table.named(problem, layout), layout is None or layout == table.layout
    place = place_of(problem)
    for group, exact, near, foreign in _candidates(table, device, arch, like):
        move = None if exact == EXACT or group.device is None else move_between(group.device, like)
        hit = group.exact.get(problem)
        if hit and hit.plan.allows(fields) and (foreign is None or hit.plan.fits(foreign)):
            if move is not None:
                hit = hit._replace(plan=fastest(hit, fields, foreign, move))
            return hit, exact if is_plain else near
        found = nearest(group.rows, place, fields, foreign, is_plain, move)
        if found:
            return found, near
    return table.default, DEFAULT


def nearest(
    rows: Iterable[LookupRow],
    place: ProblemKey,
    fields: Mapping[str, Any],
    foreign: str | None,
    is_plain: bool = True,
    move: Move | None = None,
) -> LookupRow | None:
    """The nearest of some rows, as it answers for a problem that lies at a place.

    Arrays that lie otherwise than those that were tuned may have one of a row's further plans.
    """
    places = ((distance(place, row.place), row) for row in rows)
    near = [(apart, row) for apart, row in places if apart is not None and apart <= row.reach]
    for apart, row in sorted(near, key=itemgetter(0)):
        for plan in (row.plan,) if is_plain else (row.plan, *row.views):
            if plan.allows(fields) and (foreign is None or plan.fits(foreign)):
                best = row._replace(plan=plan)
                share = next((share for within, share in row.promised if apart <= within), None)
                plan = fastest(best, fields, foreign, move)
                return best._replace(plan=plan, expected_fraction=share)
    return None


def fastest(
    row: LookupRow, fields: Mapping[str, Any], foreign: str | None, move: Move | None = None
) -> Plan:
    """The plan that a row's prediction chooses for a problem; the row's own where it has none.

    With a ``move`` it is that for another device than the row's; what was measured for just this
    problem then counts as well, as far as the prediction missed it.
    """
    chosen, least_ms = row.plan, None
    sizes = [value for value in fields.values() if isinstance(value, int)]
    if row.prediction is None or any(abs(size) > MAX_INTEGER for size in sizes):
        return chosen
    multiple = row.prediction.multiple
    for number, cost in enumerate(row.prediction.costs):
        if row.measured_ms and not row.measured_ms[number]:
            continue
        try:
            predicted_ms = time_ms(move(cost) if move else cost, multiple, fields)
            if row.measured_ms:
                predicted_ms *= row.measured_ms[number] / time_ms(cost, multiple, fields)
        except (ValueError, ZeroDivisionError):
            continue
        if least_ms is not None and predicted_ms >= least_ms:
            continue
        # Last, since conditions take longer than times, and few are asked for.
        if cost.plan.allows(fields) and (foreign is None or cost.plan.fits(foreign)):
            chosen, least_ms = cost.plan, predicted_ms
    return chosen


def _candidates(
    table: LookupTable, device: str | None, arch: str | None, like: Any
) -> Iterator[tuple[Group, str, str, str | None]]:
    """Groups to ask in order, the quality of an exact and of a near hit, and the foreign arch."""
    if device is not None and device in table.devices:
        own = table.devices[device]
        arch, like = own.arch, None
        yield own, EXACT, NEAREST_PROBLEM, None
    if arch is None:
        return
    alike = _most_alike(table, like)
    yield from ((group, SAME_ARCH, SAME_ARCH, None) for group in alike if group.arch == arch)
    if arch in table.archs:
        hits = (EXACT, NEAREST_PROBLEM) if device is None else (SAME_ARCH, SAME_ARCH)
        yield table.archs[arch], *hits, None
    number = arch_number(arch)
    if number is None:
        return
    yield from ((group, NEAREST_ARCH, NEAREST_ARCH, arch) for group in alike if group.arch != arch)
    numbers = ((arch_number(other), other) for other in table.archs if other != arch)
    known = ((generations_apart(n, number), n, other) for n, other in numbers if n is not None)
    for _, _, other in sorted(known):
        yield table.archs[other], NEAREST_ARCH, NEAREST_ARCH, arch


def _most_alike(table: LookupTable, like: Any) -> list[Group]:
    """The devices of a table that can be compared with one, those most like it first."""
    groups = list(table.devices.values())
    apart = [unlikeness(like, group.device) for group in groups]
    ranked = sorted((octaves, i) for i, octaves in enumerate(apart) if octaves is not None)
    return [groups[i] for _, i in ranked]


def unlikeness(a: Any, b: Any) -> float | None:
    """How far two CUDA devices are apart, in octaves; None where either's properties are not known.

    The sum of the octaves between their `PROPERTIES`; a generation counts as one, a number within
    it as a tenth.
    """
    numbers = [arch_number(str(getattr(device, "arch", ""))) for device in (a, b)]
    pairs = [[getattr(device, name, 0) for device in (a, b)] for name in PROPERTIES]
    # A device of a table of architectures says that it has one multiprocessor.
    if None in numbers or not all(x and y for x, y in pairs) or 1 in pairs[0]:
        return None
    first, second = (divmod(number or 0, 10) for number in numbers)
    generations = abs(first[0] - second[0]) or abs(first[1] - second[1]) / 10
    return generations + sum(abs(log2(x / y)) for x, y in pairs)


def generations_apart(a: int, b: int) -> int:
    """How far apart two CUDA architectures are: first by generation, then by number."""
    return 1000 * abs(a // 10 - b // 10) + abs(a - b)


def arch_number(arch: str) -> int | None:
    """90 for ``sm_90``; None for what is no CUDA architecture."""
    return int(arch[3:]) or None if arch.startswith("sm_") and arch[3:].isdecimal() else None


def is_arch(name: str) -> bool:
    """Whether an architecture can be called so."""
    return (arch_number(name) or 0) >= 10 or name.startswith(_OTHER_ARCHS)


def normal_arch(arch: str | int | None) -> str | None:
    """``sm_90`` for 90, ``"9.0"``, ``"sm_90a"`` and 900 (`CUDA_ARCH_MACRO`); other names unchanged."""
    if arch is None:
        return None
    name = str(arch).strip().lower()
    bare = name.removeprefix("sm_").removesuffix("a").replace(".", "")
    if not bare.isdecimal():
        return name
    number = int(bare)
    return f"sm_{number // 10 if number in CUDA_ARCH_MACRO else number}"


def build_table(loaded: Sequence[Loaded], skipped: Callable[[str], object] = str) -> LookupTable:
    """Merge records of one kernel, at least one, those of higher layers first, into a table.

    ``skipped`` is told of each record that is left out because it was tuned for another objective
    than the first, or has other fields or parameters than the newest.
    """
    objective = loaded[0].record.objective
    for known in loaded:
        if known.record.objective != objective:
            skipped(
                f"{known.source}: left out: tuned for {known.record.objective}, not {objective}"
            )
    loaded = [known for known in loaded if known.record.objective == objective]
    newest = max(loaded, key=lambda known: moment(known.record.provenance.created))
    fitting = [known for known in loaded if known.record.shape == newest.record.shape]
    for known in loaded:
        if known.record.shape != newest.record.shape:
            skipped(
                f"{known.source}: left out: other problem fields or parameters than the newest, "
                f"{newest.source}; if these are two kernels, rename one of them"
            )
    record = newest.record
    fields = {name: kind == "integer" for name, kind in record.fields.items()}
    # Some may be of before the kernel had layout fields.
    layout = {name: value for known in fitting for name, value in known.record.layout.items()}
    layout |= record.layout
    record = relaid(record, layout)
    # A record of a CPU does not know where a configuration for GPUs is valid.
    knowing = (
        known.record.default.archs
        for known in fitting
        if known.record.default.archs is not None
        and known.record.default.configuration == record.default.configuration
    )
    plan = msgspec.structs.replace(record.default, archs=next(knowing, record.default.archs))
    default = LookupRow((), (), plan, newest.source)
    table = LookupTable(record.kernel, fields, default, layout, objective)
    entries: dict[str, dict[ProblemKey, Entry]] = {}
    for known in fitting:
        known = known._replace(record=relaid(known.record, layout))
        _add_device(table, known)
        tuned = entries.setdefault(known.folder, {})
        for entry in known.record.entries:
            tuned.setdefault(table.key(entry.problem), entry)
    for folder, group in table.devices.items():
        _join(table, group, entries[folder])
    for name in record.parameters:
        values = [value for known in fitting for value in known.record.parameters[name]]
        table.parameters[name] = tuple(dict.fromkeys(values))
    times: dict[str, list[_Times]] = {}
    for known in fitting:
        times.setdefault(known.folder, []).append(_Times(table, known.record.portfolio))
    for arch in {group.arch: None for group in table.devices.values()}:
        groups = [group for group in table.devices.values() if group.arch == arch]
        table.archs[arch] = _of_arch(arch, groups, times)
    return table


def deterministic_only(table: LookupTable) -> LookupTable:
    """A table of deterministic plans: where one is not, the next of its row that is, and else no row.

    Promises are kept where nothing but such plans would have answered. What changes nothing is the
    same object; the default stays, whatever it is.
    """
    predictions: dict[int, Prediction | None] = {}

    def chooser(prediction: Prediction | None) -> Prediction | None:
        if prediction is None or all(cost.plan.deterministic for cost in prediction.costs):
            return prediction
        costs = tuple(cost for cost in prediction.costs if cost.plan.deterministic)
        left = msgspec.structs.replace(prediction, costs=costs) if costs else None
        return predictions.setdefault(id(prediction), left)

    def only(row: LookupRow) -> LookupRow | None:
        plans = tuple(plan for plan in (row.plan, *row.views) if plan.deterministic)
        prediction = chooser(row.prediction)
        if row.plan.deterministic and prediction is row.prediction:
            return row if len(plans) == 1 + len(row.views) else row._replace(views=plans[1:])
        share = row.expected_fraction if row.plan.deterministic else None
        if row.deterministic is not None:
            plan, share = row.deterministic
            plans = (plan, *plans)
        if not plans:
            return None
        # A view may take some other layout alone.
        plans = tuple(sorted(plans, key=lambda plan: not plan.allows(table.named(row.problem))))
        costs = row.prediction.costs if row.prediction and row.measured_ms else ()
        return row._replace(
            plan=plans[0],
            views=plans[1:],
            prediction=prediction,
            measured_ms=tuple(
                ms
                for cost, ms in zip(costs, row.measured_ms, strict=True)
                if cost.plan.deterministic
            ),
            promised=(),
            expected_fraction=share,
        )

    def rows(known: Mapping[ProblemKey, LookupRow]) -> dict[ProblemKey, LookupRow]:
        left = ((problem, only(row)) for problem, row in known.items())
        return {problem: row for problem, row in left if row is not None}

    def group(known: Group) -> Group:
        kinds = ("exact", "corrected", "nearest")
        tables = {kind: rows(getattr(known, kind)) for kind in kinds}
        is_same = all(
            tables[kind].get(problem) is row
            for kind in kinds
            for problem, row in getattr(known, kind).items()
        )
        return known if is_same else Group(known.name, known.arch, known.device, **tables)

    return LookupTable(
        table.kernel,
        table.fields,
        table.default,
        table.layout,
        table.objective,
        table.parameters,
        {name: group(known) for name, known in table.devices.items()},
        {name: group(known) for name, known in table.archs.items()},
        table.names,
    )


def _add_device(table: LookupTable, loaded: Loaded) -> None:
    """Add the rows of a record that no higher layer has for the same device and problem."""
    record, device = loaded.record, loaded.record.device
    group = table.devices.setdefault(loaded.folder, Group(loaded.folder, device.arch, device))
    for name in (loaded.folder, device.name, device.uuid):
        if name:
            table.names.setdefault(name, loaded.folder)
    winners = [_exact_row(table, entry, loaded.source) for entry in record.entries]
    exact = {row.problem: row for row in winners}
    rows = [_fallback_row(table, row, loaded) for row in record.fallback]
    corrections = [row for row in rows if row.reach < EVERYWHERE]
    rows = [row for row in rows if row.reach == EVERYWHERE]
    taken = set()
    # What was tuned but is not in the fallback table is a row as well, after it.
    for row in [*rows, *(row._replace(expected_fraction=None) for row in exact.values())]:
        known = group.nearest.get(row.problem)
        if known is None or (row.promised and not known.promised):
            group.nearest[row.problem] = _with_evidence(row, exact)
            taken.add(row.problem)
    for row in corrections:
        if row.problem in taken:
            group.corrected[row.problem] = _with_evidence(row, exact)
    exact |= _with_predictions(table, record, exact)
    for problem, row in exact.items():
        group.exact.setdefault(problem, row)


def _with_predictions(
    table: LookupTable, record: TunedRecord, exact: Mapping[ProblemKey, LookupRow]
) -> dict[ProblemKey, LookupRow]:
    """Winners of problems that a prediction answers for, with it: another device may ask it."""
    measured = _measured_costs(record.portfolio)
    columns = {table.key(problem): i for i, problem in enumerate(record.portfolio.problems)}
    found = {}
    for row in record.fallback:
        problem = table.key(row.problem)
        if row.prediction is not None and problem in exact and problem in columns:
            times = (times[columns[problem]] or 0.0 for times in measured[row.prediction])
            prediction = record.portfolio.predictions[row.prediction]
            found[problem] = exact[problem]._replace(
                prediction=prediction, measured_ms=tuple(times)
            )
    return found


def _measured_costs(portfolio: Portfolio) -> list[list[Sequence[float | None]]]:
    """Of each prediction the times of its costs, by problem; of one never measured there are none."""
    none = (None,) * len(portfolio.problems)
    configurations = (frozenset(values.items()) for values in portfolio.configurations)
    times = dict(zip(configurations, portfolio.median_ms, strict=True))
    return [
        [times.get(frozenset(cost.plan.configuration.items()), none) for cost in prediction.costs]
        for prediction in portfolio.predictions
    ]


def _with_evidence(row: LookupRow, exact: Mapping[ProblemKey, LookupRow]) -> LookupRow:
    """A row with what is said of the entry of its problem."""
    evidence = exact.get(row.problem)
    if evidence is None:
        return row
    return row._replace(
        stale_reasons=evidence.stale_reasons, unsure=evidence.unsure, made_for=evidence.made_for
    )


def _join(table: LookupTable, group: Group, entries: Mapping[ProblemKey, Entry]) -> None:
    """Let rows that promise nothing, as they were tuned alone, join those that do.

    Such a row answers for its own problem, as an exact hit. Around that it answers only where the
    others promise nothing, or were measured there and got less than promised: then the row of them
    that did promises no more than that, as far away as that.
    """
    promising = {row.problem: row for row in group.nearest.values() if row.promised}
    for row in [row for row in group.nearest.values() if not row.promised]:
        found = nearest(promising.values(), row.place, table.named(row.problem), None)
        if found is None:
            continue
        del group.nearest[row.problem]
        share = _share(entries.get(row.problem), found.plan)
        promise = found.expected_fraction
        if promise is None or (share is not None and share < promise):
            group.corrected[row.problem] = row._replace(reach=CORRECTED)
        if promise is not None and share is not None and share < promise:
            apart = distance(row.place, found.place) or 0
            base = promising[found.problem]
            base = base._replace(promised=lowered(base.promised, apart, share))
            promising[found.problem] = group.nearest[found.problem] = base


def _share(entry: Entry | None, plan: Plan) -> float | None:
    """Share of an entry's speed that a plan reached beside it; None where it was not measured."""
    if entry is None:
        return None
    if entry.configuration == plan.configuration:
        return 1.0
    ratios = (
        other.ratio or other.median_ms / entry.median_ms
        for other in entry.runners_up
        if other.configuration == plan.configuration
    )
    return next((1 / ratio for ratio in ratios), None)


def _exact_row(table: LookupTable, entry: Entry, source: str) -> LookupRow:
    problem = table.key(entry.problem)
    # The main launch, as `autotune.kernel.launches` has it, which is too heavy to import here.
    untraced = entry.steps if entry.grid is None else ()
    launches = [step for step in untraced if isinstance(step, LaunchStep)]
    named = (step for step in launches if step.entry == table.kernel)
    main = next(named, launches[0] if launches else None)
    best = entry.best_deterministic
    return LookupRow(
        problem,
        place_of(problem),
        entry.plan,
        source,
        expected_fraction=1.0,
        stale_reasons=entry.stale_reasons,
        unsure=entry.unsure,
        grid=main.concrete_grid if main else None,
        made_for=MadeFor(entry.source, entry.arguments, entry.inputs),
        deterministic=None if best is None else (best.plan, min(1.0, 1 / best.ratio)),
    )


def _fallback_row(table: LookupTable, row: FallbackRow, loaded: Loaded) -> LookupRow:
    problem = table.key(row.problem)
    predictions = loaded.record.portfolio.predictions
    return LookupRow(
        problem,
        place_of(problem),
        row.plan,
        loaded.source,
        promised=row.promised,
        reach=EVERYWHERE if row.reach is None else row.reach,
        prediction=None if row.prediction is None else predictions[row.prediction],
        views=row.views,
    )


def _of_arch(arch: str, groups: Sequence[Group], times: Mapping[str, Sequence[_Times]]) -> Group:
    """The rows of all devices of an architecture.

    Where several have the same problem, the plan with the least worst-case loss over them is
    taken; the first one's where that is not known.
    """
    merged = Group(arch, arch)
    for kind in ("exact", "corrected", "nearest"):
        owners: dict[ProblemKey, list[Group]] = {}
        for group in groups:
            for problem in getattr(group, kind):
                owners.setdefault(problem, []).append(group)
        rows: dict[ProblemKey, LookupRow] = getattr(merged, kind)
        for problem, having in owners.items():
            candidates = [getattr(group, kind)[problem] for group in having]
            rows[problem] = min(candidates, key=lambda row: _worst_loss(row, having, times))
    return merged


def _worst_loss(
    row: LookupRow, owners: Sequence[Group], times: Mapping[str, Sequence[_Times]]
) -> float:
    """Largest slowdown of a row's plan over devices that know its problem; infinite if unknown."""
    if len(owners) == 1:
        return 0.0
    return max(_loss(row, owner, times[owner.name]) for owner in owners)


def _loss(row: LookupRow, owner: Group, times: Sequence[_Times]) -> float:
    best = owner.exact.get(row.problem)
    if best and best.plan.configuration == row.plan.configuration:
        return 0.0
    known = (measured.loss(row) for measured in times)
    return next((loss for loss in known if loss is not None), inf)


class _Times:
    """The times of a record's portfolio, by problem: they are asked for every row of a table."""

    def __init__(self, table: LookupTable, portfolio: Portfolio) -> None:
        self.configurations, self.median_ms = portfolio.configurations, portfolio.median_ms
        problems = map(table.key, portfolio.problems)
        self.columns = {problem: column for column, problem in enumerate(problems)}

    def loss(self, row: LookupRow) -> float | None:
        """Slowdown of a row's plan beside the best for its problem; None where it has no time."""
        column = self.columns.get(row.problem)
        if column is None:
            return None
        times = [times[column] for times in self.median_ms]
        least_ms = min((median_ms for median_ms in times if median_ms), default=0.0)
        for configuration, median_ms in zip(self.configurations, times, strict=True):
            if configuration == row.plan.configuration and median_ms:
                return median_ms / least_ms - 1
        return None

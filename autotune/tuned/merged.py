"""Merges the records of one kernel into a table, and picks the plan for a problem.

`pick` tries the rows of the device, then of its architecture, then of the nearest other CUDA architecture with
valid plans, then the kernel's default. In each group the row of the problem itself answers, else the rows of
other problems; see `autotune.answers.table.answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from autotune.answers.table import (
    AnswerTable,
    Plan,
    ProblemKey,
    Question,
    SizeRange,
    Value,
    answer,
    covers,
    distance,
    expected_of,
    place_of,
)
from autotune.devices.device import Device
from autotune.tuned.dates import moment
from autotune.tuned.reading import RecordFile
from autotune.tuned.record import TIME, TunedProblem, TunedRecord
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.rival import TunedCall, rival_of

EXACT = "exact"
NEAREST_PROBLEM = "nearest_problem"
SAME_ARCH = "same_arch"
NEAREST_ARCH = "nearest_arch"
DEFAULT = "default"
#: Qualities of a hit, best first.
QUALITIES = (EXACT, NEAREST_PROBLEM, SAME_ARCH, NEAREST_ARCH, DEFAULT)

#: Quality of an answer of a first call; headers have no such answers.
FIRST_CALL = "first_call"

#: Values of ``__CUDA_ARCH__``: ten times the number of an architecture, 900 for sm_90.
CUDA_ARCH_MACRO = range(300, 10000)
#: Prefixes of other architectures: of AMD, and of OpenCL devices.
_OTHER_ARCHS = ("gfx", "opencl_")


class LookupRow(NamedTuple):
    """A measured problem and its plans."""

    problem: ProblemKey
    #: ``floor(16·log2)`` of integer fields, the value of categorical ones.
    place: ProblemKey
    #: In order of preference; see `autotune.answers.table.TableRow`.
    plans: tuple[Plan, ...]
    origin: RecordFile
    #: The record's entry of this problem; None if it was not tuned.
    tuned: TunedProblem | None = None
    #: Sizes at which the configurations of the row and its table were verified.
    verified: tuple[SizeRange, ...] = ()
    #: The table that the row is part of; None for a row of its own.
    table: AnswerTable | None = None

    @property
    def share_of_second(self) -> float | None:
        """Return the speed of a tuned problem's second plan as a share of the best; None if unknown."""
        second = self.tuned.race.best_deterministic if self.tuned else None
        return None if second is None or second.ratio is None else min(1.0, 1 / second.ratio.value)


class Hit(NamedTuple):
    """The answer of a table."""

    plan: Plan
    #: None for a first call.
    row: LookupRow | None
    #: One of `QUALITIES`.
    quality: str
    #: Share of the best speed that nine of ten such answers reach; None: unknown.
    expected_fraction: float | None = None
    #: Share of the best speed that half of such answers reach; None: unknown.
    median_fraction: float | None = None
    #: Expected time in ms; None: unknown.
    expected_ms: float | None = None
    #: Whether the size of the problem is in a range of verified sizes.
    verified: bool = False
    #: The vendor's call that answers in place of the plan; None: the plan is better, or the problem was not tuned.
    rival: TunedCall | None = None


class Group(msgspec.Struct, eq=False, frozen=True):
    """The rows of one device, or of all devices of one architecture."""

    name: str
    arch: str
    #: None for an architecture.
    device: RecordedDevice | None = None
    #: The rows of the tuned problems.
    exact: Mapping[ProblemKey, LookupRow] = {}
    #: The rows that answer for other problems. Of two rows at the same distance the first answers.
    near: Mapping[ProblemKey, LookupRow] = {}


class LookupTable(msgspec.Struct, eq=False):
    """The merged records of one kernel."""

    kernel: str
    #: Problem fields in order; True for an integer field, False for a categorical one.
    fields: dict[str, bool]
    #: The rows of the kernel's default, one for each combination of categories.
    defaults: Group
    #: The newest record: rows of another definition of the kernel are left out.
    newest: TunedRecord
    #: Layout fields with their default values, those of the tuned layout.
    layout: dict[str, int] = {}
    #: The objective of all records.
    objective: str = TIME
    #: Declared values of each parameter in all records together.
    parameters: dict[str, tuple[Value, ...]] = {}
    #: The parameters of each source, if there are several sources.
    sources: dict[str, tuple[str, ...]] = {}
    #: By the folder of the device's first record; a chip with the name of an earlier one has a folder with ``_``.
    devices: dict[str, Group] = {}
    archs: dict[str, Group] = {}
    #: Keys of `devices` by folder, driver name and uuid of the device.
    names: dict[str, str] = {}

    def plans(self) -> Iterator[Plan]:
        """Yield every plan, the defaults last."""
        for group in (*self.devices.values(), self.defaults):
            for row in (*group.exact.values(), *group.near.values()):
                yield from row.plans
                if row.table and row.table.prediction:
                    yield from (cost.plan for cost in row.table.prediction.costs)

    def plan_of(
        self, configuration: Mapping[str, Value], fields: Mapping[str, Any], deterministic: bool
    ) -> Plan | None:
        """Return a configuration's plan that is valid for a problem and its layout; None without one."""
        for plan in self.plans():
            serves = plan.deterministic or not deterministic
            if serves and plan.configuration == configuration and plan.allows(fields):
                return plan
        return None

    def own_records(self, device: Device) -> str:
        """Return the key of the records of a device's chip in `devices`; empty without any.

        Records of its uuid and name come first, unless their chip is known to differ.
        """
        chip, name = device.chip, device.name
        chips = {key: group.device.chip for key, group in self.devices.items() if group.device}
        named = [
            key for key, group in self.devices.items() if group.device and group.device.name == name
        ]
        own = [self.names[text] for text in (device.uuid, name) if text in self.names]
        fitting = [key for key in (*own, *named) if not chip.difference(chips[key])]
        return next(chain(fitting, (key for key in chips if chip.is_same(chips[key]))), "")

    def key(self, problem: Mapping[str, int | str]) -> ProblemKey:
        """Return the values of a problem in the order of the fields."""
        return tuple(problem[name] for name in self.fields)

    def named(
        self, problem: ProblemKey, layout: Mapping[str, int] | None = None
    ) -> dict[str, int | str]:
        """Return the fields of a problem and its layout by name; conditions need both."""
        fields = dict(zip(self.fields, problem, strict=True))
        return {**(self.layout if layout is None else layout), **fields}


def pick(
    table: LookupTable,
    problem: ProblemKey,
    device: str | None = None,
    arch: str | None = None,
    layout: Mapping[str, int] | None = None,
    deterministic: bool = False,
    without: Sequence[Mapping[str, Value]] = (),
    multiprocessors: int = 0,
) -> Hit | None:
    """Return the answer for a problem on a device (its key) or architecture; None without a valid plan.

    ``layout`` must have all layout fields; default: the tuned layout. With ``deterministic`` only
    deterministic plans answer. Configurations in ``without`` do not answer. Predictions of other devices count the
    waves of ``multiprocessors``; 0: of the measured ones.

    An expected speed or time holds on the device, or on the architecture if no device is given, and in the
    tuned layout only.
    """
    asked = _Query(
        problem,
        place_of(problem),
        table.named(problem, layout),
        is_plain=layout is None or layout == table.layout,
        without=without,
    )
    for group, exact, near, foreign in _candidates(table, device, arch):
        count = 0 if exact == EXACT else multiprocessors
        hit = _search(group, asked, foreign, count)
        if deterministic and not (hit and hit.plan.deterministic):
            hit = _search(group, asked, foreign, count, deterministic=True)
        if hit:
            is_exact = hit.quality == EXACT and asked.is_plain
            quality = exact if is_exact else near
            if asked.is_plain and quality in (EXACT, NEAREST_PROBLEM):
                return hit._replace(quality=quality)
            return Hit(hit.plan, hit.row, quality, verified=hit.verified)
    return None


class _Query(NamedTuple):
    problem: ProblemKey
    place: ProblemKey
    #: The problem and its layout by name.
    fields: Mapping[str, Any]
    #: Whether the layout is the tuned one.
    is_plain: bool
    #: Configurations that do not answer.
    without: Sequence[Mapping[str, Value]]


def _search(
    group: Group,
    asked: _Query,
    foreign: str | None,
    multiprocessors: int,
    deterministic: bool = False,
) -> Hit | None:
    """Return the answer of a group's rows; with a ``foreign`` architecture its plan must fit that."""

    def is_able(plan: Plan) -> bool:
        if deterministic and not plan.deterministic:
            return False
        if asked.without and plan.configuration in asked.without:
            return False
        return plan.allows(asked.fields) and (foreign is None or plan.fits(foreign))

    row = group.exact.get(asked.problem)
    plan = next(filter(is_able, row.plans), None) if row else None
    if row and plan:
        share = 1.0 if plan is row.plans[0] else row.share_of_second
        known_ms = row.tuned.median_ms if row.tuned and plan is row.plans[0] else None
        rival = rival_of(row.tuned.race, deterministic) if row.tuned else None
        return Hit(plan, row, EXACT, share, share, known_ms, verified=True, rival=rival)
    is_plain = asked.is_plain and not deterministic
    question = Question(
        asked.problem, asked.place, asked.fields, is_plain, is_able, multiprocessors
    )
    found = answer(group.near.values(), question)
    if found is None:
        return None
    # The shares were measured without the demand for determinism.
    shares = (None, None) if deterministic else (found.expected_fraction, found.median_fraction)
    verified = covers(found.row.verified, asked.fields)
    return Hit(found.plan, found.row, NEAREST_PROBLEM, *shares, found.expected_ms, verified)


def _candidates(
    table: LookupTable, device: str | None, arch: str | None
) -> Iterator[tuple[Group, str, str, str | None]]:
    """Yield groups in order of priority: the group, the quality of an exact and a near hit, the foreign arch.

    Nothing is known about the limits of OpenCL devices and of unknown ones.
    """
    if device is not None and device in table.devices:
        own = table.devices[device]
        arch = own.arch
        yield own, EXACT, NEAREST_PROBLEM, None
    if arch is not None and arch in table.archs:
        hits = (EXACT, NEAREST_PROBLEM) if device is None else (SAME_ARCH, SAME_ARCH)
        yield table.archs[arch], *hits, None
    number = arch_number(arch or "")
    if number is not None:
        numbers = ((arch_number(other), other) for other in table.archs if other != arch)
        known = (
            (abs(n // 10 - number // 10), abs(n - number), n, other) for n, other in numbers if n
        )
        for *_, other in sorted(known):
            yield table.archs[other], NEAREST_ARCH, NEAREST_ARCH, arch
    yield table.defaults, DEFAULT, DEFAULT, None if number is None else arch


def arch_number(arch: str) -> int | None:
    """Return 90 for ``sm_90``; None for an architecture that is not of CUDA."""
    return int(arch[3:]) or None if arch.startswith("sm_") and arch[3:].isdecimal() else None


def is_arch(name: str) -> bool:
    """Return whether a text is the name of an architecture; ``sm_900`` is not: 900 is a macro's value."""
    number = arch_number(name) or 0
    return 10 <= number < CUDA_ARCH_MACRO.start or name.startswith(_OTHER_ARCHS)


def normal_arch(arch: str | int | None) -> str | None:
    """Return ``sm_90`` for 90, ``"9.0"``, ``"sm_90a"`` and 900 (`CUDA_ARCH_MACRO`); other names unchanged."""
    if arch is None:
        return None
    name = str(arch).strip().lower()
    bare = name.removeprefix("sm_").removesuffix("a").replace(".", "")
    if not bare.isdecimal():
        return name
    number = int(bare)
    return f"sm_{number // 10 if number in CUDA_ARCH_MACRO else number}"


def build_table(
    loaded: Sequence[RecordFile], skipped: Callable[[str], object] = str
) -> LookupTable:
    """Merge one or more records of a kernel into a table; records of higher layers come first.

    Leave out records with another objective than the first, and records with other fields, parameters or
    layout than the newest. ``skipped`` is called with a message for each of the latter. Also leave out every
    answer of another kernel than the newest record's: its launches may be wrong.
    """
    objective = loaded[0].record.objective
    loaded = [known for known in loaded if known.record.objective == objective]
    newest = max(loaded, key=lambda known: moment(known.record.provenance.created))
    fitting = [known for known in loaded if known.record.shape == newest.record.shape]
    for known in loaded:
        if known.record.shape != newest.record.shape:
            skipped(
                f"{known.source}: left out: its problem fields or parameters differ from the newest "
                f"record, {newest.source}; if these are two kernels, rename one of them"
            )
    record = newest.record
    # Only CUDA records have the architectures of the default.
    current = [known for known in fitting if record.serves(known.record)]
    with_archs = [known for known in current if known.record.default.archs is not None]
    latest = max(with_archs or [newest], key=lambda known: moment(known.record.provenance.created))
    defaults: dict[ProblemKey, LookupRow] = {}
    table = LookupTable(
        record.kernel,
        {name: kind == "integer" for name, kind in record.fields.items()},
        Group(DEFAULT, "", near=defaults),
        record,
        dict(record.layout),
        objective,
        sources=dict(record.sources),
    )
    for row in latest.record.defaults:
        problem = table.key(row.problem)
        defaults[problem] = LookupRow(problem, place_of(problem), row.plans, latest)
    for name in record.parameters:
        values = [value for known in fitting for value in known.record.parameters[name]]
        table.parameters[name] = tuple(dict.fromkeys(values))
    by_device: dict[str, list[RecordFile]] = {}
    keys = [_device_key(known, by_device) for known in fitting]
    names = [(known.record.device.name, key) for known, key in zip(fitting, keys, strict=True)]
    uuids = [(known.record.device.uuid, key) for known, key in zip(fitting, keys, strict=True)]
    folders = [(known.folder, key) for known, key in zip(fitting, keys, strict=True)]
    # Names come before uuids, so that a uuid never hides the name of another device.
    for name, key in (*folders, *names, *uuids):
        if name:
            table.names.setdefault(name, key)
    for key, records in by_device.items():
        own = [known for known in current if any(known is other for other in records)]
        table.devices[key] = _of_device(table, key, records, own)
    for arch in {group.arch: None for group in table.devices.values()}:
        groups = [group for group in table.devices.values() if group.arch == arch]
        table.archs[arch] = _of_arch(table, arch, groups)
    return table


def _device_key(known: RecordFile, by_device: dict[str, list[RecordFile]]) -> str:
    """Add a record to those of its device, and return their key: the folder of the first of them.

    Records of one chip are of one device, also under other names. Records of two chips of one name are not.
    """
    for key, (first, *_) in by_device.items():
        if known.record.device.is_of(first.record.device):
            by_device[key].append(known)
            return key
    key = known.folder
    while key in by_device:
        key += "_"
    by_device[key] = [known]
    return key


def _of_device(
    table: LookupTable, key: str, records: Sequence[RecordFile], current: Sequence[RecordFile]
) -> Group:
    """Return the rows of a device; records of higher layers come first.

    Only the portfolios of ``current`` records may answer. The first of them answers for other problems, unless
    a later one is far wider. A tuned problem without a row in it gets its own row, unless the portfolio expects
    a speed for it.
    """
    exact: dict[ProblemKey, LookupRow] = {}
    near: dict[ProblemKey, LookupRow] = {}
    newest = table.newest
    for known in records:
        is_current = any(known is other for other in current)
        tables = {
            table.key(row.problem): answers
            for answers in (known.record.portfolio.tables if is_current else ())
            for row in answers.rows
        }
        for entry in known.record.problems:
            problem = table.key(entry.problem)
            if problem not in exact and not newest.stale_reasons(entry):
                exact[problem] = LookupRow(
                    problem,
                    place_of(problem),
                    entry.plans,
                    known,
                    entry,
                    entry.verified,
                    tables.get(problem),
                )
    chosen = current[:1]
    for known in current[1:]:
        if known.record.portfolio.is_far_wider(chosen[0].record.portfolio):
            chosen = [known]
    for known, answers in [(k, answers) for k in chosen for answers in k.record.portfolio.tables]:
        for row in answers.rows:
            problem, tuned = table.key(row.problem), known.record.tuned(row.problem)
            if tuned and newest.stale_reasons(tuned):
                tuned = None
            place, verified = place_of(problem), known.record.portfolio.verified
            near[problem] = LookupRow(problem, place, row.plans, known, tuned, verified, answers)
    tabled = list(near.values())
    for problem, winner in exact.items():
        if problem not in near and _is_unexpected(winner, tabled):
            near[problem] = winner._replace(table=None)
    device = records[0].record.device
    return Group(key, device.arch, device, exact, near)


def _is_unexpected(row: LookupRow, tabled: Sequence[LookupRow]) -> bool:
    """Return whether the table of the nearest row expects no speed for a row's problem."""
    places = ((distance(row.place, other.place), other) for other in tabled)
    known = [(apart, other) for apart, other in places if apart is not None]
    if not known:
        return True
    _, nearest = min(known, key=itemgetter(0))
    return expected_of(nearest.table, row.problem)[0] is None


def _of_arch(table: LookupTable, arch: str, groups: Sequence[Group]) -> Group:
    """Merge the rows of all devices of an architecture.

    If several devices have a row of a problem, take the row with the smallest worst-case loss on these
    devices, or the row of the first device if no loss is known.
    """
    if len(groups) == 1:
        return Group(arch, arch, None, groups[0].exact, groups[0].near)

    def merged(kinds: Sequence[Mapping[ProblemKey, LookupRow]]) -> dict[ProblemKey, LookupRow]:
        rows = {}
        for problem in dict.fromkeys(chain(*kinds)):
            owners = [i for i, rows_of in enumerate(kinds) if problem in rows_of]
            found = [kinds[i][problem] for i in owners]
            worst = [max(_loss(table, row, groups[i]) for i in owners) for row in found]
            rows[problem] = found[worst.index(min(worst))]
        return rows

    exact, near = ([getattr(group, kind) for group in groups] for kind in ("exact", "near"))
    return Group(arch, arch, None, merged(exact), merged(near))


def _loss(table: LookupTable, row: LookupRow, owner: Group) -> float:
    """Return the slowdown of a row's first plan on a device that knows its problem; infinite if unknown."""
    configuration, tuned = row.plans[0].configuration, owner.exact.get(row.problem)
    if tuned and tuned.plans[0].configuration == configuration:
        return 0.0
    record = owner.near.get(row.problem, row).origin.record
    return record.slowdown(table.named(row.problem, {}), configuration)

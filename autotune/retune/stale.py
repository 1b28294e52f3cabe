"""Finds stale entries and the reasons. It reads tuned records and space files only, in milliseconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autotune.devices.choose import backend, choose_device
from autotune.devices.device import BACKENDS, Device
from autotune.errors import AutotuneError, DeviceError, RecordError, UsageError
from autotune.kernel.catalog import find_kernel, known_kernel, project_kernels
from autotune.kernel.definition import NOT_DECLARED
from autotune.kernel.source import changed_since, comparison_of
from autotune.kernel.spec import Kernel
from autotune.languages.registry import compiler
from autotune.measure.timing import Timing
from autotune.project import id_of
from autotune.tuned.dates import is_future, moment
from autotune.tuned.merged import normal_arch
from autotune.tuned.reading import (
    DamagedRecord,
    device_folders,
    layers,
    owner_of,
    read_all,
    read_in_place,
    tuned_folders,
    user_folder,
    warn_of_unowned,
)
from autotune.tuned.record import Confirmation, TunedProblem, TunedRecord
from autotune.tuned.writing import other_kernel
from autotune.values import Configuration, Problem

if TYPE_CHECKING:
    from autotune.devices.base import Binary
    from autotune.fleet.client import Fleet


class Action(StrEnum):
    """The work that a reason requires, least first."""

    #: Compile the winner again; measure it if its machine code is not the one that was measured.
    RECOMPILE = "re-compile"
    #: Verify and measure the winner and its runners-up again.
    REMEASURE = "re-measure"
    SEARCH = "search"


@dataclass(frozen=True)
class Reason:
    """A reason to tune an entry again."""

    text: str
    action: Action
    #: Whether rows of the store must not be used.
    fresh: bool = False


@dataclass(frozen=True)
class KnownEntry:
    """An entry that lookup would use, with its source."""

    layer: str
    directory: Path
    record: TunedRecord
    entry: TunedProblem


@dataclass(frozen=True)
class Target:
    """A problem of a kernel on a device that should be tuned again."""

    kernel: Kernel
    device: Device
    problem: Problem
    reasons: tuple[Reason, ...]
    #: The current entry; None if the problem was never tuned.
    known: KnownEntry | None = None

    @property
    def action(self) -> Action:
        """The most thorough action among the reasons."""
        actions = {reason.action for reason in self.reasons}
        return next(action for action in reversed(Action) if action in actions)

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(reason.text for reason in self.reasons)


@dataclass(frozen=True)
class StaleQuery:
    """The devices and kernels to examine, and the conditions under which an entry is stale."""

    devices: tuple[Device, ...]
    #: Names of kernels; empty: the kernels of the project, see `project_kernels`.
    kernels: tuple[str, ...] = ()
    spaces: Path | None = None
    #: Effort that decides which problems should be tuned: ``quick`` or ``full``, as in `autotune run`.
    effort: str = "quick"
    #: Age in days from which an entry is measured again; None: age does not count.
    max_age_days: float | None = None
    #: Whether to tune stale entries only; False: all entries.
    only_stale: bool = True
    #: The folder whose records count; None: all folders that lookup reads.
    records: Path | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


def survey(query: StaleQuery, device: Device) -> tuple[list[Target], dict[str, str]]:
    """Return the stale problems of one of a query's devices, and errors by kernel.

    A broken space file or a foreign record is an error of its kernel; the other kernels are compared. If
    the query names the kernel, the error is raised.
    """
    targets: list[Target] = []
    failed: dict[str, str] = {}
    own = query.kernels or project_kernels(query.records or Path("reports"), query.spaces)
    for name in own:
        try:
            kernel = find_kernel(name, query.spaces)
            if device.backend in kernel.backends:
                targets += _targets(query, kernel, device)
            elif query.kernels and not any(d.backend in kernel.backends for d in query.devices):
                raise UsageError(
                    f"it runs on {' and '.join(kernel.backends)} only; choose --device"
                )
        except AutotuneError as error:
            if query.kernels and isinstance(error, UsageError):
                raise
            failed[name] = str(error)
    return targets, failed


def find_devices(
    selectors: Sequence[str] = (), archs: Sequence[str] = (), fleet: Fleet | None = None
) -> tuple[Device, ...]:
    """Return the devices to keep fresh: the named devices, else one per GPU model, else the CPU.

    ``archs`` restricts the result to devices of these architectures. In a fleet the result is one device
    of each model, or of each named model.
    """
    if fleet is not None:
        found = [fleet.device_of(model) for model in fleet.models(selectors)]
    else:
        found = [choose_device(selector) for selector in selectors] or _local_devices()
    wanted = {normal_arch(arch) for arch in archs}
    chosen = [device for device in found if not wanted or device.arch in wanted]
    if not chosen:
        here = ", ".join(dict.fromkeys(device.arch for device in found))
        raise DeviceError(f"no device of {', '.join(archs)} here (there is {here})")
    return tuple(chosen)


def known_entries(kernel: Kernel, device: Device, records: Path | None = None) -> list[KnownEntry]:
    """Return the entries that lookup would use on a device.

    ``records`` restricts the search to one folder. A damaged record is left out, and is made again. A
    record of another kernel or of a newer autotune is an error, since it could not be replaced.
    """
    found: dict[Problem, KnownEntry] = {}
    found_in = layers(kernel.project) if records is None else [("records", str(records))]
    if records is None and not Path(user_folder(kernel.project), device.folder).exists():
        warn_of_unowned(kernel.name)
    for layer, directory in found_in:
        for record in _own_records(kernel, device, layer, Path(directory)):
            first = next(iter(found.values()), None)
            if first and first.record.objective != record.objective:
                continue  # lookup uses the first such record only
            for entry in record.problems:
                known = KnownEntry(layer, Path(directory), record, entry)
                found.setdefault(Problem(dict(entry.problem)), known)
    return list(found.values())


def _own_records(
    kernel: Kernel, device: Device, layer: str, directory: Path
) -> Iterator[TunedRecord]:
    """Yield the records of a device's chip in a layer, those under its name first."""
    folders = device_folders(layer, str(directory))
    for folder in sorted(folders, key=lambda folder: folder != device.folder):
        path = directory / folder / f"{kernel.name}.json"
        if not path.exists():
            continue
        try:
            record = read_in_place(path)
        except DamagedRecord as error:
            if folder == device.folder:
                warnings.warn(f"{layer} record left out: {error}", stacklevel=3)
            continue
        except RecordError:
            if folder == device.folder:
                raise
            continue
        if record.device.is_of(device):
            yield record


class FoundRecords(NamedTuple):
    """The records of a kernel."""

    records: list[TunedRecord]
    #: Changes that make their answers stale; empty if the kernel's files are not at hand.
    stale_reasons: tuple[str, ...] = ()


def records_of(
    kernel: str, device: str | None, folder: Path | None, needs_cuda: bool = False
) -> FoundRecords:
    """Return the records of a kernel below a folder; by default the user's records, else the kernel's.

    Warn of stale entries. Raise `UsageError` if there is no record, or one of another kernel.
    """
    declared = None
    with suppress(AutotuneError):  # a broken or foreign space file does not affect records
        declared = known_kernel(kernel)
    owner = declared.project if declared else owner_of(kernel)
    places = [folder] if folder else [user_folder(owner), owner.reports]
    found: list[TunedRecord] = []
    for place in places:
        found = found or [
            record
            for record in (read_all(Path(place), kernel) if place else ())
            if device in (None, record.device.name, record.device.folder)
            and (record.device.backend == "cuda" or not needs_cuda)
        ]
    if not found:
        raise not_tuned(kernel, device or ("an NVIDIA GPU" if needs_cuda else None), folder)
    if declared is None:
        return FoundRecords(found)
    for record in found:
        where = f"the record of {record.device.name}"
        if other := other_kernel(declared, where, record.fields, record.parameters):
            raise UsageError(f"{other}; or name another folder of records: --from DIR")
        with suppress(AutotuneError, ImportError):  # a failing function of the space file; no numpy
            _warn_if_stale(declared, record)
        _require_own_launches(declared, record)
    with suppress(AutotuneError, ImportError):
        return FoundRecords(found, _stale_answers(declared, found))
    return FoundRecords(found)


def _stale_answers(kernel: Kernel, records: Sequence[TunedRecord]) -> tuple[str, ...]:
    """Return the changes of a kernel that make answers of its records stale."""
    from autotune.kernel.space import is_member

    newest = max(records, key=lambda record: moment(record.provenance.created))
    changed = changed_since(kernel, newest.provenance.source, newest.provenance.arguments)
    are_members = all(
        is_member(kernel, configuration, record.device.planned_for())
        for record in records
        for configuration in {Configuration(p.configuration) for p in newest.answering(record)}
    )
    return changed if are_members else (*changed, NOT_DECLARED)


def _require_own_launches(kernel: Kernel, record: TunedRecord) -> None:
    """Raise `RecordError` if a launch of the record is not the launch that the unchanged kernel computes."""
    if kernel.language is not None:
        return  # its compiler decides the launches, which takes minutes
    fault = ""
    with suppress(AutotuneError, ImportError):
        from autotune.checking.launch_faults import record_faults

        fault = next(record_faults(record, kernel), "")
    if fault:
        raise RecordError(
            f"{kernel.name} on {record.device.name}: {fault}; the record was changed by hand: restore it, or "
            f"tune again: autotune run {kernel.name}"
        )


def _warn_if_stale(kernel: Kernel, record: TunedRecord) -> None:
    """Warn of entries that are stale by the kernel's files.

    A change of driver or compiler is known only on the device's machine.
    """
    device = record.device.planned_for()
    changes = comparison_of(kernel)
    found = [
        [why.text for why in entry_changes(kernel, device, entry, changes)]
        for entry in record.problems
    ]
    if any(found):
        reasons = ", ".join(dict.fromkeys(chain.from_iterable(found)))
        warnings.warn(
            f"{kernel.name} on {record.device.name}: {sum(map(bool, found))} of {len(found)} entries "
            f"are stale ({reasons}): run autotune run {kernel.name}, or rename it if the record is of "
            "another kernel",
            stacklevel=3,
        )


def not_tuned(kernel: str | None, device: str | None, folder: Path | None) -> UsageError:
    """Return the error for a kernel and device without a record below a folder."""
    where = f" on {device}" if device else ""
    if folder is not None:
        return UsageError(f"{folder}: no tuned record */{kernel or '*'}.json{where} below it")
    own = owner_of(kernel) if kernel else None
    if kernel and own and where:
        names = {record.device.name for record in read_all(Path(user_folder(own)), kernel)}
        if names:
            return UsageError(
                f"{kernel} is not tuned{where}, only on {', '.join(sorted(names))}; on the machine with "
                f"the device, run: autotune run {kernel}"
            )
    folders = [name for name in tuned_folders(kernel) if own and name != own.folder]
    if others := ", ".join(map(id_of, folders)):
        return UsageError(
            f"{kernel} is not tuned{where} in this project; it is tuned in: {others}; set AUTOTUNE_PROJECT "
            f"to that project, or tune it here: autotune run {kernel}"
        )
    subject = f"{kernel} is not" if kernel else "nothing is"
    return UsageError(f"{subject} tuned{where} yet; run: autotune run {kernel or 'KERNEL'}")


# ---------------------------------------------------------------------- inside


def _local_devices() -> list[Device]:
    for name in BACKENDS:
        found = backend(name).devices()
        if found and name == "cuda":
            return list({device.folder: device for device in reversed(found)}.values())[::-1]
        if found:
            return found[:1]
    return [choose_device(None)]


def _targets(query: StaleQuery, kernel: Kernel, device: Device) -> Iterator[Target]:
    entries = known_entries(kernel, device, query.records)
    by_problem = {Problem(dict(known.entry.problem)): known for known in entries}
    for problem, known in by_problem.items():
        if set(problem) != set(kernel.fields):
            continue  # a problem of an older declaration
        why: tuple[Reason, ...] = (Reason("requested", Action.SEARCH, fresh=True),)
        if query.only_stale:
            why = reasons_to_tune(query, kernel, device, known)
        if why:
            yield Target(kernel, device, problem, why, known)
    groups = kernel.problems if query.effort == "full" else kernel.quick_problems
    for problem in groups.get(device.backend, ()):
        if problem not in by_problem:
            yield Target(kernel, device, problem, (Reason("never tuned here", Action.SEARCH),))


def reasons_to_tune(
    query: StaleQuery, kernel: Kernel, device: Device, known: KnownEntry
) -> tuple[Reason, ...]:
    """Return the changes since an entry was tuned or confirmed."""
    return (*entry_changes(kernel, device, known.entry), *_aged(query, kernel, device, known))


def entry_changes(
    kernel: Kernel,
    device: Device,
    entry: TunedProblem,
    changes: Callable[[str, str], tuple[str, ...]] | None = None,
) -> Iterator[Reason]:
    """Yield the changes of the kernel since its winner was found; ``changes`` is its `comparison_of`."""
    from autotune.kernel.space import is_member  # needs numpy, and exports work without numpy

    changes = changes or comparison_of(kernel)
    for text in changes(entry.origin.source, entry.origin.arguments):
        yield Reason(text, Action.SEARCH)
    if not is_member(kernel, entry.configuration, device):
        yield Reason(NOT_DECLARED, Action.SEARCH)
    else:
        now = kernel.compiler_options(Configuration(entry.configuration), device)
        if now != entry.origin.options:
            yield Reason(
                f"options changed: {_words(entry.origin.options)} -> {_words(now)}", Action.SEARCH
            )
    if Timing(entry.race.timing) is Timing.OTHER:
        yield Reason(f"it was timed in another way ({entry.race.timing})", Action.SEARCH)


def _aged(query: StaleQuery, kernel: Kernel, device: Device, known: KnownEntry) -> Iterator[Reason]:
    """Yield the reasons why times may have changed while the kernel is unchanged."""
    last = known.entry.confirmed or known.entry.origin
    toolchain = compiler(kernel.language_on(device.backend)).toolchain()
    if last.driver and device.driver and last.driver != device.driver:
        yield Reason(f"the driver changed: {last.driver} -> {device.driver}", Action.REMEASURE)
    if last.toolchain and last.toolchain != toolchain:
        action = Action.RECOMPILE if measured_codes(known.entry) else Action.REMEASURE
        yield Reason(f"the compiler changed: {last.toolchain} -> {toolchain}", action)
    if query.max_age_days is None:
        return
    dated = last.on if isinstance(last, Confirmation) else last.tuned_on
    age = query.now - moment(dated)
    if is_future(dated, query.now):
        yield Reason(f"it has a date in the future: {dated}", Action.REMEASURE)
    if age > timedelta(days=query.max_age_days):
        ago = f"{age.days} days" if age.days > 1 else f"{age // timedelta(hours=1)} hours"
        yield Reason(f"it was measured {ago} ago", Action.REMEASURE)


def measured_codes(entry: TunedProblem) -> set[str]:
    """Return the hashes of the winner's machine code when it was measured; empty for an older record."""
    confirmed = entry.confirmed.code if entry.confirmed else ""
    return {entry.winner.code, confirmed} - {""}


def has_measured_code(
    kernel: Kernel, device: Device, entry: TunedProblem, binary: Binary | None
) -> bool:
    """Return whether a binary of an entry's winner has the machine code, and its plan the launches, of then."""
    # These imports need numpy, which `autotune export` does not.
    from autotune.checking.launch_faults import plan_fault
    from autotune.compiling.binaries import code_hash

    if binary is None or code_hash(binary) not in measured_codes(entry):
        return False
    return not plan_fault(("launch",), entry.plan, entry.problem, kernel, device)


def _words(options: Iterable[str]) -> str:
    return " ".join(options) or "none"

"""What is stale on a device and why, from tuned records and space files alone.

Looks at no device and measures nothing: whether there is anything to do is known in milliseconds.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.devices.choose import backend, choose_device
from autotune.devices.device import BACKENDS, Device
from autotune.errors import AutotuneError, DeviceError, UsageError
from autotune.kernel.catalog import find_kernel, listings
from autotune.kernel.membership import is_member
from autotune.kernel.source import changed_since
from autotune.kernel.spec import Kernel
from autotune.measure.timing import Timing
from autotune.tuned.reading import DamagedRecord, device_folders, layers, read
from autotune.tuned.record import Entry, TunedRecord, moment
from autotune.tuned.table import normal_arch
from autotune.values import Configuration, Problem

if TYPE_CHECKING:
    from autotune.fleet.client import Fleet


class Action(StrEnum):
    """What a reason calls for."""

    #: The winner and its runners-up are verified and measured again.
    REMEASURE = "re-measure"
    SEARCH = "search"


@dataclass(frozen=True)
class Reason:
    """Why something should be tuned again."""

    text: str
    action: Action
    #: Whether what the store remembers must not answer.
    fresh: bool = False


@dataclass(frozen=True)
class KnownEntry:
    """An entry as lookup would answer with it, and where it is from."""

    layer: str
    directory: Path
    record: TunedRecord
    entry: Entry

    @property
    def driver(self) -> str:
        """The driver that its times were last seen to hold with; empty where not known."""
        return (self.entry.confirmed or self.entry).driver

    @property
    def objective(self) -> str:
        """What it was tuned for."""
        return self.record.objective

    @property
    def toolchain(self) -> str:
        """The compiler that its times were last seen to hold with; empty where not known."""
        return (self.entry.confirmed or self.entry).toolchain

    @property
    def seen_on(self) -> str:
        """When it was measured last, as the record says it."""
        return self.entry.confirmed.on if self.entry.confirmed else self.entry.tuned_on


@dataclass(frozen=True)
class Target:
    """One problem of one kernel on one device that should be tuned again."""

    kernel: Kernel
    device: Device
    problem: Problem
    reasons: tuple[Reason, ...]
    #: None where it was never tuned.
    known: KnownEntry | None = None

    @property
    def action(self) -> Action:
        """The most that any reason calls for."""
        searched = any(reason.action is Action.SEARCH for reason in self.reasons)
        return Action.SEARCH if searched else Action.REMEASURE

    @property
    def inputs(self) -> tuple[str, ...]:
        """Arguments that a file gave: without that file nothing can be compared."""
        return self.known.entry.inputs if self.known else ()

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(reason.text for reason in self.reasons)


@dataclass(frozen=True)
class SurveyFailure:
    """A kernel or record that could not be looked at."""

    kernel: str
    message: str


@dataclass(frozen=True)
class Survey:
    """What should be tuned again, and what could not be looked at."""

    targets: tuple[Target, ...]
    failures: tuple[SurveyFailure, ...] = ()


@dataclass(frozen=True)
class Question:
    """What to look at, and when something counts as stale."""

    devices: tuple[Device, ...]
    #: Names; empty: every kernel that can be found.
    kernels: tuple[str, ...] = ()
    spaces: Path | None = None
    #: Which problems should be tuned: ``quick`` or ``full``, as in `autotune run`.
    effort: str = "quick"
    #: Age in days from which an entry is measured again; None: never for its age.
    max_age_days: float | None = None
    #: False: tune the kernels again whether they are stale or not.
    only_stale: bool = True
    #: The one folder whose records count; None: all that lookup would ask.
    records: Path | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


def survey(question: Question) -> Survey:
    """Find what is stale on the devices of a question.

    One broken space file or foreign record hides no other kernel, unless it was asked for by name.

    Raises
    ------
    UsageError
        If a kernel that was named is unknown, broken, or for other devices.
    """
    targets: list[Target] = []
    failures: list[SurveyFailure] = []
    for name in question.kernels or [listing.name for listing in listings(question.spaces)]:
        try:
            kernel = find_kernel(name, question.spaces)
            devices = [device for device in question.devices if device.backend in kernel.backends]
            if question.kernels and not devices:
                raise UsageError(f"it runs on {' and '.join(kernel.backends)} only; see --device")
            for device in devices:
                targets += _targets(question, kernel, device)
        except AutotuneError as error:
            if question.kernels and isinstance(error, UsageError):
                raise
            failures.append(SurveyFailure(name, str(error)))
    return Survey(tuple(targets), tuple(failures))


def find_devices(
    selectors: Sequence[str] = (), archs: Sequence[str] = (), fleet: Fleet | None = None
) -> tuple[Device, ...]:
    """The devices to keep fresh: as named, else one per GPU model, else the CPU.

    Of these only devices of the architectures, if any is given. Of a fleet one of each model, or of
    those that are named.

    Raises
    ------
    UsageError, DeviceError
        If a selector is wrong, or no device is left.
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


def known_entries(
    name: str, device: Device, records: Path | None = None
) -> tuple[list[KnownEntry], list[str]]:
    """What lookup would answer with on a device, and what is wrong with damaged records.

    With ``records`` what it would answer if that were the only folder.

    Raises
    ------
    RecordError
        If a record is foreign or of a newer autotune: it could not be replaced either.
    """
    found: dict[Problem, KnownEntry] = {}
    damaged = []
    for layer, directory in layers() if records is None else [("records", str(records))]:
        path = Path(directory) / device.folder / f"{name}.json"
        if device.folder not in device_folders(layer, directory) or not path.exists():
            continue
        try:
            record = read(path)
        except DamagedRecord as error:
            damaged.append(str(error))
            warnings.warn(f"{layer} record left out: {error}", stacklevel=2)
            continue
        first = next(iter(found.values()), None)
        if first and first.record.objective != record.objective:
            continue  # lookup asks those of the first only
        for entry in record.entries:
            known = KnownEntry(layer, Path(directory), record, entry)
            found.setdefault(Problem(dict(entry.problem)), known)
    return list(found.values()), damaged


def reasons(
    question: Question, kernel: Kernel, device: Device, known: KnownEntry
) -> tuple[Reason, ...]:
    """Why an entry is stale; empty while it is current."""
    return (*_changed(kernel, device, known.entry), *_aged(question, device, known))


def recorded_reasons(kernel: Kernel, record: TunedRecord, entry: Entry) -> tuple[str, ...]:
    """Why an entry is stale as far as files tell, its device being elsewhere; empty: it is not.

    What a driver or a compiler of that device makes stale is known there only: `reasons`.
    """
    if set(entry.problem) != set(kernel.fields):
        return ("the kernel has other problem fields now",)
    found = tuple(reason.text for reason in _changed(kernel, record.device.planned_for(), entry))
    return found or record.stale_reasons(entry)


def age_in_days(text: str) -> float | None:
    """Read ``90d``, ``2w`` or ``36h``; ``never`` is None.

    Raises
    ------
    UsageError
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text)
    if match:
        return float(match[1]) * {"h": 1 / 24, "d": 1.0, "w": 7.0}[match[2]]
    if text == "never":
        return None
    raise UsageError(f"age {text!r}: expected for example 90d, 12w, 36h or never")


# ---------------------------------------------------------------------- inside


def _local_devices() -> list[Device]:
    """One device per model of GPU; the first of any other kind where there is no GPU."""
    for name in BACKENDS:
        found = backend(name).devices()
        if found and name == "cuda":
            return list({device.folder: device for device in reversed(found)}.values())[::-1]
        if found:
            return found[:1]
    return [choose_device(None)]


def _targets(question: Question, kernel: Kernel, device: Device) -> Iterator[Target]:
    """What is stale of one kernel on one device: its entries, then what was never tuned."""
    entries, damaged = known_entries(kernel.name, device, question.records)
    by_problem = {Problem(dict(known.entry.problem)): known for known in entries}
    for problem, known in by_problem.items():
        if set(problem) != set(kernel.fields):
            continue  # of an older declaration: nothing can be asked of it any more
        why = reasons(question, kernel, device, known)
        if not question.only_stale:
            why = (Reason("asked for", Action.SEARCH, fresh=True),)
        if why:
            yield Target(kernel, device, problem, why, known)
    groups = kernel.problems if question.effort == "full" else kernel.quick_problems
    text = f"its record is damaged ({damaged[0]})" if damaged else "never tuned here"
    for problem in groups.get(device.backend, ()):
        if problem not in by_problem:
            yield Target(kernel, device, problem, (Reason(text, Action.SEARCH),))


def _changed(kernel: Kernel, device: Device, entry: Entry) -> Iterator[Reason]:
    """What says that the recorded winner was found for something else."""
    for text in changed_since(kernel, entry.source, entry.arguments, entry.inputs):
        yield Reason(text, Action.SEARCH)
    if not is_member(kernel, entry.configuration, device):
        yield Reason("its configuration is no longer in the declared space", Action.SEARCH)
    else:
        now = kernel.compiler_options(Configuration(entry.configuration), device)
        if now != entry.options:
            yield Reason(
                f"options changed: {_words(entry.options)} -> {_words(now)}", Action.SEARCH
            )
    if Timing(entry.timing) is Timing.OTHER:
        yield Reason(f"it was timed in another way ({entry.timing})", Action.SEARCH)


def _aged(question: Question, device: Device, known: KnownEntry) -> Iterator[Reason]:
    """What says that times may have changed, though the kernel did not."""
    toolchain = backend(device.backend).toolchain()
    if known.driver and device.driver and known.driver != device.driver:
        yield Reason(f"the driver changed: {known.driver} -> {device.driver}", Action.REMEASURE)
    if known.toolchain and known.toolchain != toolchain:
        yield Reason(f"the compiler changed: {known.toolchain} -> {toolchain}", Action.REMEASURE)
    if question.max_age_days is None:
        return
    try:
        age = question.now - moment(known.seen_on)
    except ValueError as error:
        yield Reason(f"its date is not one: {error}", Action.REMEASURE)
        return
    if age > timedelta(days=question.max_age_days):
        ago = f"{age.days} days" if age.days > 1 else f"{age // timedelta(hours=1)} hours"
        yield Reason(f"it was measured {ago} ago", Action.REMEASURE)


def _words(options: Iterable[str]) -> str:
    return " ".join(options) or "none"

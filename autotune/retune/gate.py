"""The regression gate: every recorded entry of a device verified and measured against its record.

Says what each is now; whether that ends a build is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError, unknown
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.measure.timing import Timing
from autotune.retune.drift import Remeasured
from autotune.retune.lock import device_lock
from autotune.retune.mend import Deadline, Mended, Mending, Orders
from autotune.retune.stale import Action, KnownEntry, Reason, Target, known_entries
from autotune.tuned.reading import kernel_names
from autotune.values import Problem

#: A winner whose time is surely longer than recorded by more than this share is a regression.
THRESHOLD = 0.05


class Verdict(StrEnum):
    """What a recorded entry is now."""

    HELD = "held"
    FASTER = "faster"
    SLOWER = "slower"
    #: Wrong results, a crash, a time-out, or no longer a valid configuration.
    WRONG = "wrong"
    #: Nothing could be compared; the message says why.
    UNCHECKED = "unchecked"
    FAILED = "failed"

    @property
    def is_regression(self) -> bool:
        return self in (Verdict.SLOWER, Verdict.WRONG)


@dataclass(frozen=True)
class Checked:
    """One recorded entry and what it is now."""

    kernel: str
    device: Device
    known: KnownEntry
    verdict: Verdict
    message: str = ""
    now: Remeasured | None = None
    #: The kernel as declared; None where it was not found.
    declared: Kernel | None = None

    @property
    def target(self) -> Target:
        """What to mend, where it is a regression."""
        assert self.declared is not None
        text = f"it is {self.verdict}: {self.message}" if self.message else f"it is {self.verdict}"
        problem = Problem(dict(self.known.entry.problem))
        why = (Reason(text, Action.SEARCH, fresh=True),)
        return Target(self.declared, self.device, problem, why, self.known)


@dataclass(frozen=True)
class GateReport:
    """What every entry is now, and what became of those that were mended."""

    checked: tuple[Checked, ...]
    mended: tuple[Mended, ...] = ()


def check_tuned(
    names: Sequence[str],
    devices: Sequence[Device],
    orders: Orders,
    *,
    spaces: Path | None = None,
    threshold: float = THRESHOLD,
    retune: bool = False,
) -> GateReport:
    """Verify and measure what lookup answers with on some devices.

    Parameters
    ----------
    names : sequence of str
        Kernels; empty: all that have a record.
    threshold : float
        Share of the recorded time by which an entry may be slower.
    retune : bool
        Search again for what is slower or wrong, and for nothing else.

    Raises
    ------
    UsageError
        If a kernel that was named has no record here.
    """
    checked: list[Checked] = []
    mended: list[Mended] = []
    until = Deadline(orders.seconds)
    listed = [(device, list(_entries(names, device, spaces))) for device in devices]
    found = {entry.kernel for _, entries in listed for entry in entries}
    for name in names:
        if name not in found:
            files = {kernel for device in devices for kernel in kernel_names(device.folder)}
            recorded = sorted(files - {name})  # its own would be one that cannot be read
            message = unknown("tuned kernel", name, recorded)
            raise UsageError(f"{message}; make a record with: autotune run {name}")
    for device, entries in listed:
        if not any(entry.verdict is Verdict.HELD for entry in entries):
            checked += entries
            continue
        with device_lock(device, orders.say), Mending(device, orders, until) as mending:
            judged = _judged(mending, entries, threshold)
            checked += judged
            if retune:
                mended += mending.search([o.target for o in judged if o.verdict.is_regression])
    return GateReport(tuple(checked), tuple(mended))


def verdict(now: Remeasured, threshold: float) -> tuple[Verdict, str]:
    """What a measurement says of its record; slower and faster only where that is sure."""
    if now.status is not Status.OK:
        return Verdict.WRONG, f"{now.status}: {now.message}"
    if now.ratio is None:
        return Verdict.WRONG, "the recorded time is not one"
    if now.ratio.low > 1 + threshold:
        return Verdict.SLOWER, f"{now.ratio.value:.3f} of its recorded time"
    if now.ratio.high < 1 - threshold:
        return Verdict.FASTER, ""
    if now.fastest is not None and now.fastest_share < 1 - threshold and not now.is_tied:
        return Verdict.HELD, f"a runner-up needs {now.fastest_share:.3f} of its time"
    return Verdict.HELD, ""


# ---------------------------------------------------------------------- inside


def _entries(names: Sequence[str], device: Device, spaces: Path | None) -> Iterator[Checked]:
    """Every entry that lookup would answer with: `HELD` until measured, or why it cannot be."""
    for name in names or sorted(kernel_names(device.folder)):
        known, _ = known_entries(name, device)
        try:
            kernel, missing = find_kernel(name, spaces) if known else None, ""
        except AutotuneError as error:
            kernel, missing = None, str(error)
        for entry in known:
            why = missing or _incomparable(kernel, entry)
            state = Verdict.UNCHECKED if why else Verdict.HELD
            yield Checked(name, device, entry, state, why, declared=kernel)


def _incomparable(kernel: Kernel | None, known: KnownEntry) -> str:
    entry = known.entry
    if kernel is not None and set(entry.problem) != set(kernel.fields):
        return "the kernel has other problem fields now"
    if entry.inputs:
        return f"measured on inputs of a file ({', '.join(entry.inputs)})"
    if Timing(entry.timing) is Timing.OTHER:
        return f"timed in another way ({entry.timing})"
    return ""


def _judged(mending: Mending, entries: Sequence[Checked], threshold: float) -> list[Checked]:
    """Measure what can be, in the order it was listed."""
    by_place = {_place(entry): entry for entry in entries}
    targets = [entry.target for entry in entries if entry.verdict is Verdict.HELD]
    for target, now in mending.measured(targets):
        place = (target.kernel.name, target.problem)
        by_place[place] = _with(by_place[place], now, threshold)
    return list(by_place.values())


def _place(checked: Checked) -> tuple[str, Problem]:
    name = checked.declared.name if checked.declared else checked.kernel
    return name, Problem(dict(checked.known.entry.problem))


def _with(checked: Checked, now: Remeasured | AutotuneError | None, threshold: float) -> Checked:
    if now is None:
        return replace(checked, verdict=Verdict.UNCHECKED, message="no time left")
    if isinstance(now, AutotuneError):
        return replace(checked, verdict=Verdict.FAILED, message=str(now))
    state, message = verdict(now, threshold)
    return replace(checked, verdict=state, message=message, now=now)

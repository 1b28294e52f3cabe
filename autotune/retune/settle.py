"""Two records that disagree about a problem: both winners raced here, on a card of their model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.retune.drift import Remeasured
from autotune.retune.lock import device_lock
from autotune.retune.mend import Deadline, Mending, Orders
from autotune.retune.stale import Action, KnownEntry, Reason, Target
from autotune.tuned.reading import user_folder
from autotune.tuned.record import Entry, ProblemItems, RunnerUp, TunedRecord, key_of
from autotune.values import Problem

#: Which entry of a problem stays, the user's own or theirs, and what the race said.
Settled: TypeAlias = dict[ProblemItems, tuple[Literal["kept", "replaced"], str]]


def settle(
    kernel: Kernel,
    device: Device,
    record: TunedRecord,
    conflicts: Sequence[tuple[Entry, Entry]],
    orders: Orders,
) -> Settled:
    """Verify their winners on all data and odd sizes, and race each with the user's own.

    Parameters
    ----------
    record : TunedRecord
        Theirs.
    conflicts : sequence of (Entry, Entry)
        The user's own entry of a problem, and theirs.

    Raises
    ------
    AutotuneError
        If the device fails.
    """
    targets = [_target(kernel, device, record, *pair) for pair in conflicts]
    ours = {key_of(mine.problem): mine for mine, _ in conflicts}
    with (
        device_lock(device, orders.say),
        Mending(device, orders, Deadline(orders.seconds)) as mending,
    ):
        return {
            key_of(target.problem): _decided(now, ours[key_of(target.problem)])
            for target, now in mending.measured(targets)
        }


def _target(
    kernel: Kernel, device: Device, record: TunedRecord, ours: Entry, theirs: Entry
) -> Target:
    rival = RunnerUp(
        configuration=ours.configuration, median_ms=ours.median_ms, interval_ms=ours.interval_ms
    )
    entry = msgspec.structs.replace(theirs, runners_up=(rival,))
    known = KnownEntry("imported", Path(user_folder()), record, entry)
    why = Reason("two records disagree", Action.REMEASURE)
    return Target(kernel, device, Problem(dict(theirs.problem)), (why,), known)


def _decided(
    now: Remeasured | AutotuneError | None, ours: Entry
) -> tuple[Literal["kept", "replaced"], str]:
    if isinstance(now, AutotuneError):
        raise now
    if now is None:
        return "kept", "no time left for a race"
    if now.status is not Status.OK:
        return "kept", f"theirs is {now.status} here: {now.message}"
    if now.fastest is not None and dict(now.fastest) == dict(ours.configuration):
        what = "as fast as theirs" if now.is_tied else f"{now.fastest_share:.3f} of their time"
        return "kept", f"raced here: {what}"
    return "replaced", "raced here: theirs is faster"

"""Re-tunes stale problems on each device within a time limit, and checks tuned entries."""

from __future__ import annotations

import fcntl
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from autotune.devices.device import Device
from autotune.files import data_folder
from autotune.kernel.catalog import bundled_folder, find_kernel, listings
from autotune.retune.gate import CheckedEntry
from autotune.retune.outcomes import RetuneOptions, RetuneOutcome, RetuneStatus
from autotune.retune.retuner import Retuner
from autotune.retune.stale import StaleQuery, Target, survey
from autotune.run import device_limits
from autotune.run.request import EFFORTS
from autotune.search.session import Budget


def retune(query: StaleQuery, options: RetuneOptions) -> list[RetuneOutcome]:
    """Re-tune the stale problems of every device of a query; start no process if nothing is stale."""
    failed: dict[str, str] = {}
    outcomes: list[RetuneOutcome] = []
    until_s = time.monotonic() + options.seconds
    for device in query.devices:
        with nullcontext() if options.dry_run else device_lock(device, options.say):
            targets, failures = survey(query, device)
            failed |= failures
            if options.dry_run:
                skipped = RetuneStatus.SKIPPED
                outcomes += [RetuneOutcome.of(target, skipped, "dry run") for target in targets]
            elif options.share_seconds:
                outcomes += _retuned_by_kernel(device, options, until_s, targets)
            else:
                outcomes += Retuner(device, options, until_s).retune(targets)
    return [*(RetuneOutcome(kernel, message=text) for kernel, text in failed.items()), *outcomes]


def _retuned_by_kernel(
    device: Device, options: RetuneOptions, until_s: float, targets: Sequence[Target]
) -> list[RetuneOutcome]:
    """Tune one kernel after another; publish each before the next begins.

    Each problem gets an equal share of the remaining time. If the share is at least the time of a quick
    search, the finals are those of a full run.
    """
    outcomes: list[RetuneOutcome] = []
    waiting = Counter(target.kernel.name for target in targets)
    for name in list(waiting):
        share = (until_s - time.monotonic()) / waiting.total()
        del waiting[name]
        quick = share < EFFORTS["quick"].seconds_per_problem
        own = replace(
            options,
            effort=EFFORTS["quick" if quick else "full"],
            budget=Budget(seconds=max(1.0, share)),
        )
        those = [target for target in targets if target.kernel.name == name]
        outcomes += Retuner(device, own, until_s).retune(those)
    return outcomes


def all_sizes(query: StaleQuery, options: RetuneOptions) -> tuple[StaleQuery, RetuneOptions]:
    """Return query and options for all sizes without a current entry in the output folder.

    The kernels that measure the device's limits come first: other kernels' winners are compared with the
    limits.
    """
    device, bundled = query.devices[0], bundled_folder("spaces")
    of_limits = set(device_limits.KERNELS.values())
    names = query.kernels or tuple(
        listing.name
        for listing in sorted(
            listings(query.spaces), key=lambda listing: listing.name not in of_limits
        )
        if listing.file.is_relative_to(bundled)
        and device.backend in find_kernel(listing.name, query.spaces).backends
    )
    wider = replace(
        query,
        devices=(device,),
        kernels=names,
        effort="full",
        max_age_days=None,
        only_stale=True,
        records=options.out,
    )
    seconds = 3600.0 if options.seconds == math.inf else options.seconds
    return wider, replace(options, effort=EFFORTS["full"], seconds=seconds, share_seconds=True)


def check_tuned(
    query: StaleQuery, options: RetuneOptions, threshold: float
) -> tuple[list[CheckedEntry], dict[str, str]]:
    """Verify and measure the entries that lookup uses; also return the errors of kernels that failed."""
    checked: list[CheckedEntry] = []
    failed: dict[str, str] = {}
    until_s = time.monotonic() + options.seconds
    for device in query.devices:
        with device_lock(device, options.say):
            targets, failures = survey(replace(query, only_stale=False), device)
            failed |= failures
            known = [target for target in targets if target.known]
            retuner = Retuner(device, options, until_s)
            checked += retuner.checked(known, threshold, with_others=True)
    return checked, failed


@contextmanager
def device_lock(device: Device, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a device model's records; print a message and wait if another process holds it.

    The system releases the lock when the process ends. The lock file is next to the tuned records.
    Machines that share the records thus share the lock, if the file system supports locks.
    """
    with open(data_folder("locks") / f"{device.folder}.lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file.fileno(), 200, 0).decode(errors="replace").strip()
            say(f"{device.name}: waiting for {holder or 'another process'}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: files of records are replaced as a whole anyway
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield

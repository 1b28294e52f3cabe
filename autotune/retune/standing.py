"""Compares tuned records with the kernels declared here, and chooses the records of a command."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from autotune.errors import AutotuneError, UsageError
from autotune.kernel.catalog import known_kernel, space_folders
from autotune.kernel.spec import Kernel
from autotune.report.page import Standing
from autotune.retune.stale import recorded_reasons
from autotune.tuned.reading import read_all, shipped_folder, user_folder
from autotune.tuned.record import TunedRecord, other_kernel


def standings(records: Sequence[TunedRecord], spaces: Path | None = None) -> list[Standing]:
    """Return how each record compares with its kernel; a space file runs once."""
    space_folders(spaces)  # an error if --spaces is no folder
    known = cache(lambda name: known_kernel(name, spaces))
    return [_standing(record, known) for record in records]


def _standing(record: TunedRecord, known: Callable[[str], Kernel | None]) -> Standing:
    other = ""
    try:
        kernel = known(record.kernel)
        if kernel is None:
            return Standing(record, unknown="its space file is not here")
        where = f"the record of {record.device.name}"
        other = other_kernel(kernel, where, record.fields, record.parameters)
        found = [recorded_reasons(kernel, record, entry) for entry in record.problems]
    except AutotuneError as error:
        return Standing(record, unknown=str(error), other_kernel=other)
    declared = kernel.problems.get(record.device.backend, ())
    return Standing(
        record,
        stale=dict(Counter(reason for reasons in found for reason in reasons)),
        stale_entries=sum(map(bool, found)),
        missing=sum(record.tuned(problem) is None for problem in declared),
        other_kernel=other,
    )


def chosen_records(
    found: Sequence[TunedRecord], kernel: str | None, device: str | None, folder: Path | None
) -> list[TunedRecord]:
    """Return the records of a kernel and a device, or of all; an error if there is none.

    ``folder`` is the one that a person named.
    """
    chosen = [
        record
        for record in found
        if kernel in (None, record.kernel)
        and device in (None, record.device.name, record.device.folder)
    ]
    if not chosen:
        where = f" on {device}" if device else ""
        if folder is not None:
            raise UsageError(f"{folder}: no tuned record */{kernel or '*'}.json{where} below it")
        subject = f"{kernel} is not" if kernel else "nothing is"
        raise UsageError(f"{subject} tuned{where} yet; run: autotune run {kernel or 'KERNEL'}")
    return chosen


def records_to_export(
    kernel: str, device: str | None, folder: Path | None, needs_cuda: bool = False
) -> list[TunedRecord]:
    """Return the records of a kernel below a folder; by default the user's, else the shipped ones."""

    def below(place: Path) -> list[TunedRecord]:
        return chosen_records(read_all(place, kernel), kernel, device, folder)

    shipped: list[TunedRecord] = []
    if folder is not None:
        return below(folder)
    with suppress(UsageError):
        shipped = below(Path(shipped_folder()))
    try:
        found = below(Path(user_folder()))
    except UsageError:
        if not shipped:
            raise
        found = shipped
    for standing in standings(found):
        if standing.other_kernel:
            raise UsageError(
                f"{standing.other_kernel}; or name the folder of records that you mean: --from DIR"
            )
        if standing.stale_entries:
            warnings.warn(
                f"{kernel} on {standing.record.device.name}: {standing.stale_entries} of "
                f"{len(standing.record.problems)} entries are stale ({', '.join(standing.stale)}): "
                f"run autotune run {kernel}, or rename it if the record is of another kernel",
                stacklevel=2,
            )
    has_cuda = any(record.device.backend == "cuda" for record in found)
    return found if has_cuda or not needs_cuda else shipped or found

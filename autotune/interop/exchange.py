"""Measurements that come from other tools, and those of the results store that go to them.

Imported measurements were not verified here. They are never rows of the store, records, or an answer of
lookup. A search measures and verifies what it takes from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from autotune.devices.device import Device
from autotune.errors import RecordError, UsageError
from autotune.files import data_folder, data_path, write_atomically
from autotune.interop.formats import Labels, Results, content_of, read_results, t4_text
from autotune.kernel.source import source_fingerprint
from autotune.kernel.spec import Kernel
from autotune.measure.timing import Timing
from autotune.store import Row, Store
from autotune.values import Configuration, Problem

#: How many of the best are tried first: of each recording on another problem than its own, and in all.
_BEST_OF_EACH, _MOST = 3, 12
#: Of a kernel's name, in the name of a file.
_MOST_LETTERS = 80


def keep_results(file: Path, labels: Labels) -> tuple[Path, Results]:
    """Keep what a file measured as T4 results under its labels; return where, and what it holds."""
    found = read_results(file, labels)
    folder, digest = data_folder("imported"), sha256(content_of(file)).hexdigest()[:16]
    for before in folder.glob(f"*-{digest}.json"):  # it may have been called otherwise
        before.unlink()
    place = folder / f"{_prefix(found.kernel)}-{digest}.json"
    write_atomically(place, t4_text(found).encode())
    return place, found


def imported(kernel: str) -> list[Results]:
    """Read what was imported of a kernel, the newest file first; damaged ones with a warning."""
    files = Path(data_path("imported")).glob(f"{_prefix(kernel)}-*.json")
    found: list[Results] = []
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        try:
            found.append(read_results(file))
        except RecordError as error:
            warnings.warn(f"left out: {error}; or delete it", stacklevel=2)
    return [results for results in found if results.kernel == kernel]


def first_to_try(kernel: str) -> tuple[tuple[Problem, Configuration], ...]:
    """Return the best of what was imported of a kernel, each with its problem.

    Some may be in no space of the kernel.
    """
    return tuple(
        (results.problem, found.configuration)
        for results in imported(kernel)
        for found in results.best(_MOST)
    )


def first_on(
    problem: Problem, imported: Iterable[tuple[Problem, Configuration]]
) -> tuple[Configuration, ...]:
    """Return what to try first on a problem: its best imported ones, else some of each other problem."""
    found: dict[Problem, list[Configuration]] = {}
    for theirs, configuration in imported:
        found.setdefault(theirs, []).append(configuration)
    best = found.get(problem) or [c for each in found.values() for c in each[:_BEST_OF_EACH]]
    return tuple(dict.fromkeys(best))[:_MOST]


def _prefix(kernel: str) -> str:
    return quote(kernel, "")[:_MOST_LETTERS]


def measurements_by_folder(store: Store, kernel: Kernel, device: str | None) -> dict[str, Results]:
    """Return the measurements of a kernel by folder: device, problem, and timing if not cold.

    They are of one source, since times of several do not compare: the declared one where that was
    measured, else the latest. Rows with other parameters are of another kernel of that name.
    """
    source = source_fingerprint(kernel)
    groups: dict[tuple[str, Problem, str], list[Row]] = {}
    for row in store.newest_of_scopes(kernel.name, device):
        if kernel.is_declared(row.measurement.configuration):
            key = row.device_name, row.problem, Timing(row.timing).remark
            groups.setdefault(key, []).append(row)
    if not groups:
        raise UsageError(
            f"{kernel.name}: nothing with the parameters of {kernel.file} measured yet; run: "
            f"autotune run {kernel.name}"
        )
    found: dict[str, Results] = {}
    for key, group in groups.items():
        folder = _folder(*key)
        while folder in found:  # x=1-y2 and y=3, x=1 and y=2-y3
            folder += "_"
        last = next((row for row in group if row.source == source), group[-1])
        scopes = [row.scope for row in group if row.source == last.source]
        rows = sorted(
            (row for scope in scopes for row in store.rows(scope=scope)), key=lambda row: row.id
        )
        found[folder] = Results(
            kernel=last.kernel,
            device_name=last.device_name,
            problem=last.problem,
            parameters=kernel.parameters,
            measurements=[row.measurement for row in rows],
            timestamps=[row.created for row in rows],
        )
    return found


def _folder(device_name: str, problem: Problem, timing: str) -> str:
    sizes = [f"{name}{quote(str(value), '', errors='replace')}" for name, value in problem.items()]
    place = "-".join([*sizes, timing] if timing else sizes)
    return f"{Device('cuda', device_name, '').folder}/{place}"

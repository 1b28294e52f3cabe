"""Imports measurements of other tools, and exports measurements of the results store.

Imported measurements were not verified here, so they never become rows of the store, records or answers
of lookup. A search only takes configurations from them, which it measures and verifies itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
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

#: Imported configurations that a search tries first at most.
_MAX_FIRST = 12
#: Configurations taken from each imported problem, for a search on another problem.
_MAX_PER_PROBLEM = 3
#: Characters of a kernel's name to use in the name of a file.
_MAX_PREFIX = 80


def matched(results: Results, kernel: Kernel, fields: Mapping[str, str]) -> Problem:
    """Return the problem of results of another tool with the fields of a kernel.

    ``fields`` maps fields of the file to the kernel's. Raise `UsageError` if the problem's fields are not the
    kernel's, or if no configuration has the kernel's parameters: a search could use none of the results.
    """
    problem = Problem({fields.get(name, name): value for name, value in results.problem.items()})
    if missing := [name for name in fields if name not in results.problem]:
        raise UsageError(
            f"--map {missing[0]}: the file has {', '.join(results.problem) or 'no problem fields'}"
        )
    if problem and set(problem) != set(kernel.fields):
        names = ",".join(
            f"{theirs}={ours}" for theirs, ours in zip(results.problem, kernel.fields, strict=False)
        )
        sizes = ",".join(f"{name}=N" for name in kernel.fields)
        raise UsageError(
            f"{kernel.name}: the file's problem has the fields {', '.join(problem)}, and the kernel has "
            f"{', '.join(kernel.fields)}; rename them, for example --map {names}, or name the problem: "
            f"--problem {sizes}"
        )
    if not any(kernel.is_declared(row.configuration) for row in results.measurements):
        raise UsageError(
            f"{kernel.name}: no configuration of the file is one of the kernel: the file has the parameters "
            f"{', '.join(results.parameters)}, and the kernel has {', '.join(kernel.parameters)}; if it is "
            "another kernel's, name that: --kernel NAME"
        )
    return kernel.normal(problem) if problem else problem


def import_results(file: Path, labels: Labels) -> tuple[Path, Results]:
    """Copy the measurements of a file as T4 results; return the copy's path and the results."""
    found = read_results(file, labels)
    folder, digest = data_folder("imported"), sha256(content_of(file)).hexdigest()[:16]
    for before in folder.glob(
        f"*-{digest}.json"
    ):  # an earlier import may have had another kernel name
        before.unlink()
    place = folder / f"{_prefix(found.kernel)}-{digest}.json"
    write_atomically(place, t4_text(found).encode())
    return place, found


def imported_results(kernel: str) -> list[Results]:
    """Return the imported results of a kernel, newest file first; warn about damaged files."""
    files = Path(data_path("imported")).glob(f"{_prefix(kernel)}-*.json")
    found: list[Results] = []
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        try:
            found.append(read_results(file))
        except RecordError as error:
            warnings.warn(f"import left out: {error}; or delete the file", stacklevel=2)
    return [results for results in found if results.kernel == kernel]


def fastest_imported(kernel: str) -> tuple[tuple[Problem, Configuration], ...]:
    """Return the fastest imported configurations of a kernel, each with its problem.

    The kernel's space may not contain all of them.
    """
    return tuple(
        (results.problem, measurement.configuration)
        for results in imported_results(kernel)
        for measurement in results.best(_MAX_FIRST)
    )


def configurations_to_try(
    problem: Problem, imported: Iterable[tuple[Problem, Configuration]]
) -> tuple[Configuration, ...]:
    """Return the imported configurations to try first on a problem.

    They are the fastest on this problem. If there are none, they are the fastest few on each other one.
    """
    found: dict[Problem, list[Configuration]] = {}
    for measured, configuration in imported:
        found.setdefault(measured, []).append(configuration)
    others = (c for group in found.values() for c in group[:_MAX_PER_PROBLEM])
    return tuple(dict.fromkeys(found.get(problem) or others))[:_MAX_FIRST]


def _prefix(kernel: str) -> str:
    return quote(kernel, "")[:_MAX_PREFIX]


def measurements_by_folder(store: Store, kernel: Kernel, device: str | None) -> dict[str, Results]:
    """Return the measurements of a kernel by folder: device, problem, and timing if it is not cold.

    A folder has the measurements of one source text, because times of different texts do not compare. It
    is the current text if it was measured, else the last measured text. Rows with other parameters belong
    to another kernel of that name.
    """
    source = source_fingerprint(kernel)
    groups: dict[tuple[str, Problem, str], list[Row]] = {}
    for row in store.newest_of_scopes(kernel.name, device):
        if kernel.is_declared(row.measurement.configuration):
            key = row.device_name, row.problem, Timing(row.timing).remark
            groups.setdefault(key, []).append(row)
    if not groups:
        raise UsageError(
            f"{kernel.name}: the store has no measurements with the parameters of {kernel.file}; run: "
            f"autotune run {kernel.name}"
        )
    found: dict[str, Results] = {}
    for key, group in groups.items():
        folder = _folder(*key)
        while folder in found:  # x=1-y2 and y=3 have the folder of x=1 and y=2-y3
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

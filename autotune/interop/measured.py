"""Reads from the results store what formats of other tools hold: all that was measured of a kernel."""

from __future__ import annotations

from urllib.parse import quote

from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.interop.formats import Results
from autotune.kernel.source import source_fingerprint
from autotune.kernel.spec import Kernel
from autotune.measure.timing import Timing
from autotune.store import Row, Store
from autotune.values import Problem


def measured(store: Store, kernel: Kernel, device: str | None) -> dict[str, Results]:
    """Return the measurements of a kernel by folder: device, problem, and timing if not cold.

    They are of one source, since times of several do not compare: the declared one where that was
    measured, else the latest. Rows with other parameters are of another kernel of that name.
    """
    names, source = set(kernel.parameters), source_fingerprint(kernel)
    groups: dict[tuple[str, Problem, str], list[Row]] = {}
    for row in store.newest_of_scopes(kernel.name, device):
        if set(row.measurement.configuration) == names:
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
    """Return a relative folder, also for values such as ``../``."""
    sizes = [f"{name}{quote(str(value), '', errors='replace')}" for name, value in problem.items()]
    place = "-".join([*sizes, timing] if timing else sizes)
    return f"{Device('cuda', device_name, '').folder}/{place}"

"""Runs a request against the device's limits, which it measures where they are missing.

Limits are winners of the kernels `copy` and `ffma`; `measure.limits` compares results with them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from autotune.devices.device import Device
from autotune.errors import AutotuneError, DeviceError, Interrupted
from autotune.kernel.catalog import bundled_folder, load_file
from autotune.measure.limits import FIELDS, Limits, credible
from autotune.measure.objective import require
from autotune.measure.timing import Caches, Timing
from autotune.run.bench import LOCAL, Site
from autotune.run.request import Request
from autotune.run.result import RunResult
from autotune.run.run import Run
from autotune.search.session import Budget, Listener, Phase, ignore
from autotune.store import Store
from autotune.tuned.reading import read_layers, user_folder
from autotune.tuned.record import TunedProblem
from autotune.tuned.writing import update
from autotune.values import Configuration, Problem, size_of

#: The kernel of each limit, and the unit of its rate in an entry.
_KERNELS = {"read": "copy", "copy": "copy", "ffma": "ffma"}
_UNITS = {"read": "gb_per_s", "copy": "gb_per_s", "ffma": "gflop_per_s"}
#: Floats to move, the most that fit: what stays in L2 from before flatters the rate the less. A run
#: needs x and out, copies of x and expected values of both data sets, and half the memory may be others'.
_SIZES, _ARRAYS = (1 << 30, 1 << 28, 1 << 26), 8
#: Measurements of each problem on a GPU: the kernels' seeds and a few more, some seconds.
_EVALUATIONS = 16


def execute(
    request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
) -> RunResult:
    """Measure the device's limits where they are missing, then do what is requested; see `Run.run`."""
    for device in request.devices:
        if request.objective.needs_energy:
            require(request.objective, device, site.why_no_energy(device))
    for problem in (*request.problems, *request.kernel.edge_problems):
        request.kernel.check_problem(problem)
    limits = limits_for(request, store, listener, site)
    with closing(Run(request, store, listener, site)) as run:
        return run.run(limits)


def known_limits(device: Device) -> Limits | None:
    """Return a device's recorded limits, the user's before those that ship; None where there are none.

    Each is the rate at the largest recorded problem that is no smaller than the one it would be
    measured with. Rates that cannot be true are left out with a warning.
    """
    reached = {name: found for name in _KERNELS if (found := _reached(name, device))}
    rates: dict[str, Any] = {
        FIELDS[name]: getattr(entry, _UNITS[name]) for name, (entry, _) in reached.items()
    }
    winners = {
        name: str(Configuration(entry.configuration)) for name, (entry, _) in reached.items()
    }
    sources = {name: source for name, (_, source) in reached.items()}
    limits, doubts = credible(Limits(**rates, reached_by=winners, source=sources), device)
    for doubt in doubts:
        warnings.warn(doubt, RuntimeWarning, stacklevel=2)
    return limits if any(limits.rates.values()) else None


def limits_for(
    request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
) -> Limits | None:
    """Return the limits that the results of a run are compared with: known, or measured now, once per device.

    Before the search, while the device is cool. None for one configuration, and for devices whose
    limits mean nothing; a run of the limits' own kernels measures none.
    """
    device = request.device
    if request.only is not None or not device.has_limits:
        return None
    limits = known_limits(device)
    missing = [name for name, rate in (limits or Limits()).rates.items() if rate is None]
    if not missing or request.kernel.name in _KERNELS.values():
        return limits
    listener(Phase(request.problems[0], "limits"))
    try:
        measure_limits(device, store, missing, site=site)
    except Interrupted as error:
        # Without what was decided of the limits' kernel: whoever publishes has another.
        raise Interrupted(str(error)) from error
    except AutotuneError as error:
        warnings.warn(f"{device.name}: limits not measured: {error}", stacklevel=2)
    return known_limits(device)


def measure_limits(
    device: Device,
    store: Store,
    names: Sequence[str] = tuple(_KERNELS),
    fresh: bool = False,
    site: Site = LOCAL,
) -> None:
    """Tune the problems of limits, a few measurements each, into the user's records.

    Raises
    ------
    DeviceError
        If it is an architecture.
    AutotuneError
        Whatever ends a run.
    """
    if not device.uuid:
        raise DeviceError(
            f"{device.name} is an architecture, not a device: it has no measured limits; "
            "run: autotune doctor"
        )
    each = _EVALUATIONS if device.has_limits else 2  # of a CPU they mean nothing
    for kernel_name in dict.fromkeys(_KERNELS[name] for name in names):
        # Not by its name: a project may have a kernel of the same.
        kernel = load_file(bundled_folder("spaces") / f"{kernel_name}.py")
        problems = tuple(
            limit_problem(name, device) for name in names if _KERNELS[name] == kernel_name
        )
        request = Request(
            kernel,
            device,
            problems,
            budget=Budget(evaluations=each * len(problems)),
            caches=Caches.COLD,
            fresh=fresh,
            command="autotune doctor --limits",
        )
        with closing(Run(request, store, site=site)) as run:
            record = run.run().record
        assert record is not None  # a run without a winner raises
        update(Path(user_folder()), record)


def limit_problem(name: str, device: Device) -> Problem:
    """Return the problem that measures a limit: as large as a GPU has room for, small on a CPU."""
    if name == "ffma":
        n, steps = (1 << 24, 4096) if device.has_limits else (1 << 16, 256)
        return Problem(n=n, steps=steps)
    room = device.memory_bytes or math.inf
    fitting = [size for size in _SIZES if 4 * size * _ARRAYS <= room / 2]
    n = max(fitting, default=_SIZES[-1]) if device.has_limits else 1 << 20
    return Problem(n=n, mode=name, offset_in=0, offset_out=0)


def _reached(name: str, device: Device) -> tuple[TunedProblem, str] | None:
    """Return the tuned problem that tells a limit of a device, and the source of its record for a person.

    Of the first record with one, the largest problem.
    """
    wanted = limit_problem(name, device)
    for loaded in read_layers(_KERNELS[name]):
        is_slice = loaded.record.device.sm_count != device.sm_count
        if loaded.folder != device.folder or is_slice or loaded.record.objective != "time":
            continue
        entries = [
            entry
            for entry in loaded.record.problems
            if _covers(entry.problem, wanted)
            and Timing(entry.race.timing).is_cold
            and getattr(entry, _UNITS[name])
        ]
        if entries:
            return max(entries, key=lambda entry: size_of(entry.problem)), loaded.source
    return None


def _covers(problem: Mapping[str, Any], wanted: Problem) -> bool:
    """Return whether a problem is the wanted one, or the same but larger."""
    return problem.keys() == set(wanted) and all(
        value == problem[field] if isinstance(value, str) or not value else value <= problem[field]
        for field, value in wanted.items()
    )

"""Reads a GPU's performance counters: launches configurations under NVIDIA's Nsight Compute, ``ncu``.

The caller names the metrics. A metric that the device lacks is absent from the result, never 0.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.devices.nvrtc import find_program
from autotune.kernel.launches import launch_sequence
from autotune.kernel.snapshot import load_kernel
from autotune.measure.sanitize import Trial, launched_under

#: Longest time of one process: ncu repeats a launch about ten times, and restores memory in between.
TIMEOUT_S = 300.0
#: Maximum number of processes for the same configurations. After each, the metrics that the device lacks are left out.
_MAX_TRIES = 4
#: Name in ncu's message of the error that the user may not read counters.
_PERMISSION = "ERR_NVGPUCTRPERM"
#: Remedy of this error, as on the page of NVIDIA that the message names.
PERMISSION_REMEDY = (
    "run as root, in a container with --cap-add SYS_ADMIN, or once: echo options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0 | sudo tee /etc/modprobe.d/nvidia-counters.conf, and reboot"
)
MISSING = "ncu is not installed; it comes with the CUDA toolkit: https://developer.nvidia.com/nsight-compute"
#: Factor from a unit of ncu to the base unit, nanosecond or byte.
_UNITS = {
    **{"usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9},
    **{"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9},
}
#: Message if ncu printed neither counters nor an error.
_NO_LAUNCH = "ncu saw no launch of the kernel"


@dataclass(frozen=True)
class Counters:
    """The counters of one launch."""

    #: Values by metric, in base units (nanoseconds, bytes, per cent).
    values: Mapping[str, float]
    #: Requested metrics that the device does not have.
    absent: tuple[str, ...] = ()
    #: Why there are no values, with the remedy; empty if there are values.
    failure: str = ""


def profiler() -> str:
    """Return the path of ncu; empty if it is not installed."""
    return find_program("ncu")


def counters_of(program: str, trials: Sequence[Trial], metrics: Sequence[str]) -> list[Counters]:
    """Launch configurations once each, in one process under ncu; return the counters of their main launches.

    Clocks are not locked; by default ncu locks them to the base clock.
    """
    names = [_launched(trial) for trial in trials]
    mains = list(dict.fromkeys(launched[0] for launched in names))
    wanted = "|".join(map(re.escape, mains))
    requested, words, failure = list(metrics), "", ""
    for _ in range(_MAX_TRIES):
        tool = [
            *("env", "LC_ALL=C", program, "--csv", "--page", "raw", "--print-units", "base"),
            *("--clock-control", "none", "--kernel-name-base", "mangled"),
            *("--kernel-name", f"regex:^({wanted})$", "--metrics", ",".join(requested)),
        ]
        words, _, failure = launched_under(tool, trials, TIMEOUT_S)
        unknown = refused(words, requested)
        requested = [metric for metric in requested if metric not in unknown]
        if not unknown or not requested:
            break
    rows, found = parsed_counters(words, requested), []
    why = why_none(words) or failure or _NO_LAUNCH
    for main, launched in names:
        seen = [name for name in launched if name in mains]
        own, rows = rows[: len(seen)], rows[len(seen) :]
        values = own[seen.index(main)] if len(own) == len(seen) else {}
        absent = tuple(metric for metric in metrics if metric not in values)
        found.append(Counters(values, absent, "" if values else why))
    return found


def _launched(trial: Trial) -> tuple[str, list[str]]:
    """Return the symbols of a configuration's main launch, and of all its launches in order."""
    job = trial.job
    kernel = load_kernel(job.origin, job.fingerprint)
    plan = launch_sequence(kernel, trial.configuration, job.problem, job.device)
    names = [trial.binary.symbol(str(launch.entry)) for launch in plan.launches]
    return trial.binary.symbol(str(plan.main.entry)), names


def refused(words: str, metrics: Iterable[str]) -> set[str]:
    """Return the metrics that an error or a warning of ncu names: the device does not have them."""
    lines = [line for line in words.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return {
        metric
        for metric in metrics
        if any(re.search(rf"(?<![\w.]){re.escape(metric)}(?![\w.])", line) for line in lines)
    }


def why_none(words: str) -> str:
    """Return why ncu's log has no counters, with the remedy; empty if the log gives no reason."""
    if _PERMISSION in words:
        return f"this user may not read the GPU's counters ({_PERMISSION}): {PERMISSION_REMEDY}"
    errors = [line for line in words.splitlines() if line.startswith("==ERROR==")]
    return f"ncu: {errors[0].removeprefix('==ERROR==').strip()}" if errors else ""


def parsed_counters(words: str, metrics: Iterable[str]) -> list[dict[str, float]]:
    """Return the counters of every launch in the table of ``ncu --csv --page raw``.

    The table is one line of names, one of units, and one for each launch; lines of ncu itself begin
    with ``==``. Values that are not numbers (``n/a``, ``nan``) are left out.
    """
    lines = words.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    table = list(csv.reader(line for line in lines[first:] if line.startswith('"')))
    wanted, found = set(metrics), []
    for launch in table[2:]:
        values = {}
        for name, unit, text in zip(table[0], table[1], launch, strict=False):
            number = text.replace(",", "")
            if name in wanted and re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", number):
                values[name] = float(number) * _UNITS.get(unit, 1.0)
        found.append(values)
    return found

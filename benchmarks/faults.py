"""What 50 faulty configurations cost among 450 right ones: statuses, lost seconds, disturbed times.

Three runs of one space (faulty/faulty_stream.py) in random order: right configurations only, twice,
for the noise of the device, then with the faults among them. A fault's lost time is what it and the
configuration after it took beyond two right ones and its own time-out. A CPU writes to a misaligned
address, into two elements of the output.

    python benchmarks/faults.py                                     # 1,400 configurations
    python benchmarks/faults.py --device opencl:cpu --fix ITEMS=2,4 --fix ORDER=0 --out /tmp    # a look
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from harness import command_line, finish, provenance, write

from autotune.cli import parsing
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Measurement, Status
from autotune.run.request import Request
from autotune.run.run import Run
from autotune.search.session import Budget, Event, Measured, SearchStarted
from autotune.store import Store
from autotune.values import Configuration, Value

SPACE = Path(__file__).parent / "faulty" / "faulty_stream.py"
#: The one right way for a fault to end, on a GPU.
EXPECTED = {
    "late_wrong": Status.WRONG_RESULT,
    "only_over_nan": Status.WRONG_RESULT,
    "nan_unwritten": Status.WRONG_RESULT,
    "off_by_100": Status.WRONG_RESULT,
    "imaginary_part": Status.WRONG_RESULT,
    "hang": Status.TIMED_OUT,
    "illegal_address": Status.CRASHED,
    "misaligned_address": Status.CRASHED,
    "wrong": Status.WRONG_RESULT,
    "nan": Status.WRONG_RESULT,
    "stale_output": Status.WRONG_RESULT,
    "input_overwritten": Status.WRONG_RESULT,
    "too_many_resources": Status.PRUNED,
    "compile_error": Status.COMPILE_FAILED,
    "worker_killed": Status.CRASHED,
}
RIGHT = {Status.OK, Status.STOPPED_EARLY}
#: Right when verified: what stops early has lost, and is not looked at again.
MAY_LOSE = {"late_wrong"}


@dataclass(frozen=True)
class FaultRun:
    """One search of the space."""

    measured: tuple[Measurement, ...]
    #: Wall time that each took, in the same order.
    took_s: tuple[float, ...]
    #: Rows in the store, by configuration.
    rows: Counter[Configuration]


def main() -> int:
    """Run, judge, print, write the JSON; exit code 1 where something is not as it must be."""
    options = _arguments()
    device = choose_device(options.device)
    kernel = find_kernel(str(SPACE))
    fixed = parsing.restriction(kernel.name, kernel.parameters, options.fix)
    clean, again, faulty = (
        run(device, {**fixed, "FAULT": faults}, options.timeout)
        for faults in (("none",), ("none",), ("none", *EXPECTED))
    )
    expected = (
        EXPECTED
        if device.backend == "cuda"
        else {**EXPECTED, "misaligned_address": Status.WRONG_RESULT}
    )
    found = fault_rows(faulty, expected, options.timeout)
    right = [measurement for measurement in faulty.measured if not _fault(measurement)]
    result = {
        **provenance(device),
        "configurations": len(faulty.measured),
        "rows": sum(faulty.rows.values()),
        "configurations_with_one_row": sum(count == 1 for count in faulty.rows.values()),
        "timeout_s": options.timeout,
        "faults": found,
        "innocent": {
            "configurations": len(clean.measured),
            "right": sum(measurement.status in RIGHT for measurement in right),
            "change_between_clean_runs": change(clean, again),
            "change_with_faults": change(again, faulty),
        },
    }
    print(json.dumps(result, indent=1))
    write(options.out / f"faults-{device.folder}.json", result)
    return 0 if all(row["right_status"] == row["count"] for row in found) else 1


def run(device: Device, fixed: Mapping[str, Sequence[Value]], timeout_s: float) -> FaultRun:
    """Search the space in random order, in a store of its own."""
    kernel = find_kernel(str(SPACE))
    problems = kernel.problems[device.backend]
    request = Request(
        kernel, device, problems, strategy="random", budget=Budget(), fixed=fixed,
        timeout_s=timeout_s,
    )  # fmt: skip
    moments: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, SearchStarted | Measured):
            moments.append(time.monotonic())

    with TemporaryDirectory() as folder, Store.open(Path(folder) / "s.sqlite") as store:
        with closing(Run(request, store, note)) as tuning:
            result = tuning.run()
        rows = Counter(row.measurement.configuration for row in store.rows())
    return FaultRun(result.problems[0].measured, tuple(np.diff(moments)), rows)


def _fault(measurement: Measurement) -> str:
    """The fault of a configuration; empty where it has none."""
    return str(measurement.configuration["FAULT"]).replace("none", "")


def fault_rows(
    found: FaultRun, expected: Mapping[str, Status], timeout_s: float
) -> list[dict[str, Any]]:
    """Per fault: how its configurations ended, and the most time that one of them lost."""
    faults, took_s = [*map(_fault, found.measured), ""], [*found.took_s, 0.0]
    usual_s = median(
        took for took, both in zip(took_s[1:], pairwise(faults[:-1]), strict=False) if not any(both)
    )
    lost_s: dict[str, list[float]] = {fault: [] for fault in expected}
    ended: dict[str, Counter[str]] = {fault: Counter() for fault in expected}
    for i, measurement in enumerate(found.measured):
        if not faults[i]:
            continue
        allowed_s = timeout_s if measurement.status is Status.TIMED_OUT else 0.0
        # The configuration after a fault pays for the new process; another fault pays for itself.
        follows = i + 1 < len(found.measured) and not faults[i + 1]
        beyond_s = took_s[i] - usual_s + (took_s[i + 1] - usual_s if follows else 0.0)
        lost_s[faults[i]].append(max(0.0, beyond_s - allowed_s))
        ended[faults[i]][str(measurement.status)] += 1
    return [
        {
            "fault": fault,
            "count": len(lost_s[fault]),
            "right_status": ended[fault][str(status)]
            + (ended[fault][str(Status.STOPPED_EARLY)] if fault in MAY_LOSE else 0),
            "statuses": dict(ended[fault]),
            "median_lost_s": round(median(lost_s[fault]), 3),
            "most_lost_s": round(max(lost_s[fault]), 3),
        }
        for fault, status in expected.items()
    ]


def change(before: FaultRun, after: FaultRun) -> dict[str, float]:
    """How far the median times of right configurations moved, where both were timed in full."""
    times, known = _full(after), _full(before)
    ratios = [times[key] / known[key] for key in times if key in known]
    off = np.abs(np.array(ratios) - 1)
    return {
        "compared": len(ratios),
        "median_ratio": round(float(np.median(ratios)), 5),
        "median_change": round(float(np.median(off)), 5),
        "p95_change": round(float(np.quantile(off, 0.95)), 5),
        "most": round(float(off.max()), 5),
    }


def _full(found: FaultRun) -> dict[tuple[object, ...], float]:
    """Median milliseconds of what was timed in full, by the values beside the fault."""
    return {
        tuple(
            row.configuration[name] for name in row.configuration if name != "FAULT"
        ): row.median_ms
        for row in found.measured
        if row.status is Status.OK and row.median_ms is not None and not _fault(row)
    }


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, "faults-<device>.json", "cuda:0")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds, for a hang")
    parser.add_argument(
        "--fix", action="append", default=[], help="NAME=VALUE,VALUE: a part of the space"
    )
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)

"""What 50 faulty configurations cost among 450 right ones: statuses, lost seconds, disturbed times.

Three runs of one space (faulty/faulty_stream.py) in random order: right configurations only, twice,
for the noise of the device, then with the faults among them. A fault's lost time is what it and the
configuration after it took beyond two right ones and its own time-out. On a CPU a misaligned address
is no fault, and the exit code says so.

    python benchmarks/faults.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Measurement, Status
from autotune.run.request import Request
from autotune.run.run import Run
from autotune.search.session import Budget, Event, Measured, SearchStarted
from autotune.store import Store
from autotune.values import Configuration

SPACE = Path(__file__).parent / "faulty" / "faulty_stream.py"
#: The one right way for a fault to end.
EXPECTED = {
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
    clean = [run(device, ("none",), options.timeout) for _ in range(2)]
    faulty = run(device, ("none", *EXPECTED), options.timeout)
    result = {
        "device": device.name,
        "driver": device.driver,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "configurations": len(faulty.measured),
        "rows": sum(faulty.rows.values()),
        "configurations_with_one_row": sum(count == 1 for count in faulty.rows.values()),
        "timeout_s": options.timeout,
        "faults": faults(faulty, options.timeout),
        "innocent": {
            "configurations": len(clean[0].measured),
            "right": sum(one.status in RIGHT for one in faulty.measured if not _fault(one)),
            "change_between_clean_runs": change(clean[0], clean[1]),
            "change_with_faults": change(clean[1], faulty),
        },
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        file = options.out / f"faults-{device.folder}.json"
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["right_status"] == one["count"] for one in result["faults"]) else 1


def run(device: Device, faults: tuple[str, ...], timeout_s: float) -> FaultRun:
    """Search the whole space in random order, in a store of its own."""
    kernel = find_kernel(str(SPACE))
    request = Request(
        kernel=kernel,
        device=device,
        problems=kernel.problems[device.backend],
        strategy="random",
        budget=Budget(),
        fixed={"FAULT": faults},
        timeout_s=timeout_s,
    )
    moments: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, SearchStarted | Measured):
            moments.append(time.monotonic())

    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s.sqlite") as store:
        tuning = Run(request, store, note)
        try:
            result = tuning.run()
        finally:
            tuning.close()
        rows = Counter(row.measurement.configuration for row in store.rows())
    measured = result.problems[0].measured
    return FaultRun(measured, tuple(np.diff(moments)), rows)


def _fault(measurement: Measurement) -> str:
    """The fault of a configuration; empty where it has none."""
    return str(measurement.configuration["FAULT"]).replace("none", "")


def faults(found: Run, timeout_s: float) -> list[dict[str, object]]:
    """Per fault: how its configurations ended, and the most time that one of them lost."""
    right_s = [
        took
        for one, took, before in zip(
            found.measured[1:], found.took_s[1:], found.measured, strict=False
        )
        if not _fault(one) and not _fault(before)
    ]
    usual_s = median(right_s)
    lost_s: dict[str, list[float]] = {fault: [] for fault in EXPECTED}
    ended: dict[str, Counter[str]] = {fault: Counter() for fault in EXPECTED}
    for i, one in enumerate(found.measured):
        if not _fault(one):
            continue
        allowed_s = timeout_s if one.status is Status.TIMED_OUT else 0.0
        # The configuration after a fault pays for the new process; another fault pays for itself.
        followed = found.took_s[i + 1 : i + 2] if not _fault_at(found, i + 1) else ()
        took_s = found.took_s[i] + sum(followed) - (1 + len(followed)) * usual_s
        lost_s[_fault(one)].append(max(0.0, took_s - allowed_s))
        ended[_fault(one)][str(one.status)] += 1
    return [
        {
            "fault": fault,
            "count": len(lost_s[fault]),
            "right_status": ended[fault][str(expected)],
            "statuses": dict(ended[fault]),
            "median_lost_s": round(median(lost_s[fault]), 3),
            "most_lost_s": round(max(lost_s[fault]), 3),
        }
        for fault, expected in EXPECTED.items()
    ]


def _fault_at(found: Run, index: int) -> str:
    return _fault(found.measured[index]) if index < len(found.measured) else ""


def change(before: Run, after: Run) -> dict[str, float]:
    """How far the median times of right configurations moved, where both were timed in full."""
    times, known = _full(after), _full(before)
    ratios = [times[one] / known[one] for one in times if one in known]
    off = np.abs(np.array(ratios) - 1)
    return {
        "compared": len(ratios),
        "median_ratio": round(float(np.median(ratios)), 5),
        "median_change": round(float(np.median(off)), 5),
        "p95_change": round(float(np.quantile(off, 0.95)), 5),
        "most": round(float(off.max()), 5),
    }


def _full(found: Run) -> dict[tuple[object, ...], float]:
    """Median milliseconds of what was timed in full, by configuration."""
    return {
        _innocent(one): one.median_ms
        for one in found.measured
        if one.status is Status.OK and one.median_ms is not None
    }


def _innocent(measurement: Measurement) -> tuple[object, ...]:
    return tuple(value for name, value in measurement.configuration.items() if name != "FAULT")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds, for a hang")
    parser.add_argument("--out", type=Path, help="folder of the JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Measurements as other tools read them: FAIR autotuning's T4 results, and Kernel Tuner's cache.

Knows both formats; knows nothing of the store. T4: github.com/odgaard/TuningSchema, as Kernel Tuner
1.5 ships it. The cache: `kernel_tuner.util.process_cache`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from autotune.measure.measurement import Measurement, Status
from autotune.values import Problem, Value

#: T4's word for how a configuration ended.
_INVALIDITY = {
    Status.OK: "correct",
    Status.STOPPED_EARLY: "correct",
    Status.PRUNED: "constraints",
    Status.COMPILE_FAILED: "compile",
    Status.LAUNCH_FAILED: "runtime",
    Status.WRONG_RESULT: "correctness",
    Status.TIMED_OUT: "timeout",
    Status.CRASHED: "runtime",
    Status.IMPLAUSIBLE: "correctness",
    Status.UNSAFE: "correctness",
}
#: Kernel Tuner's failure classes; it has none for wrong results.
_FAILURES = {"constraints": "InvalidConfig", "compile": "CompilationFailedConfig"}


@dataclass(frozen=True)
class Results:
    """All that was measured of one kernel on one problem and device."""

    kernel: str
    device_name: str
    problem: Problem
    #: Declared values of each parameter.
    parameters: dict[str, tuple[Value, ...]]
    measurements: Sequence[Measurement]
    #: When each was measured, ISO 8601; empty where not known.
    timestamps: Sequence[str] = ()


def results(results: Results) -> str:
    """T4 results, one per measurement; times in milliseconds as Kernel Tuner has them."""
    rows = zip_longest(results.measurements, results.timestamps)
    document = {
        "results": [_t4_row(measurement, timestamp) for measurement, timestamp in rows],
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds"},
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def cache(results: Results) -> str:
    """A closed cache file; ``time`` is the median of the samples."""
    integers = [value for value in results.problem.values() if isinstance(value, int)]
    document = {
        "device_name": results.device_name,
        "kernel_name": results.kernel,
        "problem_size": integers,
        "tune_params_keys": list(results.parameters),
        "tune_params": {name: list(values) for name, values in results.parameters.items()},
        "objective": "time",
        "cache": {},
    }
    rows = zip_longest(results.measurements, results.timestamps)
    lines = (_cache_line(results, measurement, timestamp) for measurement, timestamp in rows)
    # Kernel Tuner takes a file for closed only if it ends in exactly "}\n}".
    return json.dumps(document, indent=1)[:-4] + "{\n" + ",\n".join(lines) + "}\n}"


def _t4_row(measurement: Measurement, timestamp: str | None) -> dict[str, Any]:
    invalidity = _INVALIDITY[measurement.status]
    time = {"name": "time", "value": measurement.median_ms, "unit": "ms"}
    row = {
        "configuration": dict(measurement.configuration),
        "times": {
            "compilation_time": measurement.compile_s * 1e3,
            "benchmark": measurement.measure_s * 1e3,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": measurement.verify_s * 1e3,
            "runtimes": list(measurement.samples_ms),
        },
        "invalidity": invalidity,
        "correctness": 1 if invalidity == "correct" else 0,
        "measurements": [time] if measurement.median_ms is not None else [],
        "objectives": ["time"],
    }
    return {"timestamp": timestamp, **row} if timestamp else row


def _cache_line(results: Results, measurement: Measurement, timestamp: str | None) -> str:
    values = [measurement.configuration[name] for name in results.parameters]
    row: dict[str, Any] = dict(zip(results.parameters, values, strict=True))
    if measurement.median_ms is None:
        failure = _FAILURES.get(_INVALIDITY[measurement.status], "RuntimeFailedConfig")
        row |= {"time": failure, "__error__": failure}
    else:
        row |= {"time": measurement.median_ms, "times": list(measurement.samples_ms)}
    row |= {
        "compile_time": measurement.compile_s * 1e3,
        "verification_time": measurement.verify_s * 1e3,
        "benchmark_time": measurement.measure_s * 1e3,
        "strategy_time": 0.0,
        "framework_time": 0.0,
    }
    if timestamp:
        row["timestamp"] = timestamp
    key = ",".join(str(value) for value in values)
    return f"{json.dumps(key)}: {json.dumps(row, allow_nan=False)}"

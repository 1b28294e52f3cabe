"""Measurements as other tools read them: FAIR autotuning's T4 results, and Kernel Tuner's cache.

Knows both formats; knows nothing of the store. T4: github.com/odgaard/TuningSchema, as Kernel Tuner
1.5 ships it. The cache: `kernel_tuner.util.process_cache`.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

from autotune.export import Results
from autotune.measure.measurement import Measurement, Status

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
    integers = [one for one in results.problem.values() if isinstance(one, int)]
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
    lines = (_cache_line(results, one, timestamp) for one, timestamp in rows)
    # Kernel Tuner takes a file for closed only if it ends in exactly "}\n}".
    return json.dumps(document, indent=1)[:-4] + "{\n" + ",\n".join(lines) + "}\n}"


def _t4_row(one: Measurement, timestamp: str | None) -> dict[str, Any]:
    invalidity = _INVALIDITY[one.status]
    time = {"name": "time", "value": one.median_ms, "unit": "ms"}
    row = {
        "configuration": dict(one.configuration),
        "times": {
            "compilation_time": one.compile_s * 1e3,
            "benchmark": one.measure_s * 1e3,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": one.verify_s * 1e3,
            "runtimes": list(one.samples_ms),
        },
        "invalidity": invalidity,
        "correctness": 1 if invalidity == "correct" else 0,
        "measurements": [time] if one.median_ms is not None else [],
        "objectives": ["time"],
    }
    return {"timestamp": timestamp, **row} if timestamp else row


def _cache_line(results: Results, one: Measurement, timestamp: str | None) -> str:
    values = [one.configuration[name] for name in results.parameters]
    row: dict[str, Any] = dict(zip(results.parameters, values, strict=True))
    if one.median_ms is None:
        failure = _FAILURES.get(_INVALIDITY[one.status], "RuntimeFailedConfig")
        row |= {"time": failure, "__error__": failure}
    else:
        row |= {"time": one.median_ms, "times": list(one.samples_ms)}
    row |= {
        "compile_time": one.compile_s * 1e3,
        "verification_time": one.verify_s * 1e3,
        "benchmark_time": one.measure_s * 1e3,
        "strategy_time": 0.0,
        "framework_time": 0.0,
    }
    if timestamp:
        row["timestamp"] = timestamp
    key = ",".join(str(value) for value in values)
    return f"{json.dumps(key)}: {json.dumps(row, allow_nan=False)}"

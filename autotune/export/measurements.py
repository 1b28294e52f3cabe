"""Measurements as other tools read them: FAIR autotuning's T4 results, and Kernel Tuner's cache.

Knows both formats, which `autotune.search.recorded` reads back; knows nothing of the store. T4:
github.com/odgaard/TuningSchema, as Kernel Tuner 1.5 ships it. The cache:
`kernel_tuner.util.process_cache`. What neither has a name for stands in each row as ``autotune``,
as JSON, and the problem's fields as ``problem``: others pass over members that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from autotune.measure.measurement import Measurement, Status
from autotune.search.recorded import Recording, Reported
from autotune.store.rows import encode
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
    Status.NOT_DETERMINISTIC: "correctness",
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
    #: What files of others say, in place of measurements and timestamps of ours. Metrics of Kernel
    #: Tuner may be NaN, which its files hold as they are, though JSON has none.
    reported: Sequence[Reported] = ()

    @classmethod
    def of(cls, recording: Recording) -> Results:
        """What a file of others says."""
        return cls(
            kernel=recording.kernel,
            device_name=recording.device.name,
            problem=recording.problem,
            parameters=recording.space.parameters,
            measurements=(),
            reported=recording.reported,
        )

    @property
    def rows(self) -> Sequence[Reported]:
        """Each measurement with what else is known of it."""
        ours = zip_longest(self.measurements, self.timestamps)
        return self.reported or [Reported(found, when or "", is_ours=True) for found, when in ours]


def results(results: Results) -> str:
    """T4 results, one per measurement; times in milliseconds as Kernel Tuner has them."""
    document = {
        "results": [_t4_row(row) for row in results.rows],
        "schema_version": "1.0.0",
        "metadata": {
            "timeunit": "milliseconds",
            "kernel": results.kernel,
            "device": results.device_name,
            "problem": dict(results.problem),
            "tune_params": {name: list(values) for name, values in results.parameters.items()},
        },
    }
    return json.dumps(document, indent=1, allow_nan=bool(results.reported)) + "\n"


def cache(results: Results) -> str:
    """A closed cache file; ``time`` is the median of the samples."""
    integers = [value for value in results.problem.values() if isinstance(value, int)]
    document = {
        "device_name": results.device_name,
        "kernel_name": results.kernel,
        "problem_size": integers,
        "problem": dict(results.problem),
        "tune_params_keys": list(results.parameters),
        "tune_params": {name: list(values) for name, values in results.parameters.items()},
        "objective": "time",
        "cache": {},
    }
    lines = (_cache_line(results, row) for row in results.rows)
    # Kernel Tuner takes a file for closed only if it ends in exactly "}\n}".
    return json.dumps(document, indent=1)[:-4] + "{\n" + ",\n".join(lines) + "}\n}"


def _t4_row(row: Reported) -> dict[str, Any]:
    measurement, invalidity = row.measurement, _INVALIDITY[row.measurement.status]
    metrics = {"time": (measurement.median_ms, "ms"), **row.metrics}
    said: dict[str, Any] = {"timestamp": row.timestamp} if row.timestamp else {}
    said |= {
        "configuration": dict(measurement.configuration),
        "times": {
            "compilation_time": measurement.compile_s * 1e3,
            "benchmark": measurement.measure_s * 1e3,
            "framework": row.framework_ms,
            "search_algorithm": row.strategy_ms,
            "validation": measurement.verify_s * 1e3,
            "runtimes": list(measurement.samples_ms),
        },
        "invalidity": invalidity,
        "correctness": 1 if invalidity == "correct" else 0,
        "measurements": [
            {"name": name, "value": value, "unit": unit}
            for name, (value, unit) in metrics.items()
            if value is not None
        ],
        "objectives": ["time"],
    }
    return said | _noted(row)


def _noted(row: Reported) -> dict[str, Any]:
    """All of a measurement of ours that says something, but for what both formats hold as it is."""
    if not row.is_ours:
        return {}
    blank = Measurement(row.measurement.configuration, Status.OK)
    known, empty = (json.loads(encode(value)) for value in (row.measurement, blank))
    held = {"configuration", "samples_ms"}
    differing = {n: v for n, v in known.items() if n not in held and v != empty[n]}
    # As text, which Kernel Tuner carries from a cache to T4 and its schema allows there.
    return {"autotune": json.dumps({"status": known["status"], **differing})}


def _cache_line(results: Results, row: Reported) -> str:
    measurement = row.measurement
    values = [measurement.configuration[name] for name in results.parameters]
    entry: dict[str, Any] = dict(zip(results.parameters, values, strict=True))
    if measurement.median_ms is None:
        failure = _FAILURES.get(_INVALIDITY[measurement.status], "RuntimeFailedConfig")
        entry |= {"time": failure, "__error__": failure}
    else:
        entry |= {"time": measurement.median_ms, "times": list(measurement.samples_ms)}
    entry |= {
        "compile_time": measurement.compile_s * 1e3,
        "verification_time": measurement.verify_s * 1e3,
        "benchmark_time": measurement.measure_s * 1e3,
        "strategy_time": row.strategy_ms,
        "framework_time": row.framework_ms,
        **{name: value for name, (value, _) in row.metrics.items()},
        **({"timestamp": row.timestamp} if row.timestamp else {}),
        **_noted(row),
    }
    key = ",".join(str(value) for value in values)
    return f"{json.dumps(key)}: {json.dumps(entry, allow_nan=bool(results.reported))}"

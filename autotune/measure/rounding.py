"""Tells rounding from faults at sizes with other sums than the tuned problem."""

from __future__ import annotations

from autotune.data.tolerance import largest, parts
from autotune.measure.measurement import Measurement
from autotune.measure.worker_state import Job

#: At sizes with longer sums, which round more, only errors above this multiple of the bound count.
_GROSS_ERROR = 100.0
#: If all expected results are 0, an error below this share of the largest input may be rounding.
_ZERO_ERROR = 1e-3


def overflows(job: Job) -> bool:
    """Return whether an expected output exceeds its type, as a sum of a million may: it shows no fault."""
    most = {
        a.name: float(a.info.max) for a in job.datasets[0].arguments if a.value_type.kind == "f"
    }
    return any(
        largest(parts(dataset.expected(name))) > most[name]
        for dataset in job.datasets
        for name in dataset.bounds
        if name in most
    )


def has_values(job: Job) -> bool:
    """Return whether an expected output is not 0 everywhere, as the variance of one number is."""
    return any(d.expected(name).any() for d in job.datasets for name in d.bounds)


def may_be_rounding(found: Measurement, job: Job) -> bool:
    """Return whether rounding explains a wrong result: of longer sums, to the other of two integers, or of 0."""
    floats = [a for a in job.datasets[0].arguments if a.value_type.kind == "f"]
    least = 1.0 if floats else 0.0
    if not has_values(job):
        given = [a.name for a in floats if a.kind in ("input", "inout") and a.count]
        values = (largest(parts(d.values(name))) for d in job.datasets for name in given)
        least = _ZERO_ERROR * max(values, default=0.0)
    wrong = [check for check in found.checks if not check.is_correct]
    return bool(wrong) and all(
        check.max_error <= (_GROSS_ERROR * check.bound or least) for check in wrong
    )

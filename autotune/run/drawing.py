"""Draws random problem sizes for a kernel; equal seeds give equal sizes."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.sizes import size_fields
from autotune.kernel.spec import Kernel
from autotune.measure.rotation import MAX_SETS
from autotune.values import Problem, category_of

#: Minimum value of a field, unless the side is thin.
_MIN_VALUE = 16
#: Maximum value of a thin side.
_MAX_THIN = 70
#: Share of sizes with a thin side.
_THIN_SHARE = 0.25
#: Multiples to which fields are rounded, with equal probability.
_MULTIPLES = (64, 8, 1)
#: Maximum time of a call, computed from the device's peaks.
_LONGEST_MS = 8.0
#: Maximum share of the device's memory for the arrays.
_MEMORY_SHARE = 0.1
#: Maximum number of draws in a row without a new size; then drawing ends.
_MAX_REPEATS = 10_000
#: The seed of the sizes that runs and `autotune sizes` time by default.
SEED = 1


def can_draw(kernel: Kernel, device: Device) -> bool:
    """Return whether a kernel has a field that is a size."""
    return bool(size_fields(kernel, kernel.first_problem(device.backend)))


def random_sizes(kernel: Kernel, device: Device, seed: int) -> Iterator[Problem]:
    """Yield different problems, log-uniform in each field up to its largest declared value.

    A third of them are multiples of 64, and a third multiples of 8. A quarter have a thin side. Fields that
    are not sizes have the values of declared problems, with all categories about equally often. Problems
    that are too large or too slow for the device are left out.
    """
    declared = kernel.problems.get(device.backend) or kernel.all_problems()
    fields = size_fields(kernel, declared[0])
    if not fields:
        raise UsageError(f"{kernel.name}: no random sizes: no integer field may vary at run time")
    most = {name: max(problem[name] for problem in declared) for name in fields}
    counts = Counter(map(category_of, declared))
    largest = max(counts.values())
    even = [p for p in declared for _ in range(largest // counts[category_of(p)])]
    rng, known, repeats = random.Random(seed), set[Problem](), 0
    while repeats < _MAX_REPEATS:
        repeats += 1
        multiple, thin = rng.choice(_MULTIPLES), rng.random() < _THIN_SHARE and len(fields) > 1
        sizes = {}
        for name in fields:
            drawn = _log_uniform(rng, min(_MIN_VALUE, most[name]), most[name])
            sizes[name] = max(multiple, round(drawn / multiple) * multiple)
        if thin:
            name = rng.choice(fields)
            sizes[name] = round(_log_uniform(rng, 1, min(_MAX_THIN, most[name])))
        problem = rng.choice(even).replace(**sizes)
        if problem not in known and _is_feasible(kernel, device, problem):
            known.add(problem)
            repeats = 0
            yield problem


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _is_feasible(kernel: Kernel, device: Device, problem: Problem) -> bool:
    work = kernel.work_of(problem)
    if work is None:
        return True
    moved, peak = work.bytes_read + work.bytes_written, device.peak_gflop_per_s
    if MAX_SETS * moved > _MEMORY_SHARE * (device.memory_bytes or math.inf):
        return False
    computing_ms = work.flops / peak / 1e6 if peak else 0.0
    moving_ms = moved / device.peak_gb_per_s / 1e6 if device.peak_gb_per_s else 0.0
    return max(computing_ms, moving_ms) <= _LONGEST_MS

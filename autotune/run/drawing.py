"""Draws random problem sizes for a kernel, the same ones by the same seed."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.spec import Kernel
from autotune.measure.rotation import MOST_SETS
from autotune.run.sizes import size_fields
from autotune.values import Problem, category_of

#: Smallest value of a field that is not thin, and largest of a thin one.
_LEAST, _THIN = 16, 70
#: Share of sizes with a thin side, and multiples that fields have, with equal shares.
_THIN_SHARE, _MULTIPLES = 0.25, (64, 8, 1)
#: Longest time of a call at the device's peaks, and share of its memory that the arrays take.
_LONGEST_MS, _MEMORY_SHARE = 8.0, 0.1
#: Draws in a row without a new size after which the sizes are exhausted.
_MAX_REPEATS = 10_000


#: The seed of the sizes that runs and `autotune sizes` time by default.
SEED = 1


def can_draw(kernel: Kernel, device: Device) -> bool:
    """Return whether a kernel has a field that is a size."""
    return bool(size_fields(kernel, kernel.first_problem(device.backend)))


def random_sizes(kernel: Kernel, device: Device, seed: int) -> Iterator[Problem]:
    """Yield different problems, log-uniform in each field up to its largest declared value.

    A third are multiples of 64, a third of 8; a quarter have a thin side. Fields that are not sizes keep the
    values of declared problems, each category about as often. Problems that are too large or too slow for the
    device are left out.
    """
    declared = kernel.problems.get(device.backend) or kernel.all_problems()
    fields = size_fields(kernel, declared[0])
    if not fields:
        raise UsageError(f"{kernel.name}: no integer field that may differ at run time")
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
            drawn = _log_uniform(rng, min(_LEAST, most[name]), most[name])
            sizes[name] = max(multiple, round(drawn / multiple) * multiple)
        if thin:
            name = rng.choice(fields)
            sizes[name] = round(_log_uniform(rng, 1, min(_THIN, most[name])))
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
    if MOST_SETS * moved > _MEMORY_SHARE * (device.memory_bytes or math.inf):
        return False
    computing_ms = work.flops / peak / 1e6 if peak else 0.0
    moving_ms = moved / device.peak_gb_per_s / 1e6 if device.peak_gb_per_s else 0.0
    return max(computing_ms, moving_ms) <= _LONGEST_MS

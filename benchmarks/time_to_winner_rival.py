"""Kernel Tuner's side of `time_to_winner.py`: one kernel, tuned as its user would, in this process.

The user draws float32 arrays, computes the answer with the reference on these (in float32, not float64), and gives
`tune_kernel` the source, the answer and a limit of time. Configurations come in random order.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from throughput import Expressed

from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.parsing import problem as parsed
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Kernel, Out
from autotune.values import Problem

#: Share of the answer's largest value that a result may be off by: float32 sums in another order.
TOLERANCE = 1e-3


def arguments_of(kernel: Kernel, problem: Problem) -> tuple[list[Any], list[Any], float]:
    """Return arguments in the kernel's order, the answer for each output, and the tolerance."""
    declared = kernel.call_hook("arguments", problem, np.random.default_rng(0))
    values: dict[str, Any] = {}
    for name, value in declared.items():
        if isinstance(value, Out):
            values[name] = np.zeros(value.shape, value.dtype)
        elif isinstance(value, np.ndarray):
            values[name] = value.astype(np.float32) if value.dtype == np.float64 else value
        else:
            values[name] = np.int32(value) if isinstance(value, int) else np.float32(value)
    (output,) = (name for name, value in declared.items() if isinstance(value, Out))
    reference = kernel.hook("reference")
    names = reference.__code__.co_varnames[: reference.__code__.co_argcount]
    answer = reference(**{name: values[name] for name in names})
    answer = np.asarray(answer).astype(values[output].dtype)
    answers = [answer if name == output else None for name in values]
    return list(values.values()), answers, TOLERANCE * float(np.abs(answer).max())


def main() -> None:
    """Tune, and print the Unix times of the results as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernel")
    parser.add_argument("problem")
    parser.add_argument("--spaces", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    ends = time.time() + options.seconds
    kernel, device = find_kernel(options.kernel, options.spaces), choose_device(options.device)
    problem = parsed(kernel, options.problem)
    arguments, answer, tolerance = arguments_of(kernel, problem)
    computed = time.time()
    space = enumerate_space(kernel, device)
    allowed = [c for c in map(space.configuration, range(len(space))) if kernel.allows(c, problem)]
    expressed = Expressed(kernel, problem, device, allowed)
    rows = expressed.tune(
        arguments,
        answer,
        tolerance,
        strategy="random_sample",
        strategy_options={"time_limit": max(1.0, ends - time.time()), "fraction": 1.0},
    )
    timed = [row for row in rows if isinstance(row.get("time"), float) and row["time"] < 1e20]
    best = min((row["time"] for row in timed), default=None)
    times = sorted(
        np.datetime64(row["timestamp"][:26]).astype("M8[us]").astype(int) / 1e6 for row in timed
    )
    print(json.dumps({"answer": computed, "results": times, "best_ms": best}))


if __name__ == "__main__":
    main()

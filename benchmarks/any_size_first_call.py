"""The half of ``any_size.py`` that is a user's process: it makes the first call of a size, and prints what ran.

python any_size_first_call.py sgemm cuda:0 '{"m": 333, "n": 555, "k": 777}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune import load
from autotune.devices.choose import choose_device

#: Longest time to measure a size.
BUDGET = "1s"


def shapes(kernel: str, size: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the arrays that a call of a bundled kernel takes for a size."""
    if kernel.startswith("sgemm"):
        return (size["m"], size["k"]), (size["k"], size["n"])
    if kernel == "gemv":
        return (size["m"], size["n"]), (size["n"],)
    if kernel == "gemv_columns":
        return (size["n"], size["m"]), (size["n"],)
    return (tuple(size.values()),)


def main() -> None:
    """Print the seconds of the call, its configuration, and how that was found."""
    name, device, text = sys.argv[1:]
    rng, size = np.random.default_rng(1), json.loads(text)
    arrays: list[Any] = [
        rng.standard_normal(shape, dtype=np.float32) for shape in shapes(name, size)
    ]
    wait = int
    if choose_device(device).is_cuda:
        import cupy

        arrays = [cupy.asarray(array) for array in arrays]
        wait = cupy.cuda.Device().synchronize
        wait()
    begun = time.perf_counter()
    kernel = load(name, tune="first_call", budget=BUDGET)
    kernel(*arrays)
    wait()
    seconds = time.perf_counter() - begun
    chosen = kernel.choice(*arrays)
    quality = chosen.tuned.quality if chosen.tuned else None
    found = {"seconds": seconds, "kernel": chosen.kernel, "quality": quality}
    print(json.dumps({**found, "configuration": dict(chosen.configuration)}))


if __name__ == "__main__":
    main()

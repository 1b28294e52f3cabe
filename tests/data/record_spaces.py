"""Measures small, complete spaces of the bundled kernels on a GPU, as Kernel Tuner caches to replay.

Every configuration of each restricted space is verified and timed in full, never stopped early, so
that searches and the stopping rule can be tried on real times where there is no GPU.

    python tests/data/record_spaces.py --out tests/data
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np

from autotune.devices.choose import choose_device
from autotune.interop.formats import Results, cache_text
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import Space, enumerate_space
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.timing import StoppingRule
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Problem

#: By kernel: the problem, and the values that parameters are restricted to.
SPACES: dict[str, tuple[Problem, dict[str, tuple[Any, ...]]]] = {
    "reduce": (
        Problem(n=1 << 22),
        {
            "VARIANT": ("portable",),
            "BLOCK": (128, 256, 512, 1024),
            "ITEMS": (2, 4, 8),
            "LOAD": ("plain", "stream"),
            "GRID_MODE": ("stride",),
            "WAVES": (1, 2, 4, 8),
            "BLOCK_RED": ("sequential", "shuffle"),
            "WARP_TAIL": ("shfl_down",),
            "FINISH": ("ticket", "kernel"),
            "MIN_BLOCKS": (1,),
        },
    ),
    "transpose": (
        Problem(m=4096, n=4096),
        {
            "ALG": ("shared",),
            "TILE_X": (32, 64, 128),
            "TILE_Y": (32, 64, 128),
            "BLOCK": (64, 128, 256, 512),
            "ORDER": ("row", "column"),
            "LOAD": ("plain", "stream"),
            "STORE": ("plain",),
            "MIN_BLOCKS": (1,),
            "RESIDENT": (0,),
        },
    ),
    "gemv": (
        Problem(m=4096, n=4096),
        {
            "BLOCK": (64, 128, 256, 512),
            "LANES": (8, 32, 128),
            "ROWS": (1, 2, 4),
            "UNROLL": (1, 4),
            "LOAD": ("plain", "stream"),
            "X_SHARED": (0,),
            "WAVES": (0,),
            "SPLIT": (1, 4, 8),
            "FINISH": ("ticket", "atomic"),
            "MIN_BLOCKS": (1,),
        },
    ),
    "copy": (
        Problem(n=1 << 26, mode="copy", offset_in=0, offset_out=0),
        {"WAVES": (1, 4), "PEEL": ("none", "shift"), "MIN_BLOCKS": (1,)},
    ),
    "sgemm": (
        Problem(m=512, n=512, k=512),
        {
            "VARIANT": ("portable",),
            "ALG": ("register",),
            "BM": (32, 64, 128),
            "BN": (32, 64, 128),
            "BK": (8, 16),
            "PAD": (0, 4),
            "UNROLL": (1, 4),
            "DOUBLE_FRAGMENT": (False,),
            "MIN_BLOCKS": (1,),
            "MAX_REGISTERS": (0,),
        },
    ),
}
#: Timed in full: nothing is ever held against the best so far.
RULE = StoppingRule(false_stop=0.0, min_samples=20, max_samples=20)


def main() -> None:
    """Measure and write the spaces that were asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments.add_argument("--device", default=None)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, (problem, values) in SPACES.items():
        request = Request(find_kernel(name), choose_device(options.device), (problem,))
        space = enumerate_space(request.kernel, request.device).restricted(values)
        record(request, problem, space, options.out / f"{name}-{request.device.folder}.json.gz")


def record(request: Request, problem: Problem, space: Space, file: Path) -> None:
    """Measure every configuration of a space, and write them as a cache."""
    begun = time.monotonic()
    bench = Bench(request)
    try:
        evaluator = DeviceEvaluator(
            request.kernel, bench.job(problem), bench.compilers, bench.worker, RULE
        )
        measured = tuple(evaluator.measure(list(space)))
    finally:
        bench.close()
    text = cache_text(
        Results(
            kernel=request.kernel.name,
            device_name=request.device.name,
            problem=problem,
            parameters=used(space),
            measurements=measured,
        )
    )
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
    timed = sum(measurement.median_ms is not None for measurement in measured)
    seconds = time.monotonic() - begun
    print(
        f"{file.name}: {timed} timed of {len(measured)}, {seconds:.0f} s, {file.stat().st_size} B"
    )


def used(space: Space) -> dict[str, tuple[Any, ...]]:
    """The values of each parameter that some configuration of a space has, in declared order."""
    return {
        name: tuple(values[i] for i in np.unique(space.rows[:, column]))
        for column, (name, values) in enumerate(space.parameters.items())
    }


if __name__ == "__main__":
    main()

"""The half of ``any_size.py`` that runs in the device process: configurations and vendor's calls on rotated buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import rivals

from autotune.devices.base import LaunchError
from autotune.measure import worker_state
from autotune.measure.process import Turns
from autotune.measure.rotation import (
    CompiledEntrant,
    RotatedArrays,
    SizeRunner,
    SizeTask,
    SizeTimer,
    raced,
)


class VendorRunner:
    """A vendor's call on every set of buffers."""

    def __init__(self, arrays: RotatedArrays, calls: Sequence[Callable[[], object]]) -> None:
        self._count = len(calls)

        def all_sets() -> None:
            for call in calls:
                call()

        all_sets()
        self._timer = arrays.executor.timer_of(all_sets, False)

    def sample_ms(self) -> float:
        """Return the time of a call, of one on each set."""
        return self._timer.singly(1)[0] / self._count


def race_sizes(
    job: worker_state.Job,
    entrants: Sequence[CompiledEntrant],
    sizes: Sequence[SizeTask],
    cub: Path | None,
    turns: Turns,
) -> list[dict[int | str, float]]:
    """Return median milliseconds by entrant, and by name of the vendor's call, on each size."""
    found = list[dict[int | str, float]]()
    modules = dict[int, Any]()
    for turn, size in enumerate(sizes):
        turns.begin_turn(turn)
        arrays, runners = RotatedArrays(job, size.problem), dict[int | str, SizeTimer]()
        for number in size.entrants:
            with suppress(LaunchError, MemoryError):
                runners[number] = SizeRunner(arrays, entrants[number], number, modules)
        runners.update(_vendor(arrays, cub))
        found.append(raced(runners, 0.0))
    return found


def _vendor(arrays: RotatedArrays, cub: Path | None) -> dict[str, VendorRunner]:
    _, _, kernel = worker_state.current()

    def calls_of(**views: Any) -> dict[str, Callable[[], object]]:
        own = {
            baseline.name: baseline.prepare(**views)
            for baseline in kernel.baselines
            if baseline.backend == arrays.executor.device.backend
        }
        return {name: call for name, call in own.items() if call} | rivals.further(
            kernel.name, cub, views
        )

    if not arrays.executor.device.is_cuda:
        return {}
    scalars = {a.name: a.scalar for a in arrays.arguments if a.kind == "scalar"}
    by_set = []
    for buffers in arrays.sets:
        views = {
            a.name: (buffers[a.name], np.dtype(a.dtype), a.shape)
            for a in arrays.arguments
            if a.name in buffers
        }
        by_set.append(arrays.executor.time_calls(calls_of, {**views, **scalars}))
    found = {}
    for name in by_set[0]:
        try:
            found[name] = VendorRunner(arrays, [calls[name] for calls in by_set])
        except Exception as error:  # a vendor's library raises what it likes
            print(f"{arrays.problem}: {name} is left out: {error}")
    return found

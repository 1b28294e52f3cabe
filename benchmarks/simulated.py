"""Cards that sleep in place of measuring: what a run's own processes take, on a machine without a GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from autotune.data.dataset import Dataset, without_files
from autotune.devices.device import Device, for_arch
from autotune.measure import tasks, worker_state
from autotune.measure.measurement import Measurement
from autotune.measure.process import ChildActor
from autotune.run.bench import Site


def cards(count: int) -> list[Device]:
    """Devices of one model that are not there."""
    model = replace(for_arch("sm_90"), name="simulated", driver="none")
    return [replace(model, uuid=f"simulated-{n}", index=n) for n in range(count)]


def begin(seconds: float) -> None:
    """Have this process measure nothing, and take so long for it."""

    def prepare(job: Any) -> None:
        pass

    def measure(job: Any, configuration: Any, binary: Any, *how: Any) -> Measurement:
        time.sleep(seconds)
        draft = tasks.draft_of(job, configuration, binary)
        spread = (hash(configuration) % 1000) / 1000
        samples_ms = tuple(1.0 + spread + 0.001 * n for n in range(10))
        return replace(draft, samples_ms=samples_ms, measure_s=seconds)

    worker_state.prepare_job, tasks.measure = prepare, measure  # type: ignore[assignment]


@dataclass
class SimulatedSite(Site):
    """This machine with cards that take ``seconds`` for each configuration."""

    seconds: float

    def device_actor(self, device: Device) -> ChildActor:
        return ChildActor(partial(begin, self.seconds), worker_state.prepare_job)

    def dataset(self, kernel: Any, problem: Any, name: str, seed: int) -> Dataset:
        return without_files(kernel, problem, name, seed)

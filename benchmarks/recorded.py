"""Recorded spaces, which searches replay without their device: Kernel Tuner's caches with numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.interop.formats import read_results
from autotune.kernel.joining import index_type
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement
from autotune.store import Scope
from autotune.values import Problem


@dataclass(frozen=True, eq=False)
class Recording:
    """One kernel, measured on one device for every configuration of a space."""

    kernel: str
    #: The recorded configurations, failing ones included.
    space: Space
    #: By number in the space.
    measurements: tuple[Measurement, ...]

    @property
    def best_ms(self) -> float | None:
        """Median time of the best configuration; None where all failed."""
        times_ms = [found.median_ms for found in self.measurements]
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    @property
    def scope(self) -> Scope:
        """Key of its measurements, as of those of a device."""
        return Scope(self.kernel, Problem(), "replay", "replay", "", "", "", "", "")


def load(path: Path) -> Recording:
    """Number the configurations of a file of measurements, in the order of its parameters."""
    found = read_results(path)
    parameters = {name: tuple(values) for name, values in found.parameters.items()}
    ranks = {name: {value: n for n, value in enumerate(v)} for name, v in parameters.items()}
    measured = {
        tuple(ranks[name][row.configuration[name]] for name in parameters): row
        for row in found.measurements
    }
    order = sorted(measured)
    space = Space(parameters, np.array(order, index_type(map(len, parameters.values()))))
    return Recording(
        found.kernel,
        space,
        tuple(
            replace(measured[key], configuration=space.configuration(index))
            for index, key in enumerate(order)
        ),
    )

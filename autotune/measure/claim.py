"""The claim of a job: outputs of one configuration, expected on the device until the reference is evaluated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.arrays import converted
from autotune.data.arguments import Argument
from autotune.data.tolerance import common_bound, largest, parts
from autotune.devices.base import Binary, Poison
from autotune.measure.launchable import Launchable
from autotune.measure.verify import DeviceData, comparison
from autotune.values import Configuration

#: Factor of the tolerance: the claim and the outputs that are compared with it may deviate in two directions.
_BOTH = 2.0


@dataclass(frozen=True)
class Claim:
    """A configuration whose outputs are the expected outputs of a job without a reference."""

    configuration: Configuration
    binary: Binary


def expect_outputs(ready: Launchable, declared: float | None) -> None:
    """Run a configuration once on each data set without expected outputs, and keep its outputs as expected.

    They stay on the device, since outputs may be large. An `InOut` argument that it never changes must not
    change. ``declared`` is the tolerance of the kernel; without it all elements have `common_bound`.
    """
    data = ready.data
    outputs = [argument for argument in data.arguments if argument.kind in ("out", "inout")]
    outputs = [output for output in outputs if output.count]
    open_sets = [name for name, dataset in data.datasets.items() if not dataset.bounds]
    changed, scales = set[str](), dict[tuple[str, str], float]()
    for name in open_sets:
        ready.run_afresh(name)
        for output in outputs:
            if not data.is_unchanged(name, output):
                changed.add(output.name)
            data.expected[name, output.name], scales[name, output.name] = _kept(data, output)
    inputs = max(
        (argument.count for argument in data.arguments if argument.kind != "out"), default=1
    )
    for name in open_sets:
        bounds = dict[str, float]()
        for output in outputs:
            if changed and output.name not in changed:
                del data.expected[name, output.name]
                continue
            scale = scales[name, output.name]
            exact_scale = scales[open_sets[0], output.name]
            bounds[output.name] = _bound(output, declared, scale, exact_scale, inputs)
        data.datasets[name] = replace(data.datasets[name], bounds=bounds)
    data.is_claimed = bool(open_sets)


def _bound(
    output: Argument, declared: float | None, scale: float, exact_scale: float, inputs: int
) -> float:
    if output.value_type.kind not in "fc":
        return 0.0
    if declared is None:
        declared = common_bound(output.info, scale, exact_scale, inputs / output.count)
    return _BOTH * declared


def _kept(data: DeviceData, output: Argument) -> tuple[Any, float]:
    """Return a copy of an output on the device, and its largest finite magnitude; 0 for integers.

    Floating-point values of 16 bits and less are kept as float32.
    """
    executor, buffer, dtype = data.executor, data.buffers[output.name], np.dtype(output.dtype)
    if output.bits_of or (dtype.kind == "f" and dtype.itemsize == 2):
        read = executor.read(buffer, dtype, output.stored_shape)
        values = output.values(read) if output.bits_of else converted(read, np.float32)
        kept = executor.allocate(values.nbytes)
        executor.write(kept, values)
        return kept, largest(values)
    kept, scale = executor.allocate(output.nbytes), 0.0
    if dtype.kind in "fc":  # the difference from zero, computed on the device
        executor.poison(kept, Poison.ZERO)
        (found,), _, _ = executor.inspect([comparison(data, output, kept, math.inf)])
        scale = found.max_error
        if not math.isfinite(scale):
            scale = largest(parts(executor.read(buffer, dtype, (output.count,))))
    executor.copy(kept, buffer)
    return kept, scale

"""Good configurations from a kernel's records, for the start of a search on any device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from autotune.answers.table import Portfolio
from autotune.devices.device import Device
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.tuned.reading import read_layers
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration

#: Maximum number of configurations; on a GPU without records each takes 1 to 3 s.
_MAX_CONFIGURATIONS = 32
#: Maximum slowdown of a configuration that counts, as a factor; also for one that did not run.
_MAX_SLOWDOWN = 4.0


def of_records(kernel: Kernel, device: Device) -> list[Configuration]:
    """Return configurations of a kernel's records that are valid on a device.

    Records of the nearest architectures come first. For each architecture, configurations that together
    are good for the most problems come first, then winners of many problems.
    """
    records = [known.record for known in read_layers(kernel.name, kernel.project)]
    records = [record for record in records if record.device.backend == device.backend]
    by_distance: dict[int, list[TunedRecord]] = {}
    for record in records:
        there = record.device.planned_for().compute_capability
        by_distance.setdefault(abs(there - device.compute_capability), []).append(record)
    found = (c for _, near in sorted(by_distance.items()) for c in _broad_first(near))
    valid = (c for c in dict.fromkeys(found) if is_member(kernel, c, device))
    return list(islice(valid, _MAX_CONFIGURATIONS))


def _broad_first(records: list[TunedRecord]) -> Iterator[Configuration]:
    """Yield the configurations of records: from their portfolios in turn, then the winners."""
    orders = [_covering(record.portfolio) for record in records]
    for place in range(max(map(len, orders), default=0)):
        yield from (order[place] for order in orders if place < len(order))
    entries = (entry for record in records for entry in record.problems)
    counts = Counter(Configuration(dict(entry.configuration)) for entry in entries)
    yield from (configuration for configuration, _ in counts.most_common())


def _covering(portfolio: Portfolio) -> list[Configuration]:
    """Order a portfolio so that its first configurations are good for the most problems."""
    times = np.array(portfolio.median_ms, float)  # None becomes nan
    if not times.size:
        return list(map(Configuration, portfolio.configurations))
    with np.errstate(invalid="ignore"):
        regrets = np.log(np.nan_to_num(times / np.fmin.reduce(times), nan=_MAX_SLOWDOWN))
    left = np.full(times.shape[1], np.log(_MAX_SLOWDOWN))
    waiting, order = list(range(len(times))), list[int]()
    while waiting:
        best = min(waiting, key=lambda row: float(np.minimum(left, regrets[row]).sum()))
        left = np.minimum(left, regrets[best])
        waiting.remove(best)
        order.append(best)
    return [Configuration(dict(portfolio.configurations[row])) for row in order]

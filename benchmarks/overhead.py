"""Measure the framework's time and memory per configuration, without compilers and devices.

A recorded space of 10,000 configurations goes through engine, strategy, store and events at full speed. The
result has the number of cores. The clock runs from the first configuration to the last row, and resident memory
is read on the way.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --replayed 1000     # a look
"""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import (
    RECORDED,
    command_line,
    finish,
    provenance,
    search_timed,
    write,
)
from recorded import Recording, load

from autotune import __version__
from autotune.arrays import usable_cores
from autotune.measure.evaluator import ignore, nothing
from autotune.measure.measurement import Measurement
from autotune.search.session import Budget, Event, Measured
from autotune.search.strategies import find
from autotune.values import Configuration

STRATEGIES = "random,auto,kt:genetic_algorithm"


@dataclass
class MemoryWatch:
    """A listener that notes how memory grows with the rows."""

    every: int
    rows: int = 0
    rss_mb: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Measured):
            self.rows += 1
            if self.rows % self.every == 0:
                self.rss_mb.append(resident_mb())


def resident_mb() -> float:
    """Resident memory of this process, in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


@dataclass(frozen=True)
class ReplayEvaluator:
    """Measures configurations by looking them up in a recording."""

    recording: Recording

    def measure(
        self,
        configurations: Iterable[Configuration],
        begin: Callable[[Configuration], None] = ignore,
        ahead: int | None = None,
        at_hand: Callable[[], Configuration | None] = nothing,
    ) -> Iterator[Measurement]:
        for configuration in configurations:
            index = self.recording.space.index(configuration)
            assert index is not None
            begin(configuration)
            yield self.recording.measurements[index]

    def hint(self, configurations: Sequence[Configuration]) -> None:
        pass

    def recall(self, measurement: Measurement) -> None:
        pass


def replayed(recording: Recording, strategy: str, count: int, every: int = 1000) -> dict[str, Any]:
    """Search a recording through the whole pipeline but for compilers and device."""
    watch, scope = MemoryWatch(every), recording.scope
    done = search_timed(
        recording.space,
        ReplayEvaluator(recording),
        scope,
        find(strategy),
        Budget(evaluations=count),
        listener=watch,
    )
    if not len(done.measurements) == done.rows == watch.rows == count:
        raise SystemExit(
            f"{strategy}: {len(done.measurements)} measured, {done.rows} rows, expected {count}"
        )
    return {
        "strategy": strategy,
        "configurations": count,
        "seconds": round(done.seconds, 3),
        "cpu_seconds": round(done.cpu_seconds, 3),
        "ms_per_configuration": round(1000 * done.seconds / count, 4),
        "rss_mb": watch.rss_mb,
    }


def cpu_name() -> str:
    """The processor's model name (Linux), or what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def main() -> None:
    options = _options()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores or None])
    result: dict[str, Any] = {
        **provenance(),
        "machine": {"cpu": cpu_name(), "cores": usable_cores(), "system": platform.platform()},
        "versions": {"autotune": __version__, "python": platform.python_version()},
    }
    recording = load(options.recording)
    result["recording"] = options.recording.name
    result["replay"] = []
    for strategy in options.strategies.split(","):
        found = replayed(recording, strategy, options.replayed, max(1, options.replayed // 10))
        result["replay"].append(found)
        print(
            f"{strategy}: {found['configurations']} in {found['seconds']:.1f} s, "
            f"{found['ms_per_configuration']:.2f} ms each, RSS {found['rss_mb'][0]:.0f} -> "
            f"{found['rss_mb'][-1]:.0f} MiB",
            flush=True,
        )
    label = re.sub(r"[^A-Za-z0-9]+", "_", cpu_name()).strip("_")
    write(options.out / f"overhead-{label}.json", result)


def _options() -> argparse.Namespace:
    parser = command_line(__doc__, "overhead-<machine>.json", None)
    parser.add_argument(
        "--recording", type=Path, default=RECORDED / "gemm-RTX_3090.json.gz", help="recorded space"
    )
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--replayed", type=int, default=10_000, help="configurations replayed")
    parser.add_argument("--cores", type=int, default=2, help="0 for all")
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)

"""The page over all kernels and devices: the tuned problems, their speed, stale records, and links to reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from autotune.files import write_atomically
from autotune.report import wording
from autotune.report.page import environment
from autotune.report.wording import NONE, listed, plural
from autotune.tuned.record import TunedRecord


@dataclass(frozen=True)
class Standing:
    """A record with its state: current, stale or not known."""

    record: TunedRecord
    #: Reasons to tune problems again, with the number of problems; empty while all are current.
    stale: dict[str, int] = field(default_factory=dict)
    #: Number of stale problems.
    stale_entries: int = 0
    #: Why the state is not known; empty where it is.
    unknown: str = ""
    #: Number of declared problems that were never tuned on the device.
    missing: int = 0


def write_index(standings: Sequence[Standing], folder: Path) -> Path:
    """Write ``index.html`` with links to the reports below its folder; return its path."""
    ordered = sorted(standings, key=lambda standing: standing.record.kernel)
    kernels = [
        [_row(standing, folder) for standing in those]
        for _, those in groupby(ordered, lambda standing: standing.record.kernel)
    ]
    devices = {standing.record.device.folder for standing in standings}
    stale = [standing for standing in standings if standing.stale]
    tuned = f"{plural(len(kernels), 'kernel')} on {plural(len(devices), 'device')}"
    state = (
        f"{plural(len(stale), 'record')} of {len(standings)} stale" if stale else "none is stale"
    )
    page = (
        environment()
        .get_template("index.html.j2")
        .render(
            kernels=kernels,
            headline=f"{tuned}; {state}.",
            version=max((s.record.provenance.version for s in standings), default=""),
            remedy=" ".join(dict.fromkeys(standing.record.kernel for standing in stale)),
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    write_atomically(file, page.encode())
    return file


def _row(standing: Standing, folder: Path) -> dict[str, Any]:
    record = standing.record
    entries = record.problems
    speedups = [entry.race.speedup.value for entry in entries if entry.race.speedup]
    shares = [entry.limit_fraction for entry in entries if entry.limit_fraction is not None]
    count = len(entries)
    reasons = [
        text if many == count else f"{text} ({many})" for text, many in standing.stale.items()
    ]
    return {
        "kernel": wording.one_line(record.kernel),
        "device": wording.one_line(record.device.name),
        "page": _page(record, folder),
        "tuned": str(count) + (f" of {count + standing.missing}" if standing.missing else ""),
        "speed": _spread(speedups, wording.ratio),
        "vendor": wording.one_line(
            listed(filter(None, (entry.race.vendor_name for entry in entries)))
        ),
        "share": _spread(shares, wording.percent),
        "date": max((entry.origin.tuned_on[:10] for entry in entries), default=NONE),
        "stale": f"{standing.stale_entries} of {count}" if reasons else "",
        "reasons": wording.one_line("; ".join(reasons)),
        "unknown": wording.one_line(standing.unknown),
    }


def _page(record: TunedRecord, folder: Path) -> str:
    """Return the address of a record's report; empty where there is none."""
    places = (Path(record.device.folder, record.kernel + end) for end in (".html", ".md"))
    return next((place.as_posix() for place in places if (folder / place).is_file()), "")


def _spread(values: Sequence[float], words: Callable[[float], str]) -> str:
    """Return the geometric mean, smallest and largest."""
    if not values:
        return NONE
    mean = words(geometric_mean(values)) if min(values) > 0 else NONE
    return mean if len(values) == 1 else f"{mean} ({words(min(values))} – {words(max(values))})"

"""Reads the times on random sizes that shipped answers are fitted to: lists them, fits records, fills a store.

`--held-out` fits every shipped record and writes `results/held-out.json`: the speed of the answers on sizes that are
held out of the fit, as a share of the best measured configuration.

A file of `results/sizes/` has the times of one kernel on one device, in the order of measuring, as JSON
compressed by xz: `configurations`, `fields`, and for each of `sizes` the values of the fields and pairs of the
number of a configuration and its milliseconds.

    python benchmarks/size_data.py
    python benchmarks/size_data.py --fit reports/NVIDIA_H200/sgemm.json --write
    python benchmarks/size_data.py --held-out
    python benchmarks/size_data.py --store sqlite:///sizes.sqlite
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from harness import RESULTS, ROOT, finish, rows_in, write

from autotune import __version__
from autotune.answers.category import HeldOutShares
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import arguments_fingerprint
from autotune.report.publish import amend
from autotune.run.recording import fitted_with
from autotune.run.size_times import TimeMatrix
from autotune.store import ROTATED, RunInfo, Scope, SizeTimes, Store
from autotune.tuned.reading import read, read_all
from autotune.tuned.record import TunedRecord
from autotune.tuned.writing import accepted
from autotune.values import Configuration, Problem

FOLDER = RESULTS / "sizes"


@dataclass(frozen=True)
class SizeData:
    """The times of a kernel's configurations on a device."""

    kernel: str
    device: str
    #: Fingerprint of the sources that were timed.
    source: str
    configurations: Sequence[Mapping[str, int | str | bool]]
    fields: Sequence[str]
    #: For each size the values of its fields, and pairs of a configuration's number and milliseconds.
    sizes: Sequence[tuple[Sequence[int | str], Sequence[tuple[int, float]]]]

    @classmethod
    def read(cls, file: Path) -> SizeData:
        return cls(**json.loads(lzma.decompress(file.read_bytes())))

    def write(self, folder: Path = FOLDER) -> Path:
        """Write the file; equal data make equal bytes."""
        file = folder / f"{self.kernel}-{self.device.replace(' ', '_')}.json.xz"
        text = json.dumps(vars(self), separators=(",", ":"))
        file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        return file

    def rows(self) -> Iterator[SizeTimes]:
        """Yield the times of each size."""
        configurations = [Configuration(dict(each)) for each in self.configurations]
        for values, times in self.sizes:
            problem = Problem(dict(zip(self.fields, values, strict=True)))
            yield SizeTimes(problem, {configurations[number]: ms for number, ms in times})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", type=Path, metavar="RECORD", help="fit its answers anew")
    parser.add_argument("--write", action="store_true", help="with --fit: into the record's folder")
    parser.add_argument("--held-out", action="store_true", help="fit all shipped records")
    parser.add_argument("--store", metavar="ADDRESS", help="store to add the times to")
    options = parser.parse_args()
    every = [SizeData.read(file) for file in sorted(FOLDER.glob("*.json.xz"))]
    if options.fit:
        fit(options.fit, every, options.write)
    elif options.held_out:
        write_held_out(every)
    elif options.store:
        fill(options.store, every)
    else:
        for data in every:
            print(
                f"{data.kernel} on {data.device}: {len(data.configurations)} configurations, "
                f"{len(data.sizes)} sizes"
            )


def fit(file: Path, every: Sequence[SizeData], is_written: bool) -> None:
    """Fit a record to the times of its kernel and device; print what held-out sizes get."""
    record = read(file)
    (data,) = (d for d in every if (d.kernel, d.device) == (record.kernel, record.device.name))
    fitted, held_out = refitted(record, data)
    print(f"held-out sizes get {held_out}")
    if is_written:
        amend(file.parents[1], fitted, accepted)


def refitted(record: TunedRecord, data: SizeData) -> tuple[TunedRecord, HeldOutShares]:
    """Return a record with answers fitted to `data`, and what held-out sizes get."""
    sizes = TimeMatrix(map(Configuration, data.configurations), data.rows()).portfolio()
    return fitted_with(record, find_kernel(record.kernel), record.portfolio, sizes)


def write_held_out(every: Sequence[SizeData]) -> None:
    """Write the shares of held-out sizes for each record of reports/ with times on random sizes."""
    records = {
        (record.kernel, record.device.name): record
        for name in dict.fromkeys(data.kernel for data in every)
        for record in read_all(ROOT / "reports", name)
    }
    file = RESULTS / "held-out.json"
    rows = {(row["kernel"], row["device"]): row for row in rows_in(file)}
    for data in every:
        key = data.kernel, data.device
        if record := records.get(key):
            _, held_out = refitted(record, data)
            print(f"{data.kernel} on {data.device}: {held_out}", flush=True)
            rows[key] = _held_out_row(data, held_out)
            command = "python benchmarks/size_data.py --held-out"
            write(file, {"command": command, "rows": [rows[each] for each in sorted(rows)]})


def _held_out_row(data: SizeData, held_out: HeldOutShares) -> dict[str, Any]:
    shares = held_out.shares[np.isfinite(held_out.shares)]
    numbers = geometric_mean(shares), np.quantile(shares, 0.1), min(shares)
    return {
        "kernel": data.kernel,
        "device": data.device,
        "date": datetime.now(UTC).date().isoformat(),
        "configurations": len(data.configurations),
        "sizes": len(data.sizes),
        **{n: round(float(v), 3) for n, v in zip(("mean", "tenth", "worst"), numbers, strict=True)},
    }


def fill(address: str, every: Sequence[SizeData]) -> None:
    """Add all times to a store; `autotune sizes` goes on with those of the present sources."""
    with Store.open(address) as store:
        for data in every:
            kernel = find_kernel(data.kernel)
            run_id = store.begin_run(RunInfo(data.kernel, data.device, "sizes", 1, __version__, ""))
            rows = [
                (scope(data, arguments_fingerprint(kernel, r.problem), r), r) for r in data.rows()
            ]
            store.add_sizes(run_id, rows)
            store.finish_run(run_id, "done")


def scope(data: SizeData, arguments: str, row: SizeTimes) -> Scope:
    """Return the key of a row; the single device, driver and compiler are not known any more."""
    return Scope(
        kernel=data.kernel,
        problem=row.problem,
        device_uuid="",
        device_name=data.device,
        driver="",
        toolchain="",
        source=data.source,
        arguments=arguments,
        timing=ROTATED,
    )


if __name__ == "__main__":
    finish(main)

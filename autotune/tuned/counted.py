"""Counters of a kernel on a device, measured by `autotune explain`: ``<kernel>.explain.json``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from autotune.answers.table import Amount, Measured, Sizes, Value
from autotune.errors import RecordError
from autotune.files import write_atomically
from autotune.tuned.recorded_device import RecordedDevice, Text

#: Maximum number of bytes of a file: hundreds of times the size of the largest.
_MAX_BYTES = 1 << 22
#: Name of a metric of Nsight Compute.
Metric = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.]{1,160}\Z")]


class CountedVariant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time and the counters of one configuration on one problem."""

    problem: Sizes
    configuration: Mapping[str, Value]
    time_ms: Measured
    #: In base units: nanoseconds, bytes, per cent.
    counters: Mapping[Metric, Amount] = {}
    #: Metrics that the device does not have.
    absent: tuple[Metric, ...] = ()
    #: Fingerprint of the kernel's sources; see `autotune.kernel.source`.
    source: Text
    #: Fingerprint of the kernel's arguments; see `autotune.kernel.source`.
    arguments: Text
    created: Text

    @property
    def key(self) -> object:
        """The problem and the configuration, independent of the order of names."""
        return frozenset(self.problem.items()), frozenset(self.configuration.items())


class CountedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """All counters of one kernel on one device."""

    kernel: Text
    device: RecordedDevice
    variants: tuple[CountedVariant, ...]
    schema_version: Literal[1] = 1
    format: Literal["autotune explanation"] = "autotune explanation"


def file_of(folder: Path | str, device_folder: str, kernel: str) -> Path:
    """Return the file of a kernel and a device below a folder of records."""
    return Path(folder, device_folder, f"{kernel}.explain.json")


def read_counted(file: Path) -> tuple[CountedVariant, ...]:
    """Return the variants of a file; none without a file. Raise `RecordError` if it is damaged."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES >> 20} MiB")
        return msgspec.json.decode(data, type=CountedKernel).variants
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{file}: not a file of `autotune explain`, or damaged: {error!s:.200}"
        ) from error


def known_counts(files: Iterable[Path]) -> dict[object, CountedVariant]:
    """Return the variants of files by key; an earlier file has priority. Warn of damaged files."""
    found: dict[object, CountedVariant] = {}
    for file in files:
        try:
            found = {variant.key: variant for variant in read_counted(file)} | found
        except RecordError as error:
            warnings.warn(f"left out: {error}", RuntimeWarning, stacklevel=2)
    return found


def add_counts(
    file: Path, kernel: str, device: RecordedDevice, variants: Iterable[CountedVariant]
) -> None:
    """Write variants into a file; its variants of other problems and configurations stay."""
    new = {variant.key: variant for variant in variants}
    merged = {variant.key: variant for variant in read_counted(file)} | new
    whole = CountedKernel(kernel=kernel, device=device, variants=tuple(merged.values()))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")

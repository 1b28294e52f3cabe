"""The device of a record: the properties that decide which lookups the record answers, and which launches fit."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from autotune.answers.table import Amount, Count, Positive
from autotune.devices.device import Chip, Device, chip_of, for_arch

#: Free text, for example the name of a driver, a compiler or a library.
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]
#: A text that may be part of a path.
Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^\w{1,32}\Z")]


class RecordedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The device that a record was measured on; see `autotune.devices.device.Device`."""

    backend: Literal["cuda", "opencl"]
    #: One line.
    name: Annotated[str, msgspec.Meta(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
    arch: Word
    uuid: Text = ""
    driver: Text = ""
    #: Of every CUDA device 32.
    warp_size: Positive = 32
    #: Of every CUDA device 1024.
    max_threads_per_block: Positive = 1024
    sm_count: Count = 1
    shared_bytes_per_block: Count = 0
    l2_bytes: Count = 0
    memory_bytes: Count = 0
    peak_gb_per_s: Amount = 0.0
    peak_gflop_per_s: Amount = 0.0

    @classmethod
    def of(cls, device: Device) -> RecordedDevice:
        """Return the recorded properties of a live device."""
        return cls(**{name: getattr(device, name) for name in cls.__struct_fields__})

    @property
    def folder(self) -> str:
        """Return the name of the device's folder of records."""
        return Device(self.backend, self.name, self.arch).folder

    @property
    def chip(self) -> Chip:
        """Return the key of the device; see `autotune.devices.device.Device`."""
        return chip_of(self.arch, self.sm_count, self.memory_bytes, self.peak_gflop_per_s)

    def is_of(self, device: Device | RecordedDevice) -> bool:
        """Return whether records of this device are a device's own.

        They are if the chips are the same, or if the names are and nothing known differs.
        """
        return self.chip.is_same(device.chip) or (
            self.folder == device.folder and not self.chip.difference(device.chip)
        )

    def planned_for(self) -> Device:
        """Return a device with the recorded properties, for planning launches."""
        from dataclasses import replace

        known = msgspec.structs.asdict(self)
        if self.backend == "cuda":
            return replace(for_arch(self.arch), **known)
        return Device(
            **known,
            max_threads_per_sm=self.max_threads_per_block,
            shared_bytes_per_sm=self.shared_bytes_per_block,
        )

"""What a device really reaches: read and copy bandwidth, FFMA rate, launch latency.

Measured once per device uuid by the same executor and timing as everything else, and kept in the
user's data. Knows no kernels but its own probes.
"""

from __future__ import annotations

import msgspec


class MeasuredLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Measured limits of one device."""

    uuid: str
    name: str
    driver: str
    read_gb_per_s: float
    #: Bytes read plus bytes written.
    copy_gb_per_s: float
    ffma_gflop_per_s: float
    launch_us: float
    #: ISO date.
    measured_on: str

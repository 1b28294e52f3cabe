"""Reads driver version, clocks and energy from NVIDIA's management library, without a CUDA context."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from autotune.devices.device import UNKNOWN_CLOCKS, Clocks, Power
from autotune.errors import DeviceError

#: Reasons that slow the clock down, except idle and the user's settings. Source: NVML API
#: reference, nvmlClocksEventReasons.
_THROTTLE = {
    0x0004: "power cap",
    0x0008: "hardware slowdown",
    0x0020: "thermal (software)",
    0x0040: "thermal (hardware)",
    0x0080: "power brake",
}


def driver_version() -> str:
    """Return the driver's version; empty without NVML."""
    with suppress(Exception):  # every NVML failure means "unknown"
        return str(_nvml().nvmlSystemGetDriverVersion())
    return ""


def clocks_of(uuid: str) -> Clocks:
    """Read clock, temperature and throttling of a GPU; None or empty if unknown."""
    with suppress(Exception):
        return clocks(_nvml(), _handle(uuid))
    return UNKNOWN_CLOCKS


def clocks(nvml: Any, handle: Any) -> Clocks:
    """Read the clocks of a device handle; ``nvml`` is the initialised module `pynvml`."""

    def known(query: Callable[[], int]) -> int | None:
        with suppress(Exception):
            return int(query())
        return None

    bits = known(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    return Clocks(
        sm_mhz=known(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        temperature_c=known(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        throttle_reasons=tuple(reason for bit, reason in _THROTTLE.items() if bits & bit),
    )


def energy_mj(uuid: str) -> int:
    """Read the millijoules of a GPU since the driver was loaded; needs Volta or newer, and no MIG slice."""
    try:
        return int(_nvml().nvmlDeviceGetTotalEnergyConsumption(_handle(uuid)))
    except Exception as error:  # every NVML failure means "unknown"
        why = f"{type(error).__name__}: {error}"
        raise DeviceError(f"NVML has no energy counter for this device ({why})") from error


def power_of(uuid: str) -> Power:
    """Read the power of a GPU and its limit; None if unknown."""

    def watts(query: str) -> float | None:
        with suppress(Exception):
            return int(getattr(_nvml(), query)(_handle(uuid))) / 1000  # NVML counts milliwatts
        return None

    return Power(watts("nvmlDeviceGetPowerUsage"), watts("nvmlDeviceGetEnforcedPowerLimit"))


@cache
def _nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@cache
def _handle(uuid: str) -> Any:
    return _nvml().nvmlDeviceGetHandleByUUID(uuid)

"""What NVIDIA's management library says of driver, clocks and energy. Makes no CUDA context, sets nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from autotune.devices.device import UNKNOWN_CLOCKS, Clocks, Power
from autotune.errors import DeviceError

#: Reasons that slow the clock down; idle and settings of the user's own are left out. Source:
#: NVML API reference, nvmlClocksEventReasons.
_THROTTLE = {
    0x0004: "power cap",
    0x0008: "hardware slowdown",
    0x0020: "thermal (software)",
    0x0040: "thermal (hardware)",
    0x0080: "power brake",
}


def driver_version() -> str:
    """The driver's version; empty where NVML is not there."""
    with suppress(Exception):  # every NVML failure means only "not known"
        return str(_nvml().nvmlSystemGetDriverVersion())
    return ""


def clocks_of(uuid: str) -> Clocks:
    """Clock, temperature and throttling of a GPU now, as far as they are known."""
    with suppress(Exception):
        return clocks(_nvml(), _handle(uuid))
    return UNKNOWN_CLOCKS


def clocks(nvml: Any, handle: Any) -> Clocks:
    """The same of a device handle; ``nvml`` is the initialised module `pynvml`."""

    def asked(question: Callable[[], int]) -> int | None:
        with suppress(Exception):
            return int(question())
        return None

    bits = asked(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    return Clocks(
        sm_mhz=asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        temperature_c=asked(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        ),
        throttle_reasons=tuple(reason for bit, reason in _THROTTLE.items() if bits & bit),
    )


def why_no_energy(uuid: str) -> str:
    """Why the energy that a GPU takes is not known; empty where it is. A MIG slice has no counter."""
    try:
        energy_mj(uuid)
    except DeviceError as error:
        return str(error)
    return ""


def energy_mj(uuid: str) -> int:
    """What a GPU took since the driver was loaded, in millijoules; NVML counts from Volta on.

    Raises
    ------
    DeviceError
        Where NVML does not say.
    """
    try:
        return int(_nvml().nvmlDeviceGetTotalEnergyConsumption(_handle(uuid)))
    except Exception as error:  # every NVML failure means only "not known"
        said = f"{type(error).__name__}: {error}"
        raise DeviceError(f"NVML has no energy counter of it ({said})") from error


def power_of(uuid: str) -> Power:
    """Draw and limit of a GPU now, as far as they are known."""
    with suppress(Exception):
        return power(_nvml(), _handle(uuid))
    return Power()


def power(nvml: Any, handle: Any) -> Power:
    """The same of a device handle; ``nvml`` is the initialised module `pynvml`."""

    def watts(question: Callable[[Any], int]) -> float | None:
        with suppress(Exception):
            return int(question(handle)) / 1000  # NVML counts milliwatts
        return None

    return Power(watts(nvml.nvmlDeviceGetPowerUsage), watts(nvml.nvmlDeviceGetEnforcedPowerLimit))


@cache
def _nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@cache
def _handle(uuid: str) -> Any:
    return _nvml().nvmlDeviceGetHandleByUUID(uuid)

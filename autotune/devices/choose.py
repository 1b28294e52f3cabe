"""Finds backends by name, and devices by selector.

``cuda`` compiles with NVRTC and launches with CuPy; ``opencl`` uses any OpenCL device.
"""

from __future__ import annotations

from autotune.devices.base import Backend
from autotune.devices.device import BACKENDS, Device
from autotune.errors import DeviceError, UsageError, needing, unknown


def backend(name: str) -> Backend:
    """Return a backend by name, and import only that one."""
    with needing(f"the {name} backend"):
        if name == "cuda":
            from autotune.devices.cuda_backend import CudaBackend

            return CudaBackend()
        if name == "opencl":
            from autotune.devices.opencl import OpenclBackend

            return OpenclBackend()
    raise UsageError(unknown("backend", name, BACKENDS))


def choose_device(selector: str | None, backends: tuple[str, ...] = BACKENDS) -> Device:
    """Return the device of a selector; default: the first usable one of a kernel's backends.

    A selector is ``BACKEND``, ``BACKEND:INDEX``, ``opencl:cpu`` or ``opencl:gpu``.
    """
    if selector is None:
        return _first_usable(backends)
    name, _, which = selector.partition(":")
    if name not in BACKENDS:
        raise UsageError(unknown("device", selector, [*(f"{b}:0" for b in BACKENDS), "opencl:cpu"]))
    if name not in backends:
        raise UsageError(f"device {selector}: {_runs_on(backends)}")
    devices = backend(name).devices()
    if not devices:
        raise DeviceError(f"device {selector}: {backend(name).why_unavailable()}")
    matching = [
        device
        for device in devices
        if which in ("", str(device.index), device.arch.partition("_")[2])
    ]
    if not matching:
        raise UsageError(unknown("device", selector, [device.selector for device in devices]))
    return matching[0]


def choose_devices(
    selector: str | None, backends: tuple[str, ...] = BACKENDS
) -> tuple[Device, ...]:
    """Return the devices that a run uses together: ``cuda:0,cuda:1``, or ``cuda:all``.

    The text holds selectors of `choose_device`, separated by commas. All devices must be of one model, because
    times of different models cannot be compared.
    """
    if selector is None:
        return (choose_device(None, backends),)
    chosen: list[Device] = []
    for part in selector.split(","):
        name, _, which = part.strip().partition(":")
        first = choose_device(name if which == "all" else part.strip(), backends)
        chosen += backend(name).devices() if which == "all" else [first]
    if len({device.selector for device in chosen}) < len(chosen):
        raise UsageError(f"device {selector}: a device is named twice")
    if len({(device.backend, device.name, device.arch, device.sm_count) for device in chosen}) > 1:
        named = ", ".join(f"{device.selector} is {device.name}" for device in chosen)
        raise UsageError(
            f"device {selector}: a run is for one model ({named}); tune each model by itself"
        )
    return tuple(chosen)


def _first_usable(backends: tuple[str, ...]) -> Device:
    for name in backends:
        if devices := backend(name).devices():
            return devices[0]
    reasons = [f"{name}: {backend(name).why_unavailable()}" for name in backends]
    if backends == ("cuda",):
        reasons.append(_runs_on(backends))
    raise DeviceError("no usable device. " + ". ".join(reasons))


def _runs_on(backends: tuple[str, ...]) -> str:
    """Return where a kernel runs, and what works without such a device."""
    remedy = (
        "; autotune check and autotune show --device sm_90 compile it without a GPU; a source written "
        "with dialect.h (docs/spaces.md), and no backends=, runs on CPUs too"
    )
    return f"this kernel runs on {' and '.join(backends)} only" + remedy * (backends == ("cuda",))

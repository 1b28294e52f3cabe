"""Checks of launch attributes: clusters, cooperative grids, programmatic dependent launches."""

from __future__ import annotations

from math import prod

from autotune.devices.base import CompiledFunction, LaunchAttributes
from autotune.devices.device import MAX_CLUSTER, Device
from autotune.devices.occupancy import occupancy
from autotune.kernel.expression import Symbol
from autotune.kernel.spec import Kernel, Launch, Step

#: First compute capability with clusters and programmatic dependent launch.
_FIRST_CAPABILITY = 90


def attributes_of(launch: Launch) -> LaunchAttributes:
    """Return what the driver gets in addition to the geometry of a launch."""
    return LaunchAttributes(launch.cluster, launch.cooperative, launch.programmatic)


def check_attributes(
    kernel: Kernel, launch: Launch, device: Device, is_compilers: bool = False
) -> None:
    """Raise SpecError if a launch has attributes that its kernel, grid or backend does not allow.

    Grid and cluster of the launch have three sizes. ``is_compilers``: the language's compiler decides the block.
    """
    names = _names(attributes_of(launch))
    if not device.is_cuda:
        raise kernel.error(
            f"launch: {names} needs CUDA, but {device.selector} is an OpenCL device; take device as the last "
            "argument, and pass it only where device.is_cuda"
        )
    if is_compilers:
        raise kernel.error(
            f"launch: {names} is for CUDA C++ and cubins, but the compiler of {kernel.language_name} decides "
            "how a function is launched; leave it out (num_ctas makes clusters)"
        )
    if not launch.cluster:
        return
    if prod(launch.cluster) > MAX_CLUSTER:
        raise kernel.error(
            f"launch: cluster={launch.cluster} has {prod(launch.cluster)} blocks, but at most {MAX_CLUSTER} "
            "are allowed; make the cluster smaller"
        )
    if any(blocks % size for blocks, size in zip(launch.grid, launch.cluster, strict=True)):
        raise kernel.error(
            f"launch: cluster={launch.cluster} does not divide grid={launch.grid}; round each size of the "
            "grid up to a multiple, and let blocks without work return"
        )


def exceeded_attribute(launch: Launch, entry: CompiledFunction | None, device: Device) -> str:
    """Return a message with the limit that a launch's attributes exceed and a remedy; empty if they fit.

    Registers and static shared memory count if the compiled function is known, and multiprocessors if the
    device is not only an architecture. With clusters, even fewer blocks may run at once.
    """
    for name, is_set in (("clusters", launch.cluster), ("programmatic", launch.programmatic)):
        if is_set and device.compute_capability < _FIRST_CAPABILITY:
            need = f"{name} need" if name == "clusters" else f"{name}=True needs"
            return (
                f"{launch.entry}: {need} sm_{_FIRST_CAPABILITY} or newer, which {device.name} is not; "
                "leave it out on such devices"
            )
    if not launch.cooperative or device.sm_count == 1:
        return ""
    static, registers = (entry.shared_bytes, entry.registers) if entry else (0, 0)
    shared = launch.shared_bytes + (static or 0)
    held = occupancy(device, prod(launch.block), registers or 0, shared)
    if held is None or prod(launch.grid) <= held.blocks * device.sm_count:
        return ""
    return (
        f"{launch.entry}: a cooperative grid of {prod(launch.grid)} blocks, but {device.name} runs at most "
        f"{held.blocks * device.sm_count} at once ({held.blocks} on each of {device.sm_count} "
        "multiprocessors); launch fewer blocks, each of which loops"
    )


def check_traced(kernel: Kernel, step: Step) -> None:
    """Raise SpecError if an attribute of a traced launch depends on the problem."""
    if not isinstance(step, Launch):
        return
    sizes = step.cluster if isinstance(step.cluster, tuple | list) else (step.cluster,)
    values = {"cluster": sizes, "cooperative": [step.cooperative]}
    for name, found in (values | {"programmatic": [step.programmatic]}).items():
        if any(isinstance(value, Symbol) for value in found):
            raise kernel.error(
                f"launch: {name} depends on the problem, but a record has one value of it for all "
                "problems; let it depend on the configuration alone"
            )


def _names(attributes: LaunchAttributes) -> str:
    cluster = f"cluster={attributes.cluster}" if attributes.cluster else ""
    others = {"cooperative": attributes.cooperative, "programmatic": attributes.programmatic}
    return " and ".join(
        filter(None, [cluster, *(f"{name}=True" for name, is_set in others.items() if is_set)])
    )

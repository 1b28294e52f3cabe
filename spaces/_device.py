"""Rules about devices that several spaces share."""


def warps_are_known(device):
    """The source is written for warps, or sub-groups, of 16, 32 or 64 threads."""
    return device.warp_size in (16, 32, 64)


def hints_are_cuda(LOAD, device):
    """OpenCL has no cache hints; loads past L1 that fetch 256 bytes begin with compute capability 8.0."""
    if device.backend != "cuda":
        return LOAD == "plain"
    return LOAD != "bypass" or device.compute_capability >= 80


def both_hints_are_cuda(LOAD, STORE, device):
    """OpenCL has no cache hints."""
    return device.backend == "cuda" or (LOAD == "plain" and STORE == "plain")


def occupancy_is_cuda(MIN_BLOCKS, device):
    """OpenCL has no word for blocks per multiprocessor."""
    return device.backend == "cuda" or MIN_BLOCKS == 1

"""Constraints on devices that several spaces share."""


def warp_size_is_supported(device):
    """The source supports warps, or sub-groups, of 16, 32 or 64 threads."""
    return device.warp_size in (16, 32, 64)


def cache_hints_need_cuda(LOAD, device):
    """OpenCL has no cache hints; bypass, loads past L1 that fetch 256 bytes, needs compute capability 8.0."""
    if device.backend != "cuda":
        return LOAD == "plain"
    return LOAD != "bypass" or device.compute_capability >= 80


def both_cache_hints_need_cuda(LOAD, STORE, device):
    """OpenCL has no cache hints."""
    return device.backend == "cuda" or (LOAD == "plain" and STORE == "plain")


def min_blocks_needs_cuda(MIN_BLOCKS, device):
    """OpenCL cannot set the blocks per multiprocessor."""
    return device.backend == "cuda" or MIN_BLOCKS == 1

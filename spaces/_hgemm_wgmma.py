"""`wgmma` (kernels/hgemm_wgmma.cu): warpgroup products of sm_90a, with tiles copied by TMA."""

from _hgemm import (
    ARGUMENTS,
    PIECE,
    max_shared_bytes,
    needs_padding,
    padded_buffers,
    padded_first,
)

from autotune import Launch, Out, Source, ceil_div, minimum

#: Elements of k in a step.
DEPTH = 64
#: Bytes of a tensor map, the description of a matrix for the tensor memory accelerator.
MAP_BYTES = 128

wgmma = Source(
    "hgemm_wgmma.cu",
    seeds=[
        {"BM": 128, "BN": 256, "STAGES": 4, "CLUSTER": 2, "RASTER": 8},
        {"BM": 128, "BN": 64, "STAGES": 8, "SPLITK": 2, "RASTER": 8},
    ],
    variants={"wgmma": {"BM": 128, "BN": 256, "STAGES": 4, "CLUSTER": 2, "RASTER": 8}},
    BM=(128, 256),  # rows of C per block, half of them for each warpgroup
    BN=(64, 128, 256),  # columns of C per block
    STAGES=(3, 4, 5, 6, 8),  # pairs of tiles in shared memory
    CLUSTER=(1, 2),  # blocks that share tiles of B
    SPLITK=(1, 2, 4, 8),  # blocks of a cluster that split k of one tile of C
    PADDED=(False, True),  # first copy unaligned rows to aligned memory
    RASTER=(4, 8, 16),  # rows of blocks that run together, for reuse in the L2 cache
)


@wgmma.constraint
def device_is_supported(device):
    """wgmma needs compute capability 9.0."""
    return device.compute_capability == 90


@wgmma.constraint
def warpgroups_make_a_block(BM, BN):
    """Two warpgroups have 64 or 128 rows each, and their sums fit their registers."""
    return BM * BN <= 128 * 256


@wgmma.constraint
def clusters_share_panels(BN, CLUSTER, SPLITK):
    """B is copied in panels of 64 columns: sharing it needs two panels. Blocks that split k share no tiles."""
    return CLUSTER == 1 or (BN >= 128 and SPLITK == 1)


def shared_bytes(BM, BN, STAGES, SPLITK, **others):
    """Return the dynamic shared memory in bytes: stages or the sums of blocks, then alignment and barriers."""
    return max(2 * DEPTH * STAGES * (BM + BN), 4 * BM * (BN + 8) if SPLITK > 1 else 0) + 2048


@wgmma.constraint
def stages_fit_shared(BM, BN, STAGES, SPLITK, device):
    """Stages and sums fit in the shared memory of a multiprocessor."""
    return shared_bytes(BM, BN, STAGES, SPLITK) <= max_shared_bytes(1, device)


def clusters(c, p, device):
    """Return the number of blocks of C, in whole clusters: at most one per multiprocessor unless k is split."""
    blocks = ceil_div(p.m, c.CLUSTER * c.BM) * c.CLUSTER * ceil_div(p.n, c.BN)
    if c.SPLITK > 1:
        return blocks
    return minimum(blocks, max(1, device.sm_count // c.CLUSTER) * c.CLUSTER)


@wgmma.launch
def launch(c, p, device):
    blocks = clusters(c, p, device)
    multiply = Launch(
        (blocks, 1, c.SPLITK) if c.SPLITK > 1 else (blocks,),
        (384,),
        shared_bytes=shared_bytes(**c),
        args=(*ARGUMENTS, *scratch(c, p, device)),
    )
    return padded_first(c, p, multiply)


@wgmma.scratch
def scratch(c, p, device):
    maps = Out(MAP_BYTES * (2 * clusters(c, p, device) * c.SPLITK + 1), "uint8")
    return {"maps": maps, **padded_buffers(c, p)}


@wgmma.options
def options(c):
    return ["sm_90a"]


@wgmma.requires
def requires(c, p):
    """Rows are whole pieces, or padded; with SPLITK, a part of k has two steps or more."""
    fits = True
    if c.PADDED:
        fits &= needs_padding(p)
    else:
        fits &= p.k % PIECE + p.n % PIECE == 0
    fits &= p.k >= 1
    if c.SPLITK > 1:
        fits &= p.k >= 2 * DEPTH * c.SPLITK
    return fits

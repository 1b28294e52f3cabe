"""`wgmma` (kernels/hgemm_wgmma.cu): warpgroups of an H100, and tiles that its memory accelerator brings."""

from _hgemm import (
    ARGUMENTS,
    PIECE,
    has_rows_to_pad,
    most_shared_bytes,
    padded_buffers,
    padded_first,
)

from autotune import Launch, Out, Source, ceil_div, minimum

#: Halves of a step of k. Bytes that describe a matrix to the memory accelerator.
DEPTH, MAP_BYTES = 64, 128

wgmma = Source(
    "hgemm_wgmma.cu",
    seeds=[
        {"BM": 128, "BN": 256, "STAGES": 4, "CLUSTER": 2, "RASTER": 8},
        {"BM": 128, "BN": 64, "STAGES": 8, "SPLITK": 2, "RASTER": 8},
    ],
    variants={"wgmma": {"BM": 128, "BN": 256, "STAGES": 4, "CLUSTER": 2, "RASTER": 8}},
    BM=(128, 256),  # rows of C per block, half of them a warpgroup's
    BN=(64, 128, 256),  # columns of C per block
    STAGES=(3, 4, 5, 6, 8),  # pairs of tiles in shared memory
    CLUSTER=(1, 2),  # blocks that share tiles of B
    SPLITK=(1, 2, 4, 8),  # blocks, as one cluster, that share a tile of C
    PADDED=(False, True),  # rows that are not aligned are copied first to where they are
    RASTER=(4, 8, 16),  # rows of blocks that run together, for the L2 cache
)


@wgmma.constraint
def runs_here(device):
    """Only compute capability 9.0 has wgmma."""
    return device.compute_capability == 90


@wgmma.constraint
def warpgroups_make_a_block(BM, BN):
    """Two warpgroups have 64 or 128 rows each, and sums that fit their registers."""
    return BM * BN <= 128 * 256


@wgmma.constraint
def clusters_share_panels(BN, CLUSTER, SPLITK):
    """B's tile is brought in panels of 64 columns; blocks that split k share nothing."""
    return CLUSTER == 1 or (BN >= 128 and SPLITK == 1)


def shared_bytes(BM, BN, STAGES, SPLITK, **others):
    """Return the bytes of the stages or of the sums that blocks add up, of alignment and of barriers."""
    return max(2 * DEPTH * STAGES * (BM + BN), 4 * BM * (BN + 8) if SPLITK > 1 else 0) + 2048


@wgmma.constraint
def stages_fit_shared(BM, BN, STAGES, SPLITK, device):
    """Stages and sums fit in a multiprocessor's shared memory."""
    return shared_bytes(BM, BN, STAGES, SPLITK) <= most_shared_bytes(1, device)


def clusters(c, p, device):
    """Return the blocks of C: whole clusters, at most those that run at once unless k is split."""
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
    """Rows are whole pieces, or padded; a part of k is two steps."""
    fits = True
    if c.PADDED:
        fits &= has_rows_to_pad(p)
    else:
        fits &= p.k % PIECE + p.n % PIECE == 0
    fits &= p.k >= 1
    if c.SPLITK > 1:
        fits &= p.k >= 2 * DEPTH * c.SPLITK
    return fits

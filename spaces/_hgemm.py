"""Arguments, shared memory and row padding of the sources of hgemm."""

from autotune import Launch, Out, ceil_div

#: Arguments of the kernels, in order.
ARGUMENTS = ("a", "b", "c", "m", "n", "k")
#: Elements in a piece of 16 bytes.
PIECE = 8
#: Largest number of pieces of A and B that a launch can pad.
MAX_PIECES = 1 << 31


def max_shared_bytes(MIN_BLOCKS, device):
    """Return the shared memory of a block in bytes if MIN_BLOCKS fit; the device reserves 1 KB per block."""
    return min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)


def pieces(rows, columns):
    """Return the number of 16-byte pieces in a matrix with padded rows."""
    return rows * ceil_div(columns, PIECE)


def needs_padding(p):
    """Return whether rows are not whole pieces and a launch can pad all of them."""
    odd = p.k % PIECE + p.n % PIECE >= 1
    return odd & (pieces(p.m, p.k) + pieces(p.k, p.n) <= MAX_PIECES)


def padded_buffers(c, p):
    """Return the buffers of padded rows."""
    if not c.PADDED:
        return {}
    sizes = {"padded_a": pieces(p.m, p.k), "padded_b": pieces(p.k, p.n)}
    return {name: Out(PIECE * size, "uint16") for name, size in sizes.items()}


def padded_first(c, p, multiply):
    """Return the launches; with PADDED, the first one pads the rows."""
    if not c.PADDED:
        return multiply
    blocks = ceil_div(pieces(p.m, p.k) + pieces(p.k, p.n), 256)
    args = ("a", "b", "m", "n", "k", "padded_a", "padded_b")
    return Launch((blocks,), (256,), entry="hgemm_pad", args=args), multiply

"""What the sources of hgemm share: arguments, memory, rows that are padded."""

from autotune import Launch, Out, ceil_div

#: Arguments of the kernels, in order.
ARGUMENTS = ("a", "b", "c", "m", "n", "k")
#: Halves in a piece of 16 bytes.
PIECE = 8
#: Pieces of A and B that a launch can pad.
MOST_PIECES = 1 << 31


def most_shared_bytes(MIN_BLOCKS, device):
    """Return the shared memory of one of MIN_BLOCKS blocks of a multiprocessor, 1 KB per block reserved."""
    return min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)


def pieces(rows, columns):
    """Return the pieces of 16 bytes in a matrix whose rows are padded."""
    return rows * ceil_div(columns, PIECE)


def has_rows_to_pad(p):
    """Return the condition that rows are not whole pieces, and that a launch can pad all."""
    odd = p.k % PIECE + p.n % PIECE >= 1
    return odd & (pieces(p.m, p.k) + pieces(p.k, p.n) <= MOST_PIECES)


def padded_buffers(c, p):
    """Return the buffers of padded rows."""
    if not c.PADDED:
        return {}
    sizes = {"padded_a": pieces(p.m, p.k), "padded_b": pieces(p.k, p.n)}
    return {name: Out(PIECE * size, "uint16") for name, size in sizes.items()}


def padded_first(c, p, multiply):
    """Return the launches, with one that pads rows if the configuration does that."""
    if not c.PADDED:
        return multiply
    blocks = ceil_div(pieces(p.m, p.k) + pieces(p.k, p.n), 256)
    args = ("a", "b", "m", "n", "k", "padded_a", "padded_b")
    return Launch((blocks,), (256,), entry="hgemm_pad", args=args), multiply

"""Softmax of the rows of a matrix, a row in each program."""

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, y, columns, BLOCK: tl.constexpr):
    """Write to y the softmax of each row of x; BLOCK is a power of two of at least ``columns``."""
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row + column, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row + column, powers / tl.sum(powers, axis=0), mask=inside)

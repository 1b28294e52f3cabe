"""A kernel with configurations that are wrong, fault and hang, and a call of it: for triton_decorator.py."""

import triton
import triton.language as tl

from autotune.triton import autotune

#: What is wrong with a block.
WRONG: tl.constexpr = tl.constexpr(512)
FAULTY: tl.constexpr = tl.constexpr(1024)
HANGING: tl.constexpr = tl.constexpr(2048)


@autotune(BLOCK=(64, 128, 256, 512, 1024, 2048), num_warps=(4,), key=["n"])
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside)
    if BLOCK == WRONG:
        total += 1
    if BLOCK == FAULTY:
        tl.store(out + n.to(tl.int64) * 100000000 + offsets, total)
    if BLOCK == HANGING:
        while tl.load(x) == tl.load(x):
            tl.atomic_add(out, 0.0)
    tl.store(out + offsets, total, mask=inside)


def is_right(torch):
    """Call it; return whether the caller's array has what it should."""
    n = 1 << 20
    x, y = (torch.randn(n, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
    return torch.equal(out, x + y)

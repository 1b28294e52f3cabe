"""Kernels of Triton's tutorials, as their users tune them, with the calls that the benchmark makes.

Vector add (01), softmax (02), matmul (03) and layer norm (05) of triton-lang/triton, MIT licence, shortened to
what tuning needs: a file that changes its import of ``autotune`` is ported.
"""

import triton
import triton.language as tl
from triton import Config, autotune


def blocks(*sizes):
    """Return a configuration for each block and number of warps."""
    return [Config({"BLOCK": size}, num_warps=warps) for size in sizes for warps in (2, 4, 8, 16)]


@autotune(configs=blocks(128, 256, 512, 1024, 2048, 4096), key=["n"])
@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside)
    tl.store(out + offsets, total, mask=inside)


@autotune(configs=blocks(4096, 8192), key=["rows", "columns"])
@triton.jit
def softmax(out, x, stride, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    values = tl.load(x + row * stride + offsets, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + offsets, powers / tl.sum(powers, axis=0), mask=inside)


@autotune(
    configs=[
        Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for m in (64, 128)
        for n in (64, 128, 256)
        for k in (32, 64)
        for warps in (4, 8)
        for stages in (3, 4)
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul(
    a, b, c, M, N, K, am, ak, bk, bn, cm, cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(N, BLOCK_N)
    row, column = tl.program_id(0) // blocks_n, tl.program_id(0) % blocks_n
    m = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        at_a = a + m[:, None] * am + (step * BLOCK_K + k[None, :]) * ak
        at_b = b + (step * BLOCK_K + k[:, None]) * bk + n[None, :] * bn
        ours = tl.load(at_a, mask=k[None, :] < left, other=0.0)
        theirs = tl.load(at_b, mask=k[:, None] < left, other=0.0)
        total = tl.dot(ours, theirs, total)
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    at = c + cm * m[:, None] + cn * n[None, :]
    tl.store(at, total.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))


@autotune(configs=blocks(512, 1024, 2048, 4096), key=["N"])
@triton.jit
def layer_norm(x, y, weight, bias, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, N, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        total += tl.load(x + row + at, mask=at < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, N, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < N, other=0.0).to(tl.float32)
        apart = tl.where(at < N, values - mean, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    for begin in range(0, N, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        factors = tl.load(weight + at, mask=at < N)
        added = tl.load(bias + at, mask=at < N)
        values = tl.load(x + row + at, mask=at < N, other=0.0).to(tl.float32)
        tl.store(y + row + at, (values - mean) * scale * factors + added, mask=at < N)


def calls(torch):
    """Return by name a function, its grid and arguments, in the sizes that are measured."""

    def drawn(*shape, dtype="float32"):
        return torch.randn(shape, device="cuda").to(getattr(torch, dtype))

    n, x, weight = 1 << 24, drawn(4096, 4096), drawn(4096)
    v, a, b = drawn(n), drawn(4096, 4096, dtype="float16"), drawn(4096, 4096, dtype="float16")
    strides = (*a.stride(), *b.stride(), *a.stride())
    return {
        "vector_add": (
            vector_add,
            lambda meta: (triton.cdiv(n, meta["BLOCK"]),),
            (v, v, torch.empty_like(v), n),
        ),
        "softmax": (softmax, (4096,), (torch.empty_like(x), x, 4096, 4096, 4096)),
        "matmul": (
            matmul,
            lambda meta: (triton.cdiv(4096, meta["BLOCK_M"]) * triton.cdiv(4096, meta["BLOCK_N"]),),
            (a, b, torch.empty_like(a), 4096, 4096, 4096, *strides),
        ),
        "layer_norm": (
            layer_norm,
            (4096,),
            (x, torch.empty_like(x), weight, weight, 4096, 4096, 1e-5),
        ),
    }

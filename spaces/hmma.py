"""hmma: the rate of tensor cores, measured by adding up A B' `steps` times, by kernels/hmma.cu.

A and B are float16 or bfloat16. The rate is the limit of kernels that are bound by tensor cores.
"""

import numpy as np

from autotune import BFloat16, Kernel, Launch, NothingToDo, Operand, Out, Problem, Work, ceil_div

#: Columns of A and B.
DEPTH = 64
#: Elements in 16 bytes.
PIECE = 8


def product(m, n, steps, dtype="float16"):
    return Problem(m=m, n=n, steps=steps, dtype=dtype)


def warps(VARIANT, WARPS, CHAINS, **others):
    """Return a configuration with given warps per block and independent sums per warp."""
    return {"VARIANT": VARIANT, "WARPS": WARPS, "CHAINS": CHAINS, **others}


hmma = Kernel(
    "hmma.cu",
    backends=("cuda",),
    # 128 rows for each of the 132 multiprocessors of an H100; 2.8 ms at 800 TFLOP/s
    problems=[product(128 * 132, 1024, 1024, dtype) for dtype in ("float16", "bfloat16")],
    quick_problems=[product(128 * 132, 1024, 1024)],
    edge_problems=[
        product(*size, dtype)
        for size in ((1, 1, 0), (7, 9, 1), (129, 65, 3), (333, 777, 31), (257, 1001, 2))
        for dtype in ("float16", "bfloat16")
    ],
    static=("dtype",),
    seeds=[
        *(warps("wgmma", 8, 1, COLUMNS=256, UNROLL=by) for by in (1, 2)),
        warps("wgmma", 4, 1, COLUMNS=256),
        *(warps("wgmma", *shape, COLUMNS=128) for shape in ((8, 2), (16, 1))),
        *(warps("mma", *shape) for shape in ((8, 8), (4, 16), (8, 4), (16, 4))),
        warps("mma", 8, 8, UNROLL=2),
    ],
    default=warps("mma", 8, 8),
    variants={"mma": warps("mma", 8, 8), "wgmma": warps("wgmma", 8, 1, COLUMNS=256)},
    deterministic=True,  # one thread computes a sum
    VARIANT=("mma", "wgmma"),
    WARPS=(4, 8, 16),  # warps per block, of 16 rows each
    CHAINS=(1, 2, 4, 8, 16),  # independent sums per warp; wgmma: per warpgroup
    COLUMNS=(64, 128, 256),  # wgmma: columns of a sum; mma: always 8
    UNROLL=(1, 2, 4),  # unrolled steps
)


@hmma.applies("COLUMNS")
def wgmma(VARIANT):
    return VARIANT == "wgmma"


@hmma.constraint
def variant_is_supported(VARIANT, device):
    """mma needs compute capability 8.0 or higher, wgmma exactly 9.0."""
    capability = device.compute_capability
    return capability == 90 if VARIANT == "wgmma" else capability >= 80


@hmma.constraint
def operands_fit_registers(VARIANT, WARPS, CHAINS, device):
    """mma: sums, operands and about 40 others fit in the registers of a thread."""
    return VARIANT == "wgmma" or registers(WARPS, device) >= 12 * CHAINS + 56


@hmma.constraint
def sums_fit_registers(WARPS, CHAINS, COLUMNS, device):
    """wgmma: sums and about 40 others fit in the registers of a thread."""
    return registers(WARPS, device) >= CHAINS * COLUMNS // 2 + 40


def registers(WARPS, device):
    """Return the registers available to a thread with one block on a multiprocessor."""
    return min(255, device.registers_per_sm // (32 * WARPS) // 8 * 8)


def tile(c):
    """Return the rows and columns of a block."""
    return 16 * c.WARPS, c.CHAINS * (c.COLUMNS if c.VARIANT == "wgmma" else 8)


@hmma.launch
def launch(c, p, device):
    rows, columns = tile(c)
    blocks = ceil_div(p.m, rows) * ceil_div(p.n, columns)
    # rows of A and B, and 1 KB for alignment
    shared_bytes = 2 * DEPTH * (rows + columns) + 1024 if c.VARIANT == "wgmma" else 0
    return Launch((blocks,), (32 * c.WARPS,), shared_bytes=shared_bytes)


@hmma.options
def options(c):
    return ["sm_90a"] if c.VARIANT == "wgmma" else []


@hmma.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel. Exact data are ±1 and ±2: sums are integers below 2^24."""
    a, b = rng.standard_normal((p.m, DEPTH)), rng.standard_normal((p.n, DEPTH))
    if p.dtype == "bfloat16":
        a, b = BFloat16(a), BFloat16(b)
    else:
        a, b = a.astype(np.float16), b.astype(np.float16)
    return {"a": a, "b": b, "out": Out((p.m, p.n)), "m": p.m, "n": p.n, "steps": p.steps}


@hmma.reference
def reference(a, b, steps):
    return steps * (a @ b.T)


@hmma.tolerance
def tolerance(p):
    """Bound four additions per step, to a sum of at most 64 per step; each loses two units in the last place."""
    return float(np.finfo(np.float32).eps) * 512 * max(1, p.steps) ** 2


@hmma.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * DEPTH * p.steps,
        bytes_read=2 * DEPTH * (p.m + p.n),
        bytes_written=4 * p.m * p.n,
        pipe="tensor",
    )


@hmma.call
def call(a, b, steps, out=None):
    """Return `steps` times A B' for two matrices of 64 columns."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != DEPTH or b.shape[1] != DEPTH:
        raise ValueError(f"a is {a} and b is {b}: pass two matrices of {DEPTH} columns")
    if a.dtype not in ("float16", "bfloat16") or b.dtype != a.dtype:
        raise ValueError(f"a is {a} and b is {b}: pass both in float16 or both in bfloat16")
    m, n = a.shape[0], b.shape[0]
    out = Operand.new((m, n)) if out is None else out
    if out.shape != (m, n) or out.dtype != "float32":
        raise ValueError(f"out is {out}: it must be float32[{m}, {n}]")
    for name, array in {"a": a, "b": b, "out": out}.items():
        if not array.is_contiguous or array.offset % PIECE:
            raise ValueError(
                f"{name} is {array}: it must be contiguous and aligned to 16 bytes; copy it"
            )
    if not m * n:
        return NothingToDo((out,))
    arrays = {"a": a, "b": b, "out": out}
    return product(m, n, steps, a.dtype), {**arrays, "m": m, "n": n, "steps": steps}

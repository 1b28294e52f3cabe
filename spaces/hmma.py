"""hmma: the rate of tensor cores: A B' of halves or bfloat16, added up `steps` times, by kernels/hmma.cu.

The measured limit of every kernel that computes on tensor cores more than it moves.
"""

import numpy as np

from autotune import BFloat16, Kernel, Launch, NothingToDo, Operand, Out, Problem, Work, ceil_div

#: Columns of A and B; halves in 16 bytes.
DEPTH, PIECE = 64, 8


def product(m, n, steps, dtype="float16"):
    return Problem(m=m, n=n, steps=steps, dtype=dtype)


def warps(VARIANT, WARPS, CHAINS, **others):
    """A configuration by the warps of a block and the independent sums of each."""
    return {"VARIANT": VARIANT, "WARPS": WARPS, "CHAINS": CHAINS, **others}


hmma = Kernel(
    "hmma.cu",
    backends=("cuda",),
    # 128 rows for each of an H100's multiprocessors; 2.8 ms at 800 TFLOP/s
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
    deterministic=True,  # every sum is one thread's
    VARIANT=("mma", "wgmma"),
    WARPS=(4, 8, 16),  # warps per block, of 16 rows each
    CHAINS=(1, 2, 4, 8, 16),  # independent sums of a warp; wgmma: of a warpgroup
    COLUMNS=(64, 128, 256),  # wgmma: columns of a chain; mma: always 8
    UNROLL=(1, 2, 4),  # steps written out
)


@hmma.applies("COLUMNS")
def wgmma(VARIANT):
    return VARIANT == "wgmma"


@hmma.constraint
def variant_runs_here(VARIANT, device):
    """mma needs compute capability 8.0; only 9.0 has wgmma."""
    capability = device.compute_capability
    return capability == 90 if VARIANT == "wgmma" else capability >= 80


@hmma.constraint
def operands_fit_registers(VARIANT, WARPS, CHAINS, device):
    """mma: a thread's registers hold its sums, its operands and some 40 others."""
    return VARIANT == "wgmma" or registers(WARPS, device) >= 12 * CHAINS + 56


@hmma.constraint
def sums_fit_registers(WARPS, CHAINS, COLUMNS, device):
    """wgmma: a thread's registers hold its sums and some 40 others."""
    return registers(WARPS, device) >= CHAINS * COLUMNS // 2 + 40


def registers(WARPS, device):
    """A thread's, if a multiprocessor has one block."""
    return min(255, device.registers_per_sm // (32 * WARPS) // 8 * 8)


def tile(c):
    """Rows and columns of a block."""
    return 16 * c.WARPS, c.CHAINS * (c.COLUMNS if c.VARIANT == "wgmma" else 8)


@hmma.launch
def launch(c, p, device):
    rows, columns = tile(c)
    blocks = ceil_div(p.m, rows) * ceil_div(p.n, columns)
    # rows of A and B, and what aligns them
    shared_bytes = 2 * DEPTH * (rows + columns) + 1024 if c.VARIANT == "wgmma" else 0
    return Launch((blocks,), (32 * c.WARPS,), shared_bytes=shared_bytes)


@hmma.options
def options(c):
    return ["sm_90a"] if c.VARIANT == "wgmma" else []


@hmma.arguments
def arguments(p, rng):
    """In the kernel's order. Exact data are ±1 and ±2, whose sums are integers below 2^24."""
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
    """Four additions a step to a sum of at most 64 a step, of which each loses two units in the last place."""
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
    """Of two matrices of 64 columns, `steps` times A times B transposed."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != DEPTH or b.shape[1] != DEPTH:
        raise ValueError(f"a is {a} and b is {b}: two matrices of {DEPTH} columns are needed")
    if a.dtype not in ("float16", "bfloat16") or b.dtype != a.dtype:
        raise ValueError(f"a is {a} and b is {b}: both in float16 or bfloat16 are needed")
    m, n = a.shape[0], b.shape[0]
    out = Operand.new((m, n)) if out is None else out
    if out.shape != (m, n) or out.dtype != "float32":
        raise ValueError(f"out is {out}: float32[{m}, {n}] is needed")
    for name, array in {"a": a, "b": b, "out": out}.items():
        if not array.is_contiguous or array.offset % PIECE:
            raise ValueError(f"{name} is {array}: rows without gaps from 16 bytes on; copy it")
    if not m * n:
        return NothingToDo((out,))
    arrays = {"a": a, "b": b, "out": out}
    return product(m, n, steps, a.dtype), {**arrays, "m": m, "n": n, "steps": steps}

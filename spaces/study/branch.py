"""branch: one of two paths for each uint32, by kernels/study/branch.cu; shows divergence, predicates and selects."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

PATTERNS = ("uniform", "warps", "alternating", "half", "tenth")


def paths(n, pattern, work=0):
    """Return a problem with `work` multiply-adds in each path; the pattern sets the odd lanes."""
    return Problem(n=n, pattern=pattern, work=work)


branch = Kernel(
    "branch.cu",
    problems={
        "cuda": [paths(1 << 26, "half")]
        + [paths(1 << 24, pattern, 128) for pattern in PATTERNS]
        + [paths(1 << 24, "alternating", work) for work in (1, 8, 32)],
        "opencl": [paths(1 << 17, "half"), paths(1 << 16, "alternating", 32)],
    },
    edge_problems=[paths(1, "half", 1), paths(1001, "tenth"), paths(4097, "half", 8)],
    static=("work",),
    variants={form: {"FORM": form} for form in ("stores", "chosen", "ternary", "mask", "sorted")},
    deterministic=True,  # one thread computes an element
    BLOCK=(256, 64, 128, 512, 1024),  # threads per block
    ITEMS=(1, 2, 4),  # elements per thread
    FORM=("stores", "chosen", "ternary", "mask", "sorted"),  # how the source expresses the branch
)


@branch.launch
def launch(c, p):
    return Launch(
        grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,), args=("x", "out", "n")
    )


@branch.arguments
def arguments(p, rng):
    x = rng.integers(0, 2**31, p.n).astype(np.uint32) * np.uint32(2)
    i = np.arange(p.n)
    odd = {
        "uniform": 0 * i == 1,
        "warps": i // 32 % 2 == 1,
        "alternating": i % 2 == 1,
        "half": rng.random(p.n) < 0.5,
        "tenth": rng.random(p.n) < 0.1,
    }[p.pattern]
    return {
        "x": x + odd.astype(np.uint32),
        "out": Out(p.n, "uint32"),
        "n": np.int64(p.n),
        "work": p.work,
    }


@branch.reference
def reference(x, work):
    even, odd = x * np.uint32(2), x * np.uint32(3)
    for _ in range(work):
        even = even * np.uint32(1664525) + np.uint32(1013904223)
        odd = odd * np.uint32(22695477) + np.uint32(12345)
    return np.where(x % 2, odd, even)


@branch.work
def work(p):
    return Work(bytes_read=4 * p.n, bytes_written=4 * p.n)

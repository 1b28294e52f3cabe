"""chase: a chain of dependent loads, by kernels/study/chase.cu; shows the latency of each level of memory."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work

#: Ints that LEVEL=shared has room for.
SHARED_WORDS = 8192


def chain(n, steps=4096, gap=32):
    """A chain through n ints, each step `gap` ints on or to a random place where that is 0."""
    return Problem(n=n, steps=steps, gap=gap)


chase = Kernel(
    "chase.cu",
    problems={
        "cuda": [chain(1 << e, 16384, gap) for e in (12, 15, 20, 23, 27) for gap in (1, 32)]
        + [chain(1 << 27, 16384, 0)],
        "opencl": [chain(1 << 12), chain(1 << 20, gap=0)],
    },
    edge_problems=[chain(1, 1), chain(7, 0), chain(1000, 33, 0), chain(8193, 1001, 8)],
    variants={level: {"LEVEL": level} for level in ("global", "shared")},
    deterministic=True,  # one place is written
    BLOCK=(1, 32),  # threads, which do the same
    LEVEL=("global", "shared"),  # where the chain lies
    UNROLL=(16, 1),  # steps written out
)


@chase.requires
def fits(c, p):
    """shared: a chain of 32 KB."""
    return p.n <= SHARED_WORDS if c.LEVEL == "shared" else True


@chase.launch
def launch(c, p):
    return Launch(grid=(1,), block=(c.BLOCK,))


@chase.arguments
def arguments(p, rng):
    i = np.arange(p.n, dtype=np.int32)
    if p.gap:
        following = (i + p.gap) % p.n
    else:  # one cycle through all places
        order = rng.permutation(i)
        following = np.empty_like(i)
        following[order] = np.roll(order, -1)
    return {"next": following.astype(np.int32), "out": Out(1, "int32"), "n": p.n, "steps": p.steps}


@chase.reference
def reference(next, steps):
    at = 0
    for _ in range(steps):
        at = int(next[at])
    return at


@chase.work
def work(p):
    """Bytes of which each waits for the last: a rate of them means nothing but latency."""
    return Work(bytes_read=4 * p.steps, bytes_written=4)

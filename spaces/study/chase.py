"""chase: a chain of dependent loads, by kernels/study/chase.cu; shows the latency of each level of memory."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work

#: Largest number of ints with LEVEL=shared.
SHARED_WORDS = 8192


def chain(n, steps=4096, gap=32):
    """Return a chain through n ints; a step is `gap` ints, or to a random place if `gap` is 0."""
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
    deterministic=True,  # one thread writes the result
    BLOCK=(1, 32),  # threads; all do the same
    LEVEL=("global", "shared"),  # where the chain is stored
    UNROLL=(16, 1),  # unrolled steps
)


@chase.requires
def fits(c, p):
    """shared: the chain has at most 32 KB."""
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
    place = 0
    for _ in range(steps):
        place = int(next[place])
    return place


@chase.work
def work(p):
    """Count the bytes of dependent loads; their rate measures latency, not bandwidth."""
    return Work(bytes_read=4 * p.steps, bytes_written=4)

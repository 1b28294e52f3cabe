"""nbody: the accelerations of float32 bodies by the gravity of all others; see nbody.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

#: Here and in the source.
SOFTENING = 0.01

nbody = Kernel(
    "nbody.cu",
    problems={"cuda": [Problem(n=1 << 17)], "opencl": [Problem(n=1 << 11)]},
    BLOCK=(32, 64, 128, 256, 512, 1024),  # threads per block
    TILE=(1, 2, 4, 8),  # bodies of a thread
    UNROLLED=(1, 4, 8, 16),  # others per step
    STAGED=(0, 1),  # the others through shared memory
)


@nbody.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.TILE),), block=(c.BLOCK,))


@nbody.arguments
def arguments(p, rng):
    bodies = rng.uniform(0.0, 1.0, (p.n, 4)).astype(np.float32)
    return {"bodies": bodies, "out": Out((p.n, 3)), "n": p.n}


@nbody.reference
def reference(bodies):
    places, masses = bodies[:, :3], bodies[:, 3]
    found = []
    for begin in range(0, len(places), 64):
        apart = places - places[begin : begin + 64, None]
        squares = (apart * apart).sum(2) + SOFTENING
        pulls = masses / (squares * np.sqrt(squares))
        found.append(np.einsum("ij,ijk->ik", pulls, apart))
    return np.concatenate(found)


@nbody.work
def work(p):
    return Work(flops=20 * p.n**2, bytes_read=16 * p.n, bytes_written=12 * p.n)

"""collatz: steps from each number to 1, with a reference in pure Python of some 20 s; see collatz.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

collatz = Kernel(
    "collatz.cu",
    problems={"cuda": [Problem(n=3 << 19)], "opencl": [Problem(n=1 << 14)]},
    BLOCK=(32, 64, 128, 256, 512, 1024),  # threads per block
    ITEMS=(1, 2, 4, 8),  # numbers of a thread
    IN_A_ROW=(0, 1),  # a thread's numbers
    TWO=(0, 1),  # two steps at once for odd numbers
    UNROLLED=(1, 2, 4),  # steps before the next comparison
)


@collatz.applies("IN_A_ROW")
def several(ITEMS):
    return ITEMS > 1


@collatz.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@collatz.arguments
def arguments(p, rng):
    return {"x": rng.integers(1, 1 << 20, p.n, dtype=np.int32), "out": Out(p.n, "int32"), "n": p.n}


def steps_from(value):
    steps = 0
    while value > 1:
        value = 3 * value + 1 if value % 2 else value // 2
        steps += 1
    return steps


@collatz.reference
def reference(x):
    return np.array([steps_from(value) for value in x.tolist()])


@collatz.work
def work(p):
    return Work(flops=0, bytes_read=4 * p.n, bytes_written=4 * p.n)

"""500 configurations of which 50 go wrong, five in each of ten ways: see faulty_stream.cu."""

import os
import signal

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

#: Process that loaded this first; its children inherit the variable.
_MAIN = os.environ.setdefault("FAULTY_STREAM_MAIN", str(os.getpid()))

faulty_stream = Kernel(
    "faulty_stream.cu",
    problems=[Problem(n=(1 << 22) + 3)],
    BLOCK=(32, 64, 96, 128, 192, 256, 384, 512, 768, 1024),  # threads per block
    ITEMS=(1, 2, 3, 4, 5, 6, 8, 10, 12),  # elements per thread
    ORDER=(0, 1, 2, 3, 4),  # of visiting them
    FAULT=(
        "none",
        "hang",
        "illegal_address",
        "misaligned_address",
        "wrong",
        "nan",
        "stale_output",
        "input_overwritten",
        "too_many_resources",
        "compile_error",
        "worker_killed",
    ),
)


@faulty_stream.constraint
def each_fault_five_times(BLOCK, ITEMS, ORDER, FAULT):
    """Every right configuration, and of each fault five."""
    return FAULT == "none" or (ITEMS == 4 and ORDER == 0 and BLOCK in (64, 128, 256, 512, 1024))


@faulty_stream.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@faulty_stream.scratch
def scratch(c, p):
    """No scratch memory; but one fault kills the device process, where this runs too."""
    if c.FAULT == "worker_killed" and str(os.getpid()) != _MAIN:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


@faulty_stream.arguments
def arguments(p, rng):
    a = rng.standard_normal(p.n, dtype=np.float32)
    b = rng.standard_normal(p.n, dtype=np.float32)
    return {"a": a, "b": b, "out": Out(p.n), "n": p.n}


@faulty_stream.reference
def reference(a, b):
    return 2 * a + b


@faulty_stream.tolerance
def tolerance(p):
    return 32 * 2.0**-24  # one rounding of at most 16


@faulty_stream.work
def work(p):
    return Work(flops=2 * p.n, bytes_read=8 * p.n, bytes_written=4 * p.n)

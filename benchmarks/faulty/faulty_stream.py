"""500 configurations of which 50 go wrong, three or four in each of 15 ways: see faulty_stream.cu."""

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
        "late_wrong",  # from the third launch on
        "only_over_nan",
        "nan_unwritten",
        "off_by_100",  # of 2^60
        "imaginary_part",
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
def few_of_each_fault(BLOCK, ITEMS, ORDER, FAULT):
    """Every right configuration; of each fault four in results, three of the others."""
    in_results = ("late_wrong", "only_over_nan", "nan_unwritten", "off_by_100", "imaginary_part")
    blocks = (64, 128, 256, 512) if FAULT in in_results else (64, 256, 1024)
    return FAULT == "none" or (ITEMS == 4 and ORDER == 0 and BLOCK in blocks)


@faulty_stream.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@faulty_stream.scratch
def scratch(c, p):
    """What one fault counts launches in; another kills the device process, where this runs too."""
    if c.FAULT == "worker_killed" and str(os.getpid()) != _MAIN:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"launches": Out(1, "int32")} if c.FAULT == "late_wrong" else {}


@faulty_stream.arguments
def arguments(p, rng):
    a = rng.standard_normal(p.n, dtype=np.float32)
    b = rng.standard_normal(p.n, dtype=np.float32)
    a[1000::1021] = np.nan
    few = min(p.n, 1024)
    outputs = {"out": Out(p.n), "wide": Out(few, "int64"), "pair": Out(few, "complex64")}
    return {"a": a, "b": b, **outputs, "n": p.n}


@faulty_stream.reference
def reference(a, b):
    few = b[:1024]
    return {"out": 2 * a + b, "wide": np.arange(len(few)) + 2**60, "pair": few - 1j * few}


@faulty_stream.tolerance
def tolerance(p):
    return 32 * 2.0**-24  # one rounding of at most 16


@faulty_stream.work
def work(p):
    return Work(flops=2 * p.n, bytes_read=8 * p.n, bytes_written=4 * p.n)

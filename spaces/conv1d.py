"""conv1d: convolution of a float32 vector with a few weights and zeros beyond both ends, by kernels/conv1d.cu."""

import numpy as np

from autotune import Constant, Kernel, Launch, NothingToDo, Operand, Out, Problem, Work, ceil_div


def vector(n, taps, mask_in="array"):
    return Problem(n=n, taps=taps, mask_in=mask_in)


def sliding(BLOCK, OUTPUTS, **others):
    """Return a configuration whose threads slide a window over inputs in shared memory."""
    return {"BLOCK": BLOCK, "OUTPUTS": OUTPUTS, "INPUT": "shared", "WINDOW": 1, **others}


def vectors(BLOCK, OUTPUTS, MASK="registers", INPUT="vectors"):
    """Return a configuration whose threads load all their inputs before the arithmetic."""
    return {"BLOCK": BLOCK, "OUTPUTS": OUTPUTS, "INPUT": INPUT, "MASK": MASK}


#: Configurations of the study notes. The first reads global memory only, for one output per thread.
VARIANTS = {
    "naive": {"BLOCK": 256, "OUTPUTS": 1, "MASK": "global", "INPUT": "direct", "UNROLL": 1},
    "shared": {"BLOCK": 256, "OUTPUTS": 1, "MASK": "shared", "INPUT": "shared", "UNROLL": 4},
    "window": sliding(256, 4, UNROLL=0),
    "vectors": vectors(128, 4),
    "staged": vectors(32, 16, "shared", "staged"),
}

conv1d = Kernel(
    "conv1d.cu",
    problems={
        "cuda": [vector(1 << 26, taps) for taps in (3, 9, 31)]
        + [vector(1 << 26, taps, "constant") for taps in (9, 31)]
        + [vector(1 << 22, 127), vector(10**7 + 3, 9)],
        "opencl": [vector(1 << 17, 9), vector(10**5 + 3, 31)],
    },
    edge_problems=[
        *(vector(n, 9) for n in (1, 7, 1001, 4097)),  # 1 and 7: fewer elements than taps
        vector(1000, 8),  # an even number of taps: one more on the left
        vector(2500, 256),
    ],
    static=("taps", "mask_in"),
    seeds=[
        *VARIANTS.values(),
        {"BLOCK": 256, "OUTPUTS": 4, "MASK": "registers", "INPUT": "direct"},
        sliding(256, 4, MASK="registers"),
        *(vectors(*tile) for tile in ((128, 8), (256, 8, "global"))),
        vectors(64, 16, "global", "staged"),
    ],
    variants=VARIANTS,
    default=sliding(256, 4, UNROLL=4),
    deterministic=True,  # a thread adds up an output in the order of the taps
    BLOCK=(32, 64, 128, 256, 512),  # threads per block
    OUTPUTS=(1, 2, 4, 8, 16, 32),  # outputs per thread
    MASK=("global", "shared", "registers"),  # where the weights are kept
    INPUT=("direct", "shared", "vectors", "staged"),  # where the inputs are kept
    WINDOW=(0, 1),  # 1: the outputs of a thread are adjacent
    PAD=(0, 1),  # shared, WINDOW=1: a pad against bank conflicts
    UNROLL=(1, 4, 8, 0),  # unrolled taps; 0: all
)


@conv1d.applies("WINDOW")
def several_outputs(OUTPUTS, INPUT):
    return OUTPUTS > 1 and INPUT in ("direct", "shared")


@conv1d.applies("PAD")
def window_in_shared_memory(INPUT, OUTPUTS, WINDOW):
    return INPUT == "shared" and OUTPUTS > 1 and WINDOW == 1


@conv1d.applies("UNROLL")
def loop_over_taps(MASK, INPUT):
    """Registers cannot be indexed at run time, so weights in registers need all taps unrolled."""
    return MASK != "registers" and INPUT in ("direct", "shared")


@conv1d.constraint
def vectors_are_whole(INPUT, OUTPUTS):
    """vectors: a thread has 4 outputs or more, aligned to 16 bytes; staged: 8 or more, without bank conflicts."""
    return {"vectors": 4, "staged": 8}.get(INPUT, 1) <= OUTPUTS


@conv1d.requires
def fits(c, p):
    """Weights in registers and unrolled loops over all taps allow 31 taps; constant weights need MASK=global."""
    if p.mask_in == "constant" and c.MASK != "global":
        return False
    few = c.MASK == "registers" or c.INPUT in ("vectors", "staged") or c.UNROLL == 0
    return p.taps <= 31 if few else True


@conv1d.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.OUTPUTS),), block=(c.BLOCK,))


@conv1d.arguments
def arguments(p, rng):
    weights = rng.standard_normal(p.taps)
    return {
        "x": rng.standard_normal(p.n),
        "weights": Constant(weights) if p.mask_in == "constant" else weights,
        "out": Out(p.n),
        "n": np.int64(p.n),
    }


@conv1d.reference
def reference(x, weights):
    """Reverse the weights: NumPy reverses them again."""
    left = len(weights) // 2
    padded = np.pad(x, (left, len(weights) - 1 - left))
    return np.convolve(padded, weights[::-1], "valid")


@conv1d.tolerance
def tolerance(p):
    """Bound the error of one chain of `taps` additions of products of normal numbers, at 8 standard deviations."""
    return float(np.finfo(np.float32).eps) * (8 * p.taps + 8)


@conv1d.work
def work(p):
    return Work(flops=2 * p.n * p.taps, bytes_read=4 * p.n, bytes_written=4 * p.n)


@conv1d.call
def call(x, weights, out=None):
    """Convolve a vector with weights in an array."""
    out = Operand.new(x.shape) if out is None else out
    if x.ndim != 1 or weights.ndim != 1 or x.shape != out.shape or not weights.size:
        raise ValueError(
            f"x is {x}, weights are {weights}, out is {out}: pass vectors, with out as long as x"
        )
    if not x.size:
        return NothingToDo((out,))
    arrays = {"x": x, "weights": weights, "out": out}
    return vector(x.size, weights.size), {**arrays, "n": np.int64(x.size)}


@conv1d.baseline("cupyx")
def cupyx(x, out, n, weights=None):
    """Call cupyx.scipy.ndimage.correlate1d; vendor libraries have no convolution in one dimension."""
    if weights is None:  # they are in constant memory
        return None
    from cupyx.scipy.ndimage import correlate1d

    return lambda: correlate1d(x, weights, output=out, mode="constant", cval=0.0)

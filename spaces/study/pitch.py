"""pitch: a copy of a float32 matrix with pitched rows, by kernels/study/pitch.cu."""

from autotune import InOut, Kernel, Launch, Problem, Work, ceil_div


def rows(m, n, pitch=1, others=None):
    """Return a problem whose rows begin at multiples of `pitch` floats; rows of out at multiples of `others`."""
    ldx, ldo = (-(-n // by) * by for by in (pitch, others or pitch))
    return Problem(m=m, n=n, ldx=ldx, ldo=ldo)


pitch = Kernel(
    "pitch.cu",
    problems={
        "cuda": [rows(65536, 1001, by) for by in (1, 8, 32)] + [rows(65536, 1024)],
        "opencl": [rows(300, 1001), rows(300, 1001, 32)],
    },
    edge_problems=[
        rows(*size) for size in ((1, 1), (33, 65), (7, 1001, 4, 1), (5, 130, 8), (129, 3, 32))
    ],
    variants={"vectors": {"BLOCK_X": 64, "BLOCK_Y": 4, "VEC": 4}},
    default={"BLOCK_X": 64, "BLOCK_Y": 4, "VEC": 4},
    deterministic=True,  # one thread copies an element
    BLOCK_X=(32, 64, 128, 256),  # threads along a row
    BLOCK_Y=(1, 2, 4, 8),  # rows per block
    VEC=(1, 2, 4),  # floats per access
)


@pitch.constraint
def blocks_are_allowed(BLOCK_X, BLOCK_Y, device):
    """A block has at least 64 threads, and at most the limit of the device."""
    return 64 <= BLOCK_X * BLOCK_Y <= device.max_threads_per_block


@pitch.requires
def requires(c, p):
    """Rows do not overlap."""
    return (p.ldx >= p.n) & (p.ldo >= p.n)


@pitch.launch
def launch(c, p):
    blocks = ceil_div(p.n, c.BLOCK_X * c.VEC) * ceil_div(p.m, c.BLOCK_Y)
    return Launch(grid=(blocks,), block=(c.BLOCK_X, c.BLOCK_Y))


@pitch.arguments
def arguments(p, rng):
    return {
        "x": rng.standard_normal(p.m * p.ldx),
        "out": InOut(rng.standard_normal(p.m * p.ldo)),
        "m": p.m,
        "n": p.n,
        "ldx": p.ldx,
        "ldo": p.ldo,
    }


@pitch.reference
def reference(x, out, m, n, ldx, ldo):
    out = out.copy().reshape(m, ldo)
    out[:, :n] = x.reshape(m, ldx)[:, :n]
    return out.reshape(-1)


@pitch.tolerance
def tolerance(p):
    """Return 0: copies are exact."""
    return 0.0


@pitch.work
def work(p):
    return Work(bytes_read=4 * p.m * p.n, bytes_written=4 * p.m * p.n)


@pitch.baseline("cudaMemcpy2DAsync")
def memcpy2d(x, out, m, n, ldx, ldo):
    from cupy.cuda import get_current_stream, runtime

    to, frm = (out.data.ptr, 4 * int(ldo)), (x.data.ptr, 4 * int(ldx))
    extent = (4 * int(n), int(m), runtime.memcpyDeviceToDevice)
    return lambda: runtime.memcpy2DAsync(*to, *frm, *extent, get_current_stream().ptr)

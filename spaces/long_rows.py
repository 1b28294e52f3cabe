"""long_rows: softmax, rms_norm, layer_norm and cross_entropy of long rows, read once, by kernels/long_rows.cu.

Rows need at least `MIN_COLUMNS` columns. `load("softmax")` and the other kernels take rows of any length.
"""

import _rows

from autotune import InOut, Kernel, Launch, NothingToDo, Operand, Out, Problem, Work

FUNCTIONS = (
    *("softmax", "rms_norm", "rms_norm_residual"),
    *("layer_norm", "cross_entropy", "cross_entropy_gradient"),
)
#: Arguments of each function after x, in the order of the kernel, without the number of columns.
ARGUMENTS = {
    "softmax": ("y",),
    "rms_norm": ("weight", "y"),
    "rms_norm_residual": ("weight", "y", "residual"),
    "layer_norm": ("weight", "bias", "y"),
    "cross_entropy": ("target", "loss"),
    "cross_entropy_gradient": ("target", "loss", "gradient"),
}
#: Fewest columns of a row.
MIN_COLUMNS = _rows.LONG_ROWS.start
#: Default of eps, which is added to the mean square or the variance.
EPS = 1e-5
#: Bytes of a piece.
PIECE = 16
#: Registers of a multiprocessor.
REGISTERS = 65536
#: Registers of a thread in addition to its pieces.
OTHER_REGISTERS = 28


def rows_of(rows, columns, dtype="float32", function="softmax"):
    return Problem(rows=rows, columns=columns, dtype=dtype, function=function)


def in_turn(*sizes):
    """Return a problem for each function and size; types alternate."""
    return [
        rows_of(*size, _rows.DTYPES[(number + place) % len(_rows.DTYPES)], function)
        for place, function in enumerate(FUNCTIONS)
        for number, size in enumerate(sizes)
    ]


def shape(CLUSTER, THREADS, PIECES, MIN_BLOCKS=1):
    return {"CLUSTER": CLUSTER, "THREADS": THREADS, "PIECES": PIECES, "MIN_BLOCKS": MIN_BLOCKS}


long_rows = Kernel(
    "long_rows.cu",
    backends=("cuda",),
    problems=in_turn(
        *((1024, 4096), (128, 32768), (32, 131072), (4, 16384), (700, 6663), (3, 10359)),
        (4096, 512),
    ),
    quick_problems=in_turn((128, 32768), (3, 10359)),
    edge_problems=[
        rows_of(*size, dtype, function)
        for size in (
            *((1, 1025), (3, 513), (5, 1000), (3, 1031), (2, 2048), (7, 4099)),
            *((3, 12297), (2, 16391), (3, 32775), (2, 65541), (1, 131072), (3, 131069)),
        )
        for dtype in _rows.DTYPES
        for function in FUNCTIONS
    ],
    static=("dtype", "function"),
    # The seeds cover each length twice: for many rows, and for a few rows, with larger clusters.
    seeds=[
        *(shape(1, 128, pieces, 4) for pieces in (1, 2)),
        shape(1, 256, 4, 4),
        shape(1, 512, 6, 2),
        shape(1, 512, 8),
        shape(2, 256, 6, 4),
        shape(2, 512, 6, 2),
        shape(4, 512, 8, 2),
        shape(4, 512, 16),
        shape(8, 512, 8),
    ],
    default=shape(1, 512, 8),
    deterministic=True,  # a block adds up the sums of all warps in a fixed order
    CLUSTER=(1, 2, 3, 4, 6, 8),  # blocks that share a row
    THREADS=(128, 256, 512, 1024),  # threads per block
    PIECES=(1, 2, 3, 4, 6, 8, 12, 16),  # pieces of 16 bytes in the registers of a thread
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor, by registers
)


@long_rows.constraint
def clusters_exist(CLUSTER, device):
    """Clusters need compute capability 9.0, single blocks 8.0."""
    return device.compute_capability >= (80 if CLUSTER == 1 else 90)


@long_rows.constraint
def pieces_fit_registers(THREADS, PIECES, MIN_BLOCKS, device):
    """The pieces of MIN_BLOCKS blocks fit in registers, with 28 others per thread."""
    threads = THREADS * MIN_BLOCKS
    return (
        threads <= device.max_threads_per_sm
        and available(THREADS, MIN_BLOCKS) >= 4 * PIECES + OTHER_REGISTERS
    )


@long_rows.constraint
def small_blocks_share_registers(THREADS, MIN_BLOCKS):
    """Blocks of 128 threads need MIN_BLOCKS=4: a smaller value gives them no more registers."""
    return THREADS != 128 or MIN_BLOCKS == 4


def available(THREADS, MIN_BLOCKS):
    """Return the registers available to a thread."""
    return min(255, REGISTERS // (THREADS * MIN_BLOCKS))


@long_rows.requires
def row_fits(c, p):
    """A row fits in its blocks and fills a quarter of them or more.

    rms_norm_residual keeps its sums as floats, and layer_norm reads two vectors: both need more registers.
    """
    elements = PIECE // _rows.itemsize(p.dtype)
    kept = elements if p.function == "rms_norm_residual" else 4
    others = OTHER_REGISTERS + (8 if p.function == "layer_norm" else 0)
    if available(c.THREADS, c.MIN_BLOCKS) < kept * c.PIECES + others:
        return False
    room = c.CLUSTER * c.THREADS * c.PIECES * elements
    return (max(MIN_COLUMNS, room // 4) <= p.columns) & (p.columns <= room + elements - 1)


@long_rows.launch
def launch(c, p):
    args = ("x", *ARGUMENTS[p.function], "columns")
    if "weight" in args:
        args = (*args, "eps")
    return Launch(grid=(p.rows * c.CLUSTER,), block=(c.THREADS,), args=args)


@long_rows.arguments
def arguments(p, rng):
    shape, names = (p.rows, p.columns), ARGUMENTS[p.function]
    is_norm = "weight" in names
    operands = {"x": _rows.random_array(rng, shape, p.dtype, small_rows=is_norm)}
    for name in names:
        if name in ("weight", "bias"):
            operands[name] = _rows.random_array(rng, p.columns, p.dtype)
        elif name == "residual":
            operands[name] = InOut(_rows.random_array(rng, shape, p.dtype, small_rows=True))
        elif name == "target":
            operands[name] = rng.integers(0, p.columns, p.rows)
        else:
            operands[name] = Out(p.rows) if name == "loss" else Out(shape, p.dtype)
    eps = {"eps": rng.uniform(EPS / 2, 2 * EPS)} if is_norm else {}
    return {**operands, "columns": p.columns, **eps}


@long_rows.reference
@_rows.in_blocks("x", "residual", "target")
def reference(x, weight=None, bias=None, residual=None, target=None, eps=0.0):
    """Return the result of one function. Its arguments tell which."""
    if target is not None:
        return _rows.row_loss(x, target)
    if weight is None:
        return {"y": _rows.row_softmax(x)[0]}
    values = x if residual is None else x + residual
    centered = values if bias is None else values - values.mean(axis=1, keepdims=True)
    y = {"y": _rows.normalized(centered, eps) * weight + (0 if bias is None else bias)}
    return y if residual is None else {**y, "residual": values}


@long_rows.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count
    rows = 4 * p.rows if p.function.startswith("cross_entropy") else 0  # targets and losses
    arrays = {"rms_norm_residual": (2, 2), "cross_entropy": (1, 0)}.get(p.function, (1, 1))
    flops = {"layer_norm": 7, "rms_norm": 4, "rms_norm_residual": 4}.get(p.function, 5) * count
    read, written = (number * nbytes + rows for number in arrays)
    return Work(flops, bytes_read=read, bytes_written=written)


@long_rows.call
def call(x, function, weight=None, bias=None, residual=None, target=None, out=None, *, eps=EPS):
    """Apply ``function`` along the last axis of a contiguous array; the kernel of that name describes it.

    softmax, rms_norm and layer_norm take ``out``. Return y; y and residual; loss; or loss and gradient.
    """
    if function not in FUNCTIONS:
        raise ValueError(f"function is {function!r}: it must be one of {', '.join(FUNCTIONS)}")
    names = ARGUMENTS[function]
    arrays = {"weight": weight, "bias": bias, "residual": residual, "target": target}
    for name, array in arrays.items():
        if (array is None) == (name in names):
            verb = "needs" if array is None else "does not take"
            raise ValueError(f"{function} {verb} {name}")
    vectors = {name: arrays[name] for name in ("weight", "bias") if name in names}
    rows, columns = _rows.checked_sizes(x, **vectors)
    operands = {"x": _rows.matrix(x, rows, columns), **vectors}
    results = []
    if target is not None:
        _rows.check_target(target, rows)
        operands |= {"target": target, "loss": Operand.new((rows,))}
        results.append(operands["loss"])
    for name in names:
        if name in ("residual", "y", "gradient"):
            array = residual if name == "residual" else out
            results.append(Operand.new(x.shape, x.dtype) if array is None else array)
            operands[name] = _rows.matrix(results[-1], rows, columns)
    if not x.size:
        return NothingToDo(tuple(results))
    scalars = {"eps": eps} if vectors else {}
    return rows_of(rows, columns, x.dtype, function), {**operands, **scalars}

"""Shared options and functions of the kernels in kernels/rows.py."""

from functools import wraps
from itertools import product

import numpy as np

from autotune import BFloat16, Instead, Out, Problem, ceil_div, maximum

DTYPES = ("float32", "float16", "bfloat16")
#: Rows and columns of the tuned problems: short rows, layers, vocabularies, and a few long rows.
SIZES = (
    *((65536, 128), (16384, 1024), (64, 1000), (1, 4096), (4096, 4096), (8192, 8192)),
    *((2048, 32768), (128, 131072), (4, 16384), (32, 65536)),
)
#: The first size of a quick run. Further values of other problem fields are tuned for this size only.
_FIRST_SIZE = (512, 4096)
#: Rows and columns of a quick run, by type: small and large matrices of whole rows, short rows, rows for loops,
#: more data than an L2 cache holds, and a few long rows.
_QUICK_SIZES = {
    "float32": ((16, 2048), (1024, 4096), (32768, 128), (2048, 8192)),
    "float16": (_FIRST_SIZE,),
    "bfloat16": (
        *((16, 2048), (1024, 4096), (32768, 128), (128, 32768), (4096, 8192)),
        *((4, 16384), (32, 65536)),
    ),
}
#: Rows and columns of the edge problems: odd sizes, and rows one element past a power of 2.
_EDGE_SIZES = (
    *((1, 1), (3, 17), (33, 129), (5, 256), (2, 1000), (7, 64)),
    *((2, 2049), (3, 4160), (1, 16399)),
)

#: Parameters. A program keeps whole rows in registers, loops over a row, or shares a row with other programs.
PARAMETERS = {
    "PLAN": ("whole", "loop", "split"),  # whole: for rows of at most `MAX_WHOLE_COLUMNS` columns
    "PER": (4, 8, 16, 32, 64),  # elements per thread and step; more for long whole rows
    "WARPS": (1, 2, 4, 8, 16, 32),  # per program; more for long whole rows
    "num_stages": (1, 2, 3, 4),  # loop, split: steps in flight
    "SPLIT": (1, 2, 4, 8, 16, 32),  # split: programs that share a row
}
DEFAULT = {"PLAN": "whole", "PER": 8, "WARPS": 8}
SEEDS = [
    *({"PLAN": "whole", "PER": per, "WARPS": warps} for per in (8, 16, 32) for warps in (1, 4)),
    {"PLAN": "loop", "PER": 8, "WARPS": 16, "num_stages": 3},
    {"PLAN": "loop", "PER": 8, "WARPS": 32, "num_stages": 1},
    {"PLAN": "split", "PER": 8, "WARPS": 16, "num_stages": 1, "SPLIT": 8},
    {"PLAN": "split", "PER": 8, "WARPS": 4, "num_stages": 2, "SPLIT": 32},
]
#: Threads of a warp.
WARP_SIZE = 32
#: Largest number of warps of a program.
MAX_WARPS = 32
#: Columns of the longest row that a program keeps whole in registers.
MAX_WHOLE_COLUMNS = 32768
#: Base-2 logarithm of the fewest columns of a tile.
MIN_EXPONENT = 4
#: Macros of a loop, for PLAN=whole and rows longer than `MAX_WHOLE_COLUMNS`. Programs are few, so a program has many
#: bytes in flight.
LONG_ROW_MACROS = {"PLAN": "loop", "BLOCK": 8192, "ROWS": 1, "num_warps": 32, "num_stages": 2}
#: Largest number of programs of a split plan. A GPU has no use for more.
MAX_PARTS = 2048
#: Fewest columns of a part of a row.
MIN_PART_COLUMNS = 512
#: Numbers of columns for which the kernel long_rows may be faster.
LONG_ROWS = range(512, 131073)
#: Elements in a block of a reference: their float64 values stay in the cache of a CPU core.
_BLOCK_ELEMENTS = 1 << 16


def problems(sizes, **fields):
    """Return a problem for each size, type and combination of other fields."""
    others = [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]
    return [
        Problem(rows=rows, columns=columns, dtype=dtype, **other)
        for rows, columns in sizes
        for dtype in DTYPES
        for other in others
    ]


def options(**fields):
    """Return arguments of `Kernel`. ``fields`` are further problem fields, compiled into the kernel."""
    first = {name: values[:1] for name, values in fields.items()}
    others = {name: values[1:] for name, values in fields.items()}
    quick = [
        problem
        for dtype, sizes in _QUICK_SIZES.items()
        for problem in problems(sizes, **first)
        if problem.dtype == dtype
    ]
    return {
        "language": "triton",
        "static": list(fields),
        "seeds": SEEDS,
        "default": DEFAULT,
        **PARAMETERS,
        "problems": problems(SIZES, **fields),
        "quick_problems": [*quick, *(problems([_FIRST_SIZE], **others) if fields else ())],
        "edge_problems": [
            problem
            for number, size in enumerate(_EDGE_SIZES)
            for problem in problems([size], **fields)
            if problem.dtype == DTYPES[number % len(DTYPES)]
        ],
    }


def add_rules(kernel):
    """Attach the rules that all kernels in kernels/rows.py share."""

    @kernel.applies("num_stages")
    def has_steps(PLAN):
        return PLAN != "whole"

    @kernel.applies("SPLIT")
    def is_split(PLAN):
        return PLAN == "split"

    @kernel.constraint
    def steps_are_long(PLAN, PER, WARPS):
        """loop, split: a step has 1024 to 16384 columns. Shorter steps wait for each other."""
        return PLAN == "whole" or 1024 <= WARP_SIZE * PER * WARPS <= 16384

    @kernel.constraint
    def short_rows_have_few_warps(PLAN, PER, WARPS):
        """whole: a tile of short rows has at most 8192 elements."""
        return PLAN != "whole" or WARP_SIZE * PER * WARPS <= 8192

    @kernel.constraint
    def parts_are_short(PLAN, PER, WARPS, num_stages, SPLIT):
        """split: one or two steps of 1024 to 8192 columns are in flight, and a thread reads 16 bytes or more."""
        if PLAN != "split":
            return True
        few_steps = WARP_SIZE * PER * WARPS <= 8192 and num_stages <= 2
        return SPLIT > 1 and few_steps and 8 <= PER <= 32 and WARPS >= 4

    @kernel.requires
    def few_long_rows(c, p):
        """split: programs are at most 2048 and parts at least 512 columns; more parts only add launches and bytes."""
        if c.PLAN != "split":
            return True
        return (p.rows * c.SPLIT <= MAX_PARTS) & (p.columns >= c.SPLIT * MIN_PART_COLUMNS)

    @kernel.defines
    def defines(c, p):
        tile, unit = WARP_SIZE * c.PER * c.WARPS, {"UNIT": unit_of(p.columns)}
        if c.PLAN != "whole":
            return {"BLOCK": tile, "ROWS": 1, "num_warps": c.WARPS, **unit}
        if p.columns > MAX_WHOLE_COLUMNS:
            return {**LONG_ROW_MACROS, **unit}
        block = 1 << max(MIN_EXPONENT, (p.columns - 1).bit_length())
        warps = min(MAX_WARPS, max(c.WARPS, block // (WARP_SIZE * c.PER)))
        return {"BLOCK": block, "ROWS": max(1, tile // block), "num_warps": warps, **unit}


def unit_of(columns):
    """Return the largest power of 2 that divides the columns if it is below 16, else 1. Triton finds 16 itself."""
    largest = columns & -columns
    return largest if 1 < largest < 16 else 1


def grid(c, p):
    """Return the grid. With PLAN=whole, a program takes all whole rows that fit in its tile."""
    rows, tile = 1, WARP_SIZE * c.PER * c.WARPS
    if c.PLAN == "whole":
        for exponent in range(MIN_EXPONENT, (tile // 2).bit_length()):
            rows = maximum(rows, (p.columns <= 1 << exponent) * (tile >> exponent))
    return (ceil_div(p.rows, rows),)


def partials(c, p, kinds):
    """Return the scratch buffer of a split plan: ``kinds`` partial results for each part of each row."""
    return {"partials": Out((p.rows, kinds, c.SPLIT))} if c.PLAN == "split" else {}


def split_grid(c, p):
    """Return the grid of a split plan: one program for each part of each row."""
    return (p.rows * c.SPLIT,)


def random_array(rng, shape, dtype, *, small_rows=False):
    """Return normally distributed numbers of a type.

    ``small_rows``: make every third row small, so that eps changes its root mean square.
    """
    kind = np.float64 if dtype == "bfloat16" else np.dtype(dtype)
    values = rng.standard_normal(shape, kind)
    if small_rows:
        values[::3] /= 512
    return BFloat16(values) if dtype == "bfloat16" else values


def in_blocks(*row_arrays):
    """Return a decorator that calls a reference for a block of rows at a time.

    ``row_arrays`` names the arguments with an element or a row for each row, among them ``x``. Temporary
    arrays of all rows would take longer to allocate than to fill.
    """

    def decorate(reference):
        @wraps(reference)
        def by_block(**arguments):
            rows, columns = arguments["x"].shape
            step, results = max(1, _BLOCK_ELEMENTS // max(1, columns)), {}
            for row in range(0, max(1, rows), step):
                block_rows = slice(row, row + step)
                values = {
                    name: value[block_rows] if name in row_arrays else value
                    for name, value in arguments.items()
                }
                for name, block in reference(**values).items():
                    if name not in results:
                        results[name] = np.empty((rows, *block.shape[1:]), block.dtype)
                    results[name][block_rows] = block
            return results

        return by_block

    return decorate


def row_softmax(x):
    """Return the softmax of each row, its largest value, and its sum of exp(x - largest)."""
    largest = x.max(axis=1, keepdims=True)
    exponentials = np.exp(x - largest)
    total = exponentials.sum(axis=1, keepdims=True)
    return exponentials / total, largest, total


def row_loss(x, target):
    """Return the cross-entropy loss of each row at its target, and the gradient."""
    gradient, largest, total = row_softmax(x)
    row = np.arange(len(x))
    loss = np.log(total[:, 0]) + largest[:, 0] - x[row, target]
    gradient[row, target] -= 1
    return {"loss": loss, "gradient": gradient}


def normalized(values, eps):
    """Return rows divided by their root mean square."""
    return values * (1 / np.sqrt(np.square(values).mean(axis=1, keepdims=True) + eps))


def itemsize(dtype):
    """Return the size of an element in bytes."""
    return 4 if dtype == "float32" else 2


def checked_sizes(x, **vectors):
    """Return the numbers of rows and columns of ``x``; raise `ValueError` if vectors do not match it."""
    if not x.ndim or not x.is_contiguous:
        raise ValueError(f"x is {x}: its rows must be contiguous; copy it")
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x}: its type must be one of {', '.join(DTYPES)}")
    columns = x.shape[-1]
    for name, vector in vectors.items():
        if vector.shape != (columns,) or vector.dtype != x.dtype:
            raise ValueError(f"{name} is {vector}: it must be {x.dtype}[{columns}], to match x")
    return x.size // max(1, columns), columns


def check_target(target, rows):
    """Raise `ValueError` unless there is an int32 target for each row."""
    if target.shape != (rows,) or target.dtype != "int32":
        raise ValueError(f"target is {target}: it must be int32[{rows}]")


def or_long_rows(problem, operands, function, x, **named):
    """Return the problem and its operands, or a call of long_rows if records predict that it takes less time."""
    if problem.columns not in LONG_ROWS:
        return problem, operands
    return Instead("long_rows", x, function, **named).than(problem, operands)


def matrix(array, rows, columns):
    """Return an array as a matrix of ``rows`` x ``columns``."""
    return array.reshape(rows, columns)

"""Options and functions that the spaces of kernels/rows.py share."""

from itertools import product

import numpy as np

from autotune import BFloat16, Problem, ceil_div

DTYPES = ("float32", "float16", "bfloat16")
#: Rows and columns: short rows, those of layers, and vocabularies.
SIZES = (
    *((65536, 128), (16384, 1024), (64, 1000), (1, 4096), (4096, 4096), (8192, 8192)),
    *((2048, 32768), (128, 131072)),
)
_QUICK = ((16384, 1024), (4096, 4096), (128, 131072))
_EDGES = ((1, 1), (3, 17), (33, 129), (5, 256), (2, 1000), (7, 64))

#: Of a kernel: whole rows of up to 32768 columns in registers, or a loop.
PARAMETERS = {
    "PLAN": ("whole", "loop"),
    "BLOCK": tuple(2**e for e in range(7, 16)),  # columns of a step; whole: of the row
    "ROWS": (1, 2, 4, 8, 16, 32),  # of a program
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_stages": (1, 2, 3, 4),  # loop: steps in flight
}
DEFAULT = {"PLAN": "loop", "BLOCK": 2048, "ROWS": 1, "num_warps": 8, "num_stages": 2}
SEEDS = [
    *({"PLAN": "whole", "BLOCK": 128, "ROWS": rows, "num_warps": rows // 4} for rows in (8, 32)),
    *(
        {"PLAN": "whole", "BLOCK": block, "ROWS": 1, "num_warps": max(1, block // per_warp)}
        for block, per_warp in product((1024, 4096, 8192, 32768), (256, 1024))
        if block // per_warp <= 32
    ),
    {"PLAN": "loop", "BLOCK": 4096, "ROWS": 1, "num_warps": 8, "num_stages": 3},
    {"PLAN": "loop", "BLOCK": 8192, "ROWS": 1, "num_warps": 16, "num_stages": 3},
    {"PLAN": "loop", "BLOCK": 16384, "ROWS": 1, "num_warps": 32, "num_stages": 2},
]


def problems(sizes, **fields):
    """Return every size in every type, with each combination of other fields."""
    others = [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]
    return [
        Problem(rows=rows, columns=columns, dtype=dtype, **other)
        for rows, columns in sizes
        for dtype in DTYPES
        for other in others
    ]


def options(**fields):
    """Return what `Kernel` takes; ``fields`` are further problem fields, which are compiled in."""
    return {
        "language": "triton",
        "static": list(fields),
        "seeds": SEEDS,
        "default": DEFAULT,
        **PARAMETERS,
        "problems": problems(SIZES, **fields),
        "quick_problems": problems(_QUICK, **{name: values[:1] for name, values in fields.items()}),
        "edge_problems": [
            problem
            for number, size in enumerate(_EDGES)
            for problem in problems([size], **fields)
            if problem.dtype == DTYPES[number % len(DTYPES)]
        ],
    }


def share_rules(kernel):
    """Attach the rules that hold for all of these kernels."""

    @kernel.applies("num_stages")
    def is_loop(PLAN):
        return PLAN == "loop"

    @kernel.constraint
    def threads_have_elements(BLOCK, ROWS, num_warps):
        """A thread has 1 to 64 elements of a step."""
        return 32 * num_warps <= ROWS * BLOCK <= 64 * 32 * num_warps

    @kernel.constraint
    def long_rows_are_alone(BLOCK, ROWS):
        """Several rows of a program are short ones."""
        return ROWS == 1 or ROWS * BLOCK <= 8192

    @kernel.requires
    def requires(c, p):
        return p.columns <= c.BLOCK if c.PLAN == "whole" else True


def grid(c, p):
    """Return the programs of a launch."""
    return (ceil_div(p.rows, c.ROWS),)


def drawn(rng, shape, dtype):
    """Return normal numbers of a type."""
    if dtype == "bfloat16":
        return BFloat16(rng.standard_normal(shape))
    return rng.standard_normal(shape, np.dtype(dtype))


def itemsize(dtype):
    """Return the bytes of an element."""
    return 4 if dtype == "float32" else 2


def checked(x, **vectors):
    """Return rows and columns of contiguous rows; `ValueError` where vectors do not fit them."""
    if not x.ndim or not x.is_contiguous:
        raise ValueError(f"x is {x}: rows that lie one after another are needed; copy it")
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x}: one of {', '.join(DTYPES)} is needed")
    columns = x.shape[-1]
    for name, vector in vectors.items():
        if vector.shape != (columns,) or vector.dtype != x.dtype:
            raise ValueError(f"{name} is {vector}: {x.dtype}[{columns}] is needed, as of x")
    return x.size // max(1, columns), columns


def matrix(array, rows, columns):
    """Return an array as a matrix of rows."""
    return array.reshape(rows, columns)

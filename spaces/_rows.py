"""Options and functions that the spaces of kernels/rows.py share."""

from functools import wraps
from itertools import product

import numpy as np

from autotune import BFloat16, Instead, Out, Problem, ceil_div, maximum

DTYPES = ("float32", "float16", "bfloat16")
#: Rows and columns: short rows, those of layers, vocabularies, and few long rows.
SIZES = (
    *((65536, 128), (16384, 1024), (64, 1000), (1, 4096), (4096, 4096), (8192, 8192)),
    *((2048, 32768), (128, 131072), (4, 16384), (32, 65536)),
)
#: For a quick run, by type: whole rows of few and of many, short rows, loops, more than an L2 cache holds, and
#: few long rows; of other fields only the first size.
_FIRST = (512, 4096)
_QUICK = {
    "float32": ((16, 2048), (1024, 4096), (32768, 128), (2048, 8192)),
    "float16": (_FIRST,),
    "bfloat16": (
        *((16, 2048), (1024, 4096), (32768, 128), (128, 32768), (4096, 8192)),
        *((4, 16384), (32, 65536)),
    ),
}
_EDGES = (
    *((1, 1), (3, 17), (33, 129), (5, 256), (2, 1000), (7, 64)),
    *((2, 2049), (3, 4160), (1, 16399)),
)

#: Of a kernel: whole rows in registers, a loop, or rows that several programs share.
PARAMETERS = {
    "PLAN": ("whole", "loop", "split"),  # whole: of rows that are no longer than `LONGEST`
    "PER": (4, 8, 16, 32, 64),  # elements of a thread, in a step; of longer whole rows more
    "WARPS": (1, 2, 4, 8, 16, 32),  # of a program; of longer whole rows more
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
#: Threads of a warp, most warps of a program, and the longest whole row.
WARP, MOST_WARPS, LONGEST = 32, 32, 32768
#: The shortest row of a program's tile, as a power of 2.
LEAST_EXPONENT = 4
#: How longer rows than `LONGEST` are read where PLAN is whole: few programs, so many bytes in flight.
LONG = {"PLAN": "loop", "BLOCK": 8192, "ROWS": 1, "num_warps": 32, "num_stages": 2}
#: Programs that a GPU has use for, and columns that are worth one: see `few_long_rows`.
MOST_PARTS, SHORTEST_PART = 2048, 512
#: Columns of rows for which `long_rows` may be faster.
LONG_ROWS = range(512, 131073)
#: Elements that a reference computes at a time: their float64s stay in a core's cache.
_BLOCK = 1 << 16


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
    first = {name: values[:1] for name, values in fields.items()}
    others = {name: values[1:] for name, values in fields.items()}
    quick = [
        each
        for dtype, sizes in _QUICK.items()
        for each in problems(sizes, **first)
        if each.dtype == dtype
    ]
    return {
        "language": "triton",
        "static": list(fields),
        "seeds": SEEDS,
        "default": DEFAULT,
        **PARAMETERS,
        "problems": problems(SIZES, **fields),
        "quick_problems": [*quick, *(problems([_FIRST], **others) if fields else ())],
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
    def has_steps(PLAN):
        return PLAN != "whole"

    @kernel.applies("SPLIT")
    def is_split(PLAN):
        return PLAN == "split"

    @kernel.constraint
    def steps_are_long(PLAN, PER, WARPS):
        """A step of a loop has 1024 to 16384 columns: shorter ones wait for each other."""
        return PLAN == "whole" or 1024 <= WARP * PER * WARPS <= 16384

    @kernel.constraint
    def short_rows_have_few_warps(PLAN, PER, WARPS):
        """At least so many warps have a program of short whole rows, of at most 8192 elements."""
        return PLAN != "whole" or WARP * PER * WARPS <= 8192

    @kernel.constraint
    def parts_are_short(PLAN, PER, WARPS, num_stages, SPLIT):
        """A part has few steps, of 1024 to 8192 columns, and 16 bytes or more for each thread."""
        if PLAN != "split":
            return True
        few_steps = WARP * PER * WARPS <= 8192 and num_stages <= 2
        return SPLIT > 1 and few_steps and 8 <= PER <= 32 and WARPS >= 4

    @kernel.requires
    def few_long_rows(c, p):
        """More programs than a GPU runs at a time, and short parts, only add launches and bytes."""
        if c.PLAN != "split":
            return True
        return (p.rows * c.SPLIT <= MOST_PARTS) & (p.columns >= c.SPLIT * SHORTEST_PART)

    @kernel.defines
    def defines(c, p):
        tile, unit = WARP * c.PER * c.WARPS, {"UNIT": unit_of(p.columns)}
        if c.PLAN != "whole":
            return {"BLOCK": tile, "ROWS": 1, "num_warps": c.WARPS, **unit}
        if p.columns > LONGEST:
            return {**LONG, **unit}
        block = 1 << max(LEAST_EXPONENT, (p.columns - 1).bit_length())
        warps = min(MOST_WARPS, max(c.WARPS, block // (WARP * c.PER)))
        return {"BLOCK": block, "ROWS": max(1, tile // block), "num_warps": warps, **unit}


def unit_of(columns):
    """Return the power of 2 that divides the columns, where Triton does not find out: 16 it does."""
    largest = columns & -columns
    return largest if 1 < largest < 16 else 1


def grid(c, p):
    """Return the programs of a launch: each has as many whole rows as its tile has room for."""
    rows, tile = 1, WARP * c.PER * c.WARPS
    if c.PLAN == "whole":
        for exponent in range(LEAST_EXPONENT, (tile // 2).bit_length()):
            rows = maximum(rows, (p.columns <= 1 << exponent) * (tile >> exponent))
    return (ceil_div(p.rows, rows),)


def partials(c, p, kinds):
    """Return the scratch buffer of a split plan: some kinds of numbers for each part of each row."""
    return {"partials": Out((p.rows, kinds, c.SPLIT))} if c.PLAN == "split" else {}


def parts(c, p):
    """Return the programs of a launch of a split plan: one for each part of each row."""
    return (p.rows * c.SPLIT,)


def drawn(rng, shape, dtype, *, small_rows=False):
    """Return normal numbers of a type.

    ``small_rows``: in every third row they are so small that what is added to their mean square shows.
    """
    kind = np.float64 if dtype == "bfloat16" else np.dtype(dtype)
    values = rng.standard_normal(shape, kind)
    if small_rows:
        values[::3] /= 512
    return BFloat16(values) if dtype == "bfloat16" else values


def in_blocks(*of_rows):
    """Return a decorator of a reference, which then gets some rows at a time.

    ``of_rows`` are arguments with an element or a row for each row; ``x`` is one of them. Temporary
    arrays of all rows would take longer to allocate than to fill.
    """

    def decorated(reference):
        @wraps(reference)
        def in_turn(**given):
            rows, columns = given["x"].shape
            step, results = max(1, _BLOCK // max(1, columns)), {}
            for row in range(0, max(1, rows), step):
                part = slice(row, row + step)
                values = {n: v[part] if n in of_rows else v for n, v in given.items()}
                for name, block in reference(**values).items():
                    if name not in results:
                        results[name] = np.empty((rows, *block.shape[1:]), block.dtype)
                    results[name][part] = block
            return results

        return in_turn

    return decorated


def softmax_of(x):
    """Return the softmax of rows, their largest values, and the sums of their powers over those of these."""
    most = x.max(axis=1, keepdims=True)
    powers = np.exp(x - most)
    total = powers.sum(axis=1, keepdims=True)
    return powers / total, most, total


def loss_of(x, target):
    """Return the loss of each row at its target, and its gradient."""
    share, most, total = softmax_of(x)
    row = np.arange(len(x))
    loss = np.log(total[:, 0]) + most[:, 0] - x[row, target]
    share[row, target] -= 1
    return {"loss": loss, "gradient": share}


def normalized(values, eps):
    """Return rows over their root mean square."""
    return values * (1 / np.sqrt(np.square(values).mean(axis=1, keepdims=True) + eps))


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


def check_target(target, rows):
    """Raise `ValueError` for targets that do not fit rows."""
    if target.shape != (rows,) or target.dtype != "int32":
        raise ValueError(f"target is {target}: int32[{rows}] is needed")


def or_long_rows(problem, given, function, x, **named):
    """Return a call's answer, which is one of ``long_rows`` where records expect less time of it."""
    if problem.columns not in LONG_ROWS:
        return problem, given
    return Instead("long_rows", x, function, **named).than(problem, given)


def matrix(array, rows, columns):
    """Return an array as a matrix of rows."""
    return array.reshape(rows, columns)

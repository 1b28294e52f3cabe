"""layer_norm: rows minus their mean, divided by their standard deviation, times a weight, plus a bias."""

import _rows

from autotune import Kernel, Launch, NothingToDo, Operand, Out, Problem, Work

#: Default of eps, which is added to the variance.
EPS = 1e-5

#: Configurations for whole rows that load weight and bias before the sums.
EARLY = [
    {"PLAN": "whole", "PER": per, "WARPS": warps, "VECTORS": "early"}
    for per, warps in ((4, 4), (8, 1), (16, 1), (32, 1), (16, 8), (32, 4))
]

layer_norm = Kernel(
    "rows.py:layer_norm,layer_norm_partials,layer_norm_parts",
    **{**_rows.options(), "seeds": [*EARLY, *_rows.SEEDS[6:]]},
    VECTORS=("late", "early"),  # whole: load weight and bias after or before the sums
)
_rows.add_rules(layer_norm)


@layer_norm.applies("VECTORS")
def is_whole(PLAN):
    return PLAN == "whole"


@layer_norm.scratch
def scratch(c, p):
    return _rows.partials(c, p, 2)


@layer_norm.launch
def launch(c, p):
    if c.PLAN == "split":
        grid, arrays = _rows.split_grid(c, p), ("x", "weight", "bias", "y")
        return (
            Launch(grid, entry="layer_norm_partials", args=("x", "partials", "columns")),
            Launch(grid, entry="layer_norm_parts", args=(*arrays, "partials", "columns", "eps")),
        )
    return Launch(grid=_rows.grid(c, p))


@layer_norm.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    vectors = {name: _rows.random_array(rng, p.columns, p.dtype) for name in ("weight", "bias")}
    sizes = {"rows": p.rows, "columns": p.columns, "eps": rng.uniform(EPS / 2, 2 * EPS)}
    x = _rows.random_array(rng, shape, p.dtype, small_rows=True)
    return {"x": x, **vectors, "y": Out(shape, p.dtype), **sizes}


@layer_norm.reference
@_rows.in_blocks("x")
def reference(x, weight, bias, eps):
    centered = x - x.mean(axis=1, keepdims=True)
    return {"y": _rows.normalized(centered, eps) * weight + bias}


@layer_norm.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count
    return Work(flops=7 * count, bytes_read=nbytes, bytes_written=nbytes)


@layer_norm.call
def call(x, weight, bias, out=None, *, eps=EPS):
    """Normalize along the last axis of a contiguous array of any shape."""
    result = Operand.new(x.shape, x.dtype) if out is None else out
    rows, columns = _rows.checked_sizes(x, weight=weight, bias=bias)
    if not x.size:
        return NothingToDo((result,))
    operands = {"x": _rows.matrix(x, rows, columns), "y": _rows.matrix(result, rows, columns)}
    problem = Problem(rows=rows, columns=columns, dtype=x.dtype)
    operands = {**operands, "weight": weight, "bias": bias, "eps": eps}
    named = {"weight": weight, "bias": bias, "out": result, "eps": eps}
    return _rows.or_long_rows(problem, operands, "layer_norm", x, **named)

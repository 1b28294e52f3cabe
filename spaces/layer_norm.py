"""layer_norm: rows less their mean over their standard deviation, times a weight plus a bias."""

import _rows
import numpy as np

from autotune import Kernel, Launch, NothingToDo, Operand, Out, Problem, Work

#: What is added to the variance, where the call does not say.
EPS = 1e-5

#: Whole rows whose weight and bias are loaded before the sums.
EARLY = [
    {"PLAN": "whole", "PER": per, "WARPS": warps, "VECTORS": "early"}
    for per, warps in ((4, 4), (8, 1), (16, 1), (32, 1), (16, 8), (32, 4))
]

layer_norm = Kernel(
    "rows.py:layer_norm,layer_norm_partials,layer_norm_parts",
    **{**_rows.options(), "seeds": [*EARLY, *_rows.SEEDS[6:]]},
    VECTORS=("late", "early"),  # whole: weight and bias are loaded after the sums, or before
)
_rows.share_rules(layer_norm)


@layer_norm.applies("VECTORS")
def is_whole(PLAN):
    return PLAN == "whole"


@layer_norm.scratch
def scratch(c, p):
    return _rows.partials(c, p, 2)


@layer_norm.launch
def launch(c, p):
    if c.PLAN == "split":
        grid, arrays = _rows.parts(c, p), ("x", "weight", "bias", "y")
        return (
            Launch(grid, entry="layer_norm_partials", args=("x", "partials", "columns")),
            Launch(grid, entry="layer_norm_parts", args=(*arrays, "partials", "columns", "eps")),
        )
    return Launch(grid=_rows.grid(c, p))


@layer_norm.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    vectors = {name: _rows.drawn(rng, p.columns, p.dtype) for name in ("weight", "bias")}
    sizes = {"rows": p.rows, "columns": p.columns, "eps": np.float32(EPS)}
    x = _rows.drawn(rng, shape, p.dtype, small_rows=True)
    return {"x": x, **vectors, "y": Out(shape, p.dtype), **sizes}


@layer_norm.reference
@_rows.in_blocks("x")
def reference(x, weight, bias, eps):
    apart = x - x.mean(axis=1, keepdims=True)
    return {"y": _rows.normalized(apart, eps) * weight + bias}


@layer_norm.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count
    return Work(flops=7 * count, bytes_read=nbytes, bytes_written=nbytes)


@layer_norm.call
def call(x, weight, bias, out=None, *, eps=EPS):
    """Along the last axis of an array of any shape, whose elements lie in order."""
    result = Operand.new(x.shape, x.dtype) if out is None else out
    rows, columns = _rows.checked(x, weight=weight, bias=bias)
    if not x.size:
        return NothingToDo((result,))
    given = {"x": _rows.matrix(x, rows, columns), "y": _rows.matrix(result, rows, columns)}
    problem = Problem(rows=rows, columns=columns, dtype=x.dtype)
    given = {**given, "weight": weight, "bias": bias, "eps": eps}
    further = {"weight": weight, "bias": bias, "out": result, "eps": eps}
    return _rows.or_long_rows(problem, given, "layer_norm", x, **further)

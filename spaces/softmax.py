"""softmax: the softmax of each row of a matrix, in float32, float16 or bfloat16."""

import _rows

from autotune import Kernel, Launch, NothingToDo, Operand, Out, Problem, Work

softmax = Kernel(
    "rows.py:softmax,softmax_partials,softmax_parts",
    **_rows.options(),
)
_rows.add_rules(softmax)


@softmax.scratch
def scratch(c, p):
    return _rows.partials(c, p, 2)


@softmax.launch
def launch(c, p):
    if c.PLAN == "split":
        grid = _rows.split_grid(c, p)
        return (
            Launch(grid, entry="softmax_partials", args=("x", "partials", "columns")),
            Launch(grid, entry="softmax_parts", args=("x", "y", "partials", "columns")),
        )
    return Launch(grid=_rows.grid(c, p))


@softmax.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    sizes = {"rows": p.rows, "columns": p.columns}
    return {"x": _rows.random_array(rng, shape, p.dtype), "y": Out(shape, p.dtype), **sizes}


@softmax.reference
@_rows.in_blocks("x")
def reference(x):
    return {"y": _rows.row_softmax(x)[0]}


@softmax.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count
    return Work(flops=5 * count, bytes_read=nbytes, bytes_written=nbytes)


@softmax.call
def call(x, out=None):
    """Return the softmax along the last axis of a contiguous array of any shape."""
    result = Operand.new(x.shape, x.dtype) if out is None else out
    rows, columns = _rows.checked_sizes(x)
    if not x.size:
        return NothingToDo((result,))
    operands = {"x": _rows.matrix(x, rows, columns), "y": _rows.matrix(result, rows, columns)}
    problem = Problem(rows=rows, columns=columns, dtype=x.dtype)
    return _rows.or_long_rows(problem, operands, "softmax", x, out=result)

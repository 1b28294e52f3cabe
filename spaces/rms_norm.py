"""rms_norm: rows divided by their root mean square, times a weight; a residual may be added first."""

import _rows

from autotune import InOut, Kernel, Launch, NothingToDo, Operand, Out, Problem, Work

#: Default of eps, which is added to the mean square.
EPS = 1e-6

rms_norm = Kernel(
    "rows.py:rms_norm,rms_norm_partials,rms_norm_parts",
    **_rows.options(residual=("none", "added")),
)
_rows.add_rules(rms_norm)


@rms_norm.scratch
def scratch(c, p):
    return _rows.partials(c, p, 1)


@rms_norm.launch
def launch(c, p):
    # without a residual, the kernel ignores that argument
    residual = "residual" if p.residual == "added" else "x"
    if c.PLAN == "split":
        grid, arrays = _rows.split_grid(c, p), ("x", residual, "weight", "y")
        return (
            Launch(grid, entry="rms_norm_partials", args=("x", residual, "partials", "columns")),
            Launch(grid, entry="rms_norm_parts", args=(*arrays, "partials", "columns", "eps")),
        )
    return Launch(
        grid=_rows.grid(c, p), args=("x", residual, "weight", "y", "rows", "columns", "eps")
    )


@rms_norm.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    x = _rows.random_array(rng, shape, p.dtype, small_rows=True)
    operands = {"x": x, "weight": _rows.random_array(rng, p.columns, p.dtype)}
    if p.residual == "added":
        operands["residual"] = InOut(_rows.random_array(rng, shape, p.dtype, small_rows=True))
    sizes = {"rows": p.rows, "columns": p.columns, "eps": rng.uniform(EPS / 2, 2 * EPS)}
    return {"y": Out(shape, p.dtype), **operands, **sizes}


@rms_norm.reference
@_rows.in_blocks("x", "residual")
def reference(x, weight, eps, residual=None):
    total = x if residual is None else x + residual
    y = {"y": _rows.normalized(total, eps) * weight}
    return y if residual is None else {**y, "residual": total}


@rms_norm.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count * (1 if p.residual == "none" else 2)
    return Work(flops=4 * count, bytes_read=nbytes, bytes_written=nbytes)


@rms_norm.call
def call(x, weight, residual=None, out=None, *, eps=EPS):
    """Normalize along the last axis. With a residual, add x to it, and return the result and the residual."""
    result = Operand.new(x.shape, x.dtype) if out is None else out
    rows, columns = _rows.checked_sizes(x, weight=weight)
    both = (result,) if residual is None else (result, residual)
    if not x.size:
        return NothingToDo(both)
    operands = {"x": x, "y": result, **({} if residual is None else {"residual": residual})}
    operands = {name: _rows.matrix(array, rows, columns) for name, array in operands.items()}
    kind = "none" if residual is None else "added"
    problem = Problem(rows=rows, columns=columns, dtype=x.dtype, residual=kind)
    function = "rms_norm" if residual is None else "rms_norm_residual"
    named = {"weight": weight, "residual": residual, "out": result, "eps": eps}
    operands = {**operands, "weight": weight, "eps": eps}
    return _rows.or_long_rows(problem, operands, function, x, **named)

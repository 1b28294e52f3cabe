"""cross_entropy: the loss of each row of logits at its target, with or without the gradient."""

import _rows

from autotune import Kernel, Launch, Operand, Out, Problem, Work

cross_entropy = Kernel(
    "rows.py:cross_entropy,softmax_partials,cross_entropy_parts",
    **_rows.options(gradient=("none", "written")),
)
_rows.add_rules(cross_entropy)


@cross_entropy.scratch
def scratch(c, p):
    return _rows.partials(c, p, 2)


@cross_entropy.launch
def launch(c, p):
    # without a gradient, the kernel ignores that argument
    gradient = "gradient" if p.gradient == "written" else "loss"
    if c.PLAN == "split":
        read, arrays = ("x", "partials", "columns"), ("x", "target", "loss", gradient)
        grid = _rows.split_grid(c, p) if p.gradient == "written" else (p.rows,)
        return (
            Launch(_rows.split_grid(c, p), entry="softmax_partials", args=read),
            Launch(grid, entry="cross_entropy_parts", args=(*arrays, "partials", "columns")),
        )
    return Launch(grid=_rows.grid(c, p), args=("x", "target", "loss", gradient, "rows", "columns"))


@cross_entropy.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    target = rng.integers(0, p.columns, p.rows)
    operands = {"x": _rows.random_array(rng, shape, p.dtype), "target": target, "loss": Out(p.rows)}
    if p.gradient == "written":
        operands["gradient"] = Out(shape, p.dtype)
    return {**operands, "rows": p.rows, "columns": p.columns}


@cross_entropy.reference
@_rows.in_blocks("x", "target")
def reference(x, target):
    return _rows.row_loss(x, target)


@cross_entropy.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count
    written = 4 * p.rows + (0 if p.gradient == "none" else nbytes)
    return Work(flops=5 * count, bytes_read=nbytes + 4 * p.rows, bytes_written=written)


@cross_entropy.call
def call(x, target, *, with_gradient=False):
    """Return the float32 loss of each row of logits (rows, columns) at int32 targets (rows).

    ``with_gradient``: return the loss and its gradient with respect to x. Targets must be in [0, columns); they
    are not checked.
    """
    rows, columns = _rows.checked_sizes(x)
    if x.ndim != 2 or not x.size:
        raise ValueError(f"x is {x}: it must be a matrix with at least one row and column")
    _rows.check_target(target, rows)
    operands = {"x": x, "target": target, "loss": Operand.new((rows,))}
    if with_gradient:
        operands["gradient"] = Operand.new(x.shape, x.dtype)
    kind = "written" if with_gradient else "none"
    function = "cross_entropy_gradient" if with_gradient else "cross_entropy"
    problem = Problem(rows=rows, columns=columns, dtype=x.dtype, gradient=kind)
    return _rows.or_long_rows(problem, operands, function, x, target=target)

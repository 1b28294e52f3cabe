"""cross_entropy: the loss of each row of logits at its target, and the gradient where it is wanted."""

import _rows

from autotune import Kernel, Launch, Operand, Out, Problem, Work

cross_entropy = Kernel(
    "rows.py:cross_entropy,softmax_partials,cross_entropy_parts",
    **_rows.options(gradient=("none", "written")),
)
_rows.share_rules(cross_entropy)


@cross_entropy.scratch
def scratch(c, p):
    return _rows.partials(c, p, 2)


@cross_entropy.launch
def launch(c, p):
    gradient = "gradient" if p.gradient == "written" else "loss"  # an array that is not looked at
    if c.PLAN == "split":
        read, arrays = ("x", "partials", "columns"), ("x", "target", "loss", gradient)
        grid = _rows.parts(c, p) if p.gradient == "written" else (p.rows,)
        return (
            Launch(_rows.parts(c, p), entry="softmax_partials", args=read),
            Launch(grid, entry="cross_entropy_parts", args=(*arrays, "partials", "columns")),
        )
    return Launch(grid=_rows.grid(c, p), args=("x", "target", "loss", gradient, "rows", "columns"))


@cross_entropy.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    target = rng.integers(0, p.columns, p.rows)
    given = {"x": _rows.drawn(rng, shape, p.dtype), "target": target, "loss": Out(p.rows)}
    if p.gradient == "written":
        given["gradient"] = Out(shape, p.dtype)
    return {**given, "rows": p.rows, "columns": p.columns}


@cross_entropy.reference
@_rows.in_blocks("x", "target")
def reference(x, target):
    return _rows.loss_of(x, target)


@cross_entropy.work
def work(p):
    count = p.rows * p.columns
    nbytes = _rows.itemsize(p.dtype) * count
    written = 4 * p.rows + (0 if p.gradient == "none" else nbytes)
    return Work(flops=5 * count, bytes_read=nbytes + 4 * p.rows, bytes_written=written)


@cross_entropy.call
def call(x, target, *, with_gradient=False):
    """Of logits (rows, columns) and targets (rows), int32 in [0, columns): the loss of each row, float32.

    With the gradient it returns the loss and its gradient for x. Targets are not checked.
    """
    rows, columns = _rows.checked(x)
    if x.ndim != 2 or not x.size:
        raise ValueError(f"x is {x}: a matrix of at least one row and column is needed")
    _rows.check_target(target, rows)
    given = {"x": x, "target": target, "loss": Operand.new((rows,))}
    if with_gradient:
        given["gradient"] = Operand.new(x.shape, x.dtype)
    kind = "written" if with_gradient else "none"
    function = "cross_entropy_gradient" if with_gradient else "cross_entropy"
    problem = Problem(rows=rows, columns=columns, dtype=x.dtype, gradient=kind)
    return _rows.or_long_rows(problem, given, function, x, target=target)

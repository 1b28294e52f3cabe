"""Kernels in Triton that work on the rows of matrices, in float32 whatever the type of the arrays.

A program has ROWS rows. PLAN=whole holds them in registers, so that BLOCK is no less than the columns;
PLAN=loop goes over them in steps of BLOCK columns, once for what it has to know and once to write. The second
time the L2 cache has them: the first pass asks it to keep them, and the second one to drop them.

Few long rows are split: SPLIT programs share a row. The functions named ``_partials`` write what each part of a
row adds to its sums; those named ``_parts`` join that of all parts, and each program writes its part of the row.
"""

import triton
import triton.language as tl

#: The least float32: less than every number, and no infinity, whose difference with itself is NaN.
LEAST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
#: The logarithm of e to the base 2, what float32 rounds off it, and the logarithm of 2.
LOG2E: tl.constexpr = tl.constexpr(1.4426950216293335)
LOG2E_REST: tl.constexpr = tl.constexpr(1.925963033500e-08)
LOG2: tl.constexpr = tl.constexpr(0.6931471805599453)
#: Differences below this one have a power of 0.
FAR: tl.constexpr = tl.constexpr(-150.0)
#: Elements that the length of a part is a multiple of: a line of the cache has as many halves.
LINE: tl.constexpr = tl.constexpr(64)


@triton.jit
def in_units(columns, UNIT: tl.constexpr):
    """Return the columns, a multiple of UNIT, so that the compiler knows it: loads of 16 bytes need 4 or 8.

    Triton itself asks no more than whether 16 divides an integer.
    """
    if UNIT > 1:
        columns = columns // UNIT * UNIT
    return columns


@triton.jit
def places(rows, columns, ROWS: tl.constexpr):
    """Return the places of the first elements of a program's rows, and which of the rows there are."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return (row.to(tl.int64) * columns)[:, None], (row < rows)[:, None]


@triton.jit
def span(inside, start, columns, BLOCK: tl.constexpr):
    """Return the columns of a step, and which of its elements there are."""
    column = start + tl.arange(0, BLOCK)[None, :]
    return column, inside & (column < columns)


@triton.jit
def loaded(x, begin, column, there, OTHER: tl.constexpr, KEPT: tl.constexpr):
    """Return elements as float32, OTHER where there are none; KEPT is what the L2 cache shall do."""
    at = x + begin + column
    return tl.load(at, mask=there, other=OTHER, eviction_policy=KEPT).to(tl.float32)


@triton.jit
def stored(y, begin, column, there, values):
    """Write elements in the type of the array."""
    tl.store(y + begin + column, values.to(y.dtype.element_ty), mask=there)


@triton.jit
def power(x, difference):
    """Return e to a difference that is no larger than 0, as precise as the type of x has use for."""
    if x.dtype.element_ty != tl.float32:
        return tl.exp(difference)
    # The rounding error of the product is added where it is small: in the power's exponent it is not.
    near = tl.maximum(difference, FAR, propagate_nan=tl.PropagateNan.ALL)
    product = near * LOG2E
    rest = tl.fma(near, LOG2E, -product) + near * LOG2E_REST
    result = tl.exp2(product)
    return tl.fma(result, rest * LOG2, result)


@triton.jit
def length_of_parts(columns, SPLIT: tl.constexpr):
    """Return the columns of a part; the last parts may have fewer, or none."""
    return tl.cdiv(tl.cdiv(columns, SPLIT), LINE) * LINE


@triton.jit
def part(columns, SPLIT: tl.constexpr):
    """Return the place of a program's row, that it is there, and the program's first and last columns.

    The last column is one too many, as for `range`.
    """
    row = tl.program_id(0) // SPLIT
    length = length_of_parts(columns, SPLIT)
    first = tl.program_id(0) % SPLIT * length
    inside = tl.full([1, 1], True, tl.int1)
    return row.to(tl.int64) * columns, inside, first, tl.minimum(first + length, columns)


@triton.jit
def note(partials, value, KIND: tl.constexpr, KINDS: tl.constexpr, SPLIT: tl.constexpr):
    """Write a value of a program's part: the KIND-th of KINDS."""
    program = tl.program_id(0)
    place = (program // SPLIT * KINDS + KIND) * SPLIT + program % SPLIT
    tl.store(partials + place + tl.zeros([1, 1], tl.int32), value)


@triton.jit
def noted(partials, row, KIND: tl.constexpr, KINDS: tl.constexpr, SPLIT: tl.constexpr):
    """Return the values of all parts of a row."""
    return tl.load(partials + (row * KINDS + KIND) * SPLIT + tl.arange(0, SPLIT)[None, :])


@triton.jit
def softmax_sums(
    x, begin, inside, first, last, BLOCK: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr
):
    """Return the largest value of some columns of each row, and the sum of all powers over its power."""
    most = tl.full([ROWS, 1], LEAST, tl.float32)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, -float("inf"), "evict_last")
        higher = tl.maximum(most, tl.max(values, axis=1)[:, None])
        total = total * power(x, most - higher) + power(x, values - higher)
        most = higher
    return most, tl.where(inside, tl.sum(total, axis=1)[:, None], 1.0)


@triton.jit
def write_softmax(
    x, y, begin, inside, first, last, most, total, BLOCK: tl.constexpr, STEPS: tl.constexpr
):
    """Write some columns of the softmax of each row, whose sums are known."""
    scale = tl.div_rn(1.0, total)
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, -float("inf"), "evict_first")
        stored(y, begin, column, there, power(x, values - most) * scale)


@triton.jit(do_not_specialize=["rows"])
def softmax(
    x,
    y,
    rows,
    columns,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PLAN: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to y the softmax of each row of x."""
    columns = in_units(columns, UNIT)
    begin, inside = places(rows, columns, ROWS)
    if PLAN == "whole":
        column, there = span(inside, 0, columns, BLOCK)
        values = loaded(x, begin, column, there, -float("inf"), "")
        most = tl.maximum(tl.max(values, axis=1), LEAST)[:, None]
        powers = power(x, values - most)
        total = tl.where(inside, tl.sum(powers, axis=1)[:, None], 1.0)
        stored(y, begin, column, there, powers * tl.div_rn(1.0, total))
    else:
        most, total = softmax_sums(x, begin, inside, 0, columns, BLOCK, ROWS, num_stages)
        write_softmax(x, y, begin, inside, 0, columns, most, total, BLOCK, num_stages)


@triton.jit
def softmax_partials(
    x,
    partials,
    columns,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to partials the largest value of each part of a row, and the sum of powers over its power."""
    columns = in_units(columns, UNIT)
    begin, inside, first, last = part(columns, SPLIT)
    most, total = softmax_sums(x, begin, inside, first, last, BLOCK, 1, num_stages)
    note(partials, most, 0, 2, SPLIT)
    note(partials, total, 1, 2, SPLIT)


@triton.jit
def joined_softmax_sums(x, partials, row, SPLIT: tl.constexpr):
    """Return what `softmax_sums` returns of a whole row."""
    highest = noted(partials, row, 0, 2, SPLIT)
    most = tl.max(highest, axis=1)[:, None]
    totals = noted(partials, row, 1, 2, SPLIT) * power(x, highest - most)
    return most, tl.sum(totals, axis=1)[:, None]


@triton.jit
def softmax_parts(
    x,
    y,
    partials,
    columns,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to y each part of the softmax of each row of x."""
    columns = in_units(columns, UNIT)
    begin, inside, first, last = part(columns, SPLIT)
    row = tl.program_id(0) // SPLIT
    most, total = joined_softmax_sums(x, partials, row, SPLIT)
    write_softmax(x, y, begin, inside, first, last, most, total, BLOCK, num_stages)


@triton.jit
def square_sums(
    x,
    residual,
    begin,
    inside,
    first,
    last,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Return the sum of squares of some columns of each row."""
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, 0.0, "evict_last")
        if RESIDUAL == "added":
            values += loaded(residual, begin, column, there, 0.0, "evict_last")
        squares += values * values
    return tl.sum(squares, axis=1)[:, None]


@triton.jit
def write_rms_norm(
    x,
    residual,
    weight,
    y,
    begin,
    inside,
    first,
    last,
    scale,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Write some columns of each row, whose scale is known, and of the residual."""
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, 0.0, "evict_first")
        if RESIDUAL == "added":
            values += loaded(residual, begin, column, there, 0.0, "evict_first")
            stored(residual, begin, column, there, values)
        factors = loaded(weight, 0, column, column < last, 0.0, "evict_last")
        stored(y, begin, column, there, values * scale * factors)


@triton.jit(do_not_specialize=["rows"])
def rms_norm(
    x,
    residual,
    weight,
    y,
    rows,
    columns,
    eps,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PLAN: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to y the rows of x over their root mean square, times weight.

    RESIDUAL=added: of x + residual, which is written to residual.
    """
    columns = in_units(columns, UNIT)
    begin, inside = places(rows, columns, ROWS)
    if PLAN == "whole":
        column, there = span(inside, 0, columns, BLOCK)
        values = loaded(x, begin, column, there, 0.0, "")
        if RESIDUAL == "added":
            values += loaded(residual, begin, column, there, 0.0, "")
            stored(residual, begin, column, there, values)
        factors = loaded(weight, 0, column, column < columns, 0.0, "evict_last")
        squares = tl.sum(values * values, axis=1)[:, None]
        stored(y, begin, column, there, values * tl.rsqrt(squares / columns + eps) * factors)
    else:
        squares = square_sums(
            x, residual, begin, inside, 0, columns, RESIDUAL, BLOCK, ROWS, num_stages
        )
        scale = tl.rsqrt(squares / columns + eps)
        write_rms_norm(
            x, residual, weight, y, begin, inside, 0, columns, scale, RESIDUAL, BLOCK, num_stages
        )


@triton.jit
def rms_norm_partials(
    x,
    residual,
    partials,
    columns,
    RESIDUAL: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to partials the sum of squares of each part of a row."""
    columns = in_units(columns, UNIT)
    begin, inside, first, last = part(columns, SPLIT)
    squares = square_sums(x, residual, begin, inside, first, last, RESIDUAL, BLOCK, 1, num_stages)
    note(partials, squares, 0, 1, SPLIT)


@triton.jit
def rms_norm_parts(
    x,
    residual,
    weight,
    y,
    partials,
    columns,
    eps,
    RESIDUAL: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to y, and to the residual, each part of what `rms_norm` writes.

    x + residual is added again, since y is of sums that were not rounded to the type of the residual.
    """
    columns = in_units(columns, UNIT)
    begin, inside, first, last = part(columns, SPLIT)
    row = tl.program_id(0) // SPLIT
    squares = tl.sum(noted(partials, row, 0, 1, SPLIT), axis=1)[:, None]
    scale = tl.rsqrt(squares / columns + eps)
    write_rms_norm(
        x, residual, weight, y, begin, inside, first, last, scale, RESIDUAL, BLOCK, num_stages
    )


@triton.jit
def means(
    x,
    begin,
    inside,
    first,
    last,
    length,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Return the mean of some columns of each row, and the sum of squared deviations from it, in one pass.

    Each place of a step has mean and squares of its own, by Welford's update; they are joined at the end.
    """
    mean = tl.zeros([ROWS, BLOCK], tl.float32)
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    count = tl.zeros([ROWS, BLOCK], tl.float32)
    steps = 0.0
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, 0.0, "evict_last")
        steps += 1.0
        apart = tl.where(there, values - mean, 0.0)
        mean += apart * (1.0 / steps)
        squares += apart * tl.where(there, values - mean, 0.0)
        count += there.to(tl.float32)
    return joined_means(mean, squares, count, length)


@triton.jit
def joined_means(mean, squares, count, length):
    """Return mean and sum of squared deviations of each row from those of its places, or parts."""
    middle = tl.sum(mean * count, axis=1)[:, None] / length
    apart = mean - middle
    return middle, tl.sum(squares + count * apart * apart, axis=1)[:, None]


@triton.jit
def write_layer_norm(
    x,
    weight,
    bias,
    y,
    begin,
    inside,
    first,
    last,
    mean,
    scale,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Write some columns of each row, whose mean and scale are known."""
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, 0.0, "evict_first")
        factors = loaded(weight, 0, column, column < last, 0.0, "evict_last")
        added = loaded(bias, 0, column, column < last, 0.0, "evict_last")
        stored(y, begin, column, there, (values - mean) * scale * factors + added)


@triton.jit(do_not_specialize=["rows"])
def layer_norm(
    x,
    weight,
    bias,
    y,
    rows,
    columns,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PLAN: tl.constexpr,
    VECTORS: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to y the rows of x less their mean over their standard deviation, times weight plus bias.

    Squares are of deviations from a mean: a sum of squares alone loses digits. VECTORS=early loads weight and
    bias with the row: nothing is waited for after its sums, but registers are taken meanwhile.
    """
    columns = in_units(columns, UNIT)
    begin, inside = places(rows, columns, ROWS)
    if PLAN == "whole":
        column, there = span(inside, 0, columns, BLOCK)
        values = loaded(x, begin, column, there, 0.0, "")
        if VECTORS == "early":
            factors = loaded(weight, 0, column, column < columns, 0.0, "evict_last")
            added = loaded(bias, 0, column, column < columns, 0.0, "evict_last")
        mean = tl.sum(values, axis=1)[:, None] / columns
        apart = tl.where(there, values - mean, 0.0)
        scale = tl.rsqrt(tl.sum(apart * apart, axis=1)[:, None] / columns + eps)
        if VECTORS == "late":
            factors = loaded(weight, 0, column, column < columns, 0.0, "evict_last")
            added = loaded(bias, 0, column, column < columns, 0.0, "evict_last")
        stored(y, begin, column, there, apart * scale * factors + added)
    else:
        mean, squares = means(x, begin, inside, 0, columns, columns, BLOCK, ROWS, num_stages)
        scale = tl.rsqrt(squares / columns + eps)
        write_layer_norm(
            x, weight, bias, y, begin, inside, 0, columns, mean, scale, BLOCK, num_stages
        )


@triton.jit
def layer_norm_partials(
    x,
    partials,
    columns,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to partials the mean of each part of a row, and the sum of squared deviations from it."""
    columns = in_units(columns, UNIT)
    begin, inside, first, last = part(columns, SPLIT)
    length = tl.maximum(last - first, 1)
    mean, squares = means(x, begin, inside, first, last, length, BLOCK, 1, num_stages)
    note(partials, mean, 0, 2, SPLIT)
    note(partials, squares, 1, 2, SPLIT)


@triton.jit
def layer_norm_parts(
    x,
    weight,
    bias,
    y,
    partials,
    columns,
    eps,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to y each part of what `layer_norm` writes."""
    columns = in_units(columns, UNIT)
    begin, inside, first, last = part(columns, SPLIT)
    row = tl.program_id(0) // SPLIT
    length = length_of_parts(columns, SPLIT)
    rest = columns - tl.arange(0, SPLIT)[None, :] * length
    count = tl.minimum(tl.maximum(rest, 0), length).to(tl.float32)
    mean, squares = joined_means(
        noted(partials, row, 0, 2, SPLIT), noted(partials, row, 1, 2, SPLIT), count, columns
    )
    scale = tl.rsqrt(squares / columns + eps)
    write_layer_norm(x, weight, bias, y, begin, inside, first, last, mean, scale, BLOCK, num_stages)


@triton.jit
def write_gradient(
    x,
    gradient,
    right,
    begin,
    inside,
    first,
    last,
    most,
    total,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Write some columns of the gradient of each row's loss, whose sums are known."""
    scale = tl.div_rn(1.0, total)
    for start in tl.range(first, last, BLOCK, num_stages=STEPS):
        column, there = span(inside, start, last, BLOCK)
        values = loaded(x, begin, column, there, -float("inf"), "evict_first")
        result = power(x, values - most) * scale - (column == right).to(tl.float32)
        stored(gradient, begin, column, there, result)


@triton.jit(do_not_specialize=["rows"])
def cross_entropy(
    x,
    target,
    loss,
    gradient,
    rows,
    columns,
    GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PLAN: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write to loss the negative logarithm of the softmax of each row of x at the column ``target``.

    GRADIENT=written: to gradient the loss's, for x: the softmax, less 1 at the target.
    """
    columns = in_units(columns, UNIT)
    begin, inside = places(rows, columns, ROWS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    right = tl.load(target + row, mask=inside, other=0)
    at_target = tl.load(x + begin + right, mask=inside, other=0.0).to(tl.float32)
    if PLAN == "whole":
        column, there = span(inside, 0, columns, BLOCK)
        values = loaded(x, begin, column, there, -float("inf"), "")
        most = tl.maximum(tl.max(values, axis=1), LEAST)[:, None]
        powers = power(x, values - most)
        total = tl.where(inside, tl.sum(powers, axis=1)[:, None], 1.0)
        if GRADIENT == "written":
            result = powers * tl.div_rn(1.0, total) - (column == right).to(tl.float32)
            stored(gradient, begin, column, there, result)
    else:
        most, total = softmax_sums(x, begin, inside, 0, columns, BLOCK, ROWS, num_stages)
        if GRADIENT == "written":
            write_gradient(
                x, gradient, right, begin, inside, 0, columns, most, total, BLOCK, num_stages
            )
    tl.store(loss + row, tl.log(total) + most - at_target, mask=inside)


@triton.jit
def cross_entropy_parts(
    x,
    target,
    loss,
    gradient,
    partials,
    columns,
    GRADIENT: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    num_stages: tl.constexpr = 1,
    UNIT: tl.constexpr = 1,
):
    """Write what `cross_entropy` writes: the loss of each row, and each part of its gradient.

    The partials are those of `softmax_partials`. Without a gradient a row needs one program.
    """
    columns = in_units(columns, UNIT)
    row = tl.program_id(0)
    if GRADIENT == "written":
        row = row // SPLIT
    most, total = joined_softmax_sums(x, partials, row, SPLIT)
    place = row + tl.zeros([1, 1], tl.int32)
    right = tl.load(target + place)
    at_target = tl.load(x + row.to(tl.int64) * columns + right).to(tl.float32)
    result = tl.log(total) + most - at_target
    if GRADIENT == "written":
        begin, inside, first, last = part(columns, SPLIT)
        tl.store(loss + place, result, mask=inside & (first == 0))
        write_gradient(
            x, gradient, right, begin, inside, first, last, most, total, BLOCK, num_stages
        )
    else:
        tl.store(loss + place, result)

"""Kernels in Triton that work on the rows of matrices, in float32 whatever the type of the arrays.

A program has ROWS rows. PLAN=whole holds them in registers, so that BLOCK is no less than the columns;
PLAN=loop goes over them in steps of BLOCK columns, once for what it has to know and once to write.
"""

import triton
import triton.language as tl

#: The least float32: less than every number, and no infinity, whose difference with itself is NaN.
LEAST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def places(rows, columns, ROWS: tl.constexpr):
    """Return the places of the first elements of a program's rows, and which of the rows there are."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return (row.to(tl.int64) * columns)[:, None], (row < rows)[:, None]


@triton.jit
def loaded(x, begin, inside, start, columns, BLOCK: tl.constexpr, OTHER: tl.constexpr):
    """Return columns from ``start`` on, as float32, OTHER where there are none; their places; which there are."""
    column = start + tl.arange(0, BLOCK)[None, :]
    there = inside & (column < columns)
    return (
        tl.load(x + begin + column, mask=there, other=OTHER).to(tl.float32),
        begin + column,
        there,
    )


@triton.jit
def softmax_sums(x, begin, inside, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Return the largest value of each row, and the sum of all powers over its power."""
    top = tl.full([ROWS, BLOCK], LEAST, tl.float32)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        values, _, _ = loaded(x, begin, inside, start, columns, BLOCK, -float("inf"))
        higher = tl.maximum(top, values)
        total = total * tl.exp(top - higher) + tl.exp(values - higher)
        top = higher
    most = tl.max(top, axis=1)[:, None]
    return most, tl.where(inside, tl.sum(total * tl.exp(top - most), axis=1)[:, None], 1.0)


@triton.jit
def softmax(x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, PLAN: tl.constexpr):
    """Write to y the softmax of each row of x."""
    begin, inside = places(rows, columns, ROWS)
    if PLAN == "whole":
        values, place, there = loaded(x, begin, inside, 0, columns, BLOCK, -float("inf"))
        most = tl.maximum(tl.max(values, axis=1), LEAST)[:, None]
        powers = tl.exp(values - most)
        total = tl.where(inside, tl.sum(powers, axis=1)[:, None], 1.0)
        result = powers / total
        tl.store(y + place, result.to(y.dtype.element_ty), mask=there)
    else:
        most, total = softmax_sums(x, begin, inside, columns, BLOCK, ROWS)
        for start in range(0, columns, BLOCK):
            values, place, there = loaded(x, begin, inside, start, columns, BLOCK, -float("inf"))
            result = tl.exp(values - most) / total
            tl.store(y + place, result.to(y.dtype.element_ty), mask=there)


@triton.jit
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
):
    """Write to y the rows of x over their root mean square, times weight.

    RESIDUAL=added: of x + residual, which is written to residual.
    """
    begin, inside = places(rows, columns, ROWS)
    if PLAN == "whole":
        values, place, there = loaded(x, begin, inside, 0, columns, BLOCK, 0.0)
        if RESIDUAL == "added":
            values += loaded(residual, begin, inside, 0, columns, BLOCK, 0.0)[0]
            tl.store(residual + place, values.to(residual.dtype.element_ty), mask=there)
        squares = tl.sum(values * values, axis=1)[:, None]
        factors, _, _ = loaded(weight, 0, True, 0, columns, BLOCK, 0.0)
        result = values * tl.rsqrt(squares / columns + eps) * factors
        tl.store(y + place, result.to(y.dtype.element_ty), mask=there)
    else:
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            values, place, there = loaded(x, begin, inside, start, columns, BLOCK, 0.0)
            if RESIDUAL == "added":
                values += loaded(residual, begin, inside, start, columns, BLOCK, 0.0)[0]
            squares += values * values
        scale = tl.rsqrt(tl.sum(squares, axis=1)[:, None] / columns + eps)
        for start in range(0, columns, BLOCK):
            values, place, there = loaded(x, begin, inside, start, columns, BLOCK, 0.0)
            if RESIDUAL == "added":
                values += loaded(residual, begin, inside, start, columns, BLOCK, 0.0)[0]
                tl.store(residual + place, values.to(residual.dtype.element_ty), mask=there)
            factors, _, _ = loaded(weight, 0, True, start, columns, BLOCK, 0.0)
            tl.store(y + place, (values * scale * factors).to(y.dtype.element_ty), mask=there)


@triton.jit
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
):
    """Write to y the rows of x less their mean over their standard deviation, times weight plus bias.

    The mean comes first and then the deviations from it: a sum of squares alone loses digits.
    """
    begin, inside = places(rows, columns, ROWS)
    if PLAN == "whole":
        values, place, there = loaded(x, begin, inside, 0, columns, BLOCK, 0.0)
        mean = tl.sum(values, axis=1)[:, None] / columns
        apart = tl.where(there, values - mean, 0.0)
        scale = tl.rsqrt(tl.sum(apart * apart, axis=1)[:, None] / columns + eps)
        factors, _, _ = loaded(weight, 0, True, 0, columns, BLOCK, 0.0)
        added, _, _ = loaded(bias, 0, True, 0, columns, BLOCK, 0.0)
        tl.store(y + place, (apart * scale * factors + added).to(y.dtype.element_ty), mask=there)
    else:
        total = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            total += loaded(x, begin, inside, start, columns, BLOCK, 0.0)[0]
        mean = tl.sum(total, axis=1)[:, None] / columns
        squares = tl.zeros([ROWS, BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            values, _, there = loaded(x, begin, inside, start, columns, BLOCK, 0.0)
            apart = tl.where(there, values - mean, 0.0)
            squares += apart * apart
        scale = tl.rsqrt(tl.sum(squares, axis=1)[:, None] / columns + eps)
        for start in range(0, columns, BLOCK):
            values, place, there = loaded(x, begin, inside, start, columns, BLOCK, 0.0)
            factors, _, _ = loaded(weight, 0, True, start, columns, BLOCK, 0.0)
            added, _, _ = loaded(bias, 0, True, start, columns, BLOCK, 0.0)
            result = (values - mean) * scale * factors + added
            tl.store(y + place, result.to(y.dtype.element_ty), mask=there)


@triton.jit
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
):
    """Write to loss the negative logarithm of the softmax of each row of x at the column ``target``.

    GRADIENT=written: to gradient the loss's, for x: the softmax, less 1 at the target.
    """
    begin, inside = places(rows, columns, ROWS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    right = tl.load(target + row, mask=inside, other=0)
    at_target = tl.load(x + begin + right, mask=inside, other=0.0).to(tl.float32)
    if PLAN == "whole":
        values, place, there = loaded(x, begin, inside, 0, columns, BLOCK, -float("inf"))
        most = tl.maximum(tl.max(values, axis=1), LEAST)[:, None]
        powers = tl.exp(values - most)
        total = tl.where(inside, tl.sum(powers, axis=1)[:, None], 1.0)
        if GRADIENT == "written":
            result = powers / total - (place == begin + right).to(tl.float32)
            tl.store(gradient + place, result.to(gradient.dtype.element_ty), mask=there)
    else:
        most, total = softmax_sums(x, begin, inside, columns, BLOCK, ROWS)
        if GRADIENT == "written":
            for start in range(0, columns, BLOCK):
                values, place, there = loaded(
                    x, begin, inside, start, columns, BLOCK, -float("inf")
                )
                result = tl.exp(values - most) / total - (place == begin + right).to(tl.float32)
                tl.store(gradient + place, result.to(gradient.dtype.element_ty), mask=there)
    tl.store(loss + row, tl.log(total) + most - at_target, mask=inside)

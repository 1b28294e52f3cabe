"""Symbolic integers say the same as the arithmetic they record."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.kernel.expression import (
    Symbol,
    UntraceableError,
    ceil_div,
    maximum,
    minimum,
    stored,
    value_of,
)

FIELDS = ("m", "n", "k")
#: A function of the fields.
Function = Callable[[dict[str, Any]], Any]

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "ceil_div": ceil_div,
    "minimum": minimum,
    "maximum": maximum,
    "a == b": lambda a, b: a == b,
    "a <= b": lambda a, b: a <= b,
    "a >= b": lambda a, b: a >= b,
}


@st.composite
def functions(draw, depth=4):
    """Arithmetic over the fields and constants, as a Python function."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(FIELDS))
            return lambda p: p[name]
        constant = draw(st.integers(-40, 40))
        return lambda p: constant
    left = draw(functions(depth=depth - 1))
    if draw(st.integers(0, len(OPERATIONS))) == 0:
        return lambda p: -left(p)
    operation = OPERATIONS[draw(st.sampled_from(list(OPERATIONS)))]
    right = draw(functions(depth=depth - 1))
    return lambda p: operation(left(p), right(p))


@given(functions(), st.fixed_dictionaries({name: st.integers(0, 10**6) for name in FIELDS}))
def test_traced_equals_direct(function, fields):
    try:
        traced = stored(function({name: Symbol(name) for name in FIELDS}))
    except ZeroDivisionError:  # of two constants
        return
    assert traced is not None
    assert json.loads(json.dumps(traced)) == traced
    try:
        expected = int(function(fields))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match=r"division by zero|more than 64 bits"):
            value_of(traced, fields)
    else:
        try:
            value = value_of(traced, fields)
        except ValueError as error:
            assume("more than 64 bits" not in str(error))
            raise
        assert value == expected


@given(st.integers(0, 64), st.integers(0, 64))
def test_conditions_join_with_and(m, n):
    joined = (Symbol("m") % 4 == 0) & (Symbol("n") >= 8)
    assert value_of(joined.json, {"m": m, "n": n}) == int(m % 4 == 0 and n >= 8)


def test_numpy_integers_are_integers():
    assert (Symbol("m") + np.int32(3)).json == ["+", "m", 3]
    assert (np.int64(3) - Symbol("m")).json == ["-", 3, "m"]


def test_branching_on_a_symbol_is_refused():
    m: Any = Symbol("m")
    branches: tuple[Callable[[], Any], ...] = (
        lambda: bool(m),
        lambda: m != 3,
        lambda: range(m),
        lambda: float(m),
        lambda: [1, 2][m],
    )
    for branch in branches:
        with pytest.raises(UntraceableError):
            branch()
    with pytest.raises(TypeError):  # UntraceableError is one
        min(m, 3)
    with pytest.raises(TypeError):
        m + 0.5
    with pytest.raises(TypeError):
        minimum(m, "3")


def test_only_integers_and_expressions_have_a_stored_form():
    assert stored(True) == 1
    assert stored(np.int16(7)) == 7
    assert stored(2.0) is None
    assert stored("m") is None


@pytest.mark.parametrize(
    "json_form", [1.5, None, True, ["+", 1], ["pow", 2, 3], [["+"], 1, 2], "q", "t"]
)
def test_malformed_expressions_are_value_errors(json_form):
    with pytest.raises(ValueError, match=r"not an expression|not an integer"):
        value_of(json_form, {"m": 1, "t": "float32"})


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3) | st.floats(), st.lists))
def test_whatever_a_file_holds_is_a_number_or_a_value_error(json_form):
    with suppress(ValueError):
        assert isinstance(value_of(json_form, {}), int)

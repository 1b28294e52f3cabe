"""Integer expressions over problem fields, traced from ordinary Python arithmetic.

Tracing calls a launch function with `Symbol` fields; it returns expressions, which records and C++ headers
store. The stored form is JSON: an integer, a field name, or ``[operator, operand, operand]``. Stored
expressions are interpreted, never run as code. `autotune.lookup` imports this module, so it only uses the
standard library.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

Json: TypeAlias = "int | str | list[Json]"

#: Operators of the stored form. Division and remainder round towards minus infinity, as in Python.
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "==": lambda a, b: int(a == b),
    "<=": lambda a, b: int(a <= b),
    "and": lambda a, b: int(bool(a) and bool(b)),
}

#: Largest magnitude of a value: expressions are evaluated in 64 bits.
MAX_INTEGER = 2**63 - 1


class UntraceableError(TypeError):
    """A function needed the value of a symbolic integer, for example to branch on the problem."""


def _recorder(name: str, swapped: bool = False) -> Callable[[Symbol, object], Any]:
    def record(symbol: Symbol, other: object) -> Any:
        operand = stored_form(other)
        if operand is None:
            return NotImplemented
        pair = [operand, symbol.json] if swapped else [symbol.json, operand]
        return Symbol([name, *pair])

    return record


class Symbol:
    """A symbolic integer: arithmetic with it returns expressions, with the stored form ``json``."""

    __slots__ = ("json",)

    def __init__(self, json: Json) -> None:
        self.json = json

    __add__, __radd__ = _recorder("+"), _recorder("+", swapped=True)
    __sub__, __rsub__ = _recorder("-"), _recorder("-", swapped=True)
    __mul__, __rmul__ = _recorder("*"), _recorder("*", swapped=True)
    __floordiv__, __rfloordiv__ = _recorder("//"), _recorder("//", swapped=True)
    __mod__, __rmod__ = _recorder("%"), _recorder("%", swapped=True)
    __and__, __rand__ = _recorder("and"), _recorder("and", swapped=True)
    __eq__ = _recorder("==")
    __le__, __ge__ = _recorder("<="), _recorder("<=", swapped=True)

    # Conditions in terms of the operators above, which readers of records know.
    def __lt__(self, other: Any) -> Any:
        return self + 1 <= other

    def __gt__(self, other: Any) -> Any:
        return self - 1 >= other

    def __ne__(self, other: object) -> Any:
        return (self == other) == 0

    def __or__(self, other: Any) -> Any:
        return ((self == 0) & (other == 0)) == 0

    __ror__ = __or__

    def __neg__(self) -> Symbol:
        return Symbol(["-", 0, self.json])

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise UntraceableError(
            "a symbolic integer has no truth value; use minimum and maximum, in conditions & and |"
        )

    def __index__(self) -> int:
        raise UntraceableError("a symbolic integer has no value")

    __int__ = __index__
    __float__ = __index__


def stored_form(value: object) -> Json | None:
    """Return the stored form of a symbol or integer; None for anything else."""
    if isinstance(value, Symbol):
        return value.json
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        return None


def value_of(form: Json, fields: Mapping[str, Any]) -> int:
    """Evaluate a stored expression with values of the problem fields, in 64 bits as the header does."""
    if type(form) is int:  # the most frequent kind first
        value = form
    elif isinstance(form, str):
        found = fields.get(form)
        if type(found) is not int:
            raise ValueError(f"problem field {form!r} is not an integer")
        value = found
    else:
        try:
            if not isinstance(form, list):
                raise TypeError
            name, first, second = form
            operate = OPERATORS[name]  # type: ignore[index]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"not an expression: {form!r}") from None
        left, right = value_of(first, fields), value_of(second, fields)
        if right == 0 and name in ("//", "%"):
            raise ValueError(f"division by zero in {form!r}")
        value = operate(left, right)
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError("the value needs more than 64 bits")
    return value


def text_of(form: Json) -> str:
    """Return a stored expression as a person writes it, for a message."""
    if not isinstance(form, list):
        return str(form)
    name, first, second = form
    if _is_negation(form):
        if isinstance(first, list) and _is_negation(first):
            return text_of(first[1])
        return f"not ({text_of(first)})"
    left, right = text_of(first), text_of(second)
    if name in ("min", "max"):
        return f"{name}({left}, {right})"
    if name == "and":
        return f"{left} and {right}"
    return f"{left} {name} {right}" if name in ("==", "<=") else f"({left} {name} {right})"


def _is_negation(form: Json) -> bool:
    """Return whether a stored expression compares a condition with 0."""
    if not isinstance(form, list) or form[0] != "==" or form[2] != 0:
        return False
    return isinstance(form[1], list) and form[1][0] in ("==", "<=", "and")


def substitute(form: Json, values: Mapping[str, int]) -> Json:
    """Return a stored expression with some fields replaced by numbers, simplified."""
    if isinstance(form, str):
        return values.get(form, form)
    if not isinstance(form, list):
        return form
    name, left, right = form[0], substitute(form[1], values), substitute(form[2], values)
    known: Json = [name, left, right]
    if isinstance(left, int) and isinstance(right, int):
        with suppress(ValueError):  # the caller gets the error when it evaluates the expression
            return value_of(known, {})
    if name == "and":
        for given, other in ((left, right), (right, left)):
            is_condition = isinstance(other, list) and other[0] in ("==", "<=", "and")
            if isinstance(given, int) and given and is_condition:
                return other
    return known


T = TypeVar("T", int, Symbol)


def ceil_div(a: T, b: T | int) -> T:
    """Return ``a / b`` rounded up, for integers or symbols."""
    quotient: T = -(-a // b)
    return quotient


def minimum(a: T | int, b: T | int) -> T | int:
    """Return the smaller of two integers or symbols."""
    return _extreme("min", a, b)  # type: ignore[return-value]


def maximum(a: T | int, b: T | int) -> T | int:
    """Return the larger of two integers or symbols."""
    return _extreme("max", a, b)  # type: ignore[return-value]


def _extreme(op: str, a: object, b: object) -> object:
    left, right = stored_form(a), stored_form(b)
    if left is None or right is None:
        raise TypeError(f"{op} of {a!r} and {b!r}: expected integers or problem fields")
    if isinstance(left, int) and isinstance(right, int):
        return OPERATORS[op](left, right)
    return Symbol([op, left, right])

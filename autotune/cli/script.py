"""What a Python script gives to its calls of one function, read from its text: nothing of it is run.

Assignments are followed in the order of the text, through functions as if they were called there.
Numbers, texts and containers of them are worked out; of numpy's arrays the shape, the type and how
they are filled; everything else stays the code that it is.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

#: Of all loops within expressions, and bits of an integer: more is no list or size of a kernel's.
_MOST_STEPS, _MOST_BITS = 100_000, 64
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_CALLED: dict[str, Callable[..., Any]] = {
    **{"list": list, "tuple": tuple, "dict": dict, "OrderedDict": dict, "range": range},
    **{"int": int, "float": float, "str": str, "bool": bool, "len": len, "abs": abs},
    **{"min": min, "max": max, "sum": sum, "sorted": sorted, "round": round, "prod": math.prod},
    **{"amin": min, "amax": max, "ceil": math.ceil, "floor": math.floor, "arange": range},
}
_SCALARS = frozenset(
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + ["float16", "float32", "float64"]
)
#: How functions of numpy fill an array, by their last names.
_FILLED = {
    **{"zeros": "zeros", "empty": "zeros", "zeros_like": "zeros", "empty_like": "zeros"},
    **{"ones": "ones", "ones_like": "ones", "rand": "uniform", "random": "uniform"},
    **{"random_sample": "uniform", "randn": "normal", "standard_normal": "normal"},
    **{"normal": "normal", "uniform": "uniform", "copy": "copy", "randint": "integers"},
    **{"integers": "integers"},
}


@dataclass(frozen=True)
class Code:
    """What is not worked out."""

    node: ast.AST

    def __str__(self) -> str:
        return ast.unparse(self.node)


@dataclass(frozen=True)
class Array:
    """An array of numpy that the script would make."""

    dtype: str
    shape: tuple[int, ...]
    #: One of the values of `_FILLED`.
    filled: str
    code: str


@dataclass(frozen=True)
class FileText:
    """The text of a file."""

    path: str


@dataclass(frozen=True)
class Call:
    """One call: its arguments by name or position, as far as they are known, and how they are called."""

    line: int
    arguments: Mapping[str, Any]


class UnreadableError(Exception):
    """Not worked out."""


def calls_of(text: str, function: str, positions: Sequence[str]) -> list[Call]:
    """Every call of a function in a script, by its last name; ``positions`` name its parameters.

    Raises
    ------
    SyntaxError, ValueError, RecursionError
        If it is no Python.
    """
    reader = _Reader(function, positions)
    reader.follow(ast.parse(text).body)
    return reader.calls


class _Reader:
    def __init__(self, function: str, positions: Sequence[str]) -> None:
        self._function, self._positions = function, positions
        self._known: dict[str, Any] = {}
        self._steps = 0
        self.calls: list[Call] = []

    def follow(self, body: Sequence[ast.stmt]) -> None:
        """Go through statements, and note what they give to names and to calls."""
        for statement in body:
            match statement:
                case ast.FunctionDef():
                    self._known[statement.name] = Code(statement)
                    defaults = statement.args.defaults
                    for argument in statement.args.args:
                        self._known[argument.arg] = Code(ast.Name(argument.arg, ast.Load()))
                    named = statement.args.args[len(statement.args.args) - len(defaults) :]
                    for argument, default in zip(named, defaults, strict=True):
                        self._known[argument.arg] = self._read(default)
                    self.follow(statement.body)
                case ast.With():
                    for item in statement.items:
                        if isinstance(item.optional_vars, ast.Name):
                            self._known[item.optional_vars.id] = self._read(item.context_expr)
                    self.follow(statement.body)
                case ast.For():
                    self._forget(statement.target)
                    self.follow([*statement.body, *statement.orelse])
                case ast.If() | ast.While():
                    self.follow([*statement.body, *statement.orelse])
                case ast.Try():
                    self.follow([*statement.body, *statement.orelse, *statement.finalbody])
                case _:
                    self._note_calls(statement)
                    self._assign(statement)

    def _assign(self, statement: ast.stmt) -> None:
        match statement:
            case (
                ast.Assign(targets=[target], value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
            ):
                self._give(target, self._read(value))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._give(target, self._read(value))
            case ast.AugAssign(target=target):
                self._give(target, Code(statement.value))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "update"), [given])):
                held, more = self._known.get(name), self._read(given)
                if isinstance(held, dict) and isinstance(more, dict):
                    held.update(more)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [given])):
                held = self._known.get(name)
                if isinstance(held, Elements):
                    held.names.append(given.id if isinstance(given, ast.Name) else "")
                if isinstance(held, list):
                    held.append(self._read(given))

    def _give(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name):
                self._known[name] = value
            case ast.Subscript(ast.Name(name), key):
                held, at = self._known.get(name), self._read(key)
                if isinstance(held, dict) and isinstance(at, str | int):
                    held[at] = value
            case ast.Tuple(targets) | ast.List(targets):
                known = isinstance(value, list | tuple) and len(value) == len(targets)
                for number, part in enumerate(targets):
                    self._give(part, value[number] if known else Code(part))

    def _forget(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._known[node.id] = Code(node)

    def _note_calls(self, statement: ast.stmt) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _last_name(node.func) == self._function:
                given = dict(zip(self._positions, map(self._read, node.args), strict=False))
                for keyword in node.keywords:
                    value = self._read(keyword.value)
                    if keyword.arg is not None:
                        given[keyword.arg] = value
                    elif isinstance(value, dict):
                        given |= value
                self.calls.append(Call(node.lineno, copy.deepcopy(given)))

    def _read(self, node: ast.expr) -> Any:
        try:
            return self._value(node)
        except (UnreadableError, ArithmeticError, TypeError, ValueError, LookupError):
            return Code(node)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name) if name in self._known:
                return self._known[name]
            case ast.List(items) | ast.Tuple(items):
                return self._listed(items)
            case ast.Dict(keys, values) if None not in keys:
                named = zip(keys, values, strict=True)
                return {self._plain(key): self._read(value) for key, value in named if key}
            case ast.ListComp(element) | ast.GeneratorExp(element):
                return list(self._comprehended(node.generators, lambda: self._plain(element)))
            case ast.BinOp(left, sign, right):
                return self._computed(node, type(sign), self._value(left), self._value(right))
            case ast.UnaryOp(sign, operand) if type(sign) in _UNARY:
                return _UNARY[type(sign)](self._plain(operand))
            case ast.Compare(left, [sign], [right]) if type(sign) in _COMPARED:
                return _COMPARED[type(sign)](self._plain(left), self._plain(right))
            case ast.JoinedStr(parts):
                return "".join(str(self._plain(part)) for part in parts)
            case ast.FormattedValue(value, -1, None):
                return self._plain(value)
            case ast.Subscript(holder, ast.Slice(None, None, None)):
                return copy.copy(self._value(holder))
            case ast.Subscript(holder, key):
                return self._value(holder)[self._plain(key)]
            case ast.Attribute(holder, ("size" | "shape") as what):
                array = self._value(holder)
                if isinstance(array, Array):
                    return math.prod(array.shape) if what == "size" else array.shape
            case ast.Call():
                return self._called(node)
        raise UnreadableError

    def _plain(self, node: ast.expr) -> Any:
        """A value that holds no code and is no array."""
        value = self._value(node)
        if isinstance(value, Code | Array | FileText):
            raise UnreadableError
        return value

    def _listed(self, items: Sequence[ast.expr]) -> Elements:
        made = Elements()
        for item in items:
            if isinstance(item, ast.Starred):
                more = self._plain(item.value)
                made.names += [""] * len(more)
                made += more
            else:
                made.names.append(item.id if isinstance(item, ast.Name) else "")
                made.append(self._read(item))
        return made

    def _comprehended(
        self, generators: Sequence[ast.comprehension], made: Callable[[], Any]
    ) -> Iterator[Any]:
        if not generators:
            yield made()
            return
        first, *others = generators
        if not isinstance(first.target, ast.Name):
            raise UnreadableError
        before = self._known.get(first.target.id)
        for value in self._plain(first.iter):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise UnreadableError
            self._known[first.target.id] = value
            if all(self._plain(condition) for condition in first.ifs):
                yield from self._comprehended(others, made)
        self._known[first.target.id] = before

    def _computed(self, node: ast.expr, sign: type[ast.operator], left: Any, right: Any) -> Any:
        arrays = [side for side in (left, right) if isinstance(side, Array)]
        if arrays:
            shape = max((array.shape for array in arrays), key=math.prod)
            return Array(arrays[0].dtype, shape, "computed", ast.unparse(node))
        left, right = (
            side.item() if isinstance(side, np.generic) else side for side in (left, right)
        )
        if isinstance(left, int | float) and isinstance(right, int | float):
            is_steep = sign in (ast.Pow, ast.LShift)
            if sign not in _BINARY or (is_steep and max(abs(left), abs(right)) > 2**_MOST_BITS):
                raise UnreadableError
            if is_steep and abs(right) > _MOST_BITS:
                raise UnreadableError
        elif sign is not ast.Add or not any(
            isinstance(left, kind) and isinstance(right, kind) for kind in (str, list)
        ):
            raise UnreadableError
        return _BINARY[sign](left, right)

    def _called(self, node: ast.Call) -> Any:
        name = _last_name(node.func)
        if isinstance(node.func, ast.Attribute):
            with suppress(UnreadableError):
                return self._method(node, name, self._value(node.func.value))
        arguments = self._listed(node.args)
        named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if name == "open" and arguments and isinstance(arguments[0], str):
            return FileText(arguments[0])
        if name == "Path" and arguments and isinstance(arguments[0], str):
            return arguments[0]
        if name in _SCALARS and len(arguments) == 1:
            (value,) = arguments
            if isinstance(value, Array):
                return replace(value, dtype=name)
            return getattr(np, name)(self._plain(node.args[0]))
        if name in ("array", "asarray", "ascontiguousarray") and isinstance(arguments[0], Array):
            return replace(arguments[0], dtype=self._dtype(node, 1) or arguments[0].dtype)
        if name in _FILLED:
            return self._filled(node, name, arguments, named)
        if name in _CALLED and not any(isinstance(given, Code | Array) for given in arguments):
            given = {key: self._plain(value) for key, value in named.items()}
            made = _CALLED[name](*arguments, **given)
            if isinstance(made, range) and len(made) > _MOST_STEPS:
                raise UnreadableError
            return list(made) if isinstance(made, range) else made
        raise UnreadableError

    def _method(self, node: ast.Call, name: str, holder: Any) -> Any:
        """What a method of a known value returns."""
        match holder, name:
            case FileText(), "read":
                return holder
            case str(), "read_text":
                return FileText(holder)
            case (dict(), "copy") | (list(), "copy"):
                return copy.copy(holder)
            case dict(), ("keys" | "values"):
                return list(getattr(holder, name)())
            case Array(), "astype":
                return replace(holder, dtype=self._dtype(node, 0) or holder.dtype)
            case Array(), "copy":
                return replace(holder, filled="copy", code=ast.unparse(node))
            case Array(), ("ravel" | "flatten"):
                return replace(holder, shape=(math.prod(holder.shape),))
            case Array(), "reshape":
                return replace(holder, shape=_shape(self._listed(node.args)))
            case np.generic(), "astype":
                return getattr(np, self._dtype(node, 0))(holder)
        raise UnreadableError

    def _filled(
        self, node: ast.Call, name: str, arguments: Elements, named: Mapping[str, ast.expr]
    ) -> Array:
        """What a function of numpy that fills an array returns."""
        code, filled = ast.unparse(node), _FILLED[name]
        if arguments and isinstance(arguments[0], Array):
            like = arguments[0]
            return Array(self._dtype(node, 1) or like.dtype, like.shape, filled, code)
        is_one_by_one = name in ("rand", "randn")
        if "size" in named or "shape" in named:
            shape = _shape([self._plain(named.get("size") or named["shape"])])
        elif name in ("randint", "integers", "normal", "uniform"):
            shape = _shape(arguments[2:3])
        else:
            shape = _shape(arguments if is_one_by_one else arguments[:1])
        place = {"zeros": 1, "empty": 1, "ones": 1, "standard_normal": 9}.get(name, 9)
        usual = "int64" if filled == "integers" else "float64"
        return Array(self._dtype(node, place) or usual, shape, filled, code)

    def _dtype(self, node: ast.Call, place: int) -> str:
        """The type that a call names, as the argument ``dtype`` or at a position; empty: none."""
        told = [keyword.value for keyword in node.keywords if keyword.arg == "dtype"]
        for value in told or node.args[place : place + 1]:
            word = value.value if isinstance(value, ast.Constant) else _last_name(value)
            usual = {"float": "float64", "int": "int64", "single": "float32", "double": "float64"}
            return str(np.dtype(usual.get(str(word), str(word))))
        return ""


class Elements(list[Any]):
    """A list or tuple, and what its elements are called where they are names."""

    def __init__(self, values: Sequence[Any] = ()) -> None:
        super().__init__(values)
        self.names: list[str] = [""] * len(values)


def _shape(given: Sequence[Any]) -> tuple[int, ...]:
    """A shape from its sizes, or from one sequence of them."""
    sizes = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return tuple(operator.index(int(size)) for size in sizes)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

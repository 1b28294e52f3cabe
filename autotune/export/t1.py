"""A declared kernel -> FAIR autotuning's T1: the description of a tuning problem, schema 1.0.0.

T1: github.com/odgaard/TuningSchema, as Kernel Tuner 1.5 ships it. It holds rules and launches as
Python expressions over parameters, so that functions of a space file are unfolded into one
expression each (`_Unfolding`), which is compared with the function before it is written.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.expression import ceil_div, maximum, minimum
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Constant, Fill, InOut, Kernel, Launch, Out, Rule
from autotune.measure.draw import Draw
from autotune.values import Problem

#: T1's name of the element types that it has one for.
_TYPES = {
    "bool": "bool",
    "float16": "half",
    "float32": "float",
    "float64": "double",
    **{name: name for name in ("int8", "uint8", "int16", "uint16")},
    **{name: name for name in ("int32", "uint32", "int64", "uint64")},
}
#: What an expression may call.
_CALLABLE: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "len": len}
#: Of a rule that no expression says: combinations that are asked about, and that are listed.
_MOST_ASKED, _MOST_LISTED = 1 << 20, 20_000
#: So many combinations, or configurations, an expression is compared with its function on.
_COMPARED = 4096
_MOST_LETTERS = 100_000
_PLAIN = re.compile(r"\w+ (<=|>=|==) \w+")


def render(kernel: Kernel, problem: Problem, device: Device) -> dict[str, str]:
    """The T1 description of a kernel on one problem and device: ``<kernel>-t1.json`` and its text.

    Valid configurations are exactly those of the declared space on that device. What T1 has no
    place for is left out: workspaces, launches after the first, references, seeds.

    Raises
    ------
    UsageError
        If a rule has no expression and is too large to be listed.
    """
    space = enumerate_space(kernel, device)
    default = kernel.default()
    document = {
        "General": {"FormatVersion": 1, "OutputFormat": "JSON", "BenchmarkName": kernel.name},
        "ConfigurationSpace": {
            "TuningParameters": [
                {
                    "Name": name,
                    "Type": {int: "int", float: "float", bool: "bool", str: "string"}[
                        type(values[0])
                    ],
                    "Values": repr(list(values)),
                    "Default": default[name],
                }
                for name, values in kernel.parameters.items()
            ],
            "Conditions": list(_conditions(kernel, device)),
        },
        "KernelSpecification": {
            "Device": {"Name": device.name},
            "Language": "CUDA" if device.backend == "cuda" else "OpenCL",
            "KernelName": kernel.name,
            "KernelFile": next(iter(kernel.sources.values())),
            "ProblemSize": [value for value in problem.values() if isinstance(value, int)],
            "Problem": dict(problem),
            "GlobalSizeType": "CUDA",
            **_sizes(kernel, problem, device, space),
            "Arguments": list(_arguments(kernel, problem)),
        },
    }
    return {f"{kernel.name}-t1.json": json.dumps(document, indent=1) + "\n"}


# ---------------------------------------------------------------------- rules


def _conditions(kernel: Kernel, device: Device) -> Iterator[dict[str, Any]]:
    governing = {
        name: [rule for rule in kernel.applies_rules if name in rule.governs]
        for name in kernel.parameters
    }
    first = {name: values[0] for name, values in kernel.parameters.items()}
    for rule in kernel.applies_rules:
        kept = " and ".join(f"{name} == {first[name]!r}" for name in rule.governs)
        names = tuple(dict.fromkeys((*rule.parameters, *rule.governs)))

        def applies_or_kept(values: Mapping[str, Any], rule: Rule = rule) -> bool:
            return _asked(rule, values, device) or all(
                values[name] == first[name] for name in rule.governs
            )

        text = _text(rule, device)
        yield from _condition(kernel, rule, names, applies_or_kept, text and f"({text}) or {kept}")
    for rule in kernel.constraint_rules:
        groups = [governing[name] for name in rule.parameters if governing[name]]
        deciding = [name for group in groups for other in group for name in other.parameters]
        names = tuple(dict.fromkeys((*rule.parameters, *deciding)))

        def holds_or_idle(
            values: Mapping[str, Any], rule: Rule = rule, groups: list[list[Rule]] = groups
        ) -> bool:
            used = [all(_asked(other, values, device) for other in group) for group in groups]
            return (bool(used) and not any(used)) or _asked(rule, values, device)

        text = _text(rule, device)
        if text and groups:
            used = [[_text(other, device) for other in group] for group in groups]
            joined = [" and ".join(f"({term})" for term in group) for group in used]
            applies = " or ".join(dict.fromkeys(joined))
            text = f"not ({applies}) or ({text})" if all(map(all, used)) else ""
        yield from _condition(kernel, rule, names, holds_or_idle, text)


def _condition(
    kernel: Kernel,
    rule: Rule,
    names: tuple[str, ...],
    holds: Callable[[Mapping[str, Any]], bool],
    text: str,
) -> Iterator[dict[str, Any]]:
    """The condition by its expression; as a list of combinations where it has none that is true to it."""
    axes = [kernel.parameters[name] for name in names]
    count = math.prod(map(len, axes))
    if text == "True" and _agrees(text, names, axes, count, holds):
        return
    if not text or not _agrees(text, names, axes, count, holds):
        if count > _MOST_ASKED:
            raise _inexpressible(kernel, rule)
        points = list(itertools.product(*axes))
        kept = [holds(dict(zip(names, point, strict=True))) for point in points]
        few = sum(kept) <= len(kept) / 2
        listed = [point for point, right in zip(points, kept, strict=True) if right == few]
        if not few and not listed:
            return
        if len(listed) > _MOST_LISTED:
            raise _inexpressible(kernel, rule)
        # A tuple of one has a comma of its own, which a list of its values does not need.
        left = f"({', '.join(names)})" if len(names) > 1 else names[0]
        right = repr([point if len(names) > 1 else point[0] for point in listed])
        text = f"{left} {'in' if few else 'not in'} {right}"
    if not (_PLAIN.fullmatch(text) or " or " in text or " and " in text):
        # Kernel Tuner takes other comparisons apart, and comparisons within calls wrongly.
        text = f"({text}) or False"
    yield {"Expression": text, "Parameters": list(names), "Name": rule.name, "Reason": rule.doc}


def _inexpressible(kernel: Kernel, rule: Rule) -> UsageError:
    return UsageError(
        f"{kernel.name}: rule {rule.name!r} over {', '.join(rule.parameters)} is no expression that "
        "T1 can hold, nor a short list; write it with arithmetic, comparisons, min and max alone, "
        "or split it"
    )


def _asked(rule: Rule, values: Mapping[str, Any], device: Device) -> bool:
    extra = {"device": device} if rule.uses_device else {}
    return bool(rule.function(**{name: values[name] for name in rule.parameters}, **extra))


def _agrees(
    text: str,
    names: Sequence[str],
    axes: Sequence[Sequence[Any]],
    count: int,
    holds: Callable[[Mapping[str, Any]], bool],
) -> bool:
    """Whether an expression says what a rule does, on all combinations or on many."""
    if count <= _COMPARED:
        points: Any = itertools.product(*axes)
    else:
        rng = random.Random(0)
        points = ([rng.choice(axis) for axis in axes] for _ in range(_COMPARED))
    for point in points:
        values = dict(zip(names, point, strict=True))
        try:
            if bool(_evaluated(text, values)) != holds(values):
                return False
        except Exception:  # whatever either meets where the other does not
            return False
    return True


def _evaluated(text: str, values: Mapping[str, Any]) -> Any:
    """The value of an expression of `_Unfolding`: the person's own code, in another form."""
    return eval(compile(text, "<T1>", "eval"), {"__builtins__": {}, **_CALLABLE}, dict(values))


# ---------------------------------------------------------------------- sizes and arguments


def _sizes(kernel: Kernel, problem: Problem, device: Device, space: Space) -> dict[str, Any]:
    """Blocks of the main launch, and threads of each, as expressions over parameters.

    Where the launch function has no such expression its name stands there: ``launch(c, p).grid[0]``.
    """
    numbers = np.random.default_rng(0).permutation(len(space))[: _COMPARED // 8]
    configurations = [space.configuration(int(number)) for number in numbers]
    launches = [
        launch_sequence(kernel, configuration, problem, device).main
        for configuration in configurations
    ]
    sizes: dict[str, Any] = {}
    for member, what in (("GlobalSize", "grid"), ("LocalSize", "block")):
        expected = [getattr(launch, what) for launch in launches]
        try:
            axes = _Unfolding(device, kernel.filled(problem)).axes(kernel.hook("launch"), what)
            found = [
                tuple(int(_evaluated(axis, configuration)) for axis in axes)
                for configuration in configurations
            ]
        except Exception:  # the sizes are then told by the function's name
            axes, found = (), []
        if found != expected:
            axes = tuple(f"launch(c, p).{what}[{axis}]" for axis in range(3))
        sizes[member] = dict(zip("XYZ", axes, strict=True))
    return sizes


def _arguments(kernel: Kernel, problem: Problem) -> Iterator[dict[str, Any]]:
    declared = kernel.call_hook("arguments", problem, Draw(exact=False, key=0))
    for name, value in declared.items():
        array = value.array if isinstance(value, InOut | Constant) else value
        is_output = isinstance(value, Out)
        if not is_output and np.ndim(array) == 0:
            scalar = array if isinstance(array, np.generic) else _passed(array)
            yield {
                "Name": name,
                "Type": _TYPES.get(scalar.dtype.name, "custom"),
                "MemoryType": "Scalar",
                "AccessType": "ReadOnly",
                "FillType": "Constant",
                "FillValue": scalar.item(),
            }
            continue
        dtype = np.dtype(value.dtype if is_output else array.dtype)
        shape = value.shape if is_output else array.shape
        access = "WriteOnly" if is_output else "ReadOnly"
        yield {
            "Name": name,
            "Type": _TYPES.get(dtype.name, "custom"),
            "TypeSize": dtype.itemsize,
            "Size": math.prod(shape if isinstance(shape, tuple) else (shape,)),
            "MemoryType": "Symbol" if isinstance(value, Constant) else "Vector",
            "AccessType": "ReadWrite" if isinstance(value, InOut) else access,
            "FillType": "Constant" if is_output else "Random",
            **({"FillValue": 0.0, "Output": 1} if is_output else {}),
        }


def _passed(number: Any) -> np.generic:
    """A Python number as kernels get it."""
    return np.float32(number) if isinstance(number, float) else np.int32(number)


# ---------------------------------------------------------------------- functions to expressions


class _Unfolded(Exception):
    """A function cannot be one expression."""


def _text(rule: Rule, device: Device) -> str:
    """A rule as an expression over its parameters; empty where it is none."""
    try:
        tree = _Unfolding(device).returned(rule.function, dict.fromkeys(rule.parameters))
        text = ast.unparse(ast.fix_missing_locations(tree))
    except (_Unfolded, RecursionError):
        return ""
    return text if len(text) <= _MOST_LETTERS else ""


class _Unfolding:
    """Functions of assignments, branches and returns as one expression over parameters.

    The device and the problem are known, so that what is asked of them is a number.
    """

    def __init__(self, device: Device, problem: Problem | None = None) -> None:
        self._device, self._problem, self._size = device, problem, ""

    def axes(self, launch: Callable[..., Any], what: str) -> tuple[str, ...]:
        """The three sizes of the main launch that a launch function returns, as text."""
        self._size = what
        tree = self.returned(launch, {"c": None, "p": None})
        parts = [_part(tree, axis) for axis in range(3)]
        return tuple(ast.unparse(ast.fix_missing_locations(part)) for part in parts)

    def returned(
        self, function: Callable[..., Any], given: Mapping[str, ast.expr | None]
    ) -> ast.expr:
        """What a function returns; a parameter that is given None stays a name."""
        if not isinstance(function, FunctionType):
            raise _Unfolded
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError, TypeError) as error:
            raise _Unfolded from error
        (definition,) = tree.body
        if not isinstance(definition, ast.FunctionDef):
            raise _Unfolded
        # A parameter that is given nothing stays its name.
        names = {name: ast.Name(name, ast.Load()) for name in given}
        known = {name: value or names[name] for name, value in given.items()}
        return self._body(definition.body, {**known}, function)

    def _body(
        self, body: Sequence[ast.stmt], known: dict[str, ast.expr | None], of: FunctionType
    ) -> ast.expr:
        for number, statement in enumerate(body):
            rest = body[number + 1 :]
            match statement:
                case ast.Expr(ast.Constant()):
                    continue
                case ast.Return(ast.expr() as value):
                    return self._expression(value, known, of)
                case ast.If(test, then, otherwise) if _returns(then):
                    return _chosen(
                        self._expression(test, known, of),
                        partial(self._body, then, known, of),
                        partial(self._body, [*otherwise, *rest], known, of),
                    )
                case _:
                    known = self._after(statement, known, of)
        raise _Unfolded

    def _after(
        self, statement: ast.stmt, known: dict[str, ast.expr | None], of: FunctionType
    ) -> dict[str, ast.expr | None]:
        """What names are after a statement that gives some a value."""
        match statement:
            case ast.Assign([ast.Name(name)], value):
                return {**known, name: self._assigned(value, known, of)}
            case ast.Assign([ast.Tuple(names)], value):
                parts: list[ast.expr | None] = [None] * len(names)
                if isinstance(value, ast.Tuple) and len(value.elts) == len(names):
                    parts = [self._assigned(part, known, of) for part in value.elts]
                texts = [name.id for name in names if isinstance(name, ast.Name)]
                return {**known, **dict(zip(texts, parts, strict=True))}
            case ast.If(test, then, otherwise):
                asked, branches = self._expression(test, known, of), []
                for branch in (then, otherwise):
                    names_then = known
                    for inner in branch:
                        names_then = self._after(inner, names_then, of)
                    branches.append(names_then)
                yes, no = branches
                return {
                    name: _chosen(asked, partial(_itself, one), partial(_itself, other))
                    if (one := yes.get(name)) and (other := no.get(name))
                    else None
                    for name in {**yes, **no}
                }
        raise _Unfolded

    def _assigned(
        self, value: ast.expr, known: Mapping[str, ast.expr | None], of: FunctionType
    ) -> ast.expr | None:
        """What a name is given; None where that is no expression, which matters only if it is used."""
        try:
            return self._expression(value, known, of)
        except _Unfolded:
            return None

    def _expression(
        self, node: ast.expr, known: Mapping[str, ast.expr | None], of: FunctionType
    ) -> ast.expr:
        def inner(part: ast.expr) -> ast.expr:
            return self._expression(part, known, of)

        match node:
            case ast.Constant():
                return node
            case ast.Name(name) if name in known:
                if (value := known[name]) is None:
                    raise _Unfolded
                return value
            case ast.Name(name):
                return self._name(node, of.__globals__.get(name, _ABSENT))
            case ast.Attribute(ast.Name("device"), name):
                return self._constant(getattr(self._device, name, _ABSENT))
            case ast.Attribute(ast.Name("p"), name) if self._problem is not None:
                return self._constant(self._problem.get(name, _ABSENT))
            case ast.Attribute(ast.Name("c"), name):
                return ast.Name(name, ast.Load())
            case ast.BoolOp(operator, values):
                return _joined(operator, list(map(inner, values)))
            case ast.BinOp(left, operator, right):
                return _folded(ast.BinOp(inner(left), operator, inner(right)))
            case ast.UnaryOp(operator, operand):
                return _folded(ast.UnaryOp(operator, inner(operand)))
            case ast.Compare(left, operators, values):
                return _folded(ast.Compare(inner(left), operators, list(map(inner, values))))
            case ast.IfExp(test, then, otherwise):
                return _chosen(inner(test), lambda: inner(then), lambda: inner(otherwise))
            case ast.Tuple(values) | ast.List(values):
                return ast.Tuple(list(map(inner, values)), ast.Load())
            case ast.Call(ast.Attribute(text, "startswith"), values, []):
                place = ast.Attribute(inner(text), "startswith", ast.Load())
                return ast.Call(place, list(map(inner, values)), [])
            case ast.Call(
                ast.Name("next" | "any" | "all" as name), [ast.GeneratorExp() as each], []
            ):
                return self._each(name, each, known, of)
            case ast.Call(ast.Name(name), values, keywords) if of.__globals__.get(name) is Launch:
                sizes = dict(zip(("grid", "block"), values, strict=False))
                sizes |= {word.arg: word.value for word in keywords if word.arg}
                # What has an entry is of another function than the kernel's: see `_part`.
                entry = [word for word in keywords if word.arg == "entry"]
                return ast.Call(ast.Name("Launch", ast.Load()), [inner(sizes[self._size])], entry)
            case ast.Call(ast.Name(name)) if of.__globals__.get(name) is Fill:
                return ast.Constant(None)
            case ast.Call(ast.Name(name), values, keywords):
                return self._call(name, list(map(inner, values)), keywords, inner, of)
        raise _Unfolded

    def _each(
        self,
        name: str,
        each: ast.GeneratorExp,
        known: Mapping[str, ast.expr | None],
        of: FunctionType,
    ) -> ast.expr:
        """``next``, ``any`` or ``all`` over values that stand there."""
        match each.generators:
            case [ast.comprehension(ast.Name(item), ast.Tuple(values), tests)]:
                pass
            case _:
                raise _Unfolded
        found, asked = [], []
        for value in values:
            here = {**known, item: self._expression(value, known, of)}
            found.append(self._expression(each.elt, here, of))
            conditions = [self._expression(test, here, of) for test in tests]
            asked.append(_joined(ast.And(), [ast.Constant(True), *conditions]))
        if name == "next":
            chosen = found[-1]  # Python would raise where its condition does not hold either
            for value, condition in reversed(list(zip(found[:-1], asked, strict=False))):
                chosen = _folded(ast.IfExp(condition, value, chosen))
            return chosen
        if tests:
            raise _Unfolded
        return _joined(ast.Or() if name == "any" else ast.And(), found)

    def _name(self, node: ast.Name, value: Any) -> ast.expr:
        if value is _ABSENT or callable(value):
            return node
        return self._constant(value)

    def _constant(self, value: Any) -> ast.expr:
        if isinstance(value, bool | int | float | str):
            return ast.Constant(value)
        raise _Unfolded

    def _call(
        self,
        name: str,
        values: list[ast.expr],
        keywords: Sequence[ast.keyword],
        inner: Callable[[ast.expr], ast.expr],
        of: FunctionType,
    ) -> ast.expr:
        called = of.__globals__.get(name, _CALLABLE.get(name))
        named = [ast.keyword(keyword.arg, inner(keyword.value)) for keyword in keywords]
        if called is ceil_div and len(values) == 2:
            above = ast.BinOp(ast.UnaryOp(ast.USub(), values[0]), ast.FloorDiv(), values[1])
            return ast.UnaryOp(ast.USub(), above)
        if called in (minimum, maximum):
            name = "min" if called is minimum else "max"
        elif called not in _CALLABLE.values():
            if not isinstance(called, FunctionType):
                raise _Unfolded
            taken = inspect.signature(called).parameters
            given: dict[str, ast.expr | None] = {
                name: self._constant(parameter.default)
                for name, parameter in taken.items()
                if parameter.default is not parameter.empty
            }
            given |= dict(zip(taken, values, strict=False))
            given |= {keyword.arg: keyword.value for keyword in named if keyword.arg}
            return self.returned(called, given)
        if named:
            raise _Unfolded
        return ast.Call(ast.Name(name, ast.Load()), values, [])


_ABSENT = object()


def _itself(tree: ast.expr) -> ast.expr:
    return tree


def _folded(tree: ast.expr) -> ast.expr:
    """The value of an expression over numbers and texts alone; another as it is."""
    if any(
        not isinstance(part, ast.Constant)
        for part in ast.iter_child_nodes(tree)
        if isinstance(part, ast.expr)
    ):
        return tree
    try:
        value = _evaluated(ast.unparse(ast.fix_missing_locations(tree)), {})
    except Exception:  # 1 // 0, say, which nobody need get to
        return tree
    return ast.Constant(value) if isinstance(value, bool | int | float | str) else tree


def _chosen(
    test: ast.expr, then: Callable[[], ast.expr], otherwise: Callable[[], ast.expr]
) -> ast.expr:
    """One of two expressions; where it is known which, that alone."""
    if isinstance(test, ast.Constant):
        return then() if test.value else otherwise()
    yes, no = then(), otherwise()
    return yes if ast.dump(yes) == ast.dump(no) else ast.IfExp(test, yes, no)


def _joined(operator: ast.boolop, values: Sequence[ast.expr]) -> ast.expr:
    """``and`` or ``or`` of truth values, less those that are known."""
    decides = isinstance(operator, ast.Or)
    constants = [value for value in values if isinstance(value, ast.Constant)]
    if any(not isinstance(value.value, bool) for value in constants):
        return ast.BoolOp(operator, list(values))  # which is a value itself, as in `x or 255`
    known = [value.value for value in constants]
    rest = [value for value in values if not isinstance(value, ast.Constant)]
    if decides in known or not rest:
        return ast.Constant(decides if decides in known else not decides)
    return rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)


def _returns(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Return) for part in body for node in ast.walk(part))


def _part(tree: ast.expr, axis: int) -> ast.expr:
    """One extent of the main launch in what a launch function returns."""
    match tree:
        case ast.IfExp(test, then, otherwise):
            return _chosen(test, partial(_part, then, axis), partial(_part, otherwise, axis))
        case ast.Call(ast.Name("Launch"), [size]):
            return _extent(size, axis)
        case ast.Tuple(steps):
            launches = [step for step in steps if not isinstance(step, ast.Constant)]  # no fills
            own = [step for step in launches if not getattr(step, "keywords", [])]
            if launches:
                return _part((own or launches)[0], axis)
    raise _Unfolded


def _extent(size: ast.expr, axis: int) -> ast.expr:
    """One of the up to three extents of a grid or block, or of either of two."""
    match size:
        case ast.IfExp(test, then, otherwise):
            return _chosen(test, partial(_extent, then, axis), partial(_extent, otherwise, axis))
        case ast.Tuple(sizes):
            return sizes[axis] if axis < len(sizes) else ast.Constant(1)
    return ast.Constant(1) if axis else size

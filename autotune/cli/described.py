"""Writes the space file of a kernel that a T1 file describes: something to complete, for a person.

T1 holds Python expressions. None of them is run: values and sizes are worked out here from what an
expression may be, and rules are written into the space file only where they are no more than
arithmetic and comparisons over parameters. The text is in ``described.py.j2``.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from autotune.errors import RecordError, UsageError
from autotune.kernel.names import fault

#: What a rule may consist of.
_ALLOWED = (
    *(ast.Expression, ast.Load, ast.Constant, ast.Name, ast.Tuple, ast.List, ast.IfExp),
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.boolop, ast.unaryop, ast.operator),
    *(ast.cmpop, ast.Call, ast.Attribute),
)
_CALLABLE = ("min", "max", "abs", "len", "int", "round")
_MOST_VALUES = 100_000
#: What a space file may need of the package.
_IMPORTED = ("Constant", "InOut", "Kernel", "Launch", "Out", "Problem", "ceil_div")
_NUMPY = {"half": "float16", "float": "float32", "double": "float64", "bool": "bool_"}
_MACROS = ("block_size_x", "block_size_y", "block_size_z")


def write_space(file: Path, name: str, into: Path) -> Path:
    """Write ``spaces/NAME.py`` under a folder; by default it is called as the kernel is.

    Raises
    ------
    RecordError
        If the file is no T1 description, or says what no space file can.
    UsageError
        If the space file is there already.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        fields = _fields(_object(document, ""), name)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"{file}: no T1 description, or damaged: {error}") from None
    place = into / "spaces" / f"{fields['name']}.py"
    if place.exists():
        raise UsageError(f"{place} is there already; remove it, or use another --kernel NAME")
    place.parent.mkdir(parents=True, exist_ok=True)
    named = re.sub(r"[^\w.+-]", "_", file.name)
    about = f"as {named} describes it; what is right has still to be said, in `reference`."
    place.write_text(filled({**fields, "about": about}), encoding="utf-8")
    return place


def filled(fields: Mapping[str, Any]) -> str:
    """The text of a space file."""
    text = Path(__file__).with_name("described.py.j2").read_text(encoding="utf-8")
    template = jinja2.Template(text, keep_trailing_newline=True, trim_blocks=True)
    made: str = template.render(fields)
    used = [name for name in _IMPORTED if re.search(rf"\b{name}\(", made)]
    imports = f"from autotune import {', '.join(used)}"
    if re.search(r"\bnp\.", made):
        imports = f"import numpy as np\n\n{imports}"
    return made.replace("IMPORTS", imports, 1)


def _fields(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the template asks for; ValueError where something cannot be said."""
    about = _object(document, "KernelSpecification")
    space = _object(document, "ConfigurationSpace")
    if not (listed := _some(space, "TuningParameters")):
        raise ValueError("TuningParameters: a list expected that is not empty")
    names = [_text(parameter, "Name") for parameter in listed]
    parameters = {
        parameter: _values(parameter, _text(p, "Values"))
        for parameter, p in zip(names, listed, strict=True)
    }
    if len(set(names)) < len(names):
        raise ValueError("two parameters have one name")
    for parameter in names:
        if wrong := fault("parameter", parameter):
            raise ValueError(wrong)
    kernel = name or _text(about, "KernelName")
    if wrong := fault("kernel name", kernel):
        raise ValueError(f"{wrong}; name it with --kernel")
    sizes = about.get("ProblemSize", [])
    sizes = [sizes] if isinstance(sizes, int) else sizes
    if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
        raise ValueError("ProblemSize: a list of integers expected")
    grid, block = _launch(about, parameters, sizes)
    arguments = [
        _argument(argument, number, parameters, sizes)
        for number, argument in enumerate(_some(about, "Arguments"))
    ]
    options = [text for text in _some(about, "CompilerOptions") if not str(text).startswith("-std")]
    outputs = [argument["name"] for argument in arguments if argument["is_output"]]
    missing = f"T1 does not say what is right: compute {', '.join(outputs) or 'the outputs'} here"
    source = Path(_text(about, "KernelFile")).name
    has_words = any(
        parameter != parameter.upper() and isinstance(values[0], str)
        for parameter, values in parameters.items()
    )
    if not re.fullmatch(r"[\w.+-]+", source):
        raise ValueError(f"KernelFile: {source!r} is no name of a file")
    return {
        "name": kernel,
        "entry": json.dumps(_text(about, "KernelName")),
        "source": source,
        "backend": "opencl" if about.get("Language") == "OpenCL" else "cuda",
        "problem": _problem(about, sizes),
        "parameters": {parameter: tuple(values) for parameter, values in parameters.items()},
        "default": _default(listed, parameters),
        # Words of ours are told apart by number; others put them into the source as they are.
        "defines": "dict(c)" * has_words,
        "options": list(map(str, options)),
        "rules": [
            _rule(rule, number, parameters)
            for number, rule in enumerate(_some(space, "Conditions"), 1)
        ],
        "grid": grid,
        "block": block,
        "arguments": arguments,
        "inputs": [argument["name"] for argument in arguments if argument["is_input"]],
        "reference": f"raise NotImplementedError({missing!r})",
    }


def _problem(about: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """The problem's fields: as autotune named them, else ``x``, ``y`` and ``z``."""
    named = about.get("Problem")
    if isinstance(named, dict) and named:
        for field, value in named.items():
            if wrong := fault("problem field", field):
                raise ValueError(wrong)
            if type(value) not in (int, str):
                raise ValueError(f"Problem: {field}={value!r} is neither an integer nor a text")
        return named
    return dict(zip("xyz", sizes or [1], strict=False))


def _default(listed: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that are among the values."""
    return {
        parameter["Name"]: parameter["Default"]
        for parameter in listed
        if isinstance(parameter.get("Default"), int | float | str)
        and parameter["Default"] in parameters[parameter["Name"]]
    }


# ---------------------------------------------------------------------- expressions


def _values(name: str, text: str) -> list[Any]:
    """The values of a parameter: a list that stands there, or of a range."""
    node = _parsed(text, f"{name}: Values")
    if isinstance(node, ast.Call) and _called(node) == "list" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Call) and _called(node) == "range":
        bounds = range(*(_number(bound, {}, []) for bound in node.args))
        values: Any = list(bounds) if len(bounds) <= _MOST_VALUES else None
    else:
        try:
            values = ast.literal_eval(node)
        except ValueError:
            values = None
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(
            f"{name}: Values: {text[:80]!r} is neither a list of values nor of a range"
        )
    for value in values:
        is_word = isinstance(value, str) and re.fullmatch(r"\w+", value, re.ASCII)
        if not (is_word or (isinstance(value, int | float) and math.isfinite(value))):
            raise ValueError(f"{name}: {value!r} is no number, boolean or plain word")
    return list(dict.fromkeys(values))


def _number(node: ast.expr, parameters: Mapping[str, Sequence[Any]], sizes: Sequence[int]) -> int:
    """The value of an expression over the problem's sizes and over the values of parameters."""
    match node:
        case ast.Constant(int() as value):
            return value
        case ast.BinOp(left, operator, right):
            a, b = _number(left, parameters, sizes), _number(right, parameters, sizes)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div() | ast.FloorDiv() if b:
                    return a // b
        case ast.Subscript(ast.Name("ProblemSize"), ast.Constant(int() as place)) if sizes[place:]:
            return sizes[place]
        case ast.Call(ast.Name("max" | "min" as name), [ast.Name(parameter)]):
            if parameter in parameters:
                return int((max if name == "max" else min)(parameters[parameter]))
    raise ValueError(f"{ast.unparse(node)[:80]!r} is no size that can be worked out")


def _rule(rule: Any, number: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A constraint: the name of its function, its parameters, its reason and its expression."""
    text = _text(rule, "Expression")
    if bare := re.fullmatch(r"\(([^()]|\([^()]*\))*\) or False", text):  # as autotune writes it
        text = bare[0].removesuffix(" or False")
    expression, used = over_parameters(text, parameters, "Conditions")
    called = str(rule.get("Name", ""))
    reason = " ".join(str(rule.get("Reason") or text).split())
    return {
        "name": called if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", called) else f"condition_{number}",
        "parameters": used,
        "reason": repr(reason[:200]),
        "expression": expression,
    }


def over_parameters(
    text: str, parameters: Mapping[str, Any], what: str, holder: str = ""
) -> tuple[str, list[str]]:
    """An expression in names of the space file, and those; ValueError where it is anything else."""
    tree = _parsed(text, what)
    used: list[str] = []
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        allowed = isinstance(node, _ALLOWED)
        if isinstance(node, ast.Call):
            is_text = isinstance(node.func, ast.Attribute) and node.func.attr == "startswith"
            allowed = not node.keywords and (is_text or _called(node) in _CALLABLE)
        elif isinstance(node, ast.Attribute):
            allowed = node in called
        elif isinstance(node, ast.Name) and node not in called:
            allowed = node.id in parameters
            if allowed:
                used.append(node.id)
                node.id = holder + node.id
        if not allowed:
            raise ValueError(
                f"{what}: {text[:80]!r} holds {ast.unparse(node)[:40]!r}, which is no arithmetic or "
                "comparison over parameters"
            )
    return ast.unparse(tree), list(dict.fromkeys(used))


def _parsed(text: str, what: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{what}: {text[:80]!r} is no expression ({error})") from None


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


# ---------------------------------------------------------------------- launch and arguments


def _launch(
    about: Mapping[str, Any], parameters: Mapping[str, Any], sizes: Sequence[int]
) -> tuple[list[str], list[str]]:
    """Blocks and threads in x, y, z, as expressions over ``c`` and ``p``."""
    local, whole = _object(about, "LocalSize"), _object(about, "GlobalSize")
    block = [_axis(local.get(axis, "1"), parameters, axis) for axis in "XYZ"]
    if any(f"GridDiv{axis}" in about for axis in "XYZ"):  # as Kernel Tuner divides the problem
        grid = []
        for axis, field, usual in zip("XYZ", "xyz", _MACROS, strict=True):
            divisors = _some(about, f"GridDiv{axis}")
            if f"GridDiv{axis}" not in about and usual in parameters:
                divisors = [usual]
            product = " * ".join(f"({_axis(divisor, parameters, axis)})" for divisor in divisors)
            size = f"p.{field}" if field in "xyz"[: len(sizes)] else "1"
            grid.append(f"ceil_div({size}, {product})" if product and size != "1" else size)
        return grid, block
    grid = [_axis(whole.get(axis, "1"), parameters, axis) for axis in "XYZ"]
    if about.get("GlobalSizeType") == "OpenCL":  # which counts threads, not blocks
        grid = [f"ceil_div({size}, {threads})" for size, threads in zip(grid, block, strict=True)]
    return grid, block


def _axis(text: Any, parameters: Mapping[str, Any], axis: str) -> str:
    """An extent; a macro of Kernel Tuner that is no parameter is 1."""
    if text in _MACROS and text not in parameters:
        return "1"
    expression, _ = over_parameters(str(text), parameters, f"a size in {axis}", "c.")
    return expression


def _argument(
    argument: Any, number: int, parameters: Mapping[str, Any], sizes: Sequence[int]
) -> dict[str, Any]:
    """One argument of the kernel: its name, and what makes it."""
    name = _text(argument, "Name") if "Name" in _object(argument, "") else f"argument_{number}"
    if wrong := fault("argument", name):
        raise ValueError(wrong)
    typed = re.fullmatch(
        r"(half|float|double|bool|u?int(?:8|16|32|64))(2|4|8|16)?", _text(argument, "Type")
    )
    if not typed:
        raise ValueError(f"argument {name}: type {argument['Type']!r} has no numpy type")
    dtype, width = _NUMPY.get(typed[1], typed[1]), int(typed[2] or 1)
    fill = argument.get("FillValue", 0)
    if not isinstance(fill, int | float) or not math.isfinite(fill):
        raise ValueError(f"argument {name}: FillValue {fill!r} is no number")
    kind = argument.get("MemoryType")
    if kind == "Scalar":
        return {"name": name, "made": f"np.{dtype}({fill!r})", "is_input": True, "is_output": False}
    if kind not in ("Vector", "Symbol"):
        raise ValueError(f"argument {name}: MemoryType {kind!r} is not known here")
    size = argument.get("Size")
    count = (
        size
        if type(size) is int
        else _number(_parsed(str(size), f"argument {name}"), parameters, sizes)
    )
    count *= width
    access = argument.get("AccessType", "ReadOnly")
    is_output = access == "WriteOnly" or (access != "ReadWrite" and argument.get("Output") == 1)
    if is_output:
        return {
            "name": name,
            "made": f'Out({count}, "{dtype}")',
            "is_input": False,
            "is_output": True,
        }
    if argument.get("FillType") == "Constant":
        made = f"np.full({count}, {fill!r}, np.{dtype})"
    elif dtype.startswith("float"):
        made = f"rng.standard_normal({count}).astype(np.{dtype})"
    else:
        made = f"rng.integers(0, 2, {count}).astype(np.{dtype})"
    if kind == "Symbol" or argument.get("MemType") == "Constant":
        return {"name": name, "made": f"Constant({made})", "is_input": True, "is_output": False}
    if access == "ReadWrite":
        return {"name": name, "made": f"InOut({made})", "is_input": True, "is_output": True}
    return {"name": name, "made": made, "is_input": True, "is_output": False}


# ---------------------------------------------------------------------- documents


def _object(holder: Any, name: str) -> Mapping[str, Any]:
    found = holder.get(name) if name and isinstance(holder, dict) else holder
    if not isinstance(found, dict):
        raise ValueError(f"{name or 'the file'}: an object expected")
    return found


def _some(holder: Mapping[str, Any], name: str) -> list[Any]:
    found = holder.get(name) or []
    if not isinstance(found, list):
        raise ValueError(f"{name}: a list expected")
    return found


def _text(holder: Any, name: str) -> str:
    found = _object(holder, "").get(name)
    if not isinstance(found, str):
        raise ValueError(f"{name}: a text expected")
    return found

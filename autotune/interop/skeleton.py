"""Writes a space file for an existing kernel, from the signature in its source.

The source stays where it is. Names, types, macros, template parameters and launch bounds are read from a CUDA
source, and the arguments of a ``@triton.jit`` function from Python. The rest is a guess, and a TODO says so.
"""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.element_types import ENCODED_TYPES
from autotune.errors import UsageError
from autotune.interop.ported import refuse_unreadable, space_text, write_new
from autotune.kernel.names import fault, field_name
from autotune.syntax import parsed

#: NumPy's type of each C++ type of an argument, without ``const`` and ``std::``.
_TYPES = {
    **{"float": "float32", "double": "float64", "half": "float16", "__half": "float16"},
    **{"bool": "bool", "char": "int8", "signed char": "int8", "unsigned char": "uint8"},
    **{"short": "int16", "unsigned short": "uint16", "int": "int32", "long": "int64"},
    **{"unsigned": "uint32", "unsigned int": "uint32", "long long": "int64", "size_t": "uint64"},
    **{"long long int": "int64", "unsigned long": "uint64", "unsigned long long": "uint64"},
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "nv_bfloat16": "bfloat16",
    **{element.cuda: name for name, element in ENCODED_TYPES.items() if element.bits >= 8},
}
#: Values of a parameter that is a number of threads, and of any other template or constexpr parameter.
_THREADS, _COUNTS = (64, 128, 256, 512), (1, 2, 4)
#: Values of a template parameter that is the number of threads along one of several axes.
_SIDES = (8, 16, 32)
#: Size of the only problem field, and of each of several.
_ONE_SIZE, _SIZE = 1 << 20, 1024
#: Arguments of `triton.jit` functions that Triton sets from a configuration.
_TRITON_OPTIONS = {"num_warps": (2, 4, 8), "num_stages": (2, 3, 4)}


@dataclass(frozen=True)
class _FunctionArgument:
    """An argument of a kernel: its NumPy type is empty if the type is unknown."""

    name: str
    dtype: str
    is_array: bool
    is_const: bool = False


@dataclass(frozen=True)
class _Function:
    """A kernel of a source: its qualified name, template parameters, launch bounds and arguments."""

    name: str
    #: Kind (``int``, ``typename``) and name of each template parameter.
    template: tuple[tuple[str, str], ...]
    bounds: str
    arguments: tuple[_FunctionArgument, ...]


def write_space_of(source: str, name: str, into: Path) -> tuple[list[Path], list[str]]:
    """Write ``spaces/NAME.py`` for each kernel of ``FILE.cu``, or for ``FILE.py:FUNCTION``.

    Returns
    -------
    tuple of list of Path and list of str
        The written files, and a line for each TODO.

    Raises
    ------
    UsageError
        If the file has no kernel, or a space file exists.
    """
    file, _, function = source.partition(":")
    refuse_unreadable(Path(file))
    text = Path(file).read_text(encoding="utf-8", errors="replace")
    if function:
        described = [_triton_fields(_python_function(text, function, file))]
    else:
        described = [_cuda_fields(text, found) for found in _functions(text)]
    if not described:
        raise UsageError(f"{file}: no __global__ function; give a .cu file with a kernel")
    if name and len(described) > 1:
        raise UsageError(f"{file} has {len(described)} kernels: leave NAME out")
    texts: dict[Path, str] = {}
    relative = os.path.relpath(Path(file).resolve(), (into / "kernels").resolve())
    for fields in described:
        own = name or fields["function"]
        if wrong := fault("kernel name", own):
            raise UsageError(f"{wrong}; give autotune new a NAME")
        place = into / "spaces" / f"{own}.py"
        if place in texts:
            raise UsageError(f"{file} has two kernels {own}; rename one")
        about = f"written from the signature in {Path(file).name}"
        at = f"{relative}:{function}" if function else relative
        if not function and own != fields["function"] and not fields["entry"]:
            fields["entry"] = repr(fields["function"])
        texts[place] = space_text(fields | {"name": own, "source": at, "about": about})
    write_new(texts)
    return list(texts), [
        f"{fields['function']}: {t}" for fields in described for t in fields["todos"]
    ]


# ---------------------------------------------------------------------- CUDA


def _functions(text: str) -> Iterator[_Function]:
    """Yield the ``__global__`` functions of a CUDA source."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", " ", text, flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    spaces: list[str] = []
    token = re.compile(r"\bnamespace(?:\s+([\w:]+))?\s*\{|[{}]|\b__global__\b")
    for found in token.finditer(text):
        if found[0] == "}":
            del spaces[-1:]
        elif found[0] != "__global__":
            spaces.append(found[1] or "")
        elif function := _function(text, found.end(), [s for s in spaces if s]):
            yield function


def _function(text: str, begin: int, spaces: Sequence[str]) -> _Function | None:
    """Return the function whose ``__global__`` ends at a place; None if no body or name follows."""
    bounds = ""
    while word := re.compile(r"\s*(\w+)\s*(\()?").match(text, begin):
        begin = word.end()
        if not word[2]:
            continue
        inside = _bracketed(text, begin - 1)
        begin += len(inside) + 1
        if word[1] == "__launch_bounds__":
            bounds = _split(inside)[0]
        elif not word[1].startswith("__"):
            if not re.compile(r"\s*\{").match(text, begin):
                return None  # a declaration
            head = re.split(r"[;{}]", text[: word.start()].rpartition("__global__")[0])[-1]
            arguments = tuple(_argument(part) for part in _split(inside))
            return _Function("::".join([*spaces, word[1]]), _template(head), bounds, arguments)
    return None


def _template(head: str) -> tuple[tuple[str, str], ...]:
    found = re.search(r"\btemplate\s*<(.*)>", head, re.DOTALL)
    parts = [part.partition("=")[0].split() for part in _split(found[1])] if found else []
    return tuple((" ".join(words[:-1]), words[-1]) for words in parts if len(words) > 1)


def _bracketed(text: str, begin: int) -> str:
    """Return what is between the bracket at a place and the one that closes it."""
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return text[begin + 1 : place]
    return text[begin + 1 :]


def _split(text: str) -> list[str]:
    """Return the parts of a list between commas that are outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _argument(text: str) -> _FunctionArgument:
    words = re.findall(r"[\w:]+|[*&\[]", text.partition("=")[0])
    is_array = "*" in words or "[" in words
    names = [word for word in words if re.match(r"[A-Za-z_]", word)]
    plain = [word.removeprefix("std::") for word in names[:-1]]
    skipped = ("const", "volatile", "__restrict__", "__restrict", "__grid_constant__", "struct")
    kind = " ".join(word for word in plain if word not in skipped)
    star = words.index("*") if "*" in words else len(words)
    name = names[-1] if len(names) > 1 else ""
    return _FunctionArgument(name, _TYPES.get(kind, kind), is_array, "const" in words[:star])


def _cuda_fields(text: str, function: _Function) -> dict[str, Any]:
    """Return the fields of the template for a kernel of a CUDA source."""
    todos: list[str] = []
    parameters = _macros(text)
    chosen = dict[str, str]()
    for kind, name in function.template:
        if kind in ("typename", "class"):
            chosen[name] = "float"
            todos.append(f"the entry has float for {name}: write the type that you use")
            continue
        own = name.upper() if name.upper() != name else f"{name}_VALUE"
        looks = re.search("block|thread", name, re.IGNORECASE)
        parameters[own] = (0, 1) if kind == "bool" else _THREADS if looks else _COUNTS
        chosen[name] = f"{{c.{own}}}"
    words = {name: text.removeprefix("{").removesuffix("}") for name, text in chosen.items()}
    words |= {name: f"c.{name}" for name in _macros(text)}
    axes = [_over(factor, words) for factor in function.bounds.split("*")]
    if not all(axes) or len(axes) > 3:
        axes = [_over(function.bounds, words)]
    tiles = axes
    if not axes[0]:
        indexed = _indexed(text, words)
        if not indexed:
            named = [name for name in parameters if re.search("BLOCK|THREADS", name, re.IGNORECASE)]
            name = [*named, "BLOCK_THREADS"][0]
            parameters.setdefault(name, _THREADS)
            indexed = [(f"c.{name}", f"c.{name}")]
        axes, tiles = [threads for threads, _ in indexed], [tile for _, tile in indexed]
        threads = " x ".join(axes)
        todos.append(f"block: {threads} threads is a guess; no __launch_bounds__ says how many")
    for name in (axis.removeprefix("c.") for axis in axes):
        if parameters.get(name) == _COUNTS:
            parameters[name] = _THREADS if len(axes) == 1 else _SIDES
    for name in dict.fromkeys(re.findall(r"#\s*define\s+(\w+)\s+\d+\s*$", text, re.MULTILINE)):
        if name not in parameters and name.isupper():
            todos.append(f"#define {name} of the source is fixed: put it in #ifndef to tune it")
    arguments = [
        replace(argument, dtype="float32") if argument.dtype in chosen else argument
        for argument in function.arguments
    ]
    entry = function.name + (f"<{', '.join(chosen.values())}>" if function.template else "")
    quoted = f"f{entry!r}" if "{" in entry else repr(entry)
    fields = _common(arguments, parameters, todos)
    sizes = [*(f"p.{name}" for name in fields["problem"]), "1", "1"]
    grid = [f"ceil_div({size}, {tile})" for size, tile in zip(sizes, tiles, strict=False)]
    return fields | {
        "function": function.name.rpartition("::")[2],
        "backends": ["cuda"],
        "grid": grid,
        "block": axes,
        "entry": quoted if "::" in entry or "<" in entry else "",
    }


def _macros(text: str) -> dict[str, tuple[int, ...]]:
    """Return the integer macros that a source defines in ``#ifndef``, with values around the default."""
    found = dict[str, tuple[int, ...]]()
    for block in re.findall(r"#\s*ifndef\s+\w+\s*\n(.*?)#\s*endif", text, re.DOTALL):
        for name, number in re.findall(r"#\s*define\s+(\w+)\s+(\d+)\b", block):
            value = int(number)
            is_power = value > 1 and math.log2(value).is_integer()
            if not fault("parameter", name):
                found[name] = (value // 2, value, 2 * value) if is_power else (value,)
                found[name] = (0, 1) if value == 0 else found[name]
    return found


def _indexed(text: str, words: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the threads and the elements of a block along each axis, by the indices of a source.

    ``blockIdx.x * BX * ITEMS + threadIdx.x`` has BX threads for BX * ITEMS elements. With ``blockDim.x`` a name such
    as BX or BLOCK_SIZE_X counts.
    """
    found: list[tuple[str, str]] = []
    for axis in "xyz":
        index = re.search(
            rf"\bblockIdx\.{axis}\s*\*\s*\(?([\w\s*.]+?)\)?\s*\+\s*threadIdx\.{axis}\b", text
        )
        tile = _over(index[1], words) if index else ""
        side = re.compile(rf"B(LOCK|DIM)?_?(SIZE|DIM)?_?{axis}", re.IGNORECASE)
        named = [words[name] for name in words if side.fullmatch(name)] if index else []
        if not tile and not named:
            break
        tile = tile or named[0]
        found.append((tile.partition("*")[0].strip(), tile))
    return found


def _over(text: str, names: Mapping[str, str]) -> str:
    """Return an expression of numbers and parameters with the names of a space file; else an empty text."""
    known = re.fullmatch(r"[\w\s+*/()-]+", text)
    if not known or any(word not in names for word in re.findall(r"\b[A-Za-z_]\w*", text)):
        return ""
    return re.sub(r"\b[A-Za-z_]\w*", lambda word: names[word[0]], text).replace("/", "//").strip()


# ---------------------------------------------------------------------- Triton


def _python_function(text: str, name: str, file: str) -> ast.FunctionDef:
    """Return a function of a Python file; `UsageError` if the file has none of that name."""
    try:
        tree = parsed(lambda: ast.parse(text))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not Python: {error}") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise UsageError(f"{file}: no function {name}; give FILE.py:FUNCTION of a @triton.jit function")


def _triton_fields(node: ast.FunctionDef) -> dict[str, Any]:
    """Return the fields of the template for a ``@triton.jit`` function."""
    todos: list[str] = []
    parameters: dict[str, tuple[int, ...]] = {}
    arguments: list[_FunctionArgument] = []
    stored = {
        word.id
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("tl.store", "tl.atomic_add")
        for word in ast.walk(call.args[0] if call.args else call)
        if isinstance(word, ast.Name)
    }
    for argument in node.args.args:
        kind = ast.unparse(argument.annotation) if argument.annotation else ""
        if kind.rpartition(".")[2] == "constexpr":
            is_block = "BLOCK" in argument.arg.upper()
            parameters[argument.arg] = _THREADS if is_block else _COUNTS
            continue
        is_array = bool(re.search(r"ptr|_p$", argument.arg, re.IGNORECASE)) or (
            argument.arg in stored or _is_loaded(node, argument.arg)
        )
        dtype = "float32" if is_array else "int32"
        arguments.append(
            _FunctionArgument(argument.arg, dtype, is_array, argument.arg not in stored)
        )
    parameters |= _TRITON_OPTIONS
    todos.append(
        "arrays are float32, and other arguments int32: a signature in Python has no types"
    )
    fields = _common(arguments, parameters, todos)
    block = next((name for name in parameters if "BLOCK" in name.upper()), "")
    size = f"p.{next(iter(fields['problem']))}"
    return fields | {
        "function": node.name,
        "language": "triton",
        "grid": [f"ceil_div({size}, c.{block})" if block else size],
    }


def _is_loaded(node: ast.FunctionDef, name: str) -> bool:
    """Return whether a function loads from the address of an argument."""
    return any(
        isinstance(word, ast.Name) and word.id == name
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "tl.load" and call.args
        for word in ast.walk(call.args[0])
    )


# ---------------------------------------------------------------------- both


def _common(
    arguments: Sequence[_FunctionArgument],
    parameters: Mapping[str, tuple[int, ...]],
    todos: list[str],
) -> dict[str, Any]:
    """Return the fields that both languages have; append the guesses to `todos`."""
    names: list[str] = []
    for number, argument in enumerate(arguments):
        is_usable = not fault("argument", argument.name) and argument.name not in names
        plain = f"{argument.name}_{'array' if argument.is_array else 'value'}"
        other = f"argument_{number}" if fault("argument", plain) else plain
        names.append(argument.name if is_usable else other)
    sizes = {
        name: field_name(name)
        for name, argument in zip(names, arguments, strict=True)
        if not argument.is_array and argument.dtype.lstrip("u").startswith("int")
        if not fault("problem field", field_name(name))
    }
    fields = list(dict.fromkeys(sizes.values()))
    problem = dict.fromkeys(fields, _SIZE) if len(fields) > 1 else {(fields or ["n"])[0]: _ONE_SIZE}
    shape = " * ".join(f"p.{field}" for field in list(problem)[:2])
    made = {
        name: _made(argument, name, shape, sizes, todos)
        for name, argument in zip(names, arguments, strict=True)
    }
    arrays = [name for name, argument in zip(names, arguments, strict=True) if argument.is_array]
    outputs = [name for name, text in made.items() if text.startswith("Out(")]
    guesses = ["problem sizes", "values of parameters", "grid"]
    guesses += [f"{shape} elements of {', '.join(arrays)}"] if arrays else []
    todos.append(f"guesses, check each: {'; '.join(guesses)}")
    if not outputs:
        todos.append("which argument is the output? make it Out(shape) in arguments")
    elif len(outputs) == len(arrays):
        todos.append(f"no array is const: draw those of {', '.join(outputs)} that are inputs")
    else:
        todos.append(f"{', '.join(outputs)}: write InOut(array) if the kernel also reads it")
    todos.append(f"reference: compute {', '.join(outputs) or 'the output'} with numpy")
    return {
        "problem": problem,
        "parameters": {name: repr(values) for name, values in parameters.items()},
        "arguments": made,
        "inputs": [name for name in made if name not in outputs],
        "outputs": outputs,
        "todos": todos,
    }


def _made(
    argument: _FunctionArgument, name: str, shape: str, sizes: Mapping[str, str], todos: list[str]
) -> str:
    """Return the expression of an argument in the space file; `sizes` are problem fields by argument."""
    dtype = argument.dtype
    is_known = dtype in _TYPES.values() and (dtype not in ENCODED_TYPES or argument.is_array)
    if not is_known:
        todos.append(f"{name}: no array or number of type {dtype or '?'} is known; make it here")
        return "..."
    if argument.is_array and not argument.is_const:
        return f'Out({shape}, "{dtype}")'
    if not argument.is_array:
        if name in sizes:
            return f"p.{sizes[name]}" if dtype == "int32" else f"np.{dtype}(p.{sizes[name]})"
        return f"np.{dtype}(rng.uniform(0.5, 2.0))" if "float" in dtype else f"np.{dtype}(1)"
    if dtype in ENCODED_TYPES:
        return f'rng.standard_normal({shape}, dtype="{dtype}")'
    if "float" in dtype:
        return f"rng.standard_normal({shape}, dtype=np.{dtype})"
    top = 2 if dtype == "bool" else 100
    return f"rng.integers(0, {top}, {shape}, dtype=np.{dtype if dtype != 'bool' else 'bool_'})"

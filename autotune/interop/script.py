"""Converts a script for Kernel Tuner to space files: runs it with a stand-in for `tune_kernel`.

The script runs in a child process. The stand-in receives the arguments of each call and converts them
to the parts of a space file. A part that it cannot convert becomes a TODO.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import json
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from itertools import combinations
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

import autotune
from autotune.errors import UsageError
from autotune.interop.ported import refuse_unreadable, space_text, write_new
from autotune.kernel.names import fault, field_name
from autotune.syntax import parsed

#: Parameters of `tune_kernel` in order. Source: Kernel Tuner 1.5.0, interface.py.
_POSITIONS = (
    *("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params"),
    *("grid_div_x", "grid_div_y", "grid_div_z", "restrictions", "answer", "atol", "verify"),
)
#: Default block size in threads, by parameter name. Source: Kernel Tuner 1.5.0, util.py.
_BLOCK = {"block_size_x": 256, "block_size_y": 1, "block_size_z": 1}
#: Backend of each value of the argument ``lang``.
_BACKENDS = dict.fromkeys(("CUDA", "CUPY", "NVCUDA", "PYCUDA"), "cuda") | {"OPENCL": "opencl"}
#: Arguments of `tune_kernel` that configure the run, and so are not part of a space file.
_RUN_OPTIONS = (
    *("strategy", "strategy_options", "metrics", "observers", "objective", "cache", "verify"),
)
#: Functions that a rule or size may call.
_CALLABLE = ("min", "max", "abs", "len", "int", "round")
#: Array sizes up to this stay numbers, and scalars up to this do not become problem fields.
#: A small number divides the sizes of arrays by chance.
_MAX_FIXED_SIZE = 64


def write_spaces(script: Path, name: str, into: Path) -> tuple[list[Path], list[str]]:
    """Run a script; write ``spaces/NAME.py`` and a source in ``kernels`` for each call of `tune_kernel`.

    Returns
    -------
    tuple of list of Path and list of str
        The written files, and a line for each TODO.
    """
    refuse_unreadable(script)
    calls = _calls_of(script)
    if name and len(calls) > 1:
        raise UsageError(f"{script} calls tune_kernel {len(calls)} times: leave NAME out")
    texts: dict[Path, str] = {}
    for number, call in enumerate(calls):
        alike = sum(other["function"] == call["function"] for other in calls[:number])
        own = name or call["function"] + (f"_{alike + 1}" if alike else "")
        if wrong := fault("kernel name", own):
            raise UsageError(f"{wrong}; give autotune new a NAME")
        call |= {"name": own, "source": f"{own}{call['suffix']}"}
        plain = re.sub(r"[^\w.+-]", "_", script.name)
        call["about"] = f"converted from {plain}, a script for Kernel Tuner"
        texts[into / "spaces" / f"{own}.py"] = space_text(call)
        texts[into / "kernels" / call["source"]] = call["text"]
    write_new(texts)
    return list(texts), [f"{script.name}:{c['line']}: {todo}" for c in calls for todo in c["todos"]]


# ---------------------------------------------------------------------- the script's process


def _calls_of(script: Path) -> list[dict[str, Any]]:
    """Run a script with its output on stderr; return descriptions of its calls of `tune_kernel`."""
    child = (
        "import sys; sys.path.append(sys.argv.pop()); from autotune.interop.script import take_calls; "
        "take_calls(*sys.argv[1:])"
    )
    root = str(Path(autotune.__file__).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "calls.json")
        subprocess.run(
            [sys.executable, "-P", "-c", child, str(script.resolve()), str(answer), root],
            cwd=script.resolve().parent,
            stdin=subprocess.DEVNULL,
            stdout=2,
            check=False,
        )
        text = answer.read_text() if answer.exists() else '{"refused": "the script crashed"}'
    found: dict[str, Any] = json.loads(text)
    if found["refused"]:
        raise UsageError(f"{script.name}: {found['refused']}")
    return list(found["calls"])


def take_calls(script: str, answer: str) -> None:
    """Run a script in this process; write descriptions of its calls of `tune_kernel` as JSON."""
    stand_in, ended = _StandIn(), ""
    sys.meta_path.insert(0, stand_in)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    builtins.open = io.open = stand_in.open
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            ended = " ".join(f"; it ended with {type(error).__name__}: {error}".split())
    calls, refused = stand_in.calls, stand_in.refused
    if not calls and not refused:
        refused = f"no call of tune_kernel{ended}"
    elif calls and ended:
        calls[-1]["todos"].append(f"later calls of the script are missing{ended}")
    with stand_in.real_open(answer, "w") as file:
        json.dump({"calls": calls, "refused": refused}, file)


class _StandIn:
    """A stand-in for the package `kernel_tuner`, installed or not; its other functions do nothing."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.refused = ""
        self.real_open = open
        self._module = MagicMock(tune_kernel=self._tune_kernel, run_kernel=self._run_kernel)

    def open(self, file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        """Open a file; discard all writes after the first call, because its results are invented."""
        if self.calls and set(mode) & set("wax+"):
            file, mode = os.devnull, mode.replace("x", "w")
        return self.real_open(file, mode, *more, **named)

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        is_theirs = name.partition(".")[0] == "kernel_tuner"
        return ModuleSpec(name, self, is_package=True) if is_theirs else None  # type: ignore[arg-type]

    def create_module(self, _: ModuleSpec) -> Any:
        return self._module

    def exec_module(self, _: Any) -> None: ...

    def _run_kernel(self, *args: Any, **named: Any) -> list[Any]:
        return list({**dict(zip(_POSITIONS, args, strict=False)), **named}["arguments"])

    def _tune_kernel(self, *args: Any, **named: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Record a call; return one invented result for the script to use."""
        given = {**dict(zip(_POSITIONS, args, strict=False)), **named}
        caller = sys._getframe(1)
        try:
            call = _TuneCall(given, Path(caller.f_code.co_filename)).described()
        except UsageError as error:
            self.refused = f"line {caller.f_lineno}: {error}"
            raise
        self.calls.append({"line": caller.f_lineno, **call})
        first = {name: next(iter(values)) for name, values in given["tune_params"].items()}
        result = {**first, "time": 1.0, "times": [1.0]}
        return [result], {"best_config": result}


# ---------------------------------------------------------------------- one call


class _TuneCall:
    """A call of `tune_kernel`, converted to the parts of a space file."""

    def __init__(self, given: Mapping[str, Any], script: Path) -> None:
        self._given, self._script = given, script
        self.todos: list[str] = []
        self._entry = str(given.get("kernel_name"))
        if not re.fullmatch(r"[\w:<>, ]+", self._entry):
            raise UsageError(f"kernel_name {self._entry!r} does not name a function or template")
        self._function = self._entry.partition("<")[0].rpartition("::")[2].strip()
        named = list(given.get("block_size_names") or [])
        self._block = [*named, *list(_BLOCK)[len(named) :]][:3]
        self._parameters = self._read_parameters()
        self._text = self._read_source()
        language = str(given.get("lang") or ("OpenCL" if "__kernel" in self._text else "CUDA"))
        if language.upper() not in _BACKENDS:
            raise UsageError(f"lang={language!r}: only CUDA and OpenCL kernels are supported")
        self._backend = _BACKENDS[language.upper()]
        self._arguments, self._declared = self._read_arguments()
        self._sizes, self._fields = self._read_problem()

    def described(self) -> dict[str, Any]:
        """Return the parts of the space file and source, for JSON and the template."""
        made = {name: self._made(name, value) for name, value in self._arguments.items()}
        for name, value in (self._given.get("cmem_args") or {}).items():
            made[name] = f"Constant({self._drawn(name, value)})"
        outputs = [name for name, text in made.items() if text.startswith(("Out(", "InOut("))]
        if not outputs:
            self.todos.append("which argument is the output? make it Out(shape) in arguments")
        has_answer = self._given.get("answer") is not None
        hint = "see answer= of the script" if has_answer else "the script has no answer="
        self.todos.append(f"reference: compute {', '.join(outputs) or 'the output'}; {hint}")
        if others := [name for name in _RUN_OPTIONS if self._given.get(name)]:
            self.todos.append(
                f"{', '.join(others)}: docs/from-kernel-tuner.md has the replacements"
            )
        tolerance = self._given.get("atol")
        options = map(str, self._given.get("compiler_options") or [])
        described = {
            "function": self._function,
            "suffix": ".cl" if self._backend == "opencl" else ".cu",
            "text": self._text,
            "backends": [self._backend],
            "problem": self._fields,
            "parameters": {name: repr(values) for name, values in self._parameters.items()},
            "rules": self._rules(),
            "defines": self._defines(),
            "options": [option for option in options if not re.match(r"-{1,2}std", option)],
            **self._launch(),
            "arguments": made,
            "inputs": [name for name, text in made.items() if not text.startswith("Out(")],
            "outputs": outputs,
            "tolerance": "" if tolerance is None else repr(float(tolerance)),
        }
        return {**described, "todos": [" ".join(todo.split()) for todo in self.todos]}

    def _read_parameters(self) -> dict[str, Any]:
        parameters = {}
        for name, values in dict(self._given.get("tune_params") or {}).items():
            if wrong := fault("parameter", name):
                raise UsageError(f"{wrong}: rename it in the script and in the source")
            parameters[name] = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
        return parameters

    def _read_source(self) -> str:
        given = self._given.get("kernel_source")
        if isinstance(given, list | tuple):
            self.todos.append(f"kernel_source: only the first of several files is used: {given[0]}")
            given = given[0]
        if callable(given):
            self.todos.append(
                "kernel_source is a function: the source is its text for the first values"
            )
            given = given({name: values[0] for name, values in self._parameters.items()})
        text = str(given)
        if not re.search(r"[\n({]", text):
            try:
                text = (self._script.parent / text).read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"kernel_source {given}: cannot be read ({error})") from None
        if "texture<" in text or self._given.get("texmem_args"):
            self.todos.append(
                "a texture reference: give Texture(name) in args of the Launch, and take a cudaTextureObject_t"
            )
        return textwrap.dedent(text).strip("\n") + "\n"

    def _read_arguments(self) -> tuple[dict[str, Any], dict[str, str]]:
        values = list(self._given.get("arguments") or [])
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", self._text, flags=re.DOTALL)
        found = re.search(rf"\b{self._function}\s*\(([^()]*)\)", text)
        declared = [part.strip() for part in found[1].split(",")] if found else []
        if len(declared) != len(values):
            declared = [""] * len(values)
        names: list[str] = []
        for number, text in enumerate(declared):
            name = re.split(r"[\s*&]+", text)[-1]
            names.append(f"argument_{number}" if fault("argument", name) or name in names else name)
        return dict(zip(names, values, strict=True)), dict(zip(names, declared, strict=True))

    # ------------------------------------------------------------------ expressions

    def _over(self, given: Any, what: str, fallback: str, holder: str = "c.") -> str:
        """Return a number, text or function as an expression over parameters; else add a TODO."""
        try:
            text, known = _body_of(given) if isinstance(given, FunctionType) else (str(given), {})
            return _over_parameters(text, self._parameters, known, holder)
        except (ValueError, SyntaxError, RecursionError) as error:
            self.todos.append(f"{what}: {error}; complete it")
            return fallback

    def _rules(self) -> list[dict[str, Any]]:
        rules = []
        for number, rule in enumerate(_listed(self._given.get("restrictions")), 1):
            text = self._over(rule, f"restriction {number}", "", "")
            if used := [name for name in self._parameters if _has_word(text, name)]:
                doc = repr(f"Restriction of Kernel Tuner: {text}"[:200])
                names = {"name": f"restriction_{number}", "parameters": used}
                rules.append({**names, "reason": doc, "expression": text})
        return rules

    def _defines(self) -> str:
        given = self._given.get("defines")
        if given is not None:
            parts = [
                f"{name!r}: {value!r}"
                if isinstance(value, str) and value not in self._parameters
                else f"{name!r}: {self._over(value, 'defines', '1')}"
                for name, value in given.items()
            ]
            return f"{{{', '.join(parts)}}}"
        defaults = {**dict(zip(self._block, _BLOCK.values(), strict=True)), "kernel_tuner": 1}
        parts = [
            f"{name!r}: {size}"
            for name, size in defaults.items()
            if name not in self._parameters and _has_word(self._text, name)
        ]
        has_words = any(isinstance(values[0], str) for values in self._parameters.values())
        return f"{{{', '.join(['**c', *parts])}}}" if parts or has_words else ""

    # ------------------------------------------------------------------ problem and launch

    def _read_problem(self) -> tuple[list[str], dict[str, int]]:
        scalars = {
            field_name(name): int(value)
            for name, value in self._arguments.items()
            if isinstance(value, int | np.integer) and value > 1
            if name not in self._parameters and not fault("problem field", field_name(name))
        }
        fields: dict[str, int] = {}
        expressions = []
        for axis, size in zip("xyz", _listed(self._given.get("problem_size")), strict=False):
            if not isinstance(size, int | np.integer):
                expressions.append(self._over(size, f"problem_size in {axis}", "1"))
            elif size > 1:
                like = [name for name in scalars if scalars[name] == size and name not in fields]
                fields[[*like, axis][0]] = int(size)
                expressions.append(f"p.{[*like, axis][0]}")
            else:
                expressions.append("1")
        counts = [value.size for value in self._arguments.values() if isinstance(value, np.ndarray)]
        for name, value in scalars.items():
            if value > _MAX_FIXED_SIZE and any(count % value == 0 for count in counts):
                fields.setdefault(name, value)
        return expressions, fields or {"n": max(counts, default=1)}

    def _launch(self) -> dict[str, Any]:
        grid = []
        for axis, size, name in zip("xyz", self._sizes, self._block, strict=False):
            divisor = self._divisor(f"grid_div_{axis}", name)
            grid.append(size if divisor == "1" else f"ceil_div({size}, {divisor})")
        block = [
            f"c.{name}" if name in self._parameters else str(threads)
            for name, threads in zip(self._block, _BLOCK.values(), strict=True)
        ]
        entry, shared = self._entry, self._given.get("smem_args")
        for name in self._parameters if "<" in entry else ():
            entry = re.sub(rf"\b{name}\b", f"{{c.{name}}}", entry)
        return {
            "grid": grid,
            "block": block,
            "entry": f"f{entry!r}" if entry != self._entry else repr(entry),
            "shared_bytes": self._over(shared.get("size"), "smem_args", "0") if shared else "",
        }

    def _divisor(self, option: str, name: str) -> str:
        given = self._given.get(option)
        if given is None:
            return f"c.{name}" if name in self._parameters else "1"
        # Kernel Tuner rounds the divisor down to an integer.
        factors = [re.sub("//?", "//", self._over(part, option, "1")) for part in _listed(given)]
        return " * ".join(f if re.fullmatch(r"[\w.]+", f) else f"({f})" for f in factors) or "1"

    # ------------------------------------------------------------------ arguments

    def _made(self, name: str, value: Any) -> str:
        if isinstance(value, bool | int | float | np.generic):
            number = value.item() if isinstance(value, np.generic) else value
            field = field_name(name)
            text = f"p.{field}" if self._fields.get(field) == number else repr(number)
            is_default_type = isinstance(value, np.int32 | np.float32 | int | float)
            return text if is_default_type else f"np.{np.dtype(type(value))}({text})"
        if not isinstance(value, np.ndarray):
            self.todos.append(
                f"argument {name} is neither an array nor a number: make it in arguments"
            )
            return "..."
        if not self._is_output(name, value):
            return self._drawn(name, value)
        if not value.any():
            return f'Out({self._shape(name, value)}, "{value.dtype}")'
        return f"InOut({self._drawn(name, value)})"

    def _is_output(self, name: str, value: Any) -> bool:
        """Return whether the answers have an argument; without answers, whether it is non-const zeros."""
        answer = self._given.get("answer")
        if isinstance(answer, list | tuple) and len(answer) == len(self._arguments):
            return dict(zip(self._arguments, answer, strict=True))[name] is not None
        return not _has_word(self._declared[name], "const") and not value.any()

    def _drawn(self, name: str, value: Any) -> str:
        shape, dtype = self._shape(name, value), f"np.{value.dtype}"
        if not value.any() or (value == 1).all():
            return f"np.{'ones' if value.any() else 'zeros'}({shape}, {dtype})"
        chance = 0.02 + 4 / math.sqrt(value.size)
        is_float = value.dtype.kind == "f"
        if not is_float or abs(value.mean()) > chance or abs(value.std() - 1) > chance:
            self.todos.append(f"argument {name} is random here: make the script's data instead")
        if not is_float:
            return f"rng.integers(0, 2, {shape}, dtype={dtype})"
        return f"rng.standard_normal({shape}, dtype={dtype})"

    def _shape(self, name: str, value: Any) -> str:
        sizes = [self._size(name, size) for size in value.shape]
        return sizes[0] if len(sizes) == 1 else f"({', '.join(sizes)})"

    def _size(self, name: str, size: int) -> str:
        """Return an array's size as a problem field or the product of two fields; else the number."""
        known = {value: f"p.{field}" for field, value in reversed(self._fields.items())}
        for (a, m), (b, n) in combinations(self._fields.items(), 2):
            known.setdefault(m * n, f"p.{a} * p.{b}")
        if size not in known and size > _MAX_FIXED_SIZE:
            self.todos.append(f"argument {name}: write its size {size} in terms of p")
        return known.get(size, str(size))


# ---------------------------------------------------------------------- expressions


def _over_parameters(
    text: str, parameters: Mapping[str, Any], known: Mapping[str, Any], holder: str
) -> str:
    """Return an expression with the names of the space file; ValueError if it has other names."""
    tree = parsed(lambda: ast.parse(text.strip(), mode="eval")).body
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or (node in called and node.id in _CALLABLE):
            continue
        if node.id not in parameters and node.id not in known:
            raise ValueError(f"{text[:80]!r} uses {node.id}, which is not a parameter")
        node.id = holder + node.id if node.id in parameters else repr(known[node.id])
    return ast.unparse(tree)


def _body_of(function: FunctionType) -> tuple[str, dict[str, Any]]:
    """Return the expression that a function returns, and the values of the outer names in it."""
    code, bodies = function.__code__, []
    text = Path(code.co_filename).read_text(encoding="utf-8")
    for node in ast.walk(parsed(lambda: ast.parse(text))):
        match node:
            case ast.Lambda(_, body) if code.co_name == "<lambda>":
                is_named = True
            case ast.FunctionDef(name, body=[*_, ast.Return(ast.expr() as body)]):
                # The body is the return statement, after an optional docstring.
                count = len(node.body) - bool(ast.get_docstring(node))
                is_named = name == code.co_name and count == 1
            case _:
                continue
        if is_named and node.lineno == code.co_firstlineno:
            bodies.append(ast.unparse(body))
    if len(bodies) != 1:
        raise ValueError(
            f"{function.__name__} is not a function of one expression, or shares its line with another"
        )
    found = inspect.getclosurevars(function)
    known = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in {**found.globals, **found.nonlocals}.items()
        if isinstance(value, bool | int | float | str | np.generic)
    }
    holders = "|".join(code.co_varnames[: code.co_argcount])
    return re.sub(rf"\b(?:{holders})\['(\w+)'\]", r"\1", bodies[0]), known


# ---------------------------------------------------------------------- values


def _listed(given: Any) -> list[Any]:
    """Return a list or tuple as a list, None as an empty list, any other value as a list of one."""
    return list(given) if isinstance(given, list | tuple) else [given] if given is not None else []


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None

"""Writes space files of what a script gives to Kernel Tuner's `tune_kernel`; the script is not run.

What has no translation is told in one line each, which is in the file too. The text of a space file
is in ``described.py.j2``, as for a description in T1.
"""

from __future__ import annotations

import ast
import copy
import inspect
import keyword
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from autotune.cli.described import filled, over_parameters
from autotune.cli.script import Array, Call, Code, Elements, FileText, calls_of
from autotune.devices.base import NO_TEXTURES
from autotune.errors import UsageError
from autotune.kernel.names import fault
from autotune.kernel.spec import Kernel

#: Parameters of `tune_kernel` in order. Source: Kernel Tuner 1.5.0, interface.py.
_POSITIONS = (
    *("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params"),
    *("grid_div_x", "grid_div_y", "grid_div_z", "restrictions", "answer", "atol", "verify"),
)
_OPTIONS = tuple(inspect.signature(Kernel).parameters)
_BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
#: What a block has where no parameter says. Source: Kernel Tuner 1.5.0, util.py.
_BLOCK = (256, 1, 1)
_LANGUAGES = {
    "CUDA": "cuda",
    "CUPY": "cuda",
    "NVCUDA": "cuda",
    "PYCUDA": "cuda",
    "OPENCL": "opencl",
}
#: What an answer may consist of, and what of numpy it may name.
_ALLOWED = (
    *(
        ast.Expression,
        ast.Load,
        ast.Constant,
        ast.Name,
        ast.Tuple,
        ast.List,
        ast.Attribute,
        ast.Call,
    ),
    *(ast.UnaryOp, ast.BinOp, ast.Compare, ast.unaryop, ast.operator, ast.cmpop),
    *(ast.keyword, ast.Subscript, ast.Slice),
)
_NUMPY = frozenset(
    (
        *("T", "abs", "add", "astype", "clip", "cos", "cumsum", "dot", "exp", "float32", "float64"),
        *("int32", "log", "matmul", "max", "maximum", "mean", "min", "minimum", "multiply"),
        *("outer", "prod", "reshape", "sin", "sqrt", "subtract", "sum", "tanh", "transpose"),
        "where",
    )
)
#: What of it says how to search or print, and what says that here.
_ELSEWHERE = {
    "strategy": "autotune run {name} --strategy kt:{value}",
    "strategy_options": "of a run: --budget 100evals or --budget 60s in place of max_fevals and time_limit",
    "metrics": "GFLOP/s and GB/s come from a function @{name}.work, others from functions @{name}.metric",
    "observers": "registers and clocks are in every report; energy: autotune run {name} --objective energy",
    "objective": "autotune run {name} --objective NAME",
    "cache": "everything measured is remembered; a cache of theirs: autotune import FILE",
    "simulation_mode": "autotune run {name} --device replay:FILE",
    "parallel": "autotune run {name} --device cuda:all",
    "verify": "what is right is compared with the reference, within a tolerance",
}


def write_migrated(script: Path, name: str, into: Path) -> tuple[list[Path], list[str]]:
    """Write ``spaces/NAME.py``, and its source into ``kernels``, for each `tune_kernel` of a script.

    Returns
    -------
    tuple of list of Path and list of str
        The files, and a line for each thing that was not translated.

    Raises
    ------
    UsageError
        If the script calls no `tune_kernel`, or for what is no GPU, or a file is there already.
    """
    try:
        calls = calls_of(script.read_text(encoding="utf-8"), "tune_kernel", _POSITIONS)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(f"{script}: no Python that can be read: {error}") from None
    if not calls:
        raise UsageError(f"{script}: no call of tune_kernel")
    if name and len(calls) > 1:
        raise UsageError(f"{script} calls tune_kernel {len(calls)} times: leave NAME out")
    texts: dict[Path, str] = {}
    said: list[str] = []
    names: list[str] = []
    for call in calls:
        made = _Translation(call, script, name, names)
        names.append(made.name)
        fields = made.fields()
        texts[into / "spaces" / f"{made.name}.py"] = filled(fields)
        if made.text is not None:
            texts[into / "kernels" / fields["source"]] = made.text
        said += [f"{script.name}:{call.line}: {todo}" for todo in made.todos]
    for place, text in texts.items():
        if place.exists() and place.read_text(encoding="utf-8") != text:
            raise UsageError(f"{place} is there already; remove it, or write --into another folder")
    for place, text in texts.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return list(texts), said


class _Translation:
    """One call of `tune_kernel` in the words of a space file."""

    def __init__(self, call: Call, script: Path, name: str, taken: Sequence[str]) -> None:
        self._given, self._script, self._line = call.arguments, script, call.line
        self.todos: list[str] = []
        #: Arguments that something else is made from too, and what makes them.
        self._shared: dict[str, str] = {}
        self._entry = self._known(
            "kernel_name", str, "kernel_name must be a text that stands there"
        )
        if not re.fullmatch(r"[\w:<>, ]+", self._entry):
            raise self._error(f"kernel_name {self._entry!r} is no name of a function or template")
        self._function = self._entry.partition("<")[0].rpartition("::")[2].strip()
        self.name = name or self._function
        if wrong := fault("kernel name", self.name):
            raise self._error(f"{wrong}; give autotune new a NAME")
        if keyword.iskeyword(self.name) or self.name in ("np", "launch", "arguments", "reference"):
            self.name += "_kernel"
        alike = [other for other in taken if re.fullmatch(rf"{self.name}(_\d+)?", other)]
        self.name += f"_{len(alike) + 1}" if alike else ""
        self._source, self.text = self._read_source()
        self._backend = self._language()
        self._parameters = self._read_parameters()
        self._names, self._values = self._read_arguments()
        self._sizes, self._fields = self._read_problem()

    def fields(self) -> dict[str, Any]:
        """What the template asks for."""
        launch = self._launch()
        arguments = [
            self._argument(name, value, number)
            for number, (name, value) in enumerate(zip(self._names, self._values, strict=True))
        ]
        arguments += self._constants()
        for argument in arguments if self._shared else ():
            name = argument["name"]
            if name in self._shared:
                self._shared[name], argument["made"] = argument["made"], name
        outputs = [argument["name"] for argument in arguments if argument["is_output"]]
        inputs = [argument["name"] for argument in arguments if argument["is_input"]]
        if not outputs:
            self.todos.append("which argument is the output? make it Out(shape) in arguments")
        reference = self._reference(inputs, outputs)
        rules, defines, options = self._rules(), self._defines(), self._options()
        self._say_elsewhere()
        script = re.sub(r"[^\w.+-]", "_", self._script.name)
        return {
            "name": self.name,
            "about": f"as {script} gives it to Kernel Tuner.",
            "todos": [f"# TODO: {' '.join(todo.split())}" for todo in self.todos],
            "source": self._source,
            "backend": self._backend,
            "problem": self._fields,
            "parameters": self._parameters,
            "default": {},
            "rules": rules,
            "defines": defines,
            "options": options,
            **launch,
            "arguments": arguments,
            "shared": self._shared,
            "inputs": reference[0],
            "reference": reference[1],
            "tolerance": self._tolerance(),
        }

    def _error(self, message: str) -> UsageError:
        return UsageError(f"{self._script.name}:{self._line}: {message}")

    def _known(self, what: str, kind: Any, message: str) -> Any:
        value = self._given.get(what)
        if not isinstance(value, kind):
            raise self._error(message)
        return value

    # ------------------------------------------------------------------ source

    def _read_source(self) -> tuple[str, str | None]:
        """The name of the source file, and its text where it is known."""
        given = self._given.get("kernel_source")
        if isinstance(given, list) and given:
            self.todos.append(f"kernel_source: of several files the first is taken: {given[0]}")
            given = given[0]
        if isinstance(given, str) and ("\n" in given or "(" in given):
            suffix = ".cl" if "__kernel" in given else ".cu"
            return f"{self.name}{suffix}", textwrap.dedent(given).strip("\n") + "\n"
        path = given.path if isinstance(given, FileText) else given
        if not isinstance(path, str):
            self.todos.append(
                f"kernel_source is made by code ({_short(given)}): write what it makes to "
                f"kernels/{self.name}.cu"
            )
            return f"{self.name}.cu", None
        file = self._script.parent / path
        if not re.fullmatch(r"[\w.+-]+", file.name):
            raise self._error(f"kernel_source {file.name!r} is no plain name of a file")
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self.todos.append(
                f"kernel_source: {path} cannot be read ({error}): put it into kernels/"
            )
            return file.name, None
        for included in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text, re.MULTILINE):
            self.todos.append(f"{file.name} includes {included}: put it into kernels/ too")
        return file.name, text

    def _language(self) -> str:
        told = self._given.get("lang")
        if isinstance(told, str) and told.upper() not in _LANGUAGES:
            raise self._error(f"lang={told!r}: what is tuned here are kernels in CUDA or OpenCL")
        if isinstance(told, str):
            return _LANGUAGES[told.upper()]
        return "opencl" if "__kernel" in (self.text or "") else "cuda"

    def _signature(self) -> list[str]:
        """The declarations of the kernel's arguments; empty where they are not found."""
        found = re.search(rf"\b{self._function}\s*\(([^()]*)\)", self.text or "")
        plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", found[1]) if found else ""
        return [part.strip() for part in plain.split(",")] if plain.strip() else []

    # ------------------------------------------------------------------ parameters and rules

    def _read_parameters(self) -> dict[str, Any]:
        given = self._known(
            "tune_params", dict, "tune_params must be a dict whose names stand there"
        )
        parameters: dict[str, Any] = {}
        for name, values in given.items():
            wrong = fault("parameter", name)
            if not wrong and get_close_matches(name, _OPTIONS, 1, 0.8) and name != name.upper():
                wrong = f"parameter {name!r} is, or is too like, an option of Kernel"
            if wrong:
                raise self._error(f"{wrong}: rename it in the script and in the source")
            plain = isinstance(values, list | tuple) and all(
                isinstance(value, str)
                or (isinstance(value, int | float | np.generic) and math.isfinite(value))
                for value in values
            )
            if not plain or not values:
                self.todos.append(f"values of {name} are made by code: {_short(values)}")
            parameters[name] = _values(values) if plain and values else (1,)
            if name.startswith("loop_unroll_factor") and 0 in parameters[name]:
                self.todos.append(f"{name}=0: Kernel Tuner takes the pragma out; here begin with 1")
        return parameters

    def _over(self, given: Any, what: str, holder: str = "c.") -> str:
        """Numbers, texts and functions over parameters as an expression of the space file.

        Raises
        ------
        ValueError
            If it is more than that.
        """
        if isinstance(given, int | float | np.generic):
            return repr(given.item() if isinstance(given, np.generic) else given)
        text = given if isinstance(given, str) else ast.unparse(self._body(given))
        return over_parameters(text, self._parameters, what, holder)[0]

    def _body(self, given: Any) -> ast.expr:
        """What a function of one expression returns, in names of parameters."""
        node = given.node if isinstance(given, Code) else None
        match node:
            case ast.Lambda(arguments, body):
                pass
            case ast.FunctionDef(args=arguments, body=[*_, ast.Return(ast.expr() as body)]) if all(
                isinstance(statement, ast.Expr) for statement in node.body[:-1]
            ):
                pass
            case _:
                raise ValueError(f"{_short(given)} is no expression")
        names = [argument.arg for argument in arguments.args]
        if len(names) == 1 and names[0] not in self._parameters:
            unfolded: ast.expr = _Unsubscripted(names[0]).visit(copy.deepcopy(body))
            return unfolded
        return body

    def _rules(self) -> list[dict[str, Any]]:
        given = self._given.get("restrictions")
        listed = given if isinstance(given, list) else [] if given is None else [given]
        rules = []
        for number, restriction in enumerate(listed, 1):
            try:
                text = restriction if isinstance(restriction, str) else None
                text = text or ast.unparse(self._body(restriction))
                expression, used = over_parameters(text, self._parameters, f"restriction {number}")
            except ValueError as error:
                self.todos.append(f"{error}; write a @{self.name}.constraint")
                continue
            reason = repr(f"As Kernel Tuner is told: {' '.join(text.split())}"[:200])
            rules.append(
                {
                    "name": f"restriction_{number}",
                    "parameters": used,
                    "reason": reason,
                    "expression": expression,
                }
            )
        return rules

    def _defines(self) -> str:
        """The dict that the defines hook returns; empty where parameters are all there is."""
        given = self._given.get("defines")
        if isinstance(given, Code):
            self.todos.append(f"defines: {_short(given)}; write them into a @{self.name}.defines")
            return ""
        if given is not None:
            parts = []
            for name, value in given.items():
                try:
                    plain = isinstance(value, str) and value not in self._parameters
                    made = repr(value) if plain else self._over(value, "defines")
                    parts.append(f"{name!r}: {made}")
                except ValueError as error:
                    self.todos.append(f"defines: {name}: {error}")
            return f"{{{', '.join(parts)}}}"
        text = self.text or ""
        sides = zip(self._block_names(), _BLOCK, strict=True)
        used = [(name, size) for name, size in sides if name not in self._parameters]
        used.append(("kernel_tuner", 1))
        more = [f"{name!r}: {size}" for name, size in used if _has_word(text, name)]
        for name in ("grid_size_x", "grid_size_y", "grid_size_z"):
            if _has_word(text, name):
                self.todos.append(f"the source uses {name}: read gridDim there, or get_num_groups")
        has_words = any(isinstance(values[0], str) for values in self._parameters.values())
        return f"{{{', '.join(['**c', *more])}}}" if more or has_words else ""

    def _options(self) -> list[str]:
        given = self._given.get("compiler_options")
        if given is None:
            return []
        if not isinstance(given, list) or not all(isinstance(option, str) for option in given):
            self.todos.append(
                f"compiler_options: {_short(given)}; return them from an options hook"
            )
            return []
        return [option for option in given if not re.match(r"-{1,2}std", option)]

    # ------------------------------------------------------------------ problem and launch

    def _read_problem(self) -> tuple[list[str], dict[str, int]]:
        """Sizes in x, y, z as expressions over ``c`` and ``p``, and the problem's fields."""
        given = self._given.get("problem_size")
        sizes = given if isinstance(given, list | tuple) else [given]
        scalars = {
            name: int(value)
            for name, value in zip(self._names, self._values, strict=True)
            if isinstance(value, int | np.integer) and self._is_field(name)
        }
        fields: dict[str, int] = {}
        expressions: list[str] = []
        for axis, size in zip("xyz", sizes, strict=False):
            if isinstance(size, int | np.integer):
                like = [name for name, value in scalars.items() if value == size > 1]
                field = like[0] if like else axis
                if size > 1 or axis == "x":
                    fields[field] = int(size)
                expressions.append(f"p.{field}" if field in fields else "1")
                continue
            try:
                expressions.append(self._over(size, "problem_size"))
            except ValueError:
                field = next((name for name in scalars), axis)
                fields[field] = scalars.get(field, 1)
                expressions.append(f"p.{field}")
                self.todos.append(
                    f"problem_size in {axis} is {_short(size)}: what a launch depends on must be a field "
                    f"of Problem, or follow from parameters; p.{field} stands for it"
                )
        return expressions, fields or scalars or {"x": 1}

    def _is_field(self, name: str) -> bool:
        is_lower = re.fullmatch(r"[a-z][a-z0-9_]*", name)
        return bool(is_lower and name not in self._parameters and not fault("problem field", name))

    def _block_names(self) -> list[str]:
        given = self._given.get("block_size_names")
        named = given if isinstance(given, list | tuple) else []
        return [*map(str, named), *_BLOCK_NAMES[len(named) :]][:3]

    def _launch(self) -> dict[str, Any]:
        names = self._block_names()
        block = [
            f"c.{name}" if name in self._parameters else str(usual)
            for name, usual in zip(names, _BLOCK, strict=True)
        ]
        grid = []
        for axis, (size, name) in enumerate(zip(self._sizes, names, strict=False)):
            divisor = self._divisor("xyz"[axis], name)
            grid.append(size if divisor == "1" else f"ceil_div({size}, {divisor})")
        entry = self._entry
        for name in self._parameters if "<" in entry else ():
            entry = re.sub(rf"\b{name}\b", f"{{c.{name}}}", entry)
        return {
            "grid": _without_ones(grid),
            "block": _without_ones(block),
            "entry": f"f{entry!r}" if entry != self._entry else repr(entry),
            "shared_bytes": self._shared_bytes(),
        }

    def _divisor(self, axis: str, name: str) -> str:
        given = self._given.get(f"grid_div_{axis}")
        if given is None:
            return f"c.{name}" if name in self._parameters else "1"
        factors = []
        for part in given if isinstance(given, list | tuple) else [given]:
            try:
                factor = self._over(part, f"grid_div_{axis}")
            except ValueError as error:
                self.todos.append(f"grid_div_{axis}: {error}; complete the grid in launch")
                continue
            if re.search(r"(?<!/)/(?!/)", factor):  # Kernel Tuner makes an int of it
                factor = re.sub(r"(?<!/)/(?!/)", "//", factor)
            factors.append(factor if re.fullmatch(r"[\w.]+", factor) else f"({factor})")
        return " * ".join(factors) or "1"

    def _shared_bytes(self) -> str:
        given = self._given.get("smem_args")
        size = given.get("size") if isinstance(given, dict) else given
        if given is None:
            return ""
        try:
            return self._over(size, "smem_args")
        except ValueError as error:
            self.todos.append(f"smem_args: {error}; write shared_bytes in launch")
            return ""

    # ------------------------------------------------------------------ arguments

    def _read_arguments(self) -> tuple[list[str], list[Any]]:
        given = self._given.get("arguments")
        if not isinstance(given, list):
            self.todos.append(f"arguments: {_short(given)}; list them in arguments")
            return [], []
        called = given.names if isinstance(given, Elements) else [""] * len(given)
        declared = [re.split(r"[\s*&]+", part)[-1] for part in self._signature()]
        names: list[str] = []
        for number, own in enumerate(called):
            theirs = declared[number] if len(declared) == len(given) else ""
            wanted = [own, theirs, f"argument_{number}"]
            fitting = [name for name in wanted if name and not fault("argument", name)]
            name = fitting[0]
            names.append(f"{name}_{number}" if name in names else name)
        return names, list(given)

    def _argument(self, name: str, value: Any, number: int) -> dict[str, Any]:
        """One argument of the kernel: what makes it, and whether it is written."""
        if isinstance(value, bool | int | float | np.generic):
            return _input(name, self._scalar(name, value))
        if not isinstance(value, Array):
            self.todos.append(f"argument {name} is made by code: {_short(value)}")
            return _input(name, "...")
        shape = self._shape(value.shape)
        if value.filled == "zeros" and self._is_output(number, value):
            return _output(name, f'Out({shape}, "{value.dtype}")')
        made = self._made(name, value, shape)
        if self._is_output(number, value):
            return {**_input(name, f"InOut({made})"), "is_output": True}
        return _input(name, made)

    def _scalar(self, name: str, value: Any) -> str:
        number = value.item() if isinstance(value, np.generic) else value
        text = f"p.{name}" if self._fields.get(name) == number else repr(number)
        is_usual = isinstance(value, np.int32 | np.float32 | int | float)
        return text if is_usual else f"np.{value.dtype.name}({text})"

    def _is_output(self, number: int, value: Array) -> bool:
        answer = self._given.get("answer")
        if isinstance(answer, list) and len(answer) == len(self._values):
            return answer[number] is not None
        declared = self._signature()
        if len(declared) == len(self._values) and re.search(r"\bconst\b", declared[number]):
            return False
        return value.filled in ("zeros", "copy")

    def _made(self, name: str, value: Array, shape: str) -> str:
        dtype = f"np.{value.dtype}"
        typed = "" if value.dtype == "float32" else f", dtype={dtype}"
        if value.filled in ("zeros", "ones"):
            return f"np.{value.filled}({shape}, {dtype})"
        if value.filled == "uniform":
            return f"rng.uniform(0, 1, {shape}{typed})"
        if value.filled == "integers":
            self.todos.append(f"argument {name} is drawn from 0 and 1 here: {value.code}")
            return f"rng.integers(0, 2, {shape}, dtype={dtype})"
        if value.filled == "computed" or "int" in value.dtype:
            self.todos.append(
                f"argument {name} is drawn at random here, and there it is {value.code}"
            )
        if "int" in value.dtype:
            return f"rng.integers(0, 2, {shape}, dtype={dtype})"
        return f"rng.standard_normal({shape}{typed})"

    def _shape(self, shape: Sequence[int]) -> str:
        """A shape in fields of the problem, where its sizes are theirs."""
        sizes = [self._size(size) for size in shape]
        return sizes[0] if len(sizes) == 1 else f"({', '.join(sizes)})"

    def _size(self, size: int) -> str:
        for name, value in self._fields.items():
            if size == value > 1:
                return f"p.{name}"
        if len(self._fields) > 1 and size == math.prod(self._fields.values()):
            return " * ".join(f"p.{name}" for name in self._fields)
        for name, value in self._fields.items():
            if value > 64 and size % value == 0 and size // value <= 8:
                return f"{size // value} * p.{name}"
        return str(size)

    def _constants(self) -> list[dict[str, Any]]:
        """What is copied to symbols, and what is not done with textures."""
        if self._given.get("texmem_args") is not None or "texture<" in (self.text or ""):
            self.todos.append(f"texmem_args: {NO_TEXTURES}")
        given = self._given.get("cmem_args")
        if given is None:
            return []
        if not isinstance(given, dict) or self._backend == "opencl":
            self.todos.append(f"cmem_args: {_short(given)}; make it Constant(array) in arguments")
            return []
        constants = []
        for name, value in given.items():
            if not isinstance(value, Array):
                self.todos.append(f"cmem_args: {name} is made by code: {_short(value)}")
                continue
            same = [
                own for own, array in zip(self._names, self._values, strict=True) if array == value
            ]
            made = self._made(name, value, self._shape(value.shape))
            self._shared.update(dict.fromkeys(same[:1], ""))
            constants.append(_input(name, f"Constant({same[0] if same else made})"))
        return constants

    # ------------------------------------------------------------------ what is right

    def _reference(self, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[str], str]:
        """The names that the reference takes, and its body."""
        answer = self._given.get("answer")
        told = [value for value in answer if value is not None] if isinstance(answer, list) else []
        is_plain = self._given.get("verify") is None  # else it is not what the kernel writes
        code = [value.code if isinstance(value, Array) else str(value) for value in told]
        missing = ", ".join(outputs) or "the outputs"
        names = _computed_from(code[0]) if len(code) == 1 and is_plain else None
        if names is not None and names <= set(inputs):
            text = re.sub(r"\bnumpy\.", "np.", code[0])
            return [name for name in inputs if name in names], f"return {text}"
        about = (
            f": there it is {'; '.join(code)}" if code else ", and Kernel Tuner was told nothing"
        )
        self.todos.append(f"reference: compute {missing} there{about}")
        return list(inputs), f"raise NotImplementedError({f'compute {missing} here'!r})"

    def _tolerance(self) -> str:
        given = self._given.get("atol")
        return repr(float(given)) if isinstance(given, int | float) else ""

    def _say_elsewhere(self) -> None:
        for option, where in _ELSEWHERE.items():
            value = self._given.get(option)
            if value is not None and value is not False:
                text = where.format(name=self.name, value=value)
                self.todos.append(f"{option}={_short(value)}: {text}")


def _computed_from(code: str) -> set[str] | None:
    """The names that an expression of plain numpy is over; None where it is anything else."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code, mode="eval")):
        if not isinstance(node, _ALLOWED):
            return None
        if isinstance(node, ast.Attribute) and node.attr not in _NUMPY:
            return None
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            return None
        if isinstance(node, ast.Name):
            names.add(node.id)
    return names - {"np", "numpy"}


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


class _Unsubscripted(ast.NodeTransformer):
    """``p["name"]`` and ``p.name`` become ``name``."""

    def __init__(self, holder: str) -> None:
        self._holder = holder

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(ast.Name(holder), ast.Constant(str(name))) if holder == self._holder:
                return ast.copy_location(ast.Name(name, ast.Load()), node)
        return self.generic_visit(node)


def _values(values: Sequence[Any]) -> Any:
    """Values as they are written: a range where they are one of three and more."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    plain = list(dict.fromkeys(plain))
    if len(plain) > 2 and all(type(value) is int for value in plain):
        step = plain[1] - plain[0]
        spread = range(plain[0], plain[-1] + (1 if step > 0 else -1), step)
        if list(spread) == plain:
            return spread
    return tuple(plain)


def _input(name: str, made: str) -> dict[str, Any]:
    return {"name": name, "made": made, "is_input": True, "is_output": False}


def _output(name: str, made: str) -> dict[str, Any]:
    return {"name": name, "made": made, "is_input": False, "is_output": True}


def _without_ones(sizes: Sequence[str]) -> list[str]:
    """Sizes without trailing ones; at least one of them."""
    kept = list(sizes) or ["1"]
    while len(kept) > 1 and kept[-1] == "1":
        kept.pop()
    return kept


def _short(value: Any) -> str:
    """A value or code on one line."""
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key!r}: {_short(held)}" for key, held in value.items()) + "}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(_short, value))}]"
    else:
        is_code = isinstance(value, Code | Array)
        text = (value.code if isinstance(value, Array) else str(value)) if is_code else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:99]}…"

"""Extracts a Python function and its dependencies in the user's own modules as one text: a slice.

The slice is hashed for fingerprints, and other processes run it without the files. It changes only if
the function, a function that it calls or a global that it uses changes.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.errors import SpecError
from autotune.languages.base import Files
from autotune.syntax import parsed

#: The line before the text of each module.
_MODULE = re.compile(r"^#: module (\S+)$\n", re.MULTILINE)
#: Triton's decorators that choose configurations; this tuner replaces them, so slices drop them.
_TUNERS = ("autotune", "heuristics")
#: Stands for every name of a module.
_ALL = "*"
#: Syntax trees to cache, by text. Each configuration of a kernel needs its source.
_TREES = 64
#: Statements to cache bound and used names of.
_STATEMENTS = 8192


@dataclass(frozen=True)
class FunctionParameter:
    """A parameter of a function as its text declares it."""

    name: str
    #: The annotation's last word, such as ``constexpr``.
    annotation: str
    #: Whether the parameter has a default.
    has_default: bool
    #: Decorator options whose literal list names the parameter, such as ``do_not_specialize``.
    named_in: tuple[str, ...] = ()


def cut(file: Path, functions: Sequence[str], files: Files) -> str:
    """Return the slice of functions of a file; `SpecError` if the file lacks a function."""
    slicer = _Slicer(files)
    module = slicer.module(_dotted(file), file)
    for function in functions:
        if not any(function in _bound(node) for node in module.tree.body):
            raise SpecError(f"{file.name} has no function {function!r}")
        slicer.want(module, function)
    return "\n".join(f"#: module {part.name}\n{part.text()}" for part in slicer.in_order(module))


@cache
def function_parameters(text: str, function: str) -> tuple[FunctionParameter, ...]:
    """Return the parameters of a function of a slice; see `cut`."""
    nodes = _parsed(_parts(text)[-1][1]).body
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function]
    if not found:
        raise SpecError(
            f"the source has no function {function}; name all functions: 'FILE:FUNCTION,FUNCTION'"
        )
    arguments = found[-1].args
    listed = [*arguments.posonlyargs, *arguments.args]
    first = len(listed) - len(arguments.defaults)
    given = [number >= first for number in range(len(listed))]
    given += [default is not None for default in arguments.kw_defaults]
    calls = [node for node in found[-1].decorator_list if isinstance(node, ast.Call)]
    named = [
        (keyword.arg or "", _literals(keyword.value)) for call in calls for keyword in call.keywords
    ]
    return tuple(
        FunctionParameter(
            argument.arg,
            _last_word(argument.annotation),
            has_default,
            tuple(option for option, names in named if argument.arg in names or place in names),
        )
        for place, (argument, has_default) in enumerate(
            zip([*listed, *arguments.kwonlyargs], given, strict=True)
        )
    )


def _literals(node: ast.expr) -> list[object]:
    """Return the constants of a list or tuple; no constants for any other expression."""
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    return [element.value for element in elements if isinstance(element, ast.Constant)]


def run_slice(text: str, function: str) -> Any:
    """Run a slice in temporary modules; return the object that the function's name is bound to."""
    parts = _parts(text)
    names = [name for name, _ in parts]
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    try:
        for name, part in parts:
            module = ModuleType(name)
            if any(other.startswith(f"{name}.") for other in names):
                module.__path__ = []
            module.__package__ = name if hasattr(module, "__path__") else name.rpartition(".")[0]
            _bind(name, module)
            file = f"{name}.py"
            # For `inspect`. Without a time, `linecache` does not compare the text with a file.
            linecache.cache[file] = (len(part), None, StringIO(part).readlines(), file)
            exec(compile(part, file, "exec"), vars(module))
    finally:
        for name, module_here in list(sys.modules.items()):
            if name in names or isinstance(module_here, _Package):
                del sys.modules[name]
        sys.modules.update(before)
    return getattr(module, function)


class _Package(ModuleType):
    """A placeholder for a package whose ``__init__.py`` is not in the slice."""


def _bind(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            package = _Package(parent)
            package.__path__ = []
            _bind(parent, package)
        setattr(sys.modules[parent], last, module)


def _parts(text: str) -> list[tuple[str, str]]:
    """Return the name and text of each module; the function's own module is the last."""
    _, *parts = _MODULE.split(text)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _dotted(file: Path) -> str:
    """Return the full module name of a file, with its packages."""
    names, folder = [] if file.stem == "__init__" else [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    return ".".join(names)


@dataclass(eq=False)
class _Slice:
    """A module and the statements to keep of it."""

    name: str
    file: Path
    lines: list[str]
    tree: ast.Module
    wanted: list[ast.stmt] = field(default_factory=list)
    #: Modules that the kept statements import.
    needs: list[_Slice] = field(default_factory=list)

    def text(self) -> str:
        """Return the kept statements in the order of the file."""
        kept: set[int] = set()
        for node in self.wanted:
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            dropped = {
                line
                for decorator in decorators
                if _last_word(decorator) in _TUNERS
                for line in range(decorator.lineno, (decorator.end_lineno or decorator.lineno) + 1)
            }
            kept |= set(range(first, (node.end_lineno or first) + 1)) - dropped
        return "".join(f"{self.lines[number - 1]}\n" for number in sorted(kept))

    @property
    def is_package(self) -> bool:
        """True for the ``__init__.py`` of a package."""
        return self.file.stem == "__init__"


class _Slicer:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._modules: dict[Path, _Slice] = {}

    def module(self, name: str, file: Path) -> _Slice:
        """Return the module of a file; read each file once."""
        if file not in self._modules:
            text = self._files.read(file)
            try:
                tree = _parsed(text)
            except SyntaxError as error:
                raise SpecError(f"{file.name}:{error.lineno}: syntax error: {error.msg}") from error
            self._modules[file] = _Slice(name, file, text.split("\n"), tree)
        return self._modules[file]

    def want(self, module: _Slice, name: str) -> None:
        """Keep the statements that bind a name, and all statements that they use."""
        for node in module.tree.body:
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            bound = _bound(node)
            if node in module.wanted or not (is_future or {name, _ALL} & bound or name == _ALL):
                continue
            module.wanted.append(node)
            for statement in _imports(node):
                self._follow(module, statement)
            for used in sorted(_used(node)):
                self.want(module, used)

    def _follow(self, module: _Slice, node: ast.Import | ast.ImportFrom) -> None:
        """Keep the statements that an import uses in the user's own modules."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                self._take(module, alias.name, _ALL)
                continue
            source = node.module or ""
            if node.level:
                outer = [*module.name.split("."), *["__init__"] * module.is_package][: -node.level]
                source = ".".join([*outer, *filter(None, [source])])
            if not self._take(module, f"{source}.{alias.name}", _ALL):
                self._take(module, source, alias.name)

    def _take(self, module: _Slice, source: str, name: str) -> bool:
        """Keep a name of a module; return False if the user has no module of that dotted name."""
        folder = module.file.parents[module.name.count(".") + module.is_package]
        found = self._files.module_files(source, folder) if source else []
        if not found or len(found) <= source.count("."):  # a part of the name is not a module
            return False
        other = self.module(source, found[-1])
        if other is not module and other not in module.needs:
            module.needs.append(other)
        self.want(other, name)
        return True

    def in_order(self, module: _Slice) -> list[_Slice]:
        """Return the modules in import order: dependencies first, the given module last."""
        done: dict[str, _Slice] = {}

        def visit(current: _Slice, path: tuple[_Slice, ...]) -> None:
            if current in path:
                raise SpecError(
                    f"{current.file.name} and {path[-1].file.name} import each other; move what both "
                    "use to a third file"
                )
            for needed in current.needs:
                visit(needed, (*path, current))
            done[current.name] = current

        visit(module, ())
        return list(done.values())


@lru_cache(_TREES)
def _parsed(text: str) -> ast.Module:
    return parsed(lambda: ast.parse(text))


@lru_cache(_STATEMENTS)
def _imports(node: ast.stmt) -> list[ast.Import | ast.ImportFrom]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)]


@lru_cache(_STATEMENTS)
def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds; a star import may bind any."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return set(_bound_inside(node))


def _bound_inside(node: ast.stmt) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            yield inner.id
        elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
            yield inner.name
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in inner.names)


@lru_cache(_STATEMENTS)
def _used(node: ast.stmt) -> set[str]:
    """Return the module's names that a statement may use, without a function's local names."""
    if not isinstance(node, ast.FunctionDef):
        return _names(node)
    kept = [decorator for decorator in node.decorator_list if _last_word(decorator) not in _TUNERS]
    own = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
    own |= {name for statement in node.body for name in _bound_inside(statement)}
    inside = {name for statement in node.body for name in _names(statement)}
    outside = {name for part in (*kept, node.args, node.returns) for name in _names(part)}
    return (inside - own) | outside


def _names(node: ast.AST | None) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} if node else set()


def _last_word(node: ast.expr | None) -> str:
    """Return the last part of a dotted name, which may be called or quoted."""
    if isinstance(node, ast.Call):
        return _last_word(node.func)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

"""Cuts a Python function, and all that it uses of a person's own modules, out of their files.

The text stands for the function anywhere: as a fingerprint, and to run it without its files. It changes
with the function, the functions that it calls and the globals that it uses, and with nothing else.
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

#: The line before the text of each module.
_MODULE = re.compile(r"^#: module (\S+)$\n", re.MULTILINE)
#: Decorators that search, which this tuner does.
_TUNERS = ("autotune", "heuristics")
#: Stands for every name of a module.
_ALL = "*"
#: Texts whose trees are kept, and statements whose bound and used names are kept, because each configuration of a
#: kernel needs its source.
_TREES, _STATEMENTS = 64, 8192


@dataclass(frozen=True)
class FunctionParameter:
    """A parameter of a function as its text declares it."""

    name: str
    #: The annotation's last word, such as ``constexpr``.
    annotation: str
    #: Whether the function has a default for it.
    has_default: bool
    #: Decorator options that name it in a list that is written out, such as ``do_not_specialize``.
    named_in: tuple[str, ...] = ()


def cut(file: Path, functions: Sequence[str], files: Files) -> str:
    """Return the text of functions with all that they use; `SpecError` if one is not in the file."""
    slicer = _Slicer(files)
    module = slicer.module(_dotted(file), file)
    for function in functions:
        if not any(function in _bound(node) for node in module.tree.body):
            raise SpecError(f"{file.name} has no function {function!r}")
        slicer.want(module, function)
    return "\n".join(f"#: module {each.name}\n{each.text()}" for each in slicer.in_order(module))


@cache
def function_parameters(text: str, function: str) -> tuple[FunctionParameter, ...]:
    """Return the parameters of a function that `cut` returned."""
    nodes = ast.parse(_parts(text)[-1][1]).body
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function]
    if not found:
        raise SpecError(
            f"no function {function} among those of the source: 'FILE:FUNCTION,FUNCTION' has several"
        )
    arguments = found[-1].args
    listed = [*arguments.posonlyargs, *arguments.args]
    first = len(listed) - len(arguments.defaults)
    given = [number >= first for number in range(len(listed))]
    given += [default is not None for default in arguments.kw_defaults]
    calls = [each for each in found[-1].decorator_list if isinstance(each, ast.Call)]
    named = [(each.arg or "", _literals(each.value)) for call in calls for each in call.keywords]
    return tuple(
        FunctionParameter(
            each.arg,
            _last_word(each.annotation),
            has_default,
            tuple(option for option, names in named if each.arg in names or place in names),
        )
        for place, (each, has_default) in enumerate(
            zip([*listed, *arguments.kwonlyargs], given, strict=True)
        )
    )


def _literals(node: ast.expr) -> list[object]:
    """Return the constants of a list or tuple; of anything else none."""
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    return [each.value for each in elements if isinstance(each, ast.Constant)]


def run_slice(text: str, function: str) -> Any:
    """Run a text of `cut` in modules of its own; return what is bound to the function's name."""
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
            # For `inspect`; without a time it is not compared with a file of that name.
            linecache.cache[file] = (len(part), None, StringIO(part).readlines(), file)
            exec(compile(part, file, "exec"), vars(module))
    finally:
        for name, module_here in list(sys.modules.items()):
            if name in names or isinstance(module_here, _Package):
                del sys.modules[name]
        sys.modules.update(before)
    return getattr(module, function)


class _Package(ModuleType):
    """Stands for a package whose own code is not run."""


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
    """Return name and text of each module, the function's last."""
    _, *parts = _MODULE.split(text)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _dotted(file: Path) -> str:
    """Return the name of a file's module, with the packages that it is in."""
    names, folder = [] if file.stem == "__init__" else [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    return ".".join(names)


@dataclass(eq=False)
class _Slice:
    """A module, and its statements that are wanted."""

    name: str
    file: Path
    lines: list[str]
    tree: ast.Module
    wanted: list[ast.stmt] = field(default_factory=list)
    #: Modules that the wanted statements import.
    needs: list[_Slice] = field(default_factory=list)

    def text(self) -> str:
        """Return the wanted statements in their order."""
        kept: set[int] = set()
        for node in self.wanted:
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            dropped = {
                line
                for each in decorators
                if _last_word(each) in _TUNERS
                for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
            }
            kept |= set(range(first, (node.end_lineno or first) + 1)) - dropped
        return "".join(f"{self.lines[number - 1]}\n" for number in sorted(kept))

    @property
    def is_package(self) -> bool:
        """True for the file that is run for a package itself."""
        return self.file.stem == "__init__"


class _Slicer:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._modules: dict[Path, _Slice] = {}

    def module(self, name: str, file: Path) -> _Slice:
        """Return the module of a file, read once."""
        if file not in self._modules:
            text = self._files.read(file)
            try:
                tree = _parsed(text)
            except SyntaxError as error:
                raise SpecError(f"{file.name}:{error.lineno}: syntax error: {error.msg}") from error
            self._modules[file] = _Slice(name, file, text.split("\n"), tree)
        return self._modules[file]

    def want(self, module: _Slice, name: str) -> None:
        """Take the statements that bind a name, and all that they use."""
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
        """Take what a statement imports of a person's own modules."""
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
        """Take a name of a module, given by its dotted name; return whether there is such a module."""
        folder = module.file.parents[module.name.count(".") + module.is_package]
        found = self._files.of_module(source, folder) if source else []
        if not found or len(found) <= source.count("."):  # a part of the name is no module
            return False
        other = self.module(source, found[-1])
        if other is not module and other not in module.needs:
            module.needs.append(other)
        self.want(other, name)
        return True

    def in_order(self, module: _Slice) -> list[_Slice]:
        """Return a module after the modules that it needs."""
        done: dict[str, _Slice] = {}

        def visit(each: _Slice, path: tuple[_Slice, ...]) -> None:
            if each in path:
                raise SpecError(f"{each.file.name} and {path[-1].file.name} import each other")
            for needed in each.needs:
                visit(needed, (*path, each))
            done[each.name] = each

        visit(module, ())
        return list(done.values())


@lru_cache(_TREES)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@lru_cache(_STATEMENTS)
def _imports(node: ast.stmt) -> list[ast.Import | ast.ImportFrom]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)]


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
    """Return the names of a module that a statement may use; a function's own names are none."""
    if not isinstance(node, ast.FunctionDef):
        return _names(node)
    kept = [each for each in node.decorator_list if _last_word(each) not in _TUNERS]
    own = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    own |= {name for each in node.body for name in _bound_inside(each)}
    inside = {name for each in node.body for name in _names(each)}
    outside = {name for each in (*kept, node.args, node.returns) for name in _names(each)}
    return (inside - own) | outside


def _names(node: ast.AST | None) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node else set()


def _last_word(node: ast.expr | None) -> str:
    """Return the last name of a dotted one, whether it is called, quoted or neither."""
    if isinstance(node, ast.Call):
        return _last_word(node.func)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

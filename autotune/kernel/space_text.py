"""Fingerprints of space files and of the modules that they import, from their text; no file is run.

`autotune.tuned.kernel_files` compares a record with edited files by them, so heavy modules are not imported.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from autotune.files import content_fingerprint
from autotune.kernel.modules import files_of, home_of
from autotune.syntax import parsed

#: Classes whose calls declare a kernel or a source.
_DECLARING = frozenset({"Kernel", "Source"})
#: Arguments of these calls that change results; the others only list values and problems to try.
DECIDING = frozenset(
    {
        "source",
        "sources",
        "code",
        "language",
        "name",
        "static",
        "layout",
        "deterministic",
        "device_macros",
    }
)
#: Arguments that list problems and configurations to try; further arguments are parameters.
LISTS = frozenset(
    {"problems", "quick_problems", "edge_problems", "seeds", "default", "backends", "variants"}
)


class SpaceText(NamedTuple):
    """The text of a space file and of the user's own modules that it imports."""

    #: sha256 of the texts without comments, docstrings, and lists of values and problems.
    fingerprint: str
    #: `content_fingerprint` of each file.
    files: dict[Path, str]
    #: Declared values of each parameter; None if they are computed.
    parameters: dict[str, tuple[object, ...] | None]


def space_text(file: Path) -> SpaceText:
    """Read a space file, and the user's own modules that it imports directly or indirectly.

    The lists of values and problems are arguments of calls of `Kernel` and `Source`. They are left out of the
    fingerprint because a new value or problem does not change older measurements. Installed packages are
    left out, too.
    """
    return _Reached(file).text


def spec_fingerprint(file: Path) -> str:
    """Return the fingerprint of a space file; see `space_text`."""
    return space_text(file).fingerprint


def modules_fingerprint(modules: Iterable[str]) -> str:
    """Return the sha256 of the files of some modules, without installed modules."""
    return _Reached(None, modules).text.fingerprint


class _Reached:
    """The user's own files that a space file, or some modules, import."""

    def __init__(self, space: Path | None, modules: Iterable[str] = ()) -> None:
        self._space = space.resolve() if space else None
        #: The user's own files, each with the folder that contains its outermost package.
        self._homes = {self._space: self._space.parent} if self._space else {}
        self._files: dict[Path, str] = {}
        self._parameters: dict[str, tuple[object, ...] | None] = {}
        for name in modules:
            self._import(name)
        texts: list[str] = []
        while len(texts) < len(self._homes):  # reading a file may add further files
            texts.append(self._text(list(self._homes)[len(texts)]))
        own = 1 if space else 0
        whole = "\n".join([*texts[:own], *sorted(texts[own:])])
        fingerprint = hashlib.sha256(whole.encode()).hexdigest()
        self.text = SpaceText(fingerprint, self._files, self._parameters)

    def _text(self, file: Path) -> str:
        is_space = file == self._space
        name = "" if is_space else f"{os.path.relpath(file, self._homes[file])}\n"
        data = file.read_bytes()
        self._files[file] = content_fingerprint(data)
        try:
            tree = parsed(lambda: ast.parse(data.decode("utf-8-sig")))
            self._drop_lists(tree)
            text = _dumped(tree)
        except (SyntaxError, ValueError, RecursionError):  # binary, broken, or deeply nested
            return name + hashlib.sha256(data).hexdigest()
        for node in ast.walk(tree):
            self._follow(node, file)
        return name + text

    def _drop_lists(self, tree: ast.Module) -> None:
        """Remove the lists of values and problems from the declarations; note the values of parameters."""
        for call in _declarations(tree):
            lists = [keyword for keyword in call.keywords if _only_lists(keyword)]
            call.keywords = [keyword for keyword in call.keywords if keyword not in lists]
            for keyword in lists:
                name = str(keyword.arg)
                if name not in LISTS:
                    known, found = self._parameters.get(name, ()), _values(keyword.value)
                    if known is not None:
                        known = None if found is None else (*known, *found)
                    self._parameters[name] = known

    def _follow(self, node: ast.AST, file: Path) -> None:
        """Add the modules that a statement imports; the last part of a name may be a module or a member."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._import(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if node.module else alias.name
                if node.level:
                    folder = file.parents[min(node.level, len(file.parents)) - 1]
                    self._add(files_of(folder, name), self._homes[file])
                else:
                    self._import(name)

    def _import(self, name: str) -> None:
        top = name.partition(".")[0]
        if home := home_of(top, self._space.parent if self._space else None):
            self._add(files_of(home, name), home)

    def _add(self, files: Iterable[Path], home: Path) -> None:
        for file in files:
            self._homes.setdefault(file, home)


def _declarations(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of `Kernel` and `Source`, as the file imports them from autotune."""
    nodes = list(ast.walk(tree))
    classes, packages = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and _is_own(node.module):
            classes |= {a.asname or a.name for a in node.names if a.name in _DECLARING}
        elif isinstance(node, ast.Import):
            own = (alias for alias in node.names if _is_own(alias.name))
            packages |= {alias.asname or "autotune" for alias in own}
    if names := (classes | packages) - _bound(nodes):
        for node in nodes:
            if isinstance(node, ast.Call) and _is_declaring(node.func, names & classes, names):
                yield node


def _is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "autotune"


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that a file also gives to other objects."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def _is_declaring(function: ast.expr, classes: Set[str], names: Set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in classes
    is_class = isinstance(function, ast.Attribute) and function.attr in _DECLARING
    while isinstance(function, ast.Attribute):
        function = function.value
    return is_class and isinstance(function, ast.Name) and function.id in names


def _only_lists(keyword: ast.keyword) -> bool:
    """Return whether an argument of a declaration only lists values or problems, and binds no name."""
    binds = any(isinstance(node, ast.NamedExpr) for node in ast.walk(keyword.value))
    return not (keyword.arg is None or keyword.arg in DECIDING or binds)


def _values(node: ast.expr) -> tuple[object, ...] | None:
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return tuple(ast.literal_eval(node))
    return None


def _dumped(node: object) -> str:
    """Return a syntax tree as text without docstrings, equal in every version of Python.

    `ast.dump` is not: since Python 3.13 it leaves out empty fields, and new versions add empty fields.
    """
    if isinstance(node, list):
        return f"[{','.join(_dumped(item) for item in node if not _is_docstring(item))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    dumped = ((name, _dumped(value)) for name, value in ast.iter_fields(node))
    fields = [f"{name}={text}" for name, text in dumped if text not in ("None", "[]")]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

"""Source text of a kernel with its own includes inlined, and fingerprints of what decides results.

Knows files, not compilers. Inlining makes a source one text: the same for every backend, with
nothing else to ship to a compiler process or to fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from autotune.devices.base import with_defines
from autotune.errors import SpecError
from autotune.kernel.catalog import bundled_folder, is_of_file
from autotune.kernel.functions import Description
from autotune.kernel.modules import files_of, home_of
from autotune.kernel.spec import Kernel
from autotune.kernel.trust import refuse_foreign
from autotune.values import Configuration, Problem

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
#: Git answers within this, or is not asked.
_GIT_S = 10.0
#: Options of `Kernel` that say what to try or where, not what is computed.
_SEARCH_OPTIONS = frozenset(
    {"problems", "quick_problems", "edge_problems", "seeds", "default", "backends"}
)
#: Its other options; everything else that it is given is a parameter.
_DECIDING_OPTIONS = (
    frozenset(inspect.signature(Kernel).parameters) - {"parameters"} - _SEARCH_OPTIONS
)
#: Hooks that decide which configurations are tried or how results are judged against others.
_SEARCH_HOOKS = frozenset(
    {
        "constraint",
        "applies",
        "baseline",
        "requires",
        "exclusive",
        "deterministic",
        "call",
        "metric",
    }
)
#: Packages whose versions are not in the fingerprint: `measure.data` has numpy's, beside a version of its own.
_OWN_PACKAGES = frozenset({"numpy", "autotune"})

#: Texts by file, each with a stamp of every place that was looked at for it.
_known: dict[Path, tuple[dict[Path, tuple[int, ...]], str]] = {}


def flattened(file: Path) -> str:
    """Read a source and replace each ``#include "file"`` of ours by that file's text.

    Files are looked for beside the including one, then among the bundled kernels, where
    ``dialect.h`` is. A file is inlined once, at its first include. Includes that are not found are left to the
    compiler. ``#line`` keeps compiler messages true to the original files. Nothing is read again
    before something of it changed.

    Raises
    ------
    SpecError
        If a file cannot be read, or is not mine; see `trust`.
    """
    stamps, text = _known.get(file, ({}, ""))
    if not stamps or any(_stamp(place) != stamp for place, stamp in stamps.items()):
        stamps = {}
        try:
            text = _inlined(file, stamps)
        except RecursionError:
            raise SpecError(f"source {file.name}: includes are nested too deeply") from None
        _known[file] = stamps, text
    return text


def _inlined(file: Path, stamps: dict[Path, tuple[int, ...]]) -> str:
    """A file with its includes; notes every place that it looked at."""
    stamps[file] = _stamp(file)
    try:
        refuse_foreign(file)
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"source {file.name} cannot be read: {error}") from error
    return _with_includes(text, file, stamps)


def _with_includes(text: str, file: Path, stamps: dict[Path, tuple[int, ...]]) -> str:
    """A text with its includes, which are looked for as if it stood in that file."""

    def replace(match: re.Match[str]) -> str:
        places = (file.parent / match[1], bundled_folder("kernels") / match[1])
        absent = list(takewhile(lambda place: not place.is_file(), places))
        stamps.update(dict.fromkeys(absent, ()))
        if len(absent) == len(places):
            return match[0]
        included, line = places[len(absent)], text.count("\n", 0, match.start()) + 2
        body = "" if _stamp(included) in stamps.values() else _inlined(included, stamps)
        return f'#line 1 "{included.name}"\n{body}\n#line {line} "{file.name}"'

    return f'#line 1 "{file.name}"\n' + _INCLUDE.sub(replace, text)


def _stamp(place: Path) -> tuple[int, ...]:
    """What changes when a file, its owner or mode does; empty where there is none."""
    try:
        status = place.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def text_fingerprint(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def source_of(kernel: Kernel, configuration: Configuration, problem: Problem) -> str:
    """The text a compiler gets of a configuration, with its defines in front."""
    text = source_text(kernel, kernel.source_file(configuration))
    return with_defines(text, kernel.macros(configuration, problem))


def source_text(kernel: Kernel, file: Path) -> str:
    """A source of a kernel, `flattened`: as it is, or as it was when it was frozen."""
    if frozen := kernel.texts.get(file):
        return frozen
    if file.name in kernel.written:
        return _with_includes(kernel.written[file.name], file, {})
    return flattened(file)


def frozen_sources(kernel: Kernel) -> dict[Path, str]:
    """The sources of a kernel as they are now; as its ``texts`` they stay so for all of a run."""
    files = map(kernel.find_source, kernel.sources.values())
    return {file: source_text(kernel, file) for file in files}


def source_fingerprint(kernel: Kernel) -> str:
    """sha256 of all sources of a kernel with their includes."""
    files = map(kernel.find_source, kernel.sources.values())
    return text_fingerprint("\n".join(source_text(kernel, file) for file in files))


def source_commit(kernel: Kernel) -> str:
    """The git commit of a space file and its sources, ``-dirty`` where one of them differs from it.

    Empty where git does not know one of them, or is not there.
    """
    if kernel.file is None:
        return ""
    files = [kernel.file, *map(kernel.find_source, kernel.sources.values())]
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(kernel.file.parent), "status"]
    command += ["--porcelain=v2", "--branch", "--untracked-files=all", "--ignored", "--"]
    try:
        done = subprocess.run(
            [*command, *map(str, files)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    said = done.stdout.splitlines()
    commit = next((line.split()[2] for line in said if line.startswith("# branch.oid ")), "")
    about = [line for line in said if not line.startswith("#")]
    if not commit.isalnum() or any(line.startswith(("?", "!")) for line in about):
        return ""
    return f"{commit}-dirty" if about else commit


def arguments_fingerprint(kernel: Kernel, inputs: Iterable[str] = ()) -> str:
    """sha256 of what a kernel of a space file is given and asked for: see `spec_fingerprint`.

    ``inputs`` are the names of arguments that the user gave in place of drawn ones.
    """
    return text_fingerprint(own_fingerprint(kernel) + ",".join(sorted(inputs)))


def changed_since(
    kernel: Kernel, source: str, arguments: str, inputs: Iterable[str] = ()
) -> tuple[str, ...]:
    """What of a kernel is not what these fingerprints were taken of, for a person; empty: nothing.

    ``source`` is of `source_fingerprint`, ``arguments`` of `arguments_fingerprint` with ``inputs``.

    Raises
    ------
    SpecError
        If a source cannot be read.
    """
    changed = []
    if source != source_fingerprint(kernel):
        changed.append("its source changed")
    if arguments != arguments_fingerprint(kernel, inputs):
        changed.append("its arguments, reference, launch or options changed")
    return tuple(changed)


def own_fingerprint(kernel: Kernel) -> str:
    """`spec_fingerprint` of a kernel's file when this was first asked: of the functions that it has.

    The file may be edited while they are in use; what they make must not pass for the new ones'.
    Of a kernel in no space file it is taken of its functions, each time: values that they use of a
    notebook change. A snapshot keeps the one that it was taken with.
    """
    if not kernel.fingerprint and is_of_file(kernel):
        assert kernel.file is not None
        kernel.fingerprint = spec_fingerprint(kernel.file)
    return kernel.fingerprint or _functions_fingerprint(kernel)


def _functions_fingerprint(kernel: Kernel) -> str:
    found = functions_of(kernel)
    return text_fingerprint(found.text + modules_fingerprint(found.modules))


def functions_of(kernel: Kernel) -> Description:
    """What decides the results of a kernel in no space file, as `spec_fingerprint` says it of others."""
    hooks = sorted(kernel.hooks.keys() - _SEARCH_HOOKS)
    options = (kernel.sources, kernel.static, kernel.layout)
    return Description(kernel.module, [options, *((name, kernel.hooks[name]) for name in hooks)])


def modules_fingerprint(modules: Iterable[str]) -> str:
    """sha256 of the person's own among some modules, as they are on the disk, and versions of others."""
    return text_fingerprint("\n".join(_Reached(None, modules).texts))


def spec_fingerprint(file: Path) -> str:
    """sha256 of the part of a space file that decides what a measurement means.

    Parameter lists, constraints, seeds, problems, comments and docstrings are left out, so that a
    new value in a list makes nothing already measured obsolete; what arguments, reference, launch
    and everything they call do is in: the person's own modules that the file imports, and those
    that they import, too, and the versions of installed packages.
    """
    return text_fingerprint("\n".join(_Reached(file).texts))


class _Reached:
    """The files and packages that a space file, or some modules, import."""

    def __init__(self, space: Path | None, modules: Iterable[str] = ()) -> None:
        self._space = space.resolve() if space else None
        #: The person's own files, and of each the folder of its outermost package.
        self._homes: dict[Path, Path] = {}
        self._packages: set[str] = set()
        if self._space:
            self._homes[self._space] = self._space.parent
        for name in modules:
            self._import(name)
        texts: list[str] = []
        while len(texts) < len(self._homes):  # reading one may find more
            texts.append(self._text(list(self._homes)[len(texts)]))
        first = [texts.pop(0)] if space else []
        versions = {package: _version(package) for package in sorted(self._packages)}
        self.texts = [
            *first,
            *sorted(texts),
            *(f"{n} {known}" for n, known in versions.items() if known),
        ]

    def _text(self, file: Path) -> str:
        is_space = file == self._space
        name = "" if is_space else f"{os.path.relpath(file, self._homes[file])}\n"
        try:
            nodes = _deciding(ast.parse(file.read_text(encoding="utf-8-sig")), is_space)
            text = "\n".join(map(_dumped, nodes))
        except (SyntaxError, ValueError, RecursionError):  # compiled, broken, or deep expressions
            return name + hashlib.sha256(file.read_bytes()).hexdigest()
        for node in (inner for outer in nodes for inner in ast.walk(outer)):
            self._follow(node, file)
        return name + text

    def _follow(self, node: ast.AST, file: Path) -> None:
        """Note the modules that a statement imports; the last part of a name may be something in one."""
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
        if top in _OWN_PACKAGES or top in sys.stdlib_module_names:
            return
        if home := home_of(top, self._space.parent if self._space else None):
            self._add(files_of(home, name), home)
        else:
            self._packages.add(top)

    def _add(self, files: Iterable[Path], home: Path) -> None:
        for file in files:
            self._homes.setdefault(file, home)


def _deciding(tree: ast.Module, is_space: bool) -> list[ast.stmt]:
    """The statements of a module, less those that decide no result."""
    drop = _only_searches if is_space else _is_text
    nodes = [node for node in tree.body if not drop(node)]
    for node in nodes:
        for inner in ast.walk(node):
            _strip(inner)
    return nodes


def _version(package: str) -> str:
    """Return the version of the distributions that bring a package; empty where there is none."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # most are called like what they bring
        brought = sorted(set(metadata.packages_distributions().get(package, ())))
        return " ".join(f"{name} {metadata.version(name)}" for name in brought)


def _dumped(tree: ast.AST) -> str:
    """A syntax tree as text that is the same in every version of Python, however deep it is.

    `ast.dump` leaves out empty fields since 3.13, and new versions add fields that are empty.
    """
    written: list[str] = []
    waiting: list[object] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Mark):
            written.append(node)
        elif isinstance(node, list):
            items = [part for item in node for part in (_Mark(","), item)]
            waiting += reversed([_Mark("["), *items[1:], _Mark("]")])
        elif isinstance(node, ast.AST):
            fields = [
                part
                for name, value in ast.iter_fields(node)
                if value is not None and value != []
                for part in (_Mark(","), _Mark(f"{name}="), value)
            ]
            waiting += reversed([_Mark(f"{type(node).__name__}("), *fields[1:], _Mark(")")])
        else:
            written.append(repr(node))
    return "".join(written)


class _Mark(str):
    """What stands between the values of a tree as text."""


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _only_searches(node: ast.stmt) -> bool:
    if _is_text(node):
        return True
    if not isinstance(node, ast.FunctionDef):
        return False
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(target, ast.Attribute) and target.attr in _SEARCH_HOOKS:
            return True
    return False


def _strip(node: ast.AST) -> None:
    """Remove docstrings, and what a `Kernel(...)` call says of the search."""
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    if isinstance(node, ast.Call) and _called_name(node.func) == "Kernel":
        node.keywords = [
            keyword
            for keyword in node.keywords
            if keyword.arg is None or keyword.arg in _DECIDING_OPTIONS
        ]


def _called_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

"""Returns the texts of a kernel's sources, and fingerprints of sources and space files."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import pickle
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dis import get_instructions
from functools import _lru_cache_wrapper, partial
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from autotune.devices.base import with_defines
from autotune.devices.device import CUDA_ARCHS, Device, for_arch
from autotune.errors import SpecError
from autotune.kernel.catalog import is_of_file
from autotune.kernel.includes import (
    SearchPath,
    SourceText,
    flattened,
    read_bytes,
    read_text,
    search_path,
    text_fingerprint,
)
from autotune.kernel.modules import files_of, home_of
from autotune.kernel.rules import Call, Source
from autotune.kernel.spec import Kernel
from autotune.values import SOURCE, Configuration, Problem

#: A device of every architecture, for compiler options that depend on it.
_DEVICES = (
    *map(for_arch, CUDA_ARCHS),
    *(Device("opencl", arch, arch) for arch in ("opencl_cpu", "opencl_gpu")),
)

#: Options of `Kernel` and `Source` that change results; the others only list values and problems to try.
#: Other keywords are parameters.
_DECIDING_OPTIONS = frozenset(
    [*inspect.signature(Kernel).parameters, *inspect.signature(Source).parameters]
) - {
    *("parameters", "problems", "quick_problems", "edge_problems", "seeds", "default", "backends"),
    "variants",
}
#: Hooks that do not change the result of a configuration on a problem.
_SEARCH_HOOKS = frozenset({"requires", "exclusive", "deterministic", "call"})
#: Attributes that Python adds to every class.
_GENERATED = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotations_cache__"),
}


def source_of(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> str:
    """Return the text that a compiler gets for a configuration, including its defines."""
    text = source_text(kernel, configuration, device).text
    return (
        text
        if kernel.language
        else with_defines(text, kernel.macros(configuration, problem, device))
    )


def source_text(kernel: Kernel, configuration: Configuration, device: Device) -> SourceText:
    """Return the source of a configuration: the frozen text if there is one, else the file's."""
    path = _search_path(kernel, configuration, device)
    return _text_of(kernel, kernel.source_file(configuration), path)


def _text_of(kernel: Kernel, file: Path, path: SearchPath) -> SourceText:
    if frozen := kernel.texts.get((file, path)):
        return frozen
    if kernel.language:
        place, _, functions = str(file).rpartition(":")
        text = kernel.language.source(Path(place), functions.split(","), _OwnFiles())
        return SourceText(text)
    return flattened(file, path, kernel.written.get(file.name))


class _OwnFiles:
    """See `autotune.languages.base.Files`."""

    read = staticmethod(read_text)
    read_bytes = staticmethod(read_bytes)

    def module_files(self, name: str, folder: Path) -> list[Path]:
        home = home_of(name.partition(".")[0], folder)
        found = files_of(home, name) if home else ()
        return [file for file in found if file.suffix == ".py"]


def search_paths(kernel: Kernel) -> tuple[SearchPath, ...]:
    """Return the search paths of a kernel for every value of every parameter, on all devices."""
    devices = [device for device in _DEVICES if device.backend in kernel.backends]
    found = dict[SearchPath, None]()
    for default in map(kernel.default, kernel.sources):
        if not kernel.has_hook("options", default):
            found[search_path((), "opencl" in kernel.backends)] = None
            continue
        count = len(devices) if kernel.takes_device("options", default) else 1
        for configuration, device in product(_one_by_one(kernel, default), devices[:count]):
            with suppress(SpecError):  # mostly because the configuration is not valid
                found[_search_path(kernel, configuration, device)] = None
    return tuple(found) or (SearchPath(),)


def _search_path(kernel: Kernel, configuration: Configuration, device: Device) -> SearchPath:
    options = kernel.compiler_options(configuration, device)
    return search_path(options, "opencl" in kernel.backends)


def _one_by_one(kernel: Kernel, default: Configuration) -> Iterator[Configuration]:
    """Yield a configuration for each value of each parameter of the source that ``default`` belongs to."""
    named = {name: value for name, value in default.items() if name == SOURCE}
    for name, values in kernel.source_of(default).parameters.items():
        for value in values:
            yield kernel.completed({**named, name: value})


def frozen_sources(kernel: Kernel) -> dict[tuple[Path, SearchPath], SourceText]:
    """Return the current sources of a kernel; a run keeps them in ``Kernel.texts``."""
    files = dict.fromkeys(map(kernel.find_source, kernel.files.values()))
    return {
        (file, path): _text_of(kernel, file, path)
        for path in search_paths(kernel)
        for file in files
    }


def source_fingerprint(kernel: Kernel) -> str:
    """Return the sha256 of all sources of a kernel and all files that they include."""
    texts = dict.fromkeys(source.identity for source in frozen_sources(kernel).values())
    return text_fingerprint("\n".join(texts))


def arguments_fingerprint(kernel: Kernel, problem: Problem) -> str:
    """Return the fingerprint of a kernel's functions; a record keeps it with each problem."""
    return text_fingerprint(own_fingerprint(kernel.of_problem(problem)))


def changed_since(kernel: Kernel, source: str, arguments: str) -> tuple[str, ...]:
    """Return phrases that describe the changes of a kernel since these fingerprints.

    ``source`` is a result of `source_fingerprint`, ``arguments`` of `arguments_fingerprint` for any problem.
    """
    changed = []
    if source != source_fingerprint(kernel):
        changed.append("its source changed")
    current = {kernel, *map(kernel.of_problem, kernel.all_problems())}
    if all(arguments != text_fingerprint(own_fingerprint(variant)) for variant in current):
        changed.append("its arguments, reference, launch or options changed")
    return tuple(changed)


def own_fingerprint(kernel: Kernel) -> str:
    """Return the fingerprint of a kernel's functions.

    For a space file it is the `spec_fingerprint` at the first call, because users may edit the file during
    a run. For a notebook it is computed at each call, because values change. A kernel restored from
    `kernel.snapshot` keeps the fingerprint it was saved with.
    """
    if not kernel.fingerprint and is_of_file(kernel):
        assert kernel.file is not None
        kernel.fingerprint = spec_fingerprint(kernel.file, kernel.places)
    if kernel.fingerprint:
        return kernel.fingerprint
    found = functions_of(kernel)
    return text_fingerprint(found.text + modules_fingerprint(found.modules))


def functions_of(kernel: Kernel) -> Description:
    """Return a description of the values and functions that decide the results of a script's kernel."""
    options = (kernel.files, kernel.static, kernel.layout)
    facts = [source.device_macros for source in kernel.sources.values() if source.device_macros]
    hooks = [
        (name, owner.hooks[name])
        for owner in (kernel, *kernel.sources.values())
        for name in sorted(owner.hooks.keys() - _SEARCH_HOOKS)
    ]
    return Description(kernel.module, [options, *facts, *hooks])


def modules_fingerprint(modules: Iterable[str]) -> str:
    """Return the sha256 of the files of some modules, without installed modules."""
    return text_fingerprint("\n".join(_Reached(None, modules).texts))


def spec_fingerprint(file: Path, calls: Iterable[Call] = ()) -> str:
    """Return the sha256 of a space file, without comments, docstrings and lists of values and problems.

    These lists are arguments of the given calls of `Kernel` and `Source`. They are left out because a new
    value or problem does not change older measurements. The user's own modules that the file imports,
    directly or indirectly, are included; installed packages are not.
    """
    return text_fingerprint("\n".join(_Reached(file, calls=calls).texts))


class _Reached:
    """The user's own files that a space file, or some modules, import."""

    def __init__(
        self,
        space: Path | None,
        modules: Iterable[str] = (),
        calls: Iterable[Call] = (),
    ) -> None:
        self._space, self._calls = space.resolve() if space else None, tuple(calls)
        #: The user's own files, each with the folder that contains its outermost package.
        self._homes = {self._space: self._space.parent} if self._space else {}
        for name in modules:
            self._import(name)
        texts: list[str] = []
        while len(texts) < len(self._homes):  # reading a file may add further files
            texts.append(self._text(list(self._homes)[len(texts)]))
        own = 1 if space else 0
        self.texts = [*texts[:own], *sorted(texts[own:])]

    def _text(self, file: Path) -> str:
        is_space = file == self._space
        name = "" if is_space else f"{os.path.relpath(file, self._homes[file])}\n"
        try:
            tree = ast.parse(file.read_text(encoding="utf-8-sig"))
            ends = {(call.line, call.column) for call in self._calls if call.file == file.resolve()}
            _drop_lists(tree, ends)
            text = _dumped(tree)
        except (SyntaxError, ValueError, RecursionError):  # binary, broken, or deeply nested
            return name + hashlib.sha256(file.read_bytes()).hexdigest()
        for node in ast.walk(tree):
            self._follow(node, file)
        return name + text

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


def _drop_lists(tree: ast.Module, ends: Collection[tuple[int, int]]) -> None:
    """Remove the lists of values and problems from the calls that end at these lines and columns."""
    for node in ast.walk(tree) if ends else ():
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) in ends:
            node.keywords = [keyword for keyword in node.keywords if not _only_lists(keyword)]


def _only_lists(keyword: ast.keyword) -> bool:
    """Return whether an argument of `Kernel` only lists values or problems, and binds no name."""
    binds = any(isinstance(node, ast.NamedExpr) for node in ast.walk(keyword.value))
    return not (keyword.arg is None or keyword.arg in _DECIDING_OPTIONS or binds)


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


class Description:
    """A text of functions of the module ``home`` and of other values; equal values have equal texts."""

    def __init__(self, home: str, values: Iterable[object]) -> None:
        self._home = home
        #: Functions and classes by identity; references keep other objects from reusing the identity.
        self._met: dict[int, object] = {}
        #: Identities of the objects that contain the current one.
        self._inside: set[int] = set()
        #: Modules that the functions use.
        self.modules: set[str] = set()
        self.text = " ".join(map(self._text, values))

    def _text(self, value: object) -> str:
        if isinstance(value, ModuleType):
            return self._name(value.__name__, "")
        if isinstance(value, Kernel):
            return f"kernel {value.name}"
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            return repr(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, FunctionType | type):
            return self._definition(value)
        if id(value) in self._inside:
            return "itself"
        self._inside.add(id(value))
        text = self._composed(value)
        self._inside.remove(id(value))
        return text

    def _definition(self, value: FunctionType | type) -> str:
        module = str(value.__module__)
        if module not in ("__main__", self._home) and module in sys.modules:
            return self._name(module, value.__qualname__)
        if id(value) in self._met:
            return f"#{list(self._met).index(id(value))}"
        self._met[id(value)] = value
        return self._composed(value)

    def _composed(self, value: object) -> str:
        return f"{type(value).__name__}[{' '.join(self._parts(value))}]"

    def _parts(self, value: object) -> Iterator[str]:
        if isinstance(value, set | frozenset):
            yield from sorted(Description(self._home, [item]).text for item in value)
        elif (parts := _parts_of(value)) is not None:
            yield from map(self._text, parts)
        else:
            yield self._text(type(value))
            try:
                yield hashlib.sha256(pickle.dumps(value, 4)).hexdigest()
            except Exception:  # for example an instance of a class of the script
                yield self._text(dict(getattr(value, "__dict__", {})))

    def _name(self, module: str, name: str) -> str:
        self.modules.add(module)
        return f"{module}:{name}"

    def _code(self, code: CodeType) -> str:
        steps = get_instructions(code)
        self.modules.update(str(step.argval) for step in steps if step.opname == "IMPORT_NAME")
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        done = hashlib.sha256(code.co_code + code.co_exceptiontable).hexdigest()
        return f"{done} {names} {' '.join(map(self._text, code.co_consts))}"


def _parts_of(value: object) -> Iterable[object] | None:
    """Return the parts of a value; None if only pickle can describe the value."""
    if type(value) is tuple or type(value) is list:
        return value
    if type(value) is dict:
        return [part for item in value.items() for part in item]
    if isinstance(value, _lru_cache_wrapper):
        return [value.__wrapped__]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        own = {name: part for name, part in vars(value).items() if name not in _GENERATED}
        return [
            value.__qualname__,
            value.__bases__,
            *(part for item in sorted(own.items()) for part in item),
        ]
    return None


def _of_function(function: FunctionType) -> Iterator[object]:
    code = function.__code__
    if code.co_consts[:1] == (function.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    yield code
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty
            yield cell.cell_contents
    for name in sorted(_names(code) & function.__globals__.keys()):
        yield from (name, function.__globals__[name])


def _names(code: CodeType) -> set[str]:
    """Return the names that code, and code nested in it, may look up as globals."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names(part))}
